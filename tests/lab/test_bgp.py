"""Routes between the sites, by real speakers: the routers' rendered filters, and what Cilium's objects announce.

The routers get what the program renders for VyOS; the speakers of the nodes from the API servers of the lab.
"""

from functools import partial

import pytest

from tests.lab.conftest import eventually
from tests.lab.routes import CLUSTERS, ENDS, UP_S, Sites, service

pytestmark = pytest.mark.lab

CONDITION = "cilium.io/IPAMRequestSatisfied"


def test_met_08_a_service_gets_the_fixed_address_that_it_asks_for(sites: Sites) -> None:
    for name in ENDS:
        site, _ = sites.site(name)
        assert sites.addresses(name)["ingress"] == str(site.lb.pool.start)
        assert str(site.lb.vips.clustermesh_api) in sites.addresses(name).values()


def test_met_01_addresses_come_from_the_pool_and_from_nowhere_else(sites: Sites) -> None:
    site, _ = sites.site("sp")
    taken = sites.addresses("sp")["ingress"]
    extra = [service("free"), service("outside", "192.168.10.9"), service("taken", taken), service("foreign", of="a/b")]
    sites.apply("sp", *extra, service("without-label", str(site.lb.vips.clustermesh_api)))

    def reasons() -> dict[str, str]:
        items = sites.lab.get("cluster-sp", "services", "-n", "default")["items"]
        return {
            one["metadata"]["name"]: entry["reason"]
            for one in items
            for entry in one["status"].get("conditions", ())
            if entry["type"] == CONDITION
        }

    try:
        wanted = {"free": "satisfied", "outside": "no_pool", "taken": "already_allocated", "ingress": "satisfied",
                  "without-label": "pool_selector_mismatch"}  # fmt: skip
        eventually(lambda: wanted.items() <= reasons().items(), 20, reasons)
        found = sites.addresses("sp")
        given = [address for address in found.values() if address]
        assert len(given) == len(set(given))
        assert found["free"] in [str(address) for address in (site.lb.pool.start + number for number in range(11))]
        assert found["outside"] == found["taken"] == found["foreign"] == found["without-label"] == ""
        assert found["free"] not in [str(vip) for _, vip in site.lb.vips]
        assert "foreign" not in reasons()
    finally:
        sites.delete("sp", "free", "outside", "taken", "foreign", "without-label")


def test_bgp_02_every_node_speaks_with_its_router_and_the_routers_with_each_other(sites: Sites) -> None:
    eventually(sites.settled, UP_S, sites.exchange.state)
    state = sites.exchange.state()
    for name, address in ENDS.items():
        site, cluster = sites.site(name)
        nodes = {str(guest.address): guest.name for guest in site.nodes(cluster)}
        router = state[f"r-{name}"]
        assert set(router.neighbors) == {*nodes, ENDS[sites.other(name)]}
        for node in nodes.values():
            assert set(state[f"g-{name}-{node}"].neighbors) == {str(site.vyos.lan_address)}
        assert router.neighbors[ENDS[sites.other(name)]].established
        assert state[f"r-{sites.other(name)}"].neighbors[address].established


def test_bgp_05_bgp_06_bgp_07_exactly_pods_and_the_mesh_address_cross_the_tunnel(sites: Sites) -> None:
    eventually(sites.settled, UP_S, sites.exchange.state)
    for name in ENDS:
        other = sites.other(name)
        router = sites.router(name)
        assert router.neighbors[ENDS[other]].received == sites.pods(other) | {sites.mesh(other)}
        assert sites.vips(other) - {sites.mesh(other)}, "the other site has an address that has to stay at home"
        assert {router.routes[prefix] for prefix in sites.pods(other)} == {(ENDS[other],)}
        site, cluster = sites.site(name)
        assert set(router.routes[sites.mesh(name)]) == {str(guest.address) for guest in site.nodes(cluster)}


def test_bgp_03_a_node_announces_its_own_pods_and_every_address_and_learns_nothing(sites: Sites) -> None:
    eventually(sites.settled, UP_S, sites.exchange.state)
    state = sites.exchange.state()
    for name, cluster in CLUSTERS.items():
        router = state[f"r-{name}"]
        for node, found in sites.lab.nodes(cluster).items():
            address = next(one["address"] for one in found["status"]["addresses"] if one["type"] == "InternalIP")
            assert router.neighbors[address].received == {found["spec"]["podCIDR"]} | sites.vips(name)
            (peer,) = state[f"g-{name}-{node}"].neighbors.values()
            assert peer.received == frozenset()


