"""The one process that keeps the lab: network, nodes, SSH servers, Proxmox fakes and mirror live and die with it.

`python -m lab.daemon LABDIR`, as process 1 of a pid namespace (lab/control.py starts it so). Process 1 itself only
reaps; its child does the work. When either ends, the kernel ends everything in the lab.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from aiohttp import web

from lab import LabError, existing
from lab.bgp.speaker import Speakers
from lab.control import READY_FD
from lab.net import Network
from lab.node import Guest, Node
from lab.pve import SitePve
from lab.topology import Topology, read_secrets, read_topology

MIRROR_PORT = 80
STOP_TIMEOUT_S = 5.0
INSTALL_TIMEOUT_S = 110.0
REQUEST_LIMIT_BYTES = 1 << 20

log = logging.getLogger(__name__)


class Lab:
    """Everything that runs, and the operations on it. Also receives the Proxmox fakes' guest events."""

    def __init__(self, labdir: Path) -> None:
        self.labdir = labdir
        self.topology: Topology = read_topology(labdir)
        self.network = Network(self.topology, labdir / "run/netns")
        self.nodes: dict[str, Node] = {}
        self.pve: dict[str, SitePve] = {}
        self.speakers = Speakers(self.network.path, self.topology.toolchain, labdir / "logs")
        self._mirror: web.AppRunner | None = None

    async def up(self) -> None:
        """Builds the lab. Raises LabError."""
        await asyncio.to_thread(self.network.build)
        await self._start_mirror()
        secrets = read_secrets(self.labdir)
        for name, site in self.topology.sites.items():
            if site.pve is not None:
                await self._start_pve(name, secrets)
            for guest in site.guests:
                await self.started(Guest(site=name, **guest.model_dump()))

    async def down(self) -> None:
        """An orderly end, for the sake of what the fakes write; the kernel does the rest."""
        await self.speakers.stop_all()
        for fake in self.pve.values():
            await fake.stop()
        if self._mirror is not None:
            await self._mirror.cleanup()

    # Guest events -----------------------------------------------------------------------------------------------

    async def started(self, guest: Guest) -> None:
        """A guest was switched on."""
        node = self.nodes.setdefault(
            f"{guest.site}/{guest.name}", Node(guest, self.network, self.labdir, self.topology.toolchain)
        )
        node.guest = guest
        await node.start()
        log.info("%s/%s started", guest.site, guest.name)

    async def stopped(self, guest: Guest) -> None:
        """A guest was switched off."""
        node = self._node_of(guest)
        if node is not None:
            await self._power_off(node, node.kill)
            log.info("%s/%s stopped", guest.site, guest.name)

    async def deleted(self, guest: Guest) -> None:
        """A guest was deleted."""
        node = self._node_of(guest)
        if node is not None:
            del self.nodes[f"{guest.site}/{guest.name}"]
            await self._power_off(node, node.wipe)
            log.info("%s/%s deleted", guest.site, guest.name)

    async def _power_off(self, node: Node, operation: Callable[[], Awaitable[None]]) -> None:
        """Its speaker goes with it."""
        await self.speakers.stop(node.netns)
        await operation()

    def _node_of(self, guest: Guest) -> Node | None:
        """Not the one that a newer guest of the same name has by now."""
        node = self.nodes.get(f"{guest.site}/{guest.name}")
        return node if node is not None and node.guest.vmid == guest.vmid else None

    # Operations -------------------------------------------------------------------------------------------------

    async def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Carries out one request of the command line. Raises LabError."""
        operations: dict[str, Callable[[], Awaitable[None]]] = {
            "kill-node": lambda: self._power_off(self._node(message), self._node(message).kill),
            "start-node": lambda: self._node(message).start(),
            "wipe-node": lambda: self._power_off(self._node(message), self._node(message).wipe),
            "bgp-start": lambda: self._bgp_start(message),
            "bgp-announce": lambda: self._bgp_announce(message),
            "bgp-stop": self.speakers.stop_all,
            "set-config": lambda: self._set_config(message),
            "fault": lambda: self._fault(message),
            "install-existing": self._install_existing,
            "discard-guest": lambda: self._discard(message),
            "cut": lambda: asyncio.to_thread(self.network.cut, str(message.get("tunnel"))),
            "heal": lambda: asyncio.to_thread(self.network.heal, str(message.get("tunnel"))),
        }
        operation = message.get("op")
        if operation == "status":
            return self.status()
        if operation == "bgp-state":
            names = [str(name) for name in message.get("names") or ()]
            return {"speakers": await self.speakers.state(names, wire=bool(message.get("wire", True)))}
        if operation == "guest-config":
            return {"config": self._pve_of(message).config(str(message.get("name")))}
        if operation not in operations:
            known = ", ".join(["status", "bgp-state", "guest-config", *operations])
            raise LabError(f"the lab knows no operation {operation}; expected one of: {known}")
        await operations[operation]()
        return {}

    def status(self) -> dict[str, Any]:
        """What there is and what runs."""
        nodes = [
            {
                "site": node.guest.site,
                "name": node.guest.name,
                "vmid": node.guest.vmid,
                "kind": node.guest.kind,
                "host": node.guest.host,
                "address": str(node.guest.address.ip),
                "user": node.guest.user,
                "netns": node.netns,
                "running": node.running,
                "since": node.since.isoformat(timespec="seconds") if node.since else None,
            }
            for node in self.nodes.values()
        ]
        tunnels = [
            {
                "interface": tunnel.interface,
                "sites": list(tunnel.ends),
                "cut": tunnel.interface in self.network.cut_tunnels,
            }
            for tunnel in self.topology.tunnels
        ]
        sites = self.topology.sites.items()
        return {
            "nodes": sorted(nodes, key=lambda node: (node["site"], IPv4Address(str(node["address"])))),
            "tunnels": tunnels,
            "pve": {name: site.pve.endpoint for name, site in sites if site.pve is not None},
            "mirror": f"http://{self.topology.mirror.address}",
        }

    async def _set_config(self, message: dict[str, Any]) -> None:
        self._pve_of(message).set_config(str(message.get("name")), dict(message.get("values") or {}))

    async def _fault(self, message: dict[str, Any]) -> None:
        fake = self._pve_of(message)
        fake.faults.switch(str(message.get("kind")), bool(message.get("on", True)), str(message.get("subject") or ""))

    def _pve_of(self, message: dict[str, Any]) -> SitePve:
        fake = self.pve.get(str(message.get("site")))
        if fake is None:
            raise LabError(f"no Proxmox fake of {message.get('site')}; expected one of: {', '.join(self.pve)}")
        return fake

    async def _install_existing(self) -> None:
        """The K3s that people made on the existing guests; what is installed stays as it is. Sites side by side."""
        await asyncio.gather(*(self._install_site(name) for name in self.topology.sites))

    async def _install_site(self, name: str) -> None:
        base = f"http://{self.topology.mirror.address}"
        for guest in self.topology.sites[name].existing:
            node = self.nodes.get(f"{name}/{guest.name}")
            if guest.k3s is None or node is None or not node.running:
                continue
            if await node.run(existing.INSTALLED, INSTALL_TIMEOUT_S) == "yes":
                continue
            join = None
            if guest.k3s.joins is not None:
                founder = self.nodes[f"{name}/{guest.k3s.joins}"]
                token = await founder.run(existing.TOKEN, INSTALL_TIMEOUT_S)
                join = (f"https://{founder.guest.address.ip}:6443", token)
            await node.run(existing.installation(guest.k3s, base, join), INSTALL_TIMEOUT_S)
            log.info("%s/%s: K3s is there, made by hand", name, guest.name)

    async def _bgp_start(self, message: dict[str, Any]) -> None:
        for name, wanted in dict(message.get("speakers") or {}).items():
            if not self.network.path(name).exists():
                raise LabError(f"no machine of the lab has the network {name}; is the node on?")
            await self.speakers.start(name, wanted["configuration"], wanted["announced"])

    async def _bgp_announce(self, message: dict[str, Any]) -> None:
        prefixes = [str(prefix) for prefix in message.get("prefixes") or ()]
        await self.speakers.announce(str(message.get("name")), prefixes, withdraw=bool(message.get("withdraw")))

    async def _discard(self, message: dict[str, Any]) -> None:
        await self._pve_of(message).discard(int(message["vmid"]))

    def _node(self, message: dict[str, Any]) -> Node:
        wanted = str(message.get("node"))
        found = [key for key in self.nodes if wanted in (key, key.split("/", 1)[1])]
        if len(found) != 1:
            names = ", ".join(sorted(self.nodes)) or "none yet"
            raise LabError(f"{len(found)} nodes are called {wanted}; expected exactly one of: {names}")
        return self.nodes[found[0]]

    async def _start_pve(self, name: str, secrets: dict[str, Any]) -> None:
        if name not in secrets:
            raise LabError(
                f"{self.labdir}/secrets.json has nothing for {name}; expected the secrets of its Proxmox fake"
            )
        site = self.topology.sites[name]
        hosts: list[Any] = [host.model_dump(mode="json") for host in site.hosts]
        storages: list[Any] = list(site.pve.storages) if site.pve is not None else []
        fake = SitePve(name, hosts, secrets[name], self.labdir / "pve" / name, self, storages, site.existing)
        self.pve[name] = fake
        await fake.start(self.network.listen)

    async def _start_mirror(self) -> None:
        mirror = self.topology.mirror
        app = web.Application()
        app.router.add_static("/", mirror.directory, follow_symlinks=True)
        self._mirror = web.AppRunner(app, access_log=None)
        await self._mirror.setup()
        await web.TCPSite(self._mirror, str(mirror.address), MIRROR_PORT, shutdown_timeout=1).start()


async def serve(lab: Lab, ready: socket.socket) -> None:
    """Brings the lab up, answers requests, ends at SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await lab.up()
    server = await asyncio.start_unix_server(
        lambda reader, writer: _answer(lab, reader, writer), sock=_control_socket(lab.labdir), limit=REQUEST_LIMIT_BYTES
    )
    async with server:
        ready.send(b"ready")
        ready.close()
        await stop.wait()
    await asyncio.wait_for(lab.down(), STOP_TIMEOUT_S)


