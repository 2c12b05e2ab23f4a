"""SitePve over real HTTPS on loopback: what the provider needs, who may do what, and what the daemon is told."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fakepve.shapes import PRIVILEGES as KNOWN

from lab.node import Guest
from lab.pve import SitePve, Storage
from lab.pve.site import PRIVILEGES

SECRETS: Any = {"root_password": "r00t", "api_token_id": "fleet@pve!lab", "api_token_secret": "t0ken"}
STORAGES: list[Storage] = [{"name": "linstor-ssd", "type": "drbd", "shared": True}]
VM = {
    "vmid": "201",
    "name": "node-1",
    "memory": "2048",
    "net0": "model=virtio,bridge=vmbr0",
    "scsi0": "file=linstor-ssd:0,import-from=local:import/noble.qcow2",
    "ide2": "file=local-lvm:cloudinit",
    "ipconfig0": "ip=192.0.2.20/24,gw=192.0.2.1",
    "nameserver": "192.0.2.53",
    "ciuser": "ops",
    "sshkeys": "ssh-ed25519%20AAAA%20ops%40lab",
}
CONTAINER = {
    "vmid": "301",
    "hostname": "gpu-1",
    "ostemplate": "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst",
    "rootfs": "local-lvm:16",
    "unprivileged": "0",
    "net0": "name=eth0,bridge=vmbr0,ip=192.0.2.30/24,gw=192.0.2.1",
    "ssh-public-keys": "ssh-ed25519 AAAA ops@lab",
    "start": "1",
}
KEYED = CONTAINER | {"features": "keyctl=1,nesting=1", "dev0": "path=/dev/nvidia0,mode=0666"}


class Recorder:
    """Stands for the daemon."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Guest]] = []
        self.fail = ""

    async def started(self, guest: Guest) -> None:
        if self.fail:
            raise RuntimeError(self.fail)
        self.seen.append(("started", guest))

    async def stopped(self, guest: Guest) -> None:
        self.seen.append(("stopped", guest))

    async def deleted(self, guest: Guest) -> None:
        self.seen.append(("deleted", guest))

    @property
    def words(self) -> list[str]:
        return [f"{word} {guest.name}" for word, guest in self.seen]


class Client:
    """Talks to one host as root@pam or with the token."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url
        self.headers: dict[str, str] = {}

    async def log_in(self) -> None:
        ticket = (await self.call("POST", "access/ticket", username="root@pam", password="r00t"))["data"]
        self.headers = {
            "Cookie": f"PVEAuthCookie={ticket['ticket']}",
            "CSRFPreventionToken": ticket["CSRFPreventionToken"],
        }

    def use_token(self) -> None:
        self.headers = {"Authorization": "PVEAPIToken=fleet@pve!lab=t0ken"}

    async def call(self, method: str, path: str, **values: str) -> dict[str, Any]:
        sent: Any = {"params": values} if method in ("GET", "DELETE") else {"data": values}
        async with self.session.request(method, f"{self.url}/api2/json/{path}", headers=self.headers, **sent) as reply:
            body: dict[str, Any] = json.loads(await reply.text())
            return body | {"status": reply.status, "reason": reply.reason}

    async def done(self, method: str, path: str, **values: str) -> str:
        """Makes a call that starts a task; returns the task's exit status, or the refusal."""
        answer = await self.call(method, path, **values)
        if answer["status"] != 200:
            return str(answer["reason"])
        node = answer["data"].split(":")[1]
        return str((await self.call("GET", f"nodes/{node}/tasks/{answer['data']}/status"))["data"]["exitstatus"])


def listen(address: str, _port: int) -> socket.socket:
    """A free port instead of 8006, so that tests do not meet."""
    return socket.create_server((address, 0))


Scene = tuple[SitePve, Recorder, Client]


@contextlib.asynccontextmanager
async def serving(directory: Path, recorder: Recorder | None = None) -> AsyncIterator[Scene]:
    recorder = recorder or Recorder()
    hosts: Any = [{"name": "pve-1", "address": "127.0.0.1"}, {"name": "pve-2", "address": "127.0.0.2"}]
    pve = SitePve("sp", hosts, SECRETS, directory, recorder, STORAGES)
    sockets: list[socket.socket] = []

    def noted(address: str, port: int) -> socket.socket:
        assert port == 8006
        sockets.append(listen(address, port))
        return sockets[-1]

    await pve.start(noted)
    assert [each.getsockname()[0] for each in sockets] == ["127.0.0.1", "127.0.0.2"]
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            client = Client(session, f"https://127.0.0.1:{sockets[0].getsockname()[1]}")
            await client.log_in()
            yield pve, recorder, client
    finally:
        await pve.stop()


