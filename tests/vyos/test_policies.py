"""Which routes pass between nodes, router and peers, worked out from the rendered policies (BGP-02, -05 to -08)."""

from ipaddress import IPv4Address, IPv4Network

import pytest

from infra.vyos.reach import mesh_api, nodes
from tests.vyos import SITES, VARIANTS, below, rendered, variant
from tests.vyos.policies import neighbor_map, passes

ALL = [(name, site) for name in VARIANTS for site in SITES]
every = pytest.mark.parametrize(("name", "site"), ALL)


def node_routes(name: str, site: str) -> tuple[set[str], set[str]]:
    """Routes of a site that peers may have, and routes that they must not."""
    document = variant(name).sites[site]
    pool = document.lb.pool
    vips = {f"{IPv4Address(number)}/32" for number in range(int(pool.start), int(pool.stop) + 1)}
    good: set[str] = set()
    bad = {"0.0.0.0/0", "10.0.0.0/8", str(document.network.lan_cidr), str(document.network.storage_cidr)}
    bad |= {str(tunnel.cidr) for tunnel in variant(name).common.tunnels}
    bad |= {f"{address}/32" for tunnel in variant(name).common.tunnels for address in tunnel.ends.values()}
    bad |= {f"{node.address}/32" for node in document.guests.values()}
    for cluster in document.clusters.values():
        pods = list(cluster.pod_cidr.subnets(new_prefix=24))
        listed = {str(pods[0]), str(pods[-1])}
        (good if cluster.cni == "cilium" else bad).update(listed)
        bad |= {f"{pods[0].network_address + 7}/32", str(next(pods[0].subnets(new_prefix=25)))}
        if cluster.pod_cidr.prefixlen < 24:
            bad.add(str(cluster.pod_cidr))
        bad |= {str(cluster.service_cidr), f"{cluster.service_cidr.network_address + 10}/32"}
        bad.add(str(next(cluster.service_cidr.subnets(new_prefix=24))))
    mesh = mesh_api(document)
    exported = vips if document.bgp.export_vips else {f"{mesh}/32"} if mesh else set()
    return good | exported, bad | (vips - exported)


@every
def test_bgp_05_to_08_peers_get_pods_and_the_mesh_api_and_nothing_else(name: str, site: str) -> None:
    found = rendered(name, site)
    good, bad = node_routes(name, site)
    for tunnel in variant(name).common.tunnels:
        if site not in tunnel.ends:
            continue
        (far,) = set(tunnel.ends) - {site}
        out = neighbor_map(found, str(tunnel.ends[far]), "export")
        into = neighbor_map(rendered(name, far), str(tunnel.ends[site]), "import")
        assert {route for route in good | bad if passes(found, out, route)} == good
        assert {route for route in good | bad if passes(rendered(name, far), into, route)} == good


@every
def test_peers_routes_of_a_third_site_are_not_passed_on(name: str, site: str) -> None:
    found = rendered(name, site)
    others = {route for far in SITES if far != site for route in node_routes(name, far)[0]}
    for tunnel in variant(name).common.tunnels:
        if site in tunnel.ends:
            (far,) = set(tunnel.ends) - {site}
            out = neighbor_map(found, str(tunnel.ends[far]), "export")
            assert not {route for route in others if passes(found, out, route)}


@every
def test_nodes_are_heard_for_pods_and_vips_alone_and_told_nothing(name: str, site: str) -> None:
    found, document = rendered(name, site), variant(name).sites[site]
    good, bad = node_routes(name, site)
    vips = {route for route in good | bad if IPv4Network(route).prefixlen == 32}
    vips = {route for route in vips if IPv4Network(route).network_address in document.lb.pool}
    for node in map(str, nodes(document)):
        into, out = neighbor_map(found, node, "import"), neighbor_map(found, node, "export")
        assert {route for route in good | bad if passes(found, into, route)} == good | vips
        assert not {route for route in good | bad if passes(found, out, route)}


@every
def test_bgp_02_neighbors_are_own_nodes_and_tunnel_ends(name: str, site: str) -> None:
    found, fleet = rendered(name, site), variant(name)
    neighbors = {one[0] for one in below(found, "protocols", "bgp", "neighbor")}
    far = {str(tunnel.ends[end]) for tunnel in fleet.common.tunnels if site in tunnel.ends for end in tunnel.ends}
    near = {str(tunnel.ends[site]) for tunnel in fleet.common.tunnels if site in tunnel.ends}
    assert neighbors == {str(address) for address in nodes(fleet.sites[site])} | (far - near)
    assert ("protocols", "bgp", "parameters", "ebgp-requires-policy") in found


def test_the_evaluator_sees_a_leak() -> None:
    leaky = [
        ("policy", "prefix-list", "ANY", "rule", "10", "action", "permit"),
        ("policy", "prefix-list", "ANY", "rule", "10", "prefix", "192.168.0.0/23"),
        ("policy", "prefix-list", "ANY", "rule", "10", "ge", "24"),
        ("policy", "route-map", "OUT", "rule", "10", "action", "permit"),
        ("policy", "route-map", "OUT", "rule", "10", "match", "ip", "address", "prefix-list", "ANY"),
    ]
    assert passes(leaky, "OUT", "192.168.0.245/32")
    assert not passes(leaky, "OUT", "192.168.0.0/23")
    assert not passes(leaky, "OUT", "10.41.0.0/24")
