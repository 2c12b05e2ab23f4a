"""The firewall part: what may come out of a tunnel, the router's own ports, and the way in to Traefik.

Everything that no rule of a chain of ours accepts is dropped there. Leaves out default actions of base chains and
global options, which judge the site's own traffic as well.
"""

from collections.abc import Callable, Iterator

from infra.config import Fleet, Site
from infra.config.network import Zones
from infra.names import MESH_API_PORT
from infra.vyos.reach import BAND, MARK, PREFIX, Link, forwards_web, links, mesh_api, nodes, pods
from infra.vyos.statements import Statement

KUBERNETES_API_PORT = 6443
VXLAN_PORT = 8472
HEALTH_PORT = 4240  # Cilium's health check between nodes
NODES, PEERS = "FLEET-NODES", "FLEET-BGP"  # address groups
IN, OUT, ROUTER = "FLEET-IN", "FLEET-OUT", "FLEET-ROUTER"  # chains of the zone
Rule = Callable[..., Iterator[Statement]]


def firewall_part(fleet: Fleet, site_id: str) -> Iterator[Statement]:
    site, joined = fleet.sites[site_id], links(fleet, site_id)
    yield from _groups(site, joined)
    for link in joined:
        yield from _from_peer(fleet, site, link)
    if site.vyos.zones is not None:
        yield from _zones(site, joined, site.vyos.zones)
    else:
        yield from _base_chains(site, joined)
    yield from _forwards(site)


def _groups(site: Site, joined: list[Link]) -> Iterator[Statement]:
    group = ("firewall", "group")
    for link in joined:
        for network in (*pods(link.peer), *(f"{address}/32" for address in nodes(link.peer))):
            yield (*group, "network-group", link.tag, "network", str(network))
    for address in nodes(site):
        yield (*group, "address-group", NODES, "address", str(address))
    for address in (*(link.there for link in joined), *nodes(site)):
        yield (*group, "address-group", PEERS, "address", str(address))


def _rules(base: Statement, start: int, *, marked: bool = False) -> Rule:
    """Writes rules one after the other; those among rules of the site get our mark."""
    numbers = iter(range(start, BAND.stop, 10))

    def write(action: str, why: str, *matches: Statement) -> Iterator[Statement]:
        rule = (*base, "rule", str(next(numbers)))
        yield (*rule, "action", action)
        yield (*rule, "description", f"{MARK}{why}" if marked else why)
        for match in matches:
            yield (*rule, *match)

    return write


def _port(protocol: str, port: int | str) -> tuple[Statement, Statement]:
    return ("protocol", protocol), ("destination", "port", str(port))


_ANSWERS: tuple[Statement, Statement] = (("state", "established"), ("state", "related"))


def _from_peer(fleet: Fleet, site: Site, link: Link) -> Iterator[Statement]:
    """What goes on from a tunnel into the site: Pods, nodes, the mesh API; no other VIP (BGP-06), no other host."""
    chain = ("firewall", "ipv4", "name", f"{link.tag}-FORWARD")
    yield (*chain, "default-action", "drop")
    yield (*chain, "description", f"{MARK}from {link.peer_id} into the site")
    rule = _rules(chain, 10)
    yield from rule("accept", "answers", *_ANSWERS)
    if not pods(link.peer):
        return
    peer: Statement = ("source", "group", "network-group", link.tag)
    for cidr in pods(site):
        yield from rule("accept", "to Pods", peer, ("destination", "address", str(cidr)))
    mesh = mesh_api(site)
    if mesh is not None:
        api = ("destination", "address", str(mesh))
        yield from rule("accept", "to the mesh API", peer, api, *_port("tcp", MESH_API_PORT))
    if nodes(site):
        own: Statement = ("destination", "group", "address-group", NODES)
        if fleet.common.cilium.datapath == "tunnel":
            yield from rule("accept", "encapsulated Pod traffic", peer, own, *_port("udp", VXLAN_PORT))
        yield from rule("accept", "health of nodes", peer, own, *_port("tcp", HEALTH_PORT))
        yield from rule(
            "accept", "ping of nodes", peer, own, ("protocol", "icmp"), ("icmp", "type-name", "echo-request")
        )
    if fleet.common.multikueue.enabled and fleet.common.multikueue.manager == link.peer_id:
        for address in _gpu_apis(site):
            api = ("destination", "address", address)
            yield from rule("accept", "to the API of GPU clusters", peer, api, *_port("tcp", KUBERNETES_API_PORT))


def _gpu_apis(site: Site) -> list[str]:
    """API addresses of the site's GPU clusters, which the MultiKueue manager dials (NET-19)."""
    found = []
    for cluster in site.clusters.values():
        if cluster.role == "gpu":
            addresses = [cluster.api.vip] if cluster.api.vip else [node.address for node in site.nodes(cluster)][:1]
            found += [str(address) for address in addresses]
    return found


