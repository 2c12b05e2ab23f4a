"""Backups: a real client on a fake Proxmox over HTTPS, a real SSH server, and `fleet backup` around both."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from fakepve.lxc import FakeCt
from fakepve.model import FakeVm

import cli.backup
from infra.config import Fleet
from infra.violation import InvariantError
from lab.pve import SitePve, Storage
from operations import backup, evidence
from operations.access import Access, access, connect, seen_host_keys
from operations.backup import Outcome, back_up
from operations.engine import Engine, EngineError
from operations.evidence import Evidence
from tests.cli.project import fleet as command
from tests.cli.project import folder_with
from tests.operations.loop import Loop
from tests.rules.documents import fleet_of, patched, shipped

NOW = datetime(2026, 11, 30, 22, 15, tzinfo=UTC)
TOKEN = "fleet@pve!lab=t0ken"
STORAGES: list[Storage] = [{"name": "thin", "type": "lvmthin"}, {"name": "plain", "type": "lvm"}]
SECRETS: Any = {"root_password": "r00t", "api_token_id": "fleet@pve!lab", "api_token_secret": "t0ken"}


class Events:
    """Stands for the daemon of the lab."""

    async def started(self, guest: object) -> None: ...
    async def stopped(self, guest: object) -> None: ...
    async def deleted(self, guest: object) -> None: ...


@pytest.fixture
def pve(loop: Loop, tmp_path: Path) -> Iterator[SitePve]:
    """The Proxmox of Franca: two guests on thin storage, one on plain, none with the fourth VMID."""
    hosts: Any = [{"name": "pve-labri-31", "address": "127.0.0.1"}]
    served = SitePve("franca", hosts, SECRETS, tmp_path / "pve", Events(), STORAGES)
    served.pve.grant("fleet@pve", "/", "VM.Snapshot", "VM.Audit")
    for vmid, storage in ((102, "thin"), (103, "plain")):
        config = {"scsi0": f"{storage}:vm-{vmid}-disk-0,size=8G"}
        served.pve.vms.append(FakeVm(vmid, f"vm-cpps-{vmid - 100:02}", node="pve-labri-31", config=config))
    socks: list[socket.socket] = []

    def listen(address: str, _port: int) -> socket.socket:
        socks.append(socket.create_server((address, 0)))
        return socks[-1]

    loop.run(served.start(listen))
    served.port = socks[0].getsockname()[1]  # type: ignore[attr-defined]  # for `site` below
    yield served
    loop.run(served.stop())


@pytest.fixture
def site(pve: SitePve) -> Fleet:
    port = pve.port  # type: ignore[attr-defined]  # as above
    endpoint = {"franca.proxmox.endpoint": f"https://127.0.0.1:{port}/", "franca.proxmox.verify_tls": False}
    changed, faults = fleet_of(patched(shipped(), endpoint))
    assert changed is not None, faults
    return changed


def made_of(fleet: Fleet, guests: list[str], token: str = TOKEN, kept: list[Evidence] | None = None) -> list[Outcome]:
    kept = [] if kept is None else kept
    access = Access(api_token=token, private_key="", host_keys={})
    return back_up(
        "franca",
        fleet.sites["franca"],
        access,
        guests=guests,
        clusters=[],
        by="ana",
        now=NOW,
        keep=kept.append,
        say=lambda _: None,
    )


pytestmark = pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")


def test_a_guest_is_snapshotted_without_memory_and_recorded(pve: SitePve, site: Fleet) -> None:
    kept: list[Evidence] = []
    (outcome,) = made_of(site, ["vm-cpps-02"], kept=kept)
    assert [outcome.made] == kept, outcome.remark
    assert kept[0].model_dump() == {
        "what": "guest/vm-cpps-02",
        "kind": "proxmox-snapshot",
        "reference": "102@fleet-20261130-221500",
        "taken": "2026-11-30T22:15:00Z",
        "by": "ana",
    }
    (vm,) = [vm for vm in pve.pve.vms if vm.vmid == 102]
    assert list(vm.snapshots) == ["fleet-20261130-221500"]
    assert not vm.snapshots["fleet-20261130-221500"].get("vmstate")


def test_what_cannot_be_snapshotted_is_said_and_the_others_are_made(pve: SitePve, site: Fleet) -> None:
    plain, thin, absent = made_of(site, ["vm-cpps-03", "vm-cpps-02", "vm-cpps-04"])
    assert plain.made is None
    assert "its storage cannot make snapshots" in plain.remark
    assert "fleet backup franca --record pbs:guest/vm-cpps-03=<snapshot>" in plain.remark
    assert thin.made is not None
    assert (absent.made, absent.absent) == (None, True)


def test_a_container_is_snapshotted_too(pve: SitePve, site: Fleet) -> None:
    pve.pve.cts.append(
        FakeCt(
            301,
            node="pve-labri-31",
            defaults=False,
            config={"hostname": "gpu-sp-01", "rootfs": "thin:vm-301-disk-0,size=8G", "dev0": "path=/dev/nvidia0"},
        )
    )
    api = connect(site.sites["franca"], TOKEN)
    made = backup._guest(api, "sp", site.sites["sp"].guests["gpu-sp-01"], NOW)
    assert isinstance(made, tuple)
    assert made[2] == "301@fleet-20261130-221500"


def test_a_vmid_that_is_another_guest_is_left_alone(pve: SitePve, site: Fleet) -> None:
    pve.pve.vms[0].name = "somebody-elses"
    (outcome,) = made_of(site, ["vm-cpps-02"])
    assert "VMID 102 is somebody-elses, not vm-cpps-02" in outcome.remark
    assert not pve.pve.vms[0].snapshots


def test_a_locked_guest_is_told_in_proxmox_words(pve: SitePve, site: Fleet) -> None:
    pve.pve.vms[0].lock = "backup"
    (outcome,) = made_of(site, ["vm-cpps-02"])
    assert outcome.made is None
    assert "locked" in outcome.remark


@pytest.mark.parametrize("token", ["fleet@pve!lab=wrong", "no token"])
def test_a_wrong_token_is_said_and_never_shown(pve: SitePve, site: Fleet, token: str) -> None:
    (outcome,) = made_of(site, ["vm-cpps-02"], token)
    assert outcome.made is None
    assert "oken" in outcome.remark or "401" in outcome.remark
    assert "wrong" not in outcome.remark


def test_a_token_without_the_right_names_the_privilege(pve: SitePve, site: Fleet) -> None:
    pve.pve.apitokens["other@pve!t"] = "s"
    pve.pve.grant("other@pve", "/", "VM.Audit")
    (outcome,) = made_of(site, ["vm-cpps-02"], "other@pve!t=s")
    assert "VM.Snapshot" in outcome.remark


def test_a_task_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "TASK_TIMEOUT_S", 0.5)

    class Endless:
        def nodes(self, _: str) -> Any:
            return self

        def tasks(self, _: str) -> Any:
            return self

        @property
        def status(self) -> Any:
            return self

        def get(self) -> dict[str, str]:
            return {"status": "running"}

    with pytest.raises(backup._Failed, match="runs longer than"):
        backup._ended(Endless(), "n", "UPID:x")


def test_a_proxmox_that_does_not_answer_is_said(fleet: Fleet) -> None:
    changed, _ = fleet_of(patched(shipped(), {"franca.proxmox.endpoint": "https://127.0.0.1:9/"}))
    assert changed is not None
    (outcome,) = made_of(changed, ["vm-cpps-02"])
    assert outcome.remark.startswith("Proxmox does not answer")


# etcd: a server whose root shell runs the real script against a small k3s.

K3S = """#!/bin/sh
[ "$*" = "etcd-snapshot save --name fleet-backup" ] || exit 9
[ ! -f @/full ] || { echo 'level=warning msg="Unknown flag --server"' >&2; echo "no space left" >&2; exit 1; }
[ -f @/elsewhere ] || echo data > "@/snapshots/fleet-backup-node-1"
"""


class Node:
    """An SSH server that runs what it is sent, with the absolute paths of the script below a folder."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        self.loop, self.folder = loop, folder
        (folder / "snapshots").mkdir(parents=True)
        (folder / "k3s").write_text(K3S.replace("@/", f"{folder}/"))
        (folder / "k3s").chmod(0o755)
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.commands: list[str] = []
        self.users: list[str] = []
        loop.run(self._start())

    async def _start(self) -> None:
        keys = asyncssh.import_authorized_keys(self.key.export_public_key().decode())
        self.server = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[self.host_key], authorized_client_keys=keys, process_factory=self._serve
        )
        self.port = self.server.sockets[0].getsockname()[1]

    async def _serve(self, process: "asyncssh.SSHServerProcess[str]") -> None:
        self.commands.append(process.command or "")
        self.users.append(process.get_extra_info("username"))
        program = (await process.stdin.read()).replace("/usr/local/bin/k3s", f"{self.folder}/k3s")
        program = program.replace("/var/lib/rancher/k3s/server/db/snapshots", f"{self.folder}/snapshots")
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await child.communicate(program.encode())
        process.stdout.write(out.decode())
        process.stderr.write(err.decode())
        process.exit(child.returncode or 0)

    def close(self) -> None:
        async def stop() -> None:
            self.server.close()
            await self.server.wait_closed()

        self.loop.run(stop())


