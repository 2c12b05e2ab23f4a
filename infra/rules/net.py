"""NET: LAN, tunnels and ranges. Routes, firewall rules and keys are tested on the rendered router configuration."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.mtu import TUNNEL_LIMIT, WAN_MTU, WIREGUARD_OVERHEAD
from infra.rules.decided import deviations
from infra.rules.ranges import Range, holds, is_host_of, left_to_gpu_rule, overlaps
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_009, ARCHITECTURE, PLAN, SEEDS
from infra.violation import Level


@rule("NET-01", level=Level.ACK, source=SEEDS["NET-01"].source)
def tunnel_has_two_addresses(fleet: Fleet) -> Iterator[Finding]:
    """Each tunnel has a /30 with one address for each end; Franca and São Paulo use 10.255.0.0/30."""
    yield from deviations(fleet, "NET-01")
    for index, tunnel in enumerate(fleet.common.tunnels):
        path = f"common.tunnels.{index}"
        if tunnel.cidr.prefixlen != 30:
            yield Finding(f"{path}.cidr", tunnel.cidr, "a /30", "use a /30 for each tunnel", level=Level.ERROR)
        for end, address in tunnel.ends.items():
            if not is_host_of(tunnel.cidr, address):
                expected = f"an address of {tunnel.cidr}, neither the first nor the last"
                yield Finding(f"{path}.ends.{end}", address, expected, "correct the address", level=Level.ERROR)
        addresses = list(tunnel.ends.values())
        if len(set(addresses)) < len(addresses):
            found = f"{addresses[0]} at both ends"
            yield Finding(f"{path}.ends", found, "two addresses", "give each end its own", level=Level.ERROR)


@rule("NET-02", level=Level.ACK, source=SEEDS["NET-02"].source)
def one_tunnel_for_a_pair(fleet: Fleet) -> Iterator[Finding]:
    """Two sites share one WireGuard tunnel on an interface of its own; wg0 joins Franca and São Paulo."""
    yield from deviations(fleet, "NET-02")
    pairs: dict[frozenset[str], int] = {}
    interfaces: dict[tuple[str, str], int] = {}
    for index, tunnel in enumerate(fleet.common.tunnels):
        path, ends = f"common.tunnels.{index}", frozenset(tunnel.ends)
        if ends in pairs:
            found = f"a second tunnel between {' and '.join(sorted(ends))} (common.tunnels.{pairs[ends]})"
            yield Finding(f"{path}.ends", found, "one tunnel for a pair of sites", "remove one", level=Level.ERROR)
        pairs.setdefault(ends, index)
        for end in tunnel.ends:
            if (end, tunnel.interface) in interfaces:
                found = (
                    f"{tunnel.interface}, which {end} uses for common.tunnels.{interfaces[end, tunnel.interface]} too"
                )
                yield Finding(
                    f"{path}.interface", found, "one peer for an interface", "name another", level=Level.ERROR
                )
            interfaces.setdefault((end, tunnel.interface), index)
    for site_id, site in fleet.sites.items():
        if site.rejected.headscale:
            remedy = "remove it: sites are joined by WireGuard between their routers"
            yield Finding(f"{site_id}.rejected.headscale", "true", "false", remedy, level=Level.ERROR)


@rule("NET-04", source=PLAN)
def tunnel_end_can_be_dialled(fleet: Fleet) -> Iterator[Finding]:
    """One end of a tunnel has an endpoint, and the other end's router can dial it; one without is dynamic and dials."""
    tunnelled = _tunnelled(fleet)
    for site_id, site in fleet.sites.items():
        if site_id in tunnelled and site.wireguard.endpoint is None and not site.wireguard.dynamic:
            expected = "an endpoint, or dynamic: true"
            yield Finding(f"{site_id}.wireguard.endpoint", "nothing", expected, "set one of the two")
    for index, tunnel in enumerate(fleet.common.tunnels):
        ends = [fleet.sites.get(end) for end in tunnel.ends]
        if all(end is not None and end.wireguard.dynamic for end in ends):
            found = f"{' and '.join(tunnel.ends)}, both dynamic"
            yield Finding(f"common.tunnels.{index}.ends", found, "one end that can be dialled", "fix an endpoint")
        for near, far in (tuple(tunnel.ends), tuple(reversed(tunnel.ends))):
            yield from _undiallable(fleet, tunnel.interface, near, far)


def _undiallable(fleet: Fleet, interface: str, near: str, far: str) -> Iterator[Finding]:
    if near not in fleet.sites or far not in fleet.sites:
        return
    router, wireguard = fleet.sites[near].vyos, fleet.sites[far].wireguard
    if isinstance(wireguard.endpoint, str) and not wireguard.dynamic and router.version == "1.4":
        found = f"the name {wireguard.endpoint}, which the router of {near} with VyOS 1.4 cannot dial"
        remedy = f"give the address, or upgrade the router of {near} to 1.5"
        yield Finding(f"{far}.wireguard.endpoint", found, "an IPv4 address", remedy)
    if wireguard.port_of(interface) > 65535:
        found = f"{wireguard.listen_port}, which leaves {interface} the port {wireguard.port_of(interface)}"
        yield Finding(f"{far}.wireguard.listen_port", found, "a port with room for each tunnel", "choose a lower one")


