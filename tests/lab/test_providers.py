"""The stand-in providers: their checks and habits directly, and all of them in one program under the real engine."""

import asyncio
import json
import os
import socket
import subprocess
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import asyncssh
import pytest
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.provider.experimental.provider import CheckRequest, DiffRequest, PropertyDiffKind

from lab.node import Guest
from lab.providers import PROJECT, STANDS_IN_FOR, install, randomness
from lab.providers import command as command_provider
from lab.providers.difference import Change, Kind, changes
from lab.providers.proxmoxve.provider import Proxmox, decoded
from lab.providers.serving import OLD_INPUTS, Refused
from lab.providers.stand_in import StandIn, overlaid
from lab.providers.values import UNKNOWN, marked, marked_map, plain
from lab.pve import SitePve
from lab.toolchain import bin_directory

INTERPRETER: Final = PROJECT / ".venv/bin/python"
VM: Final = "proxmoxve:index/vmLegacy:VmLegacy"
CONTAINER: Final = "proxmoxve:index/containerLegacy:ContainerLegacy"
PASSWORD: Final = "random:index/randomPassword:RandomPassword"
REMOTE: Final = "command:remote:Command"
KEY: Final = asyncssh.generate_private_key("ssh-ed25519")


def urn(token: str) -> str:
    return f"urn:pulumi:s::p::{token}::x"


def props(values: dict[str, Any]) -> dict[str, PropertyValue]:
    return {name: marked(value) for name, value in values.items()}


def check(provider: StandIn, token: str, inputs: dict[str, Any]) -> dict[str, str]:
    answer = asyncio.run(provider.check(CheckRequest(urn(token), {}, props(inputs), b"")))
    return {failure.property: failure.reason for failure in answer.failures or []}


def diff(
    provider: StandIn,
    token: str,
    old: dict[str, Any],
    new: dict[str, Any],
    *,
    state: dict[str, Any] | None = None,
    ignored: tuple[str, ...] = (),
) -> dict[str, PropertyDiffKind]:
    OLD_INPUTS.set(props(old))
    request = DiffRequest(urn(token), "1", props(old if state is None else state), props(new), list(ignored))
    answer = asyncio.run(provider.diff(request))
    assert answer.changes is bool(answer.detailed_diff)
    return {path: change.kind for path, change in answer.detailed_diff.items()}


# Values and differences ---------------------------------------------------------------------------------------------


def test_secret_marks_return_to_their_places() -> None:
    like = marked({"a": {"b": "1", "c": "2"}, "l": ["x", "y"]})
    outer: Any = like.value
    inner = dict(outer)
    inner["a"] = PropertyValue({"b": PropertyValue("1", is_secret=True), "c": PropertyValue("2")})
    inner["l"] = PropertyValue([PropertyValue("x"), PropertyValue("y", is_secret=True)])
    again = marked({"a": {"b": "3", "c": "4"}, "l": ["x"]}, PropertyValue(inner))
    value: Any = again.value
    assert value["a"].value["b"].is_secret
    assert not value["a"].value["c"].is_secret
    assert value["l"].is_secret  # the list has moved: all of it is hidden


def test_named_outputs_are_secret_whatever_the_inputs_were() -> None:
    assert marked_map({"result": "p", "length": 3}, {}, frozenset({"result"}))["result"].is_secret


def test_unknown_values_survive_the_wire() -> None:
    assert plain(PropertyValue.unmarshal(marked(UNKNOWN).marshal())) is UNKNOWN


def test_a_difference_names_each_leaf() -> None:
    old = {"disks": [{"size": 1}, {"size": 2}], "environment": {"A.B": "1"}, "gone": True, "same": 1}
    new = {"disks": [{"size": 1}, {"size": 3}, {"size": 4}], "environment": {"A.B": "2"}, "same": 1, "__own": 1}
    assert list(changes(old, new)) == [
        Change("disks[1].size", Kind.UPDATE),
        Change("disks[2]", Kind.ADD),
        Change('environment["A.B"]', Kind.UPDATE),
        Change("gone", Kind.DELETE),
    ]


