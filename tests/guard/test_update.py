"""Preview and update around the guard, with a stand-in for the pulumi binary that plays recorded plans."""

import base64
import copy
import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cli import update as commands
from cli.faults import Stop
from infra.acknowledged import FIELDS, KEPT_RUNS, OUTPUT, VARIABLE, acknowledged, given
from infra.names import CILIUM_CA_CERT, CILIUM_CA_KEY
from infra.violation import InvariantError
from operations import update
from operations.engine import (
    Engine,
    EngineError,
    explained,
    own_temporary_folder,
    stamp,
    telling,
    without_cancellations,
)
from operations.guard import AcceptError
from tests.guard.samples import fleet, judged, raw, resource

ROOT = Path(__file__).parents[2]
ENTRY = dict.fromkeys(FIELDS, "x")
FAKE = """#!/bin/sh
# Plays the files of its folder; writes down how it was called.
here=$(dirname "$0")
echo "$*" >>"$here/calls"
case $1 in
    version) echo v3.274.1 ;;
    preview) cat "$here/preview.json"; exit "$(cat "$here/preview.rc" 2>/dev/null || echo 0)" ;;
    up)
        printf '%s' "$FLEET_ACCEPTED" >"$here/accepted"
        echo " +  command:remote:Command node-a created (2.5s)"
        echo "Resources:"
        exit "$(cat "$here/up.rc" 2>/dev/null || echo 0)"
        ;;
    stack)
        case $2 in
            export) if [ -f "$here/next.json" ] && [ -f "$here/seen" ]; then cat "$here/next.json"
                    else touch "$here/seen"; cat "$here/state.json"; fi ;;
            import) cat >"$here/imported.json" ;;
            output) echo '{"cluster-sp": {"api": "https://192.0.2.1:6443", "kubeconfig": "[secret]"}}' ;;
        esac
        ;;
    config) cat "$here/config.json" ;;
esac
"""


class Played:
    """A folder with a project, and a pulumi that plays a sample."""

    def __init__(self, folder: Path, sample: str, *, failed: bool = False) -> None:
        self.folder, self.bin = folder / "project", folder / "bin"
        self.folder.mkdir()
        self.bin.mkdir()
        for name in ("Pulumi.yaml", "Pulumi.franca.yaml", "Pulumi.sp.yaml"):
            (self.folder / name).write_bytes((ROOT / name).read_bytes())
        self.program = self.bin / "pulumi"
        self.program.write_text(FAKE)
        self.program.chmod(0o755)
        self.play("preview.json", raw(sample))
        self.play("state.json", raw("state-sp"))
        if failed:
            (self.bin / "preview.rc").write_text("1")

    def play(self, name: str, value: Any) -> None:
        (self.bin / name).write_text(json.dumps(value))

    @property
    def engine(self) -> Engine:
        return Engine(program=self.program, folder=self.folder)

    @property
    def calls(self) -> list[str]:
        text = (self.bin / "calls").read_text() if (self.bin / "calls").exists() else ""
        return [line.split(" --")[0] for line in text.splitlines()]

    def look(self, accept: dict[str, str] | None = None) -> update.Looked:
        return update.look(self.engine, "sp", fleet(), accept)


def test_a_clear_plan_is_applied_once_and_shown(tmp_path: Path) -> None:
    played = Played(tmp_path, "agent_removed")
    lines: list[str] = []
    looked = played.look()
    assert looked.clear
    assert update.apply(played.engine, "sp", looked, lines.append) == 0
    assert played.calls == ["stack export", "preview", "stack export", "up"]
    assert [told for line in lines if (told := telling(line))] == ["created node-a (2.5s)"]


def test_a_stopped_plan_is_never_applied(tmp_path: Path) -> None:
    played = Played(tmp_path, "disk_smaller")
    with pytest.raises(EngineError, match="stops"):
        update.apply(played.engine, "sp", played.look(), print)
    assert "up" not in played.calls