@rule("NET-06", source=PLAN)
def pool_lies_in_a_known_range(fleet: Fleet) -> Iterator[Finding]:
    """A LoadBalancer pool lies in the LAN or in a declared VIP range."""
    for site_id, site in fleet.sites.items():
        network = site.network
        if not any(holds(cidr, site.lb.pool) for cidr in (network.lan_cidr, *network.vip_ranges)):
            expected = f"addresses of the LAN {network.lan_cidr} or of network.vip_ranges"
            yield Finding(f"{site_id}.lb.pool", site.lb.pool, expected, "correct the LAN, or declare the VIP range")


@rule("NET-09", source=ARCHITECTURE)
def ranges_are_disjoint(fleet: Fleet) -> Iterator[Finding]:
    """Pod, Service, LAN, VIP, tunnel and storage ranges of the fleet do not overlap."""
    for first, second in overlaps(fleet):
        if not _may_overlap(first, second) and not left_to_gpu_rule(first, second):
            found = f"{second.text}, which overlaps {first}"
            yield Finding(second.path, found, "ranges that do not overlap", "choose another range for one of them")


@rule("NET-11", source=ARCHITECTURE)
def mesh_nodes_reach_each_other(fleet: Fleet) -> Iterator[Finding]:
    """A site with a tunnel and a mesh member routes the LANs, since nodes of the mesh reach each other."""
    tunnelled = _tunnelled(fleet)
    for site_id, site in fleet.sites.items():
        meshed = [cluster.name for cluster in site.clusters.values() if cluster.in_mesh]
        if meshed and not site.wireguard.route_lans and site_id in tunnelled:
            found = f"false with {', '.join(meshed)} in the mesh"
            yield Finding(f"{site_id}.wireguard.route_lans", found, "true", "route the LANs, or leave the mesh")


@rule("NET-14", source=PLAN)
def packets_fit_the_tunnel(fleet: Fleet) -> Iterator[Finding]:
    """A tunnel has one MTU at both ends that fits WAN and LANs; Pods stay below it; routers let nodes reach nodes."""
    tunnelled = _tunnelled(fleet)
    for site_id, site in fleet.sites.items():
        mtu, path = site.wireguard.mtu, f"{site_id}.wireguard.mtu"
        if site_id not in tunnelled:
            continue
        if mtu > TUNNEL_LIMIT:
            expected = f"at most {TUNNEL_LIMIT}: {WAN_MTU} of the WAN less {WIREGUARD_OVERHEAD} of WireGuard"
            yield Finding(path, mtu, expected, "lower it at both ends of each tunnel")
        elif mtu > site.network.mtu:
            expected = f"at most network.mtu, {site.network.mtu}"
            yield Finding(path, mtu, expected, "lower it at both ends of each tunnel, or correct network.mtu")
    for tunnel in fleet.common.tunnels:
        ends = {end: fleet.sites[end].wireguard.mtu for end in tunnel.ends if end in fleet.sites}
        for end, mtu in ends.items():
            if mtu > min(ends.values()):
                other = min(ends, key=lambda one: ends[one])
                expected = f"{ends[other]} as in {other}, the other end of {tunnel.interface}"
                yield Finding(f"{end}.wireguard.mtu", mtu, expected, "give both ends the MTU of the narrower one")


@rule("NET-15", level=Level.ACK, source=ARCHITECTURE)
def router_changes_have_a_backup(fleet: Fleet) -> Iterator[Finding]:
    """Configuration is applied to a router with a recorded backup only."""
    for site_id, site in fleet.sites.items():
        if site.vyos.apply and site.vyos.backup_ref is None:
            remedy = "back the router up and set the reference, or accept it under accept.NET-15"
            yield Finding(f"{site_id}.vyos.backup_ref", "nothing with apply: true", "reference of a backup", remedy)


@rule("NET-19", source=ADR_009)
def gpu_api_is_reachable(fleet: Fleet) -> Iterator[Finding]:
    """With MultiKueue the API of each GPU cluster is reachable through the tunnel."""
    for site_id, site in fleet.sites.items() if fleet.common.multikueue.enabled else ():
        gpu = [cluster.name for cluster in site.clusters.values() if cluster.role == "gpu"]
        if gpu and site_id != fleet.common.multikueue.manager and not site.wireguard.route_lans:
            found = f"false with the API of {', '.join(gpu)} in the LAN"
            yield Finding(f"{site_id}.wireguard.route_lans", found, "true", "route the LANs, or switch MultiKueue off")


@rule("NET-20", level=Level.ACK, source=PLAN)
def replication_stays_in_a_site(fleet: Fleet) -> Iterator[Finding]:
    """Block storage is replicated inside a site."""
    for site_id, site in fleet.sites.items():
        if site.storage.drbd_cross_site:
            remedy = "ship snapshots, or accept it under accept.NET-20"
            yield Finding(f"{site_id}.storage.drbd_cross_site", "true", "false: it is undecided", remedy)


def _may_overlap(first: Range, second: Range) -> bool:
    kinds, here = {first.kind, second.kind}, first.owner.site_id == second.owner.site_id
    if kinds == {"storage"}:
        return not here  # never routed between sites
    return here and kinds in ({"pool", "lan"}, {"pool", "vips"})


def _tunnelled(fleet: Fleet) -> set[str]:
    return {end for tunnel in fleet.common.tunnels for end in tunnel.ends}
