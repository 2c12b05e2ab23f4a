"""The BGP part: prefix lists, route maps and neighbors. What no list permits is neither taken nor passed on."""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network

from infra.config import Fleet, Site
from infra.rules.doc import NODE_PREFIX
from infra.vyos.reach import CILIUM, Link, announced, links, mesh_api, nodes, pods, pool
from infra.vyos.statements import Statement

TIMERS = ("10", "30")  # keepalive and hold time in seconds between routers: the link itself never goes down
MAX_PATHS = "8"
MAX_NODE_PREFIXES = "64"  # far above what a node announces: the prefix lists are the limit, this ends a flood
PASSWORD_MARK = "@@BGP_PASSWORD@@"  # stands for the secret in what is rendered
POD, VIP, MESH, NONE = "FLEET-POD", "FLEET-VIP", "FLEET-MESH", "FLEET-NONE"


def routing_part(fleet: Fleet, site_id: str) -> Iterator[Statement]:
    site, joined = fleet.sites[site_id], links(fleet, site_id)
    yield from _policies(site, joined)
    yield from _bgp(site, joined)


def _policies(site: Site, joined: list[Link]) -> Iterator[Statement]:
    mesh = mesh_api(site)
    lists = {
        POD: [(cidr, NODE_PREFIX) for cidr in pods(site)],
        VIP: [(block, 32) for block in pool(site)],
        MESH: [(IPv4Network(mesh), 32)] if mesh is not None else [],
        **{link.tag: announced(link.peer) for link in joined},
    }
    for name, entries in lists.items():
        yield from _prefix_list(name, entries)

    def permits(name: str, wanted: Iterable[str]) -> Iterator[Statement]:
        return _route_map(name, [entry for entry in wanted if lists[entry]])

    yield from permits(f"{CILIUM}-IN", [POD, VIP])
    yield from _route_map(NONE, [])
    for link in joined:
        yield from permits(f"{link.tag}-OUT", [POD, MESH, *([VIP] if site.bgp.export_vips else [])])
        yield from permits(f"{link.tag}-IN", [link.tag])


def _prefix_list(name: str, entries: Iterable[tuple[IPv4Network, int]]) -> Iterator[Statement]:
    for number, (network, length) in enumerate(entries, 1):
        rule = ("policy", "prefix-list", name, "rule", str(10 * number))
        yield (*rule, "action", "permit")
        yield (*rule, "prefix", str(network))
        if length > network.prefixlen:
            yield (*rule, "ge", str(length))
            if length < 32:
                yield (*rule, "le", str(length))


def _route_map(name: str, permitted: list[str]) -> Iterator[Statement]:
    """One that permits some prefix lists; whatever follows is denied, as it is without any."""
    base = ("policy", "route-map", name, "rule")
    for number, prefix_list in enumerate(permitted, 1):
        yield (*base, str(10 * number), "action", "permit")
        yield (*base, str(10 * number), "match", "ip", "address", "prefix-list", prefix_list)
    if not permitted:
        yield (*base, "10", "action", "deny")


def _bgp(site: Site, joined: list[Link]) -> Iterator[Statement]:
    bgp, settings = ("protocols", "bgp"), site.bgp
    internal = settings.cilium_asn == settings.vyos_asn
    yield (*bgp, "system-as", str(settings.vyos_asn))
    yield (*bgp, "parameters", "router-id", str(site.vyos.lan_address))
    # Without it an external neighbor that lacks a route map would get everything.
    yield (*bgp, "parameters", "ebgp-requires-policy")
    yield (*bgp, "address-family", "ipv4-unicast", "maximum-paths", "ibgp" if internal else "ebgp", MAX_PATHS)
    group = (*bgp, "peer-group", CILIUM)
    yield (*group, "remote-as", "internal" if internal else str(settings.cilium_asn))
    yield (*group, "passive")  # Cilium only dials
    if settings.authenticated:
        yield (*group, "password", PASSWORD_MARK)
    if settings.graceful_restart_s:
        yield (*group, "graceful-restart", "restart-helper")
    yield from _both_ways(group, f"{CILIUM}-IN", NONE)
    yield (*group, "address-family", "ipv4-unicast", "maximum-prefix", MAX_NODE_PREFIXES)
    for address in nodes(site):  # named one by one: a missing node is seen, a stranger is refused
        yield (*bgp, "neighbor", str(address), "peer-group", CILIUM)
    for link in joined:
        neighbor = (*bgp, "neighbor", str(link.there))
        yield (*neighbor, "description", f"fleet: router of {link.peer_id}")
        yield (*neighbor, "remote-as", str(link.peer.bgp.vyos_asn))
        yield (*neighbor, "update-source", str(link.here))
        yield (*neighbor, "timers", "keepalive", TIMERS[0])
        yield (*neighbor, "timers", "holdtime", TIMERS[1])
        yield from _both_ways(neighbor, f"{link.tag}-IN", f"{link.tag}-OUT")


def _both_ways(neighbor: Statement, incoming: str, outgoing: str) -> Iterator[Statement]:
    for direction, name in (("import", incoming), ("export", outgoing)):
        yield (*neighbor, "address-family", "ipv4-unicast", "route-map", direction, name)