@pytest.mark.parametrize("what", ["state", "document"])
def test_what_changed_since_the_preview_ends_the_update(tmp_path: Path, what: str) -> None:
    played = Played(tmp_path, "agent_removed")
    looked = played.look()
    if what == "state":
        changed = raw("state-sp")
        changed["deployment"]["manifest"]["time"] = "later"
        played.play("next.json", changed)
    else:
        file = played.folder / "Pulumi.sp.yaml"
        file.write_text(file.read_text() + "# a line\n")
    with pytest.raises(EngineError, match="changed since the preview"):
        update.apply(played.engine, "sp", looked, print)
    assert "up" not in played.calls


def test_an_acceptance_reaches_the_program_with_those_before_it(tmp_path: Path) -> None:
    played = Played(tmp_path, "vmid")
    state = raw("state-sp")
    state["deployment"]["resources"][0]["outputs"] = {OUTPUT: {"document": {}, "runs": [ENTRY]}}
    played.play("state.json", state)
    (stop,) = judged("vmid").stops
    update.apply(played.engine, "sp", played.look({stop.key: "no data"}), print)
    earlier, now = json.loads((played.bin / "accepted").read_text())
    assert earlier == ENTRY
    assert {field: now[field] for field in ("key", "rule", "resource", "change", "reason")} == {
        "key": stop.key,
        "rule": "GRD-03",
        "resource": stop.urn,
        "change": "vmId: 202 -> 299",
        "reason": "no data",
    }
    assert now["when"]
    assert now["who"]


def test_pending_operations_that_can_be_done_again_are_forgotten(tmp_path: Path) -> None:
    played = Played(tmp_path, "agent_removed")
    state = raw("state-sp")
    state["deployment"]["pending_operations"] = [
        {"type": "creating", "resource": resource("sp", "k3s-cluster-sp-labels-vm-sp-02")}
    ]
    played.play("state.json", state)
    looked = played.look()
    assert looked.clear
    update.apply(played.engine, "sp", looked, print)
    assert played.calls[-2:] == ["stack import", "up"]
    assert "pending_operations" not in json.loads((played.bin / "imported.json").read_text())["deployment"]


def test_what_the_engine_refuses_is_said_unless_a_stop_says_it_better(tmp_path: Path) -> None:
    looked = Played(tmp_path, "container_disk_smaller", failed=True).look()
    assert not looked.clear
    assert looked.faults == ()


def test_a_preview_that_fails_otherwise_is_no_clear_plan(tmp_path: Path) -> None:
    played = Played(tmp_path, "nothing", failed=True)
    said = "[GEN-07] sp.guests.vm-sp-01: found an assumed value; expected a confirmed one"
    played.play("preview.json", {"steps": [], "diagnostics": [{"message": f"error: {said}\n", "severity": "info#err"}]})
    looked = played.look()
    assert (looked.clear, looked.faults) == (False, (said,))
    played.play("preview.json", {"steps": []})
    assert not played.look().clear


def test_the_ca_of_config_and_state_is_compared_in_memory(tmp_path: Path) -> None:
    played = Played(tmp_path, "nothing")
    state = raw("state-sp")
    chart = next(one for one in state["deployment"]["resources"] if one["urn"].endswith("::cilium-cluster-sp-chart"))
    for name, text in (("cert", "A"), ("key", "B")):
        sealed = chart["inputs"]["values"]["tls"]["ca"][name]
        sealed["plaintext"] = json.dumps(base64.b64encode(text.encode()).decode())
    played.play("state.json", state)

    def config(certificate: str) -> dict[str, Any]:
        keys = {CILIUM_CA_CERT: certificate, CILIUM_CA_KEY: "B"}
        return {f"fleet:{key}": {"value": value, "secret": True} for key, value in keys.items()}

    played.play("config.json", config("A"))
    assert update.same_ca(played.engine, "sp")
    other = copy.deepcopy(chart)  # of the same component, without a CA
    other["urn"] = other["urn"].replace("cilium-cluster-sp-chart", "cilium-cluster-sp-metallb")
    other["inputs"] |= {"name": "metallb", "values": {}}
    state["deployment"]["resources"].append(other)
    played.play("state.json", state)
    assert update.same_ca(played.engine, "sp")
    played.play("config.json", config("C"))
    assert not update.same_ca(played.engine, "sp")