def test_drift_replaces_only_what_was_given() -> None:
    inputs = {"memory": {"dedicated": 1024}, "password": "p"}
    assert overlaid(inputs, {"memory": {"dedicated": 2048, "swap": 1}, "cores": 4}) == {
        "memory": {"dedicated": 2048},
        "password": "p",
    }


# Checks ------------------------------------------------------------------------------------------------------------


def test_an_unknown_property_is_refused_with_near_names() -> None:
    found = check(Proxmox(), VM, {"nodeName": "pve-1", "disks": [{"interface": "scsi0", "datastoreID": "local"}]})
    assert list(found) == ["disks[0].datastoreID"]
    assert "datastoreId" in found["disks[0].datastoreID"]


def test_a_missing_property_is_refused() -> None:
    assert "nodeName" in check(Proxmox(), VM, {})


def test_a_wrong_type_is_refused_without_its_value() -> None:
    found = check(Proxmox(), VM, {"nodeName": "pve-1", "vmId": "s3cret"})
    assert list(found) == ["vmId"]
    assert "s3cret" not in found["vmId"]


@pytest.mark.parametrize("name", ["clone", "watchdog", "amdSev"])
def test_what_is_not_acted_out_is_refused_by_name(name: str) -> None:
    inputs: dict[str, Any] = {"clone": {"vmId": 100}, "watchdog": {}, "amdSev": {}}
    assert name in check(Proxmox(), VM, {"nodeName": "pve-1", name: inputs[name]})


def test_a_resource_that_the_stand_in_lacks_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="randomPet"):
        check(randomness.provider(), "random:index/randomPet:RandomPet", {})


def test_a_variable_that_sshd_would_refuse_is_refused_before() -> None:
    inputs = {"connection": {"host": "192.0.2.1"}, "create": "true", "environment": {"TOKEN": "x", "LC_ALL": "C"}}
    assert list(check(command_provider.provider(), REMOTE, inputs)) == ["environment.TOKEN"]


def test_provider_settings_arrive_as_json_in_texts() -> None:
    assert decoded({"insecure": "true", "password": "123", "ssh": '{"username": "root"}', "version": "1"}) == {
        "insecure": True,
        "password": "123",
        "ssh": {"username": "root"},
    }


# Replacement and habits ---------------------------------------------------------------------------------------------

FAST: Final = {"speed": {"read": 100}}
SCSI: Final = {"interface": "scsi0", "size": 20}


@pytest.mark.parametrize(
    ("token", "change", "kind"),
    [
        (VM, {"nodeName": "pve-2"}, PropertyDiffKind.UPDATE_REPLACE),
        (VM, {"vmId": 202}, PropertyDiffKind.UPDATE_REPLACE),
        (VM, {"name": "other"}, PropertyDiffKind.UPDATE),
        (VM, {"initialization": {"userDataFileId": "local:snippets/b"}}, PropertyDiffKind.UPDATE_REPLACE),
        (CONTAINER, {"unprivileged": True}, PropertyDiffKind.UPDATE_REPLACE),
        (CONTAINER, {"disk": {"datastoreId": "local-lvm", "size": 8}}, PropertyDiffKind.UPDATE_REPLACE),
        (CONTAINER, {"disk": {"datastoreId": "local-lvm", "size": 32}}, PropertyDiffKind.UPDATE),
        (CONTAINER, {"memory": {"dedicated": 4096}}, PropertyDiffKind.UPDATE),
    ],
)
def test_what_replaces_and_what_updates(token: str, change: dict[str, Any], kind: PropertyDiffKind) -> None:
    old = {
        "nodeName": "pve-1",
        "vmId": 201,
        "memory": {"dedicated": 2048},
    } | (
        {"name": "node-1", "initialization": {"userDataFileId": "local:snippets/a"}}
        if token == VM
        else {"disk": {"datastoreId": "local-lvm", "size": 16}, "unprivileged": False}
    )
    assert set(diff(Proxmox(), token, old, old | change).values()) == {kind}


def test_writing_a_default_out_and_another_order_of_tags_are_no_change() -> None:
    old = {"nodeName": "pve-1", "tags": ["b", "a"], "vmId": 201}
    new = {"nodeName": "pve-1", "tags": ["a", "b"], "onBoot": True, "cpu": {"cores": 1}}
    assert diff(Proxmox(), VM, old, new) == {}