def scene(story: Callable[[SitePve, Recorder, Client], Awaitable[None]]) -> Callable[[Path], None]:
    """A test that plays on a fresh cluster."""

    def test(tmp_path: Path) -> None:
        async def play() -> None:
            async with serving(tmp_path / "pve") as (pve, recorder, client):
                await story(pve, recorder, client)

        asyncio.run(play())

    test.__name__ = story.__name__
    return test


async def image(client: Client, content: str = "import", name: str = "noble.qcow2") -> None:
    path = "nodes/pve-1/storage/local/download-url"
    assert await client.done("POST", path, content=content, filename=name, url="https://192.0.2.10/x") == "OK"


async def new_vm(client: Client) -> None:
    await image(client)
    assert await client.done("POST", "nodes/pve-1/qemu", **VM) == "OK"


async def config(client: Client, path: str = "nodes/pve-1/qemu/201") -> dict[str, Any]:
    found: dict[str, Any] = (await client.call("GET", f"{path}/config"))["data"]
    return found


@scene
async def test_a_started_vm_is_told_with_what_cloud_init_would_read(_pve: SitePve, seen: Recorder, pve: Client) -> None:
    await new_vm(pve)
    assert seen.seen == []
    assert await pve.done("POST", "nodes/pve-1/qemu/201/status/start") == "OK"
    assert seen.seen == [
        (
            "started",
            Guest(
                site="sp",
                name="node-1",
                vmid=201,
                kind="vm",
                host="pve-1",
                address=IPv4Interface("192.0.2.20/24"),
                gateway=IPv4Address("192.0.2.1"),
                dns=("192.0.2.53",),
                user="ops",
                ssh_keys=("ssh-ed25519 AAAA ops@lab",),
                devices=(),
            ),
        )
    ]


@scene
async def test_power_changes_and_removal_are_told_in_order(_pve: SitePve, seen: Recorder, pve: Client) -> None:
    await new_vm(pve)
    for action in ("start", "reboot", "stop"):
        assert await pve.done("POST", f"nodes/pve-1/qemu/201/status/{action}") == "OK"
    assert await pve.done("DELETE", "nodes/pve-1/qemu/201") == "OK"
    assert seen.words == [f"{word} node-1" for word in ("started", "stopped", "started", "stopped", "deleted")]


@scene
async def test_a_container_brings_its_keys_and_devices(_pve: SitePve, seen: Recorder, pve: Client) -> None:
    await image(pve, "vztmpl", "debian-13-standard_13.1-2_amd64.tar.zst")
    assert await pve.done("POST", "nodes/pve-1/lxc", **KEYED) == "OK"
    ((word, guest),) = seen.seen
    assert (word, guest.kind, guest.user, guest.name) == ("started", "lxc", "root", "gpu-1")
    assert (guest.ssh_keys, guest.devices) == (("ssh-ed25519 AAAA ops@lab",), ("/dev/nvidia0",))
    assert await pve.done("POST", "nodes/pve-1/lxc/301/status/stop") == "OK"
    assert await pve.done("DELETE", "nodes/pve-1/lxc/301") == "OK"
    assert seen.words == ["started gpu-1", "stopped gpu-1", "deleted gpu-1"]


@scene
async def test_a_node_that_does_not_come_up_fails_the_start(pve: SitePve, seen: Recorder, client: Client) -> None:
    await new_vm(client)
    seen.fail = "no such image"
    assert await client.done("POST", "nodes/pve-1/qemu/201/status/start") == "lab: no such image"
    assert pve.pve.vm(201).status == "stopped"


@scene
async def test_a_trailing_slash_still_deletes(pve: SitePve, _seen: Recorder, client: Client) -> None:
    await new_vm(client)
    assert await client.done("DELETE", "nodes/pve-1/qemu/201/", purge="1") == "OK"
    assert pve.pve.vms == []


@scene
async def test_an_image_becomes_a_disk_that_resize_grows(_pve: SitePve, _seen: Recorder, pve: Client) -> None:
    await new_vm(pve)
    assert (await config(pve))["scsi0"] == "linstor-ssd:vm-201-disk-0,size=2G"
    size = str(20 * 1024**3)
    assert await pve.done("PUT", "nodes/pve-1/qemu/201/resize", disk="scsi0", size=size) == "OK"
    assert (await config(pve))["scsi0"].endswith("size=20G")
    assert "shrinking" in await pve.done("PUT", "nodes/pve-1/qemu/201/resize", disk="scsi0", size="1G")