async def _answer(lab: Lab, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        answer = {"ok": True, **await lab.handle(json.loads(await reader.readline()))}
    except (LabError, ValueError) as error:
        answer = {"ok": False, "error": str(error)}
    except Exception as error:
        # A fault of ours must not leave the command line without an answer, nor take the lab down.
        log.exception("a request failed")
        answer = {"ok": False, "error": f"the lab has a fault: {error!r}; see {lab.labdir}/logs/daemon.log"}
    writer.write(json.dumps(answer).encode() + b"\n")
    try:
        await writer.drain()
    except ConnectionError:
        log.info("whoever asked has gone")
    writer.close()


def _control_socket(labdir: Path) -> socket.socket:
    """Through a descriptor, because a socket's path may have no more than 107 bytes."""
    directory = os.open(labdir / "run", os.O_DIRECTORY | os.O_RDONLY)
    try:
        path = f"/proc/self/fd/{directory}/control.sock"
        (labdir / "run/control.sock").unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        Path(path).chmod(0o600)
        listener.setblocking(False)
        return listener
    finally:
        os.close(directory)


def work(labdir: Path, ready: socket.socket) -> int:
    """The child: returns the exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    if sys.version_info < (3, 12):  # From then on it is the default: no thread for each child.
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    try:
        asyncio.run(serve(Lab(labdir), ready))
    except LabError as error:
        log.error("%s", error)
        ready.send(f"error: {error}".encode())
        return 1
    except Exception as error:
        log.exception("the lab ends")
        if ready.fileno() >= 0:
            ready.send(f"error: the lab has a fault: {error!r}; see {labdir}/logs/daemon.log".encode())
        return 1
    return 0


def reap(child: int) -> int:
    """Process 1: collects whatever ends, until the child does; returns its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    while True:
        pid, status = os.wait()
        if pid == child:
            return max(os.waitstatus_to_exitcode(status), 0)


def main() -> None:
    """Process 1."""
    labdir = Path(sys.argv[1])
    ready = socket.socket(fileno=int(os.environ.pop(READY_FD)))
    os.umask(0o022)
    ready.send(b"hello")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work(labdir, ready)
        finally:
            sys.stdout.flush()
            os._exit(code)
    ready.close()
    sys.exit(reap(child))


if __name__ == "__main__":
    main()