@pytest.mark.parametrize(
    ("said", "way"),
    [
        ("error: no stack named 'sp' found", "pulumi stack init sp"),
        ("error: getting stack configuration: get stack secrets manager: incorrect passphrase", "PASSPHRASE_FILE"),
        ("error: the stack is currently locked by 1 lock(s). Either wait", "pulumi cancel -s sp"),
        ('error: read ".pulumi/meta.yaml": dial tcp 192.0.2.1:443: connect: connection refused', "backend"),
        ("error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions", "backend"),
    ],
)
def test_an_error_of_the_engine_says_what_to_do(said: str, way: str) -> None:
    text = explained("sp", "pulumi preview", f"warning: using pulumi-language-python from $PATH at /x\n{said}\n")
    assert said.removeprefix("error: ") in text
    assert way in text
    assert "using pulumi-" not in text


def test_another_major_version_is_refused(tmp_path: Path) -> None:
    played = Played(tmp_path, "nothing")
    played.engine.check()
    played.program.write_text("#!/bin/sh\necho v4.0.0\n")
    with pytest.raises(EngineError, match=r"found pulumi 4\.0\.0; expected major version 3"):
        played.engine.check()
    with pytest.raises(EngineError, match="found no program"):
        Engine(program=tmp_path / "nowhere", folder=played.folder).check()


def test_a_stamp_names_state_and_documents(tmp_path: Path) -> None:
    played = Played(tmp_path, "nothing")
    first = stamp(raw("state-sp"), played.folder)
    assert first == stamp(raw("state-sp"), played.folder)
    assert first != stamp(raw("state-franca"), played.folder)


def test_acknowledgements_become_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps([ENTRY | {"more": "dropped"}]))
    output = acknowledged(fleet(), "sp")
    assert output["runs"] == [ENTRY]
    assert output["document"].keys() == fleet().sites["sp"].accept.keys()
    assert all(isinstance(reason, str) and reason for reason in output["document"].values())
    monkeypatch.delenv(VARIABLE)
    assert acknowledged(fleet(), "sp")["runs"] == []


def test_the_record_is_bounded() -> None:
    entries = [ENTRY | {"key": str(number)} for number in range(KEPT_RUNS + 7)]
    kept = given(json.dumps(entries), "sp")
    assert len(kept) == KEPT_RUNS
    assert kept[-1]["key"] == str(KEPT_RUNS + 6)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"key": "x"}]', json.dumps([ENTRY | {"who": 1}])])
def test_a_variable_that_holds_something_else_is_refused(text: str) -> None:
    with pytest.raises(InvariantError, match=VARIABLE):
        given(text, "sp")


def test_a_wrong_key_is_an_error_before_anything_is_applied(tmp_path: Path) -> None:
    with pytest.raises(AcceptError):
        Played(tmp_path, "vmid").look({"GRD-03-ffffffff": "no"})


