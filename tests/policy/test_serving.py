"""The pack as a process: started as the engine starts it, from its own folder and with nothing on the module path."""

import os
import subprocess
import sys
from pathlib import Path

import grpc
import yaml
from google.protobuf import empty_pb2
from pulumi.runtime.proto import analyzer_pb2_grpc

from policy.pack import NAME, POLICIES

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60


def test_the_pack_finds_the_program_and_serves_every_policy() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PULUMI_"))}
    command = [sys.executable, "-u", "-m", "pulumi.policy", "127.0.0.1:1", str(ROOT / "policy")]
    with subprocess.Popen(
        command, cwd=ROOT / "policy", env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                pack = analyzer_pb2_grpc.AnalyzerStub(channel).GetAnalyzerInfo(
                    empty_pb2.Empty(), timeout=START_TIMEOUT_S
                )
        finally:
            process.kill()
    assert pack.name == NAME
    assert [policy.name for policy in pack.policies] == [policy.name for policy in POLICIES]


def test_the_pack_runs_with_the_packages_of_the_program() -> None:
    of_program = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["runtime"]["options"]
    of_pack = yaml.safe_load((ROOT / "policy/PulumiPolicy.yaml").read_text())["runtime"]["options"]
    assert (ROOT / "policy" / of_pack["virtualenv"]).resolve() == (ROOT / of_program["virtualenv"]).resolve()
    assert of_pack["toolchain"] == of_program["toolchain"]
