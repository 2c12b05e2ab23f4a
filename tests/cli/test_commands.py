"""The other commands, and how every command ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
from pulumi.runtime import set_all_config

from cli import faults, reference, rulebook
from cli.plan import declare
from infra.config import Fleet
from infra.config.loading import stack_files
from infra.config.reader import read
from infra.names import BGP_PASSWORD, MESH_SECRETS, ROOT_PASSWORD, SECRETS
from infra.rules import RULES
from infra.stack import inputs
from infra.violation import InvariantError, Violation
from lab import LabError
from tests.cli import project
from tests.cli.project import ROOT, fleet_process

COMMANDS = ("check", "plan", "rules", "schema", "toolchain", "runbook", "render", "test", "lab", "vyos", "credentials")


def test_help_names_every_command_and_imports_none_of_them() -> None:
    probe = (
        "import sys; from typer.testing import CliRunner; import cli.app; "
        "print(CliRunner().invoke(cli.app.app, ['--help']).output); "
        "print([name for name in ('pulumi', 'pulumi_kubernetes', 'pydantic', 'lab') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert all(f"  {command} " in done.stdout for command in COMMANDS)
    assert done.stdout.rstrip().endswith("[]")


def test_a_check_does_not_wait_for_the_kubernetes_sdk() -> None:
    probe = (
        "import sys; from cli import documents; documents.judged(documents.ROOT); "
        "print([name for name in ('pulumi_kubernetes', 'pulumi_proxmoxve') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [("nonsense",), ("plan",), ("check", "--nonsense"), ("lab", "up", "--nonsense")])
def test_a_wrong_command_line_is_a_message_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    ran = project.fleet(*arguments)
    assert ran.code == 2
    assert "Usage: " in ran.err


def test_rules_lists_each_rule_with_its_statement() -> None:
    ran = project.fleet("rules")
    assert ran.code == 0
    assert all(f"\n{id} " in ran.out for id in RULES)
    assert all(f"{rule.statement}\n" in ran.out for rule in RULES.values())


def test_rules_tells_of_every_invariant_where_it_is_kept_and_what_asserts_it() -> None:
    listed = json.loads(project.fleet("rules", "--json").out)
    own = [entry for entry in listed if entry["own"]]
    assert len(listed) - len(own) == 316
    assert {entry["id"].split("-")[0] for entry in own} == {"DOC"}
    fields = ("id", "level", "scope", "statement", "source", "home", "test")
    assert all(set(fields) <= set(entry) for entry in listed)
    assert all(entry[field] for entry in listed for field in fields if field != "test")
    by_id = {entry["id"]: entry for entry in listed}
    assert "infra/rules/net.py" in by_id["NET-09"]["home"]
    assert "tests/invalid/NET-09.yaml" in by_id["NET-09"]["test"]
    assert by_id["MET-10"]["test"] == by_id["K3S-01"]["test"]


def test_one_rule_is_told_in_full() -> None:
    ran = project.fleet("rules", "cil-08")
    assert ran.code == 0
    for word in ("CIL-08", "scope", "gpu", "CPPS-ADR-009", "infra/rules/cil.py", "CIL-08-case.yaml", "l7-audit"):
        assert word in ran.out
    assert "CIL-09" not in ran.out


def test_a_row_that_no_rule_checks_says_what_the_program_does() -> None:
    ran = project.fleet("rules", "GPU-21")
    assert "behaviour" in ran.out
    assert "test_gpu_21_no_node_has_a_taint" in ran.out


def test_the_page_of_the_rules_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(rulebook, "ROOT", tmp_path)
    ran = project.fleet("rules", "--write")
    assert (ran.code, ran.out) == (0, "wrote docs/rules.md\n")
    assert (tmp_path / "docs/rules.md").read_text(encoding="utf-8") == rulebook.page()


@pytest.mark.parametrize(("wanted", "found"), [("NET", {"NET"}), ("net-09", {"NET"})])
def test_rules_narrows_to_a_family_or_an_id(wanted: str, found: set[str]) -> None:
    listed = json.loads(project.fleet("rules", wanted, "--json").out)
    assert {entry["id"].split("-")[0] for entry in listed} == found
    assert len(listed) == (21 if wanted == "NET" else 1)


def test_an_unknown_rule_is_answered_with_the_families() -> None:
    ran = project.fleet("rules", "XYZ")
    assert ran.code == 1
    assert "K3S, KAR, KUE, LXC" in ran.text


def test_rules_fit_a_narrow_terminal() -> None:
    ran = fleet_process("rules", "CIL", COLUMNS="40")
    assert max(len(line) for line in ran.out.splitlines()) <= 40


def test_the_schema_accepts_the_shipped_stack_files() -> None:
    schema = json.loads(project.fleet("schema").out)
    for path in stack_files(ROOT).values():
        jsonschema.validate(read(path)[0], schema)


def test_the_project_schema_accepts_the_project_file() -> None:
    jsonschema.validate(read(ROOT / "Pulumi.yaml")[0], json.loads(project.fleet("schema", "--project").out))


def test_generated_files_match_the_models() -> None:
    stale = [path for path, text in reference.documents().items() if (ROOT / path).read_text() != text]
    assert not stale, "run: ./fleet schema --write"


def test_the_runbook_names_host_container_and_every_device() -> None:
    ran = project.fleet("runbook", "sp", "lxc-host")
    assert ran.code == 0
    for word in ("pve-ippri-31", "gpu-sp-01", "/dev/nvidia-uvm-tools", "/dev/kmsg", "lxc.cap.drop"):
        assert word in ran.out


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [(("sp", "coffee"), "lxc-host"), (("paris", "lxc-host"), "franca, sp"), (("franca", "lxc-host"), "no container")],
)
def test_a_runbook_that_does_not_exist_is_answered(arguments: tuple[str, str], answer: str) -> None:
    ran = project.fleet("runbook", *arguments)
    assert ran.code == 1
    assert answer in ran.err


def test_the_toolchain_is_listed_without_changing_anything(tmp_path: Path) -> None:
    ran = fleet_process("toolchain", XDG_CACHE_HOME=str(tmp_path))
    assert ran.code == 0, ran.text
    assert all(program in ran.out for program in ("pulumi", "etcd", "kube-apiserver"))
    assert "min" in ran.out
    assert not list(tmp_path.iterdir())


FAULT = Violation(id="NET-09", path="sp.x", found="a", expected="b", remedy="c")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvariantError([FAULT, FAULT]), "[NET-09] sp.x: found a; expected b; c"),
        (LabError("no room"), "no room"),
        (faults.Stop("no such thing"), "no such thing"),
    ],
)
def test_an_expected_error_is_its_message(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    ran = _ending_with(monkeypatch, error)
    assert ran.code == 1
    assert message in ran.err
    assert "Traceback" not in ran.text


def test_an_unexpected_error_is_one_line_and_a_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    ran = _ending_with(monkeypatch, ZeroDivisionError("by nought\nand more"))
    log = tmp_path / "fleet" / "error.log"
    assert ran.code == 1
    assert "ZeroDivisionError: by nought;" in ran.text
    assert str(log) in ran.text
    assert "Traceback" not in ran.text
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_the_traceback_is_shown_to_who_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("FLEET_DEBUG", "1")
    assert "Traceback" in _ending_with(monkeypatch, ZeroDivisionError()).err


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = _ending_with(monkeypatch, KeyboardInterrupt())
    assert ran.code == 130
    assert "interrupted" in ran.err


def test_ctrl_c_ends_a_real_process_without_a_traceback() -> None:
    at_work = (
        "import time, cli.documents\n"
        "cli.documents.judged = lambda folder: print('at work', flush=True) or time.sleep(60)\n"
        "from cli.app import app\n"
        "app(['check'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", at_work], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "at work\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in out + err


@pytest.mark.parametrize("pipe", ["rules | head -n 1", "rules NET-09 | true", "plan sp --json | true"])
def test_a_closed_pipe_is_no_error(pipe: str) -> None:
    done = subprocess.run(
        f"{sys.executable} -m cli {pipe}",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_a_closed_stream_swallows_what_goes_there(closed: str) -> None:
    command = f"{sys.executable} -m cli rules NET-09 {closed}"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_poor_encoding_gets_escapes() -> None:
    ran = fleet_process("rules", "BGP-01", PYTHONIOENCODING="ascii")
    assert (ran.code, ran.err) == (0, "")
    assert "S\\xe3o Paulo" in ran.out


def test_a_pipe_among_the_documents_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "Pulumi.sp.yaml")
    ran = fleet_process("check", "--folder", str(tmp_path))
    assert ran.code == 1
    assert "[DOC-01] Pulumi.sp.yaml: found a pipe or a device" in ran.out


@pytest.mark.parametrize("verb", ["up", "preview"])
def test_the_lab_names_an_unknown_site_before_it_builds_anything(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.toolchain.plan", lambda: [SimpleNamespace(present=False)])
    monkeypatch.setattr(f"lab.session.{verb}", lambda *_: pytest.fail("began"))
    ran = project.fleet("lab", verb, "nope")
    assert ran.code == 1
    assert "found no site nope" in ran.text


def test_an_api_token_alone_is_refused_for_the_privileged_container(fleet: Fleet) -> None:
    given = {f"fleet:{key}": "x" for key in (*SECRETS, "sshPublicKey") if key != ROOT_PASSWORD}
    refused = _inputs_of(fleet, "sp", given)
    assert f"[LXC-12] sp.fleet:{ROOT_PASSWORD}" in refused
    assert f"pulumi config set --secret fleet:{ROOT_PASSWORD}" in refused


def test_every_missing_credential_is_named_at_once(fleet: Fleet) -> None:
    refused = _inputs_of(fleet, "franca", {})
    assert not fleet.sites["franca"].bgp.authenticated
    without_mesh = {*SECRETS} - {*MESH_SECRETS}  # which is left out alone
    wanted = {*without_mesh, "sshPublicKey"} - {ROOT_PASSWORD, BGP_PASSWORD}
    assert {line.split("fleet:")[1].split(":")[0] for line in refused.splitlines()} == wanted


def _inputs_of(fleet: Fleet, site: str, config: dict[str, str]) -> str:
    set_all_config(config, [f"fleet:{key}" for key in SECRETS])
    try:
        with pytest.raises(InvariantError) as caught:
            declare(lambda: inputs(fleet, site), stack=site)
    finally:
        set_all_config({})
    return str(caught.value)


def _ending_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> project.Ran:
    """A command that fails in the given way."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("cli.documents.judged", fail)
    return project.fleet("check")


