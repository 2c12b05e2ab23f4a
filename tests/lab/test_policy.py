"""The policy pack under the real engine: a site that is up passes, what violates stops, what is advisory does not."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab import control
from lab.engine import Engine
from tests.lab.conftest import Lab, processes_of

pytestmark = pytest.mark.lab

SITE = "sp"
PREVIEW_TIMEOUT_S = 180
API = """
import pulumi_kubernetes as k8s
api = pulumi.ResourceOptions(provider=k8s.Provider("added-api", kubeconfig=pulumi.Output.secret("{}")))
"""
ADVISORY = f"{API}k8s.core.v1.Namespace('added', metadata={{'name': 'added'}}, opts=api)\n"
MANDATORY = f"""{ADVISORY}
key = pulumi.Config("fleet").require("sshPrivateKey")
k8s.core.v1.ConfigMap("touched", metadata={{"name": "tutor-openedx"}}, data={{"key": key}}, opts=api)
"""


def preview(lab: Lab) -> tuple[int, str]:
    place, pack = lab.checkout.place, lab.checkout.root / "policy"
    pulumi = [str(lab.checkout.toolchain / "pulumi"), "preview", "--stack", SITE, "--policy-pack", str(pack)]
    done = subprocess.run(
        control.inside(place.root, [*pulumi, "--cwd", str(place.work), "--non-interactive", "--color", "never"]),
        env=Engine(place, lab.checkout.toolchain).environment(), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=PREVIEW_TIMEOUT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@contextmanager
def added(lab: Lab, text: str) -> Iterator[None]:
    """The lab's program, with a few more lines."""
    program = lab.checkout.place.work / "__main__.py"
    before = program.read_text()
    program.write_text(before + text)
    try:
        yield
    finally:
        program.write_text(before)


def test_a_site_that_is_up_passes(lab: Lab) -> None:
    code, out = preview(lab)
    assert code == 0, out
    assert "✅ fleet@v" in out
    assert "[mandatory]" not in out
    assert "not judged" not in out
    assert "can't run" not in out
    assert not [process for process in processes_of(lab.checkout.place) if "pulumi.policy" in process]


def test_a_violation_stops_the_preview_and_is_named_and_shows_no_secret(lab: Lab) -> None:
    with added(lab, MANDATORY):
        code, out = preview(lab)
    assert code != 0, out
    for policy in ("ARG-13-production-app-is-left-alone", "SEC-07-secrets-are-marked"):
        assert f"[mandatory]  {policy}  (kubernetes:core/v1:ConfigMap: touched)" in out
    assert "data.key: expected" in out
    made_up = json.loads(lab.checkout.place.secrets.read_text())[SITE]
    for secret in ("root_password", "api_token_secret"):
        assert made_up[secret] not in out
    assert not [line for line in made_up["ssh_private_key"].splitlines()[1:-1] if line in out]


def test_an_advisory_one_is_named_and_lets_the_preview_pass(lab: Lab) -> None:
    with added(lab, ADVISORY):
        code, out = preview(lab)
    assert code == 0, out
    assert "[advisory]  NAMESPACES-say-their-pod-security  (kubernetes:core/v1:Namespace: added)" in out
    assert "[mandatory]" not in out