@pytest.fixture
def node(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(loop, tmp_path / "node")
    real = asyncssh.connect

    def redirected(host: str, **options: Any) -> Any:
        """The addresses of the document, all at this one server; the pin goes by the address that was asked for."""
        pinned = options.pop("known_hosts").match(host, "", 22)[0]
        return real("127.0.0.1", node.port, known_hosts=(pinned, [], []), **options)

    monkeypatch.setattr(backup.asyncssh, "connect", redirected)
    yield node
    node.close()


def public(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key().decode().split()[:2])


def saved(fleet: Fleet, node: Node, host_keys: dict[str, str], private_key: str = "") -> Outcome:
    own = node.key.export_private_key().decode()
    access = Access(api_token=TOKEN, private_key=private_key or own, host_keys=host_keys)
    (outcome,) = back_up(
        "franca",
        fleet.sites["franca"],
        access,
        guests=[],
        clusters=["cluster-fca"],
        by="ana",
        now=NOW,
        keep=lambda _: None,
        say=lambda _: None,
    )
    return outcome


def test_etcd_is_saved_on_the_first_server_that_can(fleet: Fleet, node: Node) -> None:
    outcome = saved(fleet, node, {"vm-cpps-03": public(node.host_key)})
    assert outcome.made is not None, outcome.remark
    assert outcome.made.what == "etcd/cluster-fca"
    assert outcome.made.reference == f"vm-cpps-03:{node.folder}/snapshots/fleet-backup-node-1"
    assert node.commands == ["sudo -n /bin/sh"], "no value on the command line"


def test_keys_that_are_none_are_said_and_not_quoted(fleet: Fleet, node: Node) -> None:
    outcome = saved(fleet, node, {"vm-cpps-02": "", "vm-cpps-03": "hunter2"})
    assert "vm-cpps-02: its host key, in the document or the state, is none that OpenSSH knows" in outcome.remark
    locked = node.key.export_private_key("pkcs8-pem", passphrase="hunter2").decode()
    for private_key in ("hunter2", locked):
        outcome = saved(fleet, node, {"vm-cpps-02": public(node.host_key)}, private_key)
        assert outcome.made is None
        assert "fleet:sshPrivateKey is no private key without a passphrase" in outcome.remark
        assert "hunter2" not in outcome.remark


def test_a_server_with_another_host_key_is_not_spoken_to(fleet: Fleet, node: Node) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519")
    outcome = saved(fleet, node, {"vm-cpps-02": public(other)})
    assert outcome.made is None
    assert "vm-cpps-02: Host key is not trusted" in outcome.remark
    assert "vm-cpps-03: its host key is neither in the document nor in the state" in outcome.remark
    assert node.commands == []


@pytest.mark.parametrize(("fault", "words"), [("full", "no space left"), ("elsewhere", "there is none on this server")])
def test_a_server_that_saved_nothing_is_said(fleet: Fleet, node: Node, fault: str, words: str) -> None:
    (node.folder / fault).touch()
    outcome = saved(fleet, node, {name: public(node.host_key) for name in ("vm-cpps-02", "vm-cpps-03")})
    assert outcome.made is None
    assert words in outcome.remark
    assert "Unknown flag" not in outcome.remark
    assert len(node.commands) == 2


def test_host_keys_come_from_the_first_contacts_in_the_state() -> None:
    def contact(name: str, stdout: Any) -> dict[str, Any]:
        return {"urn": f"urn:pulumi:sp::fleet::x$command:remote:Command::{name}", "outputs": {"stdout": stdout}}

    state = {
        "deployment": {
            "resources": [
                contact(
                    "guest-a-contact", {"4dabf18193072939515e22adb298388d": "x", "plaintext": '"ssh-ed25519 A\\n"'}
                ),
                contact("guest-b-contact", "ssh-ed25519 B\n"),
                contact("guest-c-contact", None),
                contact("k3s-a-token", "secret"),
            ]
        }
    }
    assert seen_host_keys(state) == {"a": "ssh-ed25519 A", "b": "ssh-ed25519 B"}
    assert seen_host_keys({"deployment": {}}) == {}


def test_secrets_are_not_in_the_text_of_their_holder() -> None:
    assert "hunter2" not in repr(Access(api_token="hunter2", private_key="hunter2", host_keys={}))


@pytest.mark.parametrize("lacking", ["proxmoxApiToken", "sshPrivateKey", ""])
def test_secrets_come_from_the_engine_and_a_missing_one_is_named(fleet: Fleet, tmp_path: Path, lacking: str) -> None:
    config = {
        f"fleet:{key}": {"value": "hunter2", "secret": True}
        for key in ("proxmoxApiToken", "sshPrivateKey")
        if key != lacking
    }
    (tmp_path / "config").write_text(json.dumps(config))
    (tmp_path / "stack").write_text(json.dumps({"deployment": {"resources": []}}))
    pulumi = tmp_path / "pulumi"
    pulumi.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\ncat {tmp_path}/$1\n')
    pulumi.chmod(0o755)
    if lacking:
        with pytest.raises(InvariantError, match=rf"\[SEC-07\] franca\.fleet:{lacking}") as caught:
            access(Engine(program=pulumi, folder=tmp_path), "franca", fleet.sites["franca"])
        assert "hunter2" not in str(caught.value)
    else:
        assert access(Engine(program=pulumi, folder=tmp_path), "franca", fleet.sites["franca"]).api_token == "hunter2"
    assert "hunter2" not in (tmp_path / "calls").read_text()


def test_what_the_engine_complains_of_is_told_without_its_output(fleet: Fleet, tmp_path: Path) -> None:
    pulumi = tmp_path / "pulumi"
    pulumi.write_text("#!/bin/sh\necho hunter2\necho 'error: incorrect passphrase' >&2\nexit 255\n")
    pulumi.chmod(0o755)
    with pytest.raises(EngineError, match="PULUMI_CONFIG_PASSPHRASE_FILE") as caught:
        access(Engine(program=pulumi, folder=tmp_path), "franca", fleet.sites["franca"])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("program", ["junk", "#!/bin/sh\necho hunter2\n", "#!/bin/sh\necho '[\"hunter2\"]'\n"])
def test_a_program_that_is_no_pulumi_is_told_without_its_output(fleet: Fleet, tmp_path: Path, program: str) -> None:
    pulumi = tmp_path / "pulumi"
    pulumi.write_text(program)
    pulumi.chmod(0o755)
    with pytest.raises(EngineError, match="pulumi") as caught:
        access(Engine(program=pulumi, folder=tmp_path), "franca", fleet.sites["franca"])
    assert "hunter2" not in str(caught.value)


def test_a_failure_without_a_word_does_not_tell_the_output_instead(fleet: Fleet, tmp_path: Path) -> None:
    pulumi = tmp_path / "pulumi"
    pulumi.write_text("#!/bin/sh\necho hunter2\nexit 255\n")
    pulumi.chmod(0o755)
    with pytest.raises(EngineError, match="no message") as caught:
        access(Engine(program=pulumi, folder=tmp_path), "franca", fleet.sites["franca"])
    assert "hunter2" not in str(caught.value)


# The command.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "project").mkdir()
    made = folder_with(tmp_path / "project", shipped())
    monkeypatch.setattr("cli.documents.ROOT", made)
    return made


def test_a_backup_made_elsewhere_is_recorded_without_credentials(folder: Path) -> None:
    reference = "vm/104/2026-11-30T10:00:00Z"
    ran = command(
        "backup", "franca", "--record", f"pbs:guest/vm-cpps-04={reference}",
        "--record", "vyos-archive:vyos=config.boot=1", "--taken", "2026-11-29T10:00:00Z",
    )  # fmt: skip
    assert ran.code == 0, ran.text
    record, faults = evidence.load(folder, "franca")
    assert not faults
    assert [(one.what, one.reference, one.taken) for one in record.evidence] == [
        ("guest/vm-cpps-04", reference, "2026-11-29T10:00:00Z"),
        ("vyos", "config.boot=1", "2026-11-29T10:00:00Z"),
    ]
    assert command("backup", "franca", "--record", f"pbs:guest/vm-cpps-03={reference}").code == 0
    record, _ = evidence.load(folder, "franca")
    assert record.evidence[-1].taken == "2026-11-30T10:00:00Z", "the time that the reference holds"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--record", "nonsense"), "expected KIND:WHAT=REFERENCE"),
        (("--record", "tape:vyos=x"), "kinds: proxmox-snapshot"),
        (("--record", "vyos-archive:vyos=x"), "found no time of the backup"),
        (("--record", "vyos-archive:vyos=x", "--taken", "yesterday"), "taken"),
        (("--record", "vyos-archive:vyos=x", "--taken", "2999-01-01T00:00:00Z"), "in the future"),
        (("--record", "etcd-snapshot:vyos=x", "--taken", "2026-11-29T10:00:00Z"), "expected one of vyos-archive"),
        (("--record", "pbs:guest/nobody=x", "--taken", "2026-11-29T10:00:00Z"), "guest/nobody"),
        (("--record", "pbs:guest/vm-cpps-04=x", "--guest", "vm-cpps-04"), "expected one of them"),
        (("--taken", "2026-11-29T10:00:00Z"), "without --record"),
        (("--guest", "nobody"), "guest/nobody"),
    ],
)
def test_what_cannot_be_recorded_is_said_and_nothing_is_written(
    folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    ran = command("backup", "franca", *arguments)
    assert ran.code == 1
    assert words in ran.text
    assert not (folder / "evidence").exists()


def test_an_unknown_site_is_answered_with_the_known_ones(folder: Path) -> None:
    assert "franca, sp" in command("backup", "paris").text


def access_of(node: Node) -> Callable[..., Access]:
    def made(*_: object) -> Access:
        key = node.key.export_private_key().decode()
        return Access(api_token=TOKEN, private_key=key, host_keys={"vm-cpps-02": public(node.host_key)})

    return made


def test_a_partial_failure_keeps_what_was_made_and_a_second_run_is_safe(
    folder: Path, site: Fleet, pve: SitePve, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = pve.port  # type: ignore[attr-defined]  # set by the fixture
    folder_with(
        folder,
        patched(
            shipped(),
            {"franca.proxmox.endpoint": f"https://127.0.0.1:{port}/", "franca.proxmox.verify_tls": False},
        ),
    )
    monkeypatch.setattr(cli.backup, "opened", access_of(node))
    times = iter([NOW, NOW.replace(hour=23)])
    monkeypatch.setattr(backup, "utc_now", lambda: next(times))
    ran = command("backup", "franca")
    assert ran.code == 1
    assert "guest/vm-cpps-03 NOT MADE its storage cannot" in ran.text
    assert "guest/vm-cpps-04 none yet" in ran.text
    record, _ = evidence.load(folder, "franca")
    assert [one.what for one in record.evidence] == ["guest/vm-cpps-02", "etcd/cluster-fca"]
    pve.pve.vms[1].config["scsi0"] = "thin:vm-103-disk-0,size=8G"
    ran = command("backup", "franca")
    assert ran.code == 0, ran.text
    record, _ = evidence.load(folder, "franca")
    assert len(record.evidence) == 5
    assert len(pve.pve.vms[0].snapshots) == 2, "nothing is pruned"
    assert "t0ken" not in ran.text
    assert "PRIVATE KEY" not in ran.text