def test_the_commands_show_stop_and_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = Played(tmp_path, "vmid")
    monkeypatch.setattr("cli.documents.ROOT", played.folder)
    monkeypatch.setenv("PATH", f"{played.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("infra.stack.gates", lambda *_: [])  # the samples' documents assume values
    key = judged("vmid").stops[0].key
    accepted = (f"{key}=no data",)

    assert commands.up("sp", (), yes=True) == 1
    stopped = capsys.readouterr().out
    for expected in ("STOP [GRD-03] guest-vm-sp-02-vm", "vmId: 202 -> 299", f"--accept '{key}=reason'"):
        assert expected in stopped
    assert commands.preview("sp", (), as_json_output=True) == 1
    assert [stop["key"] for stop in json.loads(capsys.readouterr().out)["stops"]] == [key]
    with pytest.raises(Stop, match="--yes"):  # nobody can answer
        commands.up("sp", accepted, yes=False)
    with pytest.raises(Stop, match="no stop of this plan has that key"):
        commands.up("sp", ("GRD-03-ffffffff=no data",), yes=True)
    assert "up" not in played.calls

    capsys.readouterr()
    assert commands.up("sp", accepted, yes=True) == 0
    done = capsys.readouterr().out
    assert "created node-a (2.5s)" in done
    assert "https://192.0.2.1:6443" in done
    assert "[secret]" not in done.split("output ")[1]


def test_a_failed_update_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = Played(tmp_path, "agent_removed")
    (played.bin / "up.rc").write_text("1")
    monkeypatch.setattr("cli.documents.ROOT", played.folder)
    monkeypatch.setenv("PATH", f"{played.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("infra.stack.gates", lambda *_: [])  # as above
    assert commands.up("sp", (), yes=True) == 1
    assert "the update failed; what is done stays done" in capsys.readouterr().err


def test_what_the_engine_left_among_temporary_files_goes_with_the_run(tmp_path: Path) -> None:
    with own_temporary_folder(tmp_path) as added:
        folder = Path(added["TMPDIR"])
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "kubeconfig1").write_text("a token")
    assert not list(tmp_path.iterdir())


def test_plugins_that_outlive_a_killed_engine_end_before_the_next_update(tmp_path: Path) -> None:
    def start(name: str, folder: Path) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            ["bash", "-c", f"exec -a /opt/{name} sleep 60"], env={**os.environ, "TMPDIR": str(folder)}
        )
        deadline = time.monotonic() + 10
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"/opt/"):
            assert time.monotonic() < deadline
        return process

    at_work = tmp_path / "fleet-engine-at-work"
    elsewhere = tmp_path / "elsewhere"
    kept = [
        start("pulumi", at_work),
        start("pulumi-resource-kubernetes", at_work),
        start("pulumi-resource-x", elsewhere),
    ]
    left = [start("pulumi-resource-kubernetes", tmp_path / "fleet-engine-killed")]
    try:
        with own_temporary_folder(tmp_path) as added:
            assert left[0].wait(10) == -signal.SIGKILL
            left += [start(name, Path(added["TMPDIR"])) for name in ("pulumi-resource-command", "kubectl")]
            kept.append(left.pop())  # not the engine's: it may be what the user himself runs
        assert left[1].wait(10) == -signal.SIGKILL
        assert [process.poll() for process in kept] == [None] * len(kept)
    finally:
        for process in (*kept, *left):
            process.kill()
            process.wait()


def test_what_a_failed_step_cancelled_does_not_hide_why_it_failed() -> None:
    said = [
        "Diagnostics:",
        "  pulumi:pulumi:Stack (fleet-sp):",
        "    error: python inline source runtime error: context canceled",
        "    Traceback (most recent call last):",
        '      File "resource.py", line 1340, in do_rpc_call',
        "    During handling of the above exception, another exception occurred:",
        "    Traceback (most recent call last):",
        "    Exception: context canceled",
        "  proxmoxve:index:VmLegacy (guest-vm-sp-02-vm):",
        "    error: received an HTTP 500 response - Reason: VM is locked (backup)",
    ]
    assert without_cancellations(said) == [*said[:2], *said[8:]]
    own = [*said[:3], "    Traceback (most recent call last):", "    ValueError: of the program itself"]
    assert without_cancellations(own) == own
    assert without_cancellations(said[:2] + said[7:]) == said[:2] + said[7:]