@pytest.mark.parametrize(
    ("ignored", "settled"),
    [((), False), (("disks[*].speed",), False), (("disks[1].speed",), False), (("disks[0].speed",), True)],
)
def test_disks_settle_only_when_each_is_named(ignored: tuple[str, ...], settled: bool) -> None:
    inputs = {"nodeName": "pve-1", "disks": [SCSI]}
    found = diff(Proxmox(), VM, inputs, inputs, ignored=ignored)
    assert found == ({} if settled else {"disks[0].speed": PropertyDiffKind.ADD})


def test_a_disk_with_a_speed_settles() -> None:
    inputs = {"nodeName": "pve-1", "disks": [SCSI | FAST]}
    assert diff(Proxmox(), VM, inputs, inputs) == {}


def test_a_device_that_stayed_on_the_node_shows_again() -> None:
    inputs = {"nodeName": "pve-1", "devicePassthroughs": [{"path": "/dev/nvidia0"}]}
    left = inputs | {"devicePassthroughs": [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidiactl"}]}
    assert diff(Proxmox(), CONTAINER, inputs, inputs, state=left) == {"devicePassthroughs[1]": PropertyDiffKind.DELETE}


def test_only_triggers_replace_a_command() -> None:
    old = {"connection": {"host": "192.0.2.1"}, "create": "true", "triggers": ["a"]}
    provider = command_provider.provider()
    assert diff(provider, REMOTE, old, old | {"triggers": ["b"]}) == {"triggers[0]": PropertyDiffKind.UPDATE_REPLACE}
    assert diff(provider, REMOTE, old, old | {"create": "false"}) == {"create": PropertyDiffKind.UPDATE}
    moved = old | {"connection": {"host": "192.0.2.2", "port": 22}}
    assert diff(provider, REMOTE, old, moved) == {"connection.host": PropertyDiffKind.UPDATE}


def test_everything_replaces_a_password() -> None:
    old = {"length": 20, "keepers": {"generation": "1"}}
    found = diff(randomness.provider(), PASSWORD, old, {"length": 20, "keepers": {"generation": "2"}})
    assert found == {"keepers.generation": PropertyDiffKind.UPDATE_REPLACE}


def test_a_password_has_what_was_asked_for() -> None:
    kind = randomness.Password()
    _, outputs = asyncio.run(kind.create(kind.normal({"length": 40, "special": False, "minNumeric": 30}), "x"))
    assert len(outputs["result"]) == 40
    assert outputs["result"].isalnum()
    assert sum(one.isdigit() for one in outputs["result"]) >= 30
    assert outputs["bcryptHash"].startswith("$2b$10$")


def test_an_imported_password_is_kept() -> None:
    found = asyncio.run(randomness.Password().read("hunter22", {}))
    assert found is not None
    assert (found[0], found[1]["length"], found[2]["result"]) == ("none", 8, "hunter22")


def test_a_failed_command_tells_status_and_output_but_not_its_input() -> None:
    kind = command_provider.LocalCommand()
    inputs = {"create": "cat >/dev/null; echo out; echo err >&2; exit 3", "stdin": "s3cret"}
    with pytest.raises(Refused) as caught:
        asyncio.run(kind.create(inputs, "x"))
    text = str(caught.value)
    assert "exit status 3" in text
    assert "out\n" in text and "err\n" in text
    assert "s3cret" not in text


def test_a_password_cannot_change_the_root_only_architecture() -> None:
    provider = Proxmox()
    provider.api.config = {"endpoint": "https://192.0.2.1:8006/", "apiToken": "root@pam!ci=x"}
    vm: Any = provider.kinds[VM]
    with pytest.raises(Refused, match="can only be set by the root account"):
        asyncio.run(vm.create(vm.normal({"nodeName": "pve-1", "cpu": {"architecture": "aarch64"}}), "x"))


# Under the engine ---------------------------------------------------------------------------------------------------

PROGRAM: Final = """\
import json
import pulumi, pulumi_command as command, pulumi_proxmoxve as pve, pulumi_random as random

config = pulumi.Config()
facts = config.require_object("facts")
endpoint = facts["endpoint"]
token = pve.Provider("token", endpoint=endpoint, api_token=config.require_secret("token"))
root = pve.Provider("root", endpoint=endpoint, username="root@pam",
                    password=config.require_secret("password"))
password = random.RandomPassword("password", length=20, special=False)
download = {"node_name": "pve-1", "datastore_id": "local", "overwrite": False, "url": "https://192.0.2.10/image"}
image = pve.download.FileLegacy("image", content_type="import", file_name="noble.qcow2", **download,
                                opts=pulumi.ResourceOptions(provider=token))
template = pve.download.FileLegacy("template", content_type="vztmpl", file_name="debian-13-standard.tar.zst",
                                   **download, opts=pulumi.ResourceOptions(provider=token))
key = facts["publicKey"]
vm = pve.VmLegacy(
    "vm", node_name="pve-1", vm_id=201, name="node-1", on_boot=True, stop_on_destroy=True, tags=["lab", "k3s"],
    cpu={"cores": 2, "type": "host"}, memory={"dedicated": facts["memory"]}, scsi_hardware="virtio-scsi-single",
    agent={"enabled": True, "timeout": "20s"}, boot_orders=["scsi0"], startup={"order": 3},
    disks=[{"interface": "scsi0", "datastore_id": "linstor-ssd", "import_from": image.id, "size": facts["disk"],
            "discard": "on", "iothread": True}],
    network_devices=[{"bridge": "vmbr0", "model": "virtio"}], operating_system={"type": "l26"}, serial_devices=[{}],
    initialization={
        "datastore_id": "local-lvm", "interface": "ide2", "dns": {"servers": ["192.0.2.53"], "domain": "lab.test"},
        "ip_configs": [{"ipv4": {"address": "192.0.2.20/24", "gateway": "192.0.2.1"}}],
        "user_account": {"username": "ops", "password": password.result, "keys": [key]}},
    opts=pulumi.ResourceOptions(provider=token, ignore_changes=["disks[0].speed"]))
container = pve.ContainerLegacy(
    "container", node_name="pve-1", vm_id=301, unprivileged=False, start_on_boot=True, tags=["gpu"],
    features={"nesting": True, "keyctl": True},
    device_passthroughs=[{"path": path, "mode": "0666"} for path in facts["devices"]],
    cpu={"cores": 2}, memory={"dedicated": 2048, "swap": 0}, disk={"datastore_id": "local-lvm", "size": 16},
    operating_system={"template_file_id": template.id, "type": "debian"},
    network_interfaces=[{"name": "eth0", "bridge": "vmbr0"}],
    initialization={"hostname": "gpu-1",
                    "ip_configs": [{"ipv4": {"address": "192.0.2.30/24", "gateway": "192.0.2.1"}}],
                    "user_account": {"password": password.result, "keys": [key]}},
    opts=pulumi.ResourceOptions(provider=token if facts["containerByToken"] else root))
greeting = command.remote.Command(
    "greeting", create=facts["script"], delete="echo gone >> log", stdin=password.result, logging="none",
    connection={"host": "127.0.0.1", "port": facts["sshPort"], "user": "ops", "host_key": facts["hostKey"],
                "private_key": config.require_secret("privateKey"), "dial_error_limit": 2, "per_dial_timeout": 5},
    opts=pulumi.ResourceOptions(depends_on=[vm], additional_secret_outputs=["stdout", "stderr"]))
pulumi.export("addresses", vm.ipv4_addresses)
pulumi.export("gpuAddress", container.ipv4)
pulumi.export("password", password.result)
pulumi.export("greeting", greeting.stdout)
"""


class Daemon:
    """Stands for the lab's daemon: keeps what it was told."""

    def __init__(self) -> None:
        self.words: list[str] = []

    async def started(self, guest: Guest) -> None:
        self.words.append(f"started {guest.name}")

    async def stopped(self, guest: Guest) -> None:
        self.words.append(f"stopped {guest.name}")

    async def deleted(self, guest: Guest) -> None:
        self.words.append(f"deleted {guest.name}")

    def told(self) -> list[str]:
        words, self.words = self.words, []
        return words


class Rig:
    """A cluster and an SSH server on loopback, and the engine on a program of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.daemon = Daemon()
        self.home = directory / "guest"
        self.home.mkdir()
        self.program = directory / "program"
        self.program.mkdir()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.facts: dict[str, Any] = self.wait(self._serve())
        (self.program / "Pulumi.yaml").write_text("name: trial\nruntime: python\n")
        (self.program / "__main__.py").write_text(PROGRAM)
        install(directory / "bin", INTERPRETER)
        self.environment = {
            "PATH": f"{directory / 'bin'}:{bin_directory()}:/usr/bin:/bin",
            "HOME": str(directory),
            "SSL_CERT_FILE": str(directory / "pve/pve-sp.crt"),
            "PULUMI_HOME": str(directory / "pulumi"),
            "PULUMI_BACKEND_URL": f"file://{directory / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "x",
            "PULUMI_SKIP_UPDATE_CHECK": "1",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        }
        (directory / "state").mkdir()
        self.pulumi("stack", "init", "s")
        self.pulumi("config", "set", "--secret", "token", stdin="fleet@pve!lab=t0ken-s3cret")
        self.pulumi("config", "set", "--secret", "password", stdin="r00t-s3cret")
        self.pulumi("config", "set", "--secret", "privateKey", stdin=KEY.export_private_key().decode())

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    async def _serve(self) -> dict[str, Any]:
        secrets: Any = {
            "root_password": "r00t-s3cret",
            "api_token_id": "fleet@pve!lab",
            "api_token_secret": "t0ken-s3cret",
        }
        self.site = SitePve(
            "sp",
            [{"name": "pve-1", "address": "127.0.0.1"}],
            secrets,
            self.directory / "pve",
            self.daemon,
            [{"name": "linstor-ssd", "type": "drbd", "shared": True}],
        )
        self.site.pve.grant("fleet@pve", "/", "VM.GuestAgent.Audit")  # the program's VMs have no agent; this one has
        api = socket.create_server(("127.0.0.1", 0))
        await self.site.start(lambda _address, _port: api)
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        authorized = self.directory / "authorized_keys"
        authorized.write_bytes(KEY.export_public_key())
        self.ssh = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[host_key],
            authorized_client_keys=str(authorized),
            process_factory=self._run,
            encoding=None,
        )
        return {
            "endpoint": f"https://127.0.0.1:{api.getsockname()[1]}/",
            "sshPort": self.ssh.get_port(),
            "hostKey": host_key.export_public_key().decode().strip(),
            "publicKey": KEY.export_public_key().decode().strip(),
            "memory": 2048,
            "disk": 20,
            "devices": ["/dev/nvidia0", "/dev/nvidiactl"],
            "script": 'read password; echo "got ${#password}"; echo made >> log',
            "containerByToken": False,
        }

    async def _run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        given = await process.stdin.read()
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command or "",
            cwd=self.home,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await child.communicate(given)
        process.stdout.write(out)
        process.stderr.write(err)
        process.exit(child.returncode or 0)

    def pulumi(self, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            [bin_directory() / "pulumi", *arguments, "--non-interactive"],
            cwd=self.program,
            env=self.environment,
            input=stdin,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def up(self, *, fails: bool = False, **facts: Any) -> str:
        self.facts |= facts
        # A structured value can only be written into the file.
        path = self.program / "Pulumi.s.yaml"
        kept = [line for line in path.read_text().splitlines() if not line.startswith("  trial:facts:")]
        path.write_text("\n".join([*kept, f"  trial:facts: {json.dumps(self.facts)}"]) + "\n")
        return self.pulumi("up", "--yes", "--skip-preview", "--stack", "s", fails=fails)

    def outputs(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.pulumi("stack", "output", "--json", "--show-secrets", "--stack", "s"))
        return found

    def close(self) -> None:
        async def end() -> None:
            await self.site.stop()
            self.ssh.close()
            await self.ssh.wait_closed()

        self.wait(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def summary(text: str) -> list[str]:
    """The lines below `Resources:`, such as `9 unchanged`."""
    lines = [line.strip() for line in text.splitlines()]
    below = lines[len(lines) - lines[::-1].index("Resources:") :]
    return below[: below.index("")]


@pytest.mark.lab
def test_a_site_in_small_goes_up_settles_changes_and_comes_down(rig: Rig) -> None:
    text = rig.up()
    assert summary(text) == ["+ 9 created"]
    assert sorted(rig.daemon.told()) == ["started gpu-1", "started node-1"]
    outputs = rig.outputs()
    assert outputs["addresses"] == [["127.0.0.1"], ["192.0.2.20"]]
    assert outputs["gpuAddress"]["eth0"] == "192.0.2.30"
    assert outputs["greeting"] == "got 20"
    state = (rig.directory / "state/.pulumi/stacks/trial/s.json").read_text()
    written = text + state + (rig.program / "Pulumi.s.yaml").read_text()
    for secret in (outputs["password"], "r00t-s3cret", "t0ken-s3cret", *KEY.export_private_key().decode().split("\n")):
        assert not secret.strip() or secret.strip() not in written

    assert summary(rig.up()) == ["9 unchanged"]
    rig.pulumi("refresh", "--yes", "--skip-preview", "--stack", "s")
    assert summary(rig.up()) == ["9 unchanged"]
    assert rig.daemon.told() == []

    assert "~ 1 updated" in summary(rig.up(memory=4096))
    assert rig.daemon.told() == ["stopped node-1", "started node-1"]
    assert rig.site.pve.vm(201).config["memory"] == "4096"
    assert "~ 1 updated" in summary(rig.up(disk=40))
    assert rig.daemon.told() == []
    assert rig.site.pve.vm(201).config["scsi0"].count("size=40G") == 1
    assert summary(rig.up()) == ["9 unchanged"]

    for _ in range(2):  # a removed device stays on the node, and shows each time
        assert "~ 1 updated" in summary(rig.up(devices=["/dev/nvidia0"]))
        assert rig.daemon.told() == ["stopped gpu-1", "started gpu-1"]
    assert "dev1" in rig.site.pve.ct(301).config

    rig.site.pve.vm(201).config["cores"] = 8
    rig.pulumi("refresh", "--yes", "--skip-preview", "--stack", "s")
    assert "~ 2 updated" in summary(rig.up())
    assert rig.site.pve.vm(201).config["cores"] == "2"

    rig.daemon.told()
    rig.pulumi("destroy", "--yes", "--skip-preview", "--stack", "s")
    assert sorted(rig.daemon.told()) == ["deleted gpu-1", "deleted node-1", "stopped gpu-1", "stopped node-1"]
    assert (rig.home / "log").read_text() == "made\ngone\n"
    assert json.loads((rig.directory / "pve/pve.json").read_text())["vms"] == []


@pytest.mark.lab
def test_failures_tell_what_to_do_and_the_next_run_goes_on(rig: Rig) -> None:
    text = rig.up(fails=True, containerByToken=True)
    assert "only allowed for root@pam" in text
    assert "Traceback" not in text
    text = rig.up(fails=True, containerByToken=False, script="read password; echo broken >&2; exit 7")
    assert "Process exited with status 7" in text
    assert "broken" in text
    assert "Traceback" not in text
    assert "+ 1 created" in summary(rig.up(script="read password; echo fine"))
    assert summary(rig.up()) == ["9 unchanged"]
    stranger = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    assert "host key mismatch" in rig.up(fails=True, hostKey=stranger)


@pytest.mark.lab
def test_a_vm_that_does_not_boot_is_kept_and_started_next_time(rig: Rig) -> None:
    async def refuse(guest: Guest) -> None:
        raise RuntimeError(f"no memory left for {guest.name}")

    works = rig.daemon.started
    rig.daemon.started = refuse  # type: ignore[method-assign]
    assert "no memory left" in rig.up(fails=True)
    assert rig.site.pve.vm(201) is not None
    rig.daemon.started = works  # type: ignore[method-assign]
    rig.up()
    assert rig.site.pve.vm(201).status == "running"
    assert summary(rig.up()) == ["9 unchanged"]


def test_launchers_work_from_anywhere(tmp_path: Path) -> None:
    install(tmp_path / "bin", INTERPRETER)
    names = {launcher.name for launcher in (tmp_path / "bin").iterdir()}
    assert names == {"pulumi-language-python", *(f"pulumi-resource-{name}" for name in STANDS_IN_FOR)}
    with subprocess.Popen(
        [tmp_path / "bin/pulumi-resource-random", "127.0.0.1:1"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        process.terminate()