def _bgp_and_ssh(site: Site, joined: list[Link], rule: Rule) -> Iterator[Statement]:
    """The router's own ports, open to peers: BGP, and SSH where the document says so (NET-18)."""
    if joined or nodes(site):
        yield from rule("accept", "BGP", ("source", "group", "address-group", PEERS), *_port("tcp", 179))
    for link in joined if site.wireguard.allow_admin_ssh else ():
        tunnel: Statement = ("inbound-interface", "name", link.tunnel.interface)
        lan: Statement = ("source", "address", str(link.peer.network.lan_cidr))
        yield from rule("accept", f"SSH from {link.peer_id}", tunnel, lan, *_port("tcp", 22))


def _listeners(site: Site, joined: list[Link]) -> tuple[Statement, Statement]:
    ports = sorted(site.wireguard.port_of(link.tunnel.interface) for link in joined)
    return _port("udp", ",".join(str(port) for port in ports))


def _to_web(site: Site, rule: Rule) -> Iterator[Statement]:
    vip: Statement = ("destination", "address", str(site.lb.vips.traefik))
    forwarded: Statement = ("connection-status", "nat", "destination")
    yield from rule("accept", "forwarded web to Traefik", forwarded, vip, *_port("tcp", "80,443"))


def _base_chains(site: Site, joined: list[Link]) -> Iterator[Statement]:
    ipv4 = ("firewall", "ipv4")
    forward = _rules((*ipv4, "forward", "filter"), BAND.start, marked=True)
    for link in joined:
        tunnel: Statement = ("inbound-interface", "name", link.tunnel.interface)
        target: Statement = ("jump-target", f"{link.tag}-FORWARD")
        yield from forward("jump", f"from {link.peer_id}", target, tunnel)
    if forwards_web(site):
        yield from _to_web(site, forward)
    rule = _rules((*ipv4, "input", "filter"), BAND.start, marked=True)
    if joined:
        wan: Statement = ("inbound-interface", "name", site.vyos.wan_interface)
        yield from rule("accept", "WireGuard", wan, *_listeners(site, joined))
    yield from _bgp_and_ssh(site, joined, rule)
    for link in joined:
        tunnel = ("inbound-interface", "name", link.tunnel.interface)
        yield from rule("drop", f"anything else from {link.peer_id}", tunnel, ("state", "new"))


def _zones(site: Site, joined: list[Link], zones: Zones) -> Iterator[Statement]:
    """The tunnels are a zone of ours. Pairs with the site's zones have chains of ours; pairs of the site's zones have
    chains of the site, which get single rules that accept, so that none of its own is passed over."""
    name = ("firewall", "ipv4", "name")
    if joined:
        zone = ("firewall", "zone", PREFIX)
        yield (*zone, "default-action", "drop")
        yield (*zone, "description", f"{MARK}tunnels to the other sites")
        yield (*zone, "intra-zone-filtering", "action", "drop")  # no transit between two peers
        for link in joined:
            member = ("interface",) if site.vyos.version == "1.4" else ("member", "interface")
            yield (*zone, *member, link.tunnel.interface)
        yield (*name, IN, "default-action", "drop")
        into = _rules((*name, IN), 10)
        for link in joined:
            tunnel: Statement = ("inbound-interface", "name", link.tunnel.interface)
            yield from into("jump", f"from {link.peer_id}", ("jump-target", f"{link.tag}-FORWARD"), tunnel)
        yield (*name, OUT, "default-action", "accept")  # judged where it arrives
        yield (*name, ROUTER, "default-action", "drop")
        router = _rules((*name, ROUTER), 10)
        yield from router("accept", "answers", *_ANSWERS)
        yield from _bgp_and_ssh(site, joined, router)
        for target, source, chain in (
            (zones.lan, PREFIX, IN),
            (PREFIX, zones.lan, OUT),
            (zones.local, PREFIX, ROUTER),
            (PREFIX, zones.local, OUT),
        ):
            yield ("firewall", "zone", target, "from", source, "firewall", "name", chain)
        wan = _rules((*name, zones.wan_to_local), BAND.start, marked=True)
        yield from wan("accept", "WireGuard", *_listeners(site, joined))
    if nodes(site):
        lan = _rules((*name, zones.lan_to_local), BAND.start, marked=True)
        own: Statement = ("source", "group", "address-group", NODES)
        yield from lan("accept", "BGP of the nodes", own, *_port("tcp", 179))
    if forwards_web(site):
        yield from _to_web(site, _rules((*name, zones.wan_to_lan), BAND.start, marked=True))


def _forwards(site: Site) -> Iterator[Statement]:
    """Web ports of the public address to Traefik (TRF-03), and the way back for clients of the LAN itself."""
    if not forwards_web(site):
        return
    vip = site.lb.vips.traefik
    assert vip is not None
    rule = ("nat", "destination", "rule", str(BAND.start))
    yield (*rule, "description", f"{MARK}web to Traefik")
    yield (*rule, "protocol", "tcp")
    yield (*rule, "destination", "address", str(site.vyos.public_address))
    yield (*rule, "destination", "port", "80,443")
    yield (*rule, "translation", "address", str(vip))
    rule = ("nat", "source", "rule", str(BAND.start))
    yield (*rule, "description", f"{MARK}answers to clients in the LAN pass here")
    yield (*rule, "outbound-interface", "name", site.vyos.lan_interface)
    yield (*rule, "source", "address", str(site.network.lan_cidr))
    yield (*rule, "destination", "address", str(vip))
    yield (*rule, "translation", "address", "masquerade")
