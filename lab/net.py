"""The lab's network: one namespace per router, Proxmox host and guest, with the production addresses verbatim.

Everything lives inside the lab's own network namespace ("core"), which has no way out, so no packet can reach the
machine's network. Not modelled: VLANs, NAT, DNS, and any filtering; a router forwards, no more.
"""

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from lab import LabError
from lab.topology import Topology

CLONE_NEWNET = 0x40000000
COMMAND_TIMEOUT_S = 20


class Network:
    """Makes the topology's namespaces, held by bind mounts in `directory` that only the lab's mount namespace sees."""

    def __init__(self, topology: Topology, directory: Path) -> None:
        self.topology = topology
        self.directory = directory
        self.cut_tunnels: set[str] = set()
        self._by_address: dict[IPv4Address, str] = {}
        self._links = 0

    def build(self) -> None:
        """Core, routers, hosts and tunnels. Raises LabError when the kernel refuses a link."""
        self.directory.mkdir(parents=True, exist_ok=True)
        # Forwarding would let two sites talk through core while their tunnel is cut.
        _sysctl(None, {"net/ipv4/ip_forward": "0"})
        _ip(None, ["link set lo up", f"addr add {self.topology.mirror.address}/32 dev lo"])
        for number, (name, site) in enumerate(self.topology.sites.items()):
            self._build_router(number, name)
            for host in site.hosts:
                address = IPv4Interface(f"{host.address}/{site.lan.prefixlen}")
                self.attach(f"h-{host.name}", name, address, site.router.lan_address)
        for number, tunnel in enumerate(self.topology.tunnels):
            (left, left_address), (right, right_address) = tunnel.ends.items()
            peer = f"peer name {tunnel.interface} netns {self.path(_router(right))}"
            self._run(_router(left), [f"link add {tunnel.interface} type veth {peer}"])
            self._run(_router(left), [f"addr add {left_address} dev {tunnel.interface}"])
            self._run(_router(right), [f"addr add {right_address} dev {tunnel.interface}"])
            self._raise_tunnel(number)

    def attach(self, netns: str, site: str, address: IPv4Interface, gateway: IPv4Address | None) -> None:
        """A namespace on the site's LAN. Its MAC follows from the address, so that neighbours need not relearn it."""
        self._links += 1
        link = f"n{self._links}"
        path = self._create(netns)
        self._run(
            _router(site),
            [
                f"link add {link} type veth peer name eth0 address {_mac(address.ip)} netns {path}",
                f"link set {link} master lan up",
            ],
        )
        lines = ["link set lo up", f"addr add {address} brd + dev eth0", "link set eth0 up"]
        self._run(netns, lines)
        if gateway is not None:
            if gateway not in address.network:
                raise LabError(f"{netns}: gateway {gateway} is outside {address.network}; correct the guest's gateway")
            self._run(netns, [f"route add default via {gateway}"])
        self._by_address[address.ip] = netns

    def detach(self, netns: str) -> None:
        """Takes the namespace away, with its link and every address in it. Absent is fine."""
        path = self.path(netns)
        if not os.path.ismount(path):
            return
        subprocess.run(
            ["nsenter", f"--net={path}", "--", "ip", "link", "del", "eth0"],
            check=False,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True, timeout=COMMAND_TIMEOUT_S)
        self._by_address = {address: name for address, name in self._by_address.items() if name != netns}

    def cut(self, interface: str) -> None:
        """Takes a tunnel down at both ends: neither site reaches the other."""
        tunnel = self.topology.tunnels[self._tunnel(interface)]
        for site in tunnel.ends:
            self._run(_router(site), [f"link set {interface} down"])
        self.cut_tunnels.add(interface)

    def heal(self, interface: str) -> None:
        """Brings a tunnel back; harmless when it was never cut."""
        self._raise_tunnel(self._tunnel(interface))
        self.cut_tunnels.discard(interface)

    def listen(self, address: str, port: int) -> socket.socket:
        """A listening socket on an address of the lab, in whichever namespace holds it."""
        netns = self._by_address.get(IPv4Address(address))
        if netns is None:
            raise LabError(f"no machine of the lab has the address {address}; expected a host or a started guest")
        return listen_in(self.path(netns), address, port)

    def path(self, netns: str) -> Path:
        """The file that names a namespace, for nsenter --net."""
        return self.directory / netns

    def _build_router(self, number: int, name: str) -> None:
        site, netns, core = self.topology.sites[name], _router(name), f"s{number}"
        path = self._create(netns)
        link = IPv4Network(("198.18.0.0", 15)).network_address + 4 * number
        _ip(
            None,
            [
                f"link add {core} type veth peer name core netns {path}",
                f"addr add {link + 1}/30 dev {core}",
                f"link set {core} up",
                f"route add {site.lan} via {link + 2}",
            ],
        )
        lan = f"{site.router.lan_address}/{site.lan.prefixlen}"
        lines = [
            "link set lo up",
            # A bridge without a MAC of its own changes it with every port, and neighbours lose their gateway.
            f"link add lan address {_mac(site.router.lan_address)} type bridge forward_delay 0 stp_state 0",
            f"addr add {lan} brd + dev lan",
            "link set lan up",
            f"addr add {link + 2}/30 dev core",
            "link set core up",
            f"route add {self.topology.mirror.address}/32 via {link + 1}",
            # An answer at once, in place of a packet that vanishes in core.
            "route add unreachable default",
        ]
        if site.router.public_address is not None:
            lines.append(f"addr add {site.router.public_address}/32 dev lo")
            _ip(None, [f"route add {site.router.public_address}/32 via {link + 2}"])
        _sysctl(path, {"net/ipv4/ip_forward": "1", "net/ipv4/conf/all/rp_filter": "0"})
        self._run(netns, lines)

    def _raise_tunnel(self, number: int) -> None:
        tunnel = self.topology.tunnels[number]
        ends = list(tunnel.ends.items())
        for site, _ in ends:
            self._run(_router(site), [f"link set {tunnel.interface} up"])
        for (site, _), (peer, address) in zip(ends, reversed(ends), strict=True):
            # The metric tells two tunnels between the same sites apart; taking a link down dropped its routes.
            route = f"{self.topology.sites[peer].lan} via {address.ip} dev {tunnel.interface} metric {100 + number}"
            self._run(_router(site), [f"route replace {route}"])

    def _tunnel(self, interface: str) -> int:
        names = [tunnel.interface for tunnel in self.topology.tunnels]
        if interface not in names:
            raise LabError(f"no tunnel {interface}; expected one of: {', '.join(names) or 'none in this lab'}")
        return names.index(interface)

    def _create(self, netns: str) -> Path:
        path = self.path(netns)
        self.detach(netns)
        path.touch()
        _run(["unshare", f"--net={path}", "--", "true"])
        return path

    def _run(self, netns: str, lines: Sequence[str]) -> None:
        _ip(self.path(netns), lines)