def test_bgp_04_bgp_08_what_no_list_permits_stops_at_the_router_of_the_site(sites: Sites) -> None:
    """A node that says what none should: the ranges of Services and tunnel, a default route, the other site's Pods."""
    eventually(sites.settled, UP_S, sites.exchange.state)
    _, cluster = sites.site("franca")
    cluster_ip = sites.lab.get("cluster-fca", "service", "kubernetes")["spec"]["clusterIP"]
    mean = {
        str(cluster.service_cidr), f"{cluster_ip}/32", "10.255.0.0/30", "0.0.0.0/0", "10.42.200.0/24",
        str(cluster.pod_cidr), "10.41.7.128/25", "192.168.0.251/32", "192.168.0.239/32", "192.168.0.240/29",
        "192.168.10.241/32",
    }  # fmt: skip
    node = cluster.servers[0]
    address = str(sites.site("franca")[0].guests[node].address)
    sites.exchange.announce(f"g-franca-{node}", mean)
    try:
        heard = lambda: sites.router("franca").neighbors[address].received >= mean  # noqa: E731
        eventually(heard, 10, lambda: sites.router("franca").neighbors[address])
        for name in ENDS:
            assert sites.routes(name) == sites.allowed(name)
        assert not sites.router("sp").neighbors[ENDS["franca"]].received & mean
    finally:
        sites.exchange.withdraw(f"g-franca-{node}", mean)


@pytest.mark.rehearsal
def test_bgp_06_a_router_takes_no_more_than_its_own_list_permits(sites: Sites) -> None:
    """The other router passes on everything that it knows; the lists of the near one alone are left."""
    eventually(sites.settled, UP_S, sites.exchange.state)
    open_map = [("policy", "route-map", "FLEET-ALL", "rule", "10", "action", "permit")]
    leaky = [
        (*words[:-1], "FLEET-ALL") if words[:3] == ("protocols", "bgp", "neighbor") and "export" in words else words
        for words in sites.configuration("sp")
    ]
    assert leaky != sites.configuration("sp")
    sites.exchange.start_routers({"sp": [*open_map, *leaky]})
    try:
        everything = sites.pods("sp") | sites.vips("sp")
        heard = lambda: sites.router("franca").neighbors[ENDS["sp"]].received == everything  # noqa: E731
        eventually(heard, UP_S, sites.exchange.state)
        assert everything > sites.pods("sp") | {sites.mesh("sp")}
        assert sites.routes("franca") == sites.allowed("franca")
    finally:
        sites.exchange.start_routers({"sp": sites.configuration("sp")})
    eventually(sites.settled, UP_S, sites.exchange.state)


def test_bgp_03_announcements_follow_the_services_and_their_labels(sites: Sites) -> None:
    eventually(sites.settled, UP_S, sites.exchange.state)
    hidden = service("hidden", labels={"fleet.colabh.org/advertise": "false"})
    sites.apply("franca", service("later"), hidden)
    try:
        there = lambda: {"later", "hidden"} <= {key for key, ip in sites.addresses("franca").items() if ip}  # noqa: E731
        eventually(there, 20, partial(sites.addresses, "franca"))
        sites.exchange.follow("franca", "cluster-fca")
        later, kept = (f"{sites.addresses('franca')[name]}/32" for name in ("later", "hidden"))
        eventually(lambda: later in sites.routes("franca"), 10, partial(sites.router, "franca"))
        assert kept not in sites.routes("franca")
        assert later not in sites.routes("sp")
    finally:
        sites.delete("franca", "later", "hidden")
    sites.exchange.follow("franca", "cluster-fca")
    eventually(lambda: later not in sites.routes("franca"), 10, partial(sites.router, "franca"))


@pytest.mark.rehearsal
def test_a_session_without_the_password_that_the_router_has_does_not_come_up(sites: Sites) -> None:
    eventually(sites.settled, UP_S, sites.exchange.state)
    group = next(words[:4] for words in sites.configuration("sp") if words[2:3] == ("peer-group",))
    secured = [*sites.configuration("sp"), (*group, "password", "@@BGP_PASSWORD@@")]
    sites.exchange.start_routers({"sp": secured})
    nodes = [str(guest.address) for guest in sites.site("sp")[0].nodes(sites.site("sp")[1])]
    try:
        tunnel = lambda: sites.router("sp").neighbors[ENDS["franca"]].established  # noqa: E731
        eventually(tunnel, UP_S, sites.exchange.state)
        assert not any(sites.router("sp").neighbors[node].established for node in nodes)
        assert not sites.pods("sp") & sites.routes("franca")
    finally:
        sites.exchange.start_routers({"sp": sites.configuration("sp")})
    eventually(sites.settled, UP_S, sites.exchange.state)
