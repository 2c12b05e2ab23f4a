"""The tunnel part: WireGuard interfaces, and the static routes through them. The private key stays the router's."""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network

from infra.config import Fleet, Site
from infra.vyos.ownership import key_of
from infra.vyos.reach import MARK, Link, links, pods, tunnelled
from infra.vyos.statements import Statement

KEEPALIVE_S = 25  # of a dynamic end, so that the address translation before it stays open
BEHIND_BGP, LAST = "210", "254"  # distances: BGP has 20 and 200


def tunnel_part(fleet: Fleet, site_id: str) -> Iterator[Statement]:
    site, joined = fleet.sites[site_id], links(fleet, site_id)
    for link in joined:
        yield from _interface(site, link)
    route = ("protocols", "static", "route")
    for link in joined:
        if site.wireguard.route_lans:
            yield (*route, str(link.peer.network.lan_cidr), "next-hop", str(link.there))
        for cidr in pods(link.peer):
            # Behind BGP: without a session, packets neither loop nor leave by the default route.
            yield (*route, str(cidr), "next-hop", str(link.there), "distance", BEHIND_BGP)
    for cidr in pods(site):
        yield (*route, str(cidr), "blackhole", "distance", LAST)


def private_keys(fleet: Fleet, site_id: str) -> list[str]:
    """Keys of the stack under which the private keys of a site's tunnels lie, where the router gets them from there."""
    return [key_of(one) for one in tunnel_part(fleet, site_id) if one[-2] == "private-key"]


def _interface(site: Site, link: Link) -> Iterator[Statement]:
    name, own, far = link.tunnel.interface, site.wireguard, link.peer.wireguard
    base = ("interfaces", "wireguard", name)
    yield (*base, "address", f"{link.here}/{link.tunnel.cidr.prefixlen}")
    yield (*base, "description", f"{MARK}tunnel to {link.peer_id}")
    yield (*base, "mtu", str(own.mtu))
    yield (*base, "port", str(own.port_of(name)))
    yield (*base, "private-key", f"@@{name.upper()}_PRIVATE_KEY@@")
    yield (*base, "ip", "adjust-mss", "clamp-mss-to-pmtu")
    peer = (*base, "peer", link.peer_id)
    yield (*peer, "public-key", far.public_key or f"@@{link.peer_id.upper().replace('-', '_')}_PUBLIC_KEY@@")
    for network in (IPv4Network(link.there), *tunnelled(link.peer)):
        yield (*peer, "allowed-ips", str(network))
    if far.endpoint is not None and not far.dynamic:
        yield (*peer, "address" if isinstance(far.endpoint, IPv4Address) else "host-name", str(far.endpoint))
        yield (*peer, "port", str(far.port_of(name)))
        if own.dynamic:
            yield (*peer, "persistent-keepalive", str(KEEPALIVE_S))