@pytest.mark.parametrize(
    ("arguments", "function", "given"),
    [
        (("kubectl", "cluster-fca", "--", "get", "nodes", "-o", "wide"), "kubectl", ["get", "nodes", "-o", "wide"]),
        (("kubectl", "cluster-fca", "get", "pods", "-A"), "kubectl", ["get", "pods", "-A"]),
        (("ssh", "vm-cpps-02", "--", "uname", "-a"), "ssh", ["uname", "-a"]),
        (("ssh", "vm-cpps-02"), "ssh", []),
    ],
)
def test_arguments_for_another_program_reach_it_untouched(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], function: str, given: list[str]
) -> None:
    seen: list[list[str]] = []

    def record(_: str, rest: list[str]) -> int:
        seen.append(rest)
        return 7

    monkeypatch.setattr(f"lab.session.{function}", record)
    assert project.fleet("lab", *arguments).code == 7
    assert seen == [given]


def test_a_first_use_of_the_lab_gives_something_to_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no toolchain there
    monkeypatch.setattr("lab.session.up", lambda *_, **__: 0)
    ran = project.fleet("lab", "up")
    assert ran.code == 0
    assert ran.out.index("fleet-franca") < ran.out.index("fleet-sp") < ran.out.index("30 to 40 minutes")


def test_an_update_of_assumed_values_is_refused_before_any_engine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # an engine would be looked for there
    ran = project.fleet("up", "sp", "--yes")
    assert ran.code == 1, ran.text
    for expected in (
        "[GEN-07] common.cilium.version: found an assumed value",
        "[PVE-10] sp.guests.gpu-sp-01.handed_over",
    ):
        assert expected in ran.text
    assert "pulumi on" not in ran.text