def listen_in(netns: Path, address: str, port: int) -> socket.socket:
    """Opens a socket from a thread of its own, because a thread that changed its namespace can serve nothing else."""
    opened: list[socket.socket] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            _enter(netns)
            opened.append(socket.create_server((address, port), backlog=128))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work, name=f"listen {address}:{port}")
    thread.start()
    thread.join()
    if failed:
        raise LabError(f"cannot listen on {address}:{port} in {netns.name}: {failed[0].strerror}") from failed[0]
    opened[0].setblocking(False)
    return opened[0]


def _enter(netns: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _mac(address: IPv4Address) -> str:
    return ":".join(f"{byte:02x}" for byte in (2, 0, *address.packed))


def _router(site: str) -> str:
    return f"r-{site}"


def _sysctl(netns: Path | None, values: dict[str, str]) -> None:
    enter = [] if netns is None else ["nsenter", f"--net={netns}", "--"]
    for key, value in values.items():
        _run([*enter, "sh", "-c", 'printf %s "$1" > "/proc/sys/$2"', "sysctl", value, key])


def _ip(netns: Path | None, lines: Sequence[str]) -> None:
    enter = [] if netns is None else ["nsenter", f"--net={netns}", "--"]
    _run([*enter, "ip", "-batch", "-"], "\n".join(lines) + "\n")


def _run(argv: Sequence[str], text: str = "") -> None:
    done = subprocess.run(argv, input=text, text=True, capture_output=True, check=False, timeout=COMMAND_TIMEOUT_S)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise LabError(f"the kernel refused a part of the lab's network ({' '.join(argv[-3:])}): {reason}")