@scene
async def test_an_absent_image_is_refused(_pve: SitePve, _seen: Recorder, pve: Client) -> None:
    assert "local:import/noble.qcow2 does not exist" in await pve.done("POST", "nodes/pve-1/qemu", **VM)


@scene
async def test_the_cloud_init_drive_has_the_name_that_pve_gives(_pve: SitePve, _seen: Recorder, pve: Client) -> None:
    await new_vm(pve)
    assert (await config(pve))["ide2"] == "local-lvm:vm-201-cloudinit,media=cdrom,size=4M"
    await pve.call("PUT", "nodes/pve-1/qemu/201/config", ide0="linstor-ssd:cloudinit")
    assert (await config(pve))["ide0"].startswith("linstor-ssd:vm-201-cloudinit,media=cdrom")


@scene
async def test_url_metadata_has_a_name_and_a_size(_pve: SitePve, _seen: Recorder, pve: Client) -> None:
    answer = await pve.call("GET", "nodes/pve-1/query-url-metadata", url="https://192.0.2.10/a/noble.img?x=1")
    assert (answer["data"]["filename"], answer["data"]["size"]) == ("noble.img", 1024**2)


@scene
async def test_storages_have_the_content_of_their_type(_pve: SitePve, _seen: Recorder, pve: Client) -> None:
    stores = {each["storage"]: each for each in (await pve.call("GET", "nodes/pve-2/storage"))["data"]}
    assert stores.keys() == {"local", "local-lvm", "linstor-ssd"}
    assert {"snippets", "import"} <= set(stores["local"]["content"].split(","))
    assert (stores["linstor-ssd"]["type"], stores["linstor-ssd"]["shared"]) == ("drbd", 1)


@scene
async def test_a_token_makes_vms_but_no_keyctl_and_no_devices(_pve: SitePve, _seen: Recorder, pve: Client) -> None:
    await image(pve, "vztmpl", "debian-13-standard_13.1-2_amd64.tar.zst")
    pve.use_token()
    await new_vm(pve)
    assert await pve.done("POST", "nodes/pve-1/qemu/201/status/start") == "OK"
    answer = await pve.call("POST", "nodes/pve-1/lxc", **KEYED)
    assert answer["status"] == 403
    assert "only allowed for root@pam" in answer["reason"]
    assert "only root can set 'args'" in (await pve.call("PUT", "nodes/pve-1/qemu/201/config", args="-s"))["reason"]
    assert await pve.done("POST", "nodes/pve-1/lxc", **CONTAINER) == "OK"


@scene
async def test_a_wrong_token_is_nobody(_pve: SitePve, _seen: Recorder, pve: Client) -> None:
    pve.headers = {"Authorization": "PVEAPIToken=fleet@pve!lab=wrong"}
    assert (await pve.call("GET", "nodes"))["status"] == 401


def test_guests_are_known_and_running_again_after_a_restart(tmp_path: Path) -> None:
    async def play() -> None:
        async with serving(tmp_path) as (_, _seen, pve):
            await image(pve, "vztmpl", "debian-13-standard_13.1-2_amd64.tar.zst")
            await new_vm(pve)
            assert await pve.done("POST", "nodes/pve-1/lxc", **KEYED) == "OK"
        assert (tmp_path / "pve.json").stat().st_mode & 0o077 == 0
        async with serving(tmp_path) as (site, seen, pve):
            assert seen.words == ["started gpu-1"]
            assert seen.seen[0][1].ssh_keys == ("ssh-ed25519 AAAA ops@lab",)
            assert {guest.name for guest in site.guests()} == {"node-1", "gpu-1"}
            assert (await config(pve))["scsi0"] == "linstor-ssd:vm-201-disk-0,size=2G"

    asyncio.run(play())


def test_the_token_has_no_privilege_that_pve_does_not_know() -> None:
    assert set(PRIVILEGES) <= set(KNOWN)


@pytest.mark.parametrize("hosts", [[]])
def test_a_cluster_without_hosts_is_refused(tmp_path: Path, hosts: list[Any]) -> None:
    with pytest.raises(ValueError, match="at least one host"):
        SitePve("sp", hosts, SECRETS, tmp_path, Recorder())
