"""Addresses: of this node, of ranges, and checks of what the configuration says about them."""

import ipaddress
import socket
from pathlib import Path

from .log import Fatal
from .settings import Settings


def first_address(cidr: str, offset: int) -> str:
    return str(ipaddress.ip_network(cidr, strict=False)[offset])


def node_address(settings: Settings) -> str:
    """`node-ip`, else the first address of the interface of the default route."""
    given = settings.items("node-ip")
    if given:
        try:
            return str(ipaddress.ip_address(given[0]))
        except ValueError:
            raise Fatal(f"invalid node-ip: invalid ip format '{given[0]}'") from None
    default_interface()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing: asks the routing table only
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


def default_interface() -> str:
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        interface, destination, _, flags = line.split()[:4]
        if destination == "00000000" and int(flags, 16) & 1:
            return interface
    raise Fatal('no default routes found in "/proc/net/route" or "/proc/net/ipv6_route"')


def check_ranges(settings: Settings) -> None:
    """Raises Fatal in K3s' words."""
    for flag in ("cluster-cidr", "service-cidr"):
        for value in settings.items(flag):
            try:
                ipaddress.ip_network(value, strict=False)
            except ValueError:
                raise Fatal(f"invalid {flag} {value}: invalid CIDR address: {value}") from None
    for value in settings.items("cluster-dns"):
        try:
            ipaddress.ip_address(value)
        except ValueError:
            raise Fatal(f"invalid cluster-dns address {value}") from None
    mode = settings.text("egress-selector-mode")
    if mode not in ("agent", "cluster", "pod", "disabled"):
        raise Fatal(f"invalid egress-selector-mode {mode}")
    backend = settings.text("flannel-backend")
    if backend not in ("none", "vxlan", "host-gw", "wireguard-native", "tailscale"):
        raise Fatal(f"Cannot configure unknown flannel backend '{backend}'")
