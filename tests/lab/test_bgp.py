"""Routes between the sites, by real speakers: the routers' rendered filters, and what Cilium's objects announce.

The routers get what the program renders for VyOS; the speakers of the nodes from the API servers of the lab.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Network
from typing import Any

import pytest

from infra.addresses import FIXED_LABELS
from infra.config import Cluster, Fleet, Site
from infra.vyos.artefacts import statements
from lab import control
from lab.bgp.exchange import Exchange, Speaker
from lab.bgp.router import Statement
from tests.lab.conftest import Lab, eventually

pytestmark = pytest.mark.lab

CLUSTERS = {"franca": "cluster-fca", "sp": "cluster-sp"}
UP_S, CUT_S = 40.0, 60.0  # the routers' hold time is 30 s
TUNNEL = "wg0"
ENDS = {"franca": "10.255.0.1", "sp": "10.255.0.2"}
BGP_CLASS = "io.cilium/bgp-control-plane"
CONDITION = "cilium.io/IPAMRequestSatisfied"


def service(name: str, address: str = "", **more: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "labels": more.get("labels", {})}
    if address:
        metadata["annotations"] = {"lbipam.cilium.io/ips": address}
    spec = {"type": "LoadBalancer", "ports": [{"port": 443}], "selector": {"app": name}}
    if of := more.get("of", BGP_CLASS):
        spec["loadBalancerClass"] = of
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


class Sites:
    """Both sites with their speakers, and what their documents let them say."""

    def __init__(self, lab: Lab, fleet: Fleet) -> None:
        self.lab, self.fleet = lab.checkout, fleet
        self.exchange = Exchange(self.lab.place, self.lab.toolchain)

    def site(self, name: str) -> tuple[Site, Cluster]:
        site = self.fleet.sites[name]
        return site, site.clusters[CLUSTERS[name]]

    def configuration(self, name: str) -> list[Statement]:
        """What `fleet render` writes for the router."""
        return statements(self.fleet, name)

    def pods(self, name: str) -> set[str]:
        """The Pod range of every node, as Kubernetes gave it out."""
        nodes = self.lab.nodes(CLUSTERS[name]).values()
        found = {node["spec"]["podCIDR"] for node in nodes}
        assert len(found) == len(nodes)
        assert all(IPv4Network(one).subnet_of(self.site(name)[1].pod_cidr) for one in found)
        return found

    def vips(self, name: str) -> set[str]:
        return {f"{address}/32" for address in self.addresses(name).values() if address}

    def addresses(self, name: str) -> dict[str, str]:
        """By Service of type LoadBalancer, its address or nothing."""
        return {
            one["metadata"]["name"]: next((entry["ip"] for entry in ingress), "")
            for one in self.lab.get(CLUSTERS[name], "services", "-A")["items"]
            if one["spec"]["type"] == "LoadBalancer"
            for ingress in [one["status"]["loadBalancer"].get("ingress") or []]
        }

    def all_have_addresses(self, name: str) -> bool:
        return all(self.addresses(name).values())

    def mesh(self, name: str) -> str:
        return f"{self.site(name)[0].lb.vips.clustermesh_api}/32"

    def apply(self, name: str, *objects: dict[str, Any]) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        kubectl = f"{self.lab.toolchain}/kubectl --kubeconfig {self.lab.place.kubeconfigs}/{CLUSTERS[name]}.yaml"
        self.lab.inside(["sh", "-c", f'printf %s "$1" | {kubectl} apply -f -', "apply", text])

    def delete(self, name: str, *services: str) -> None:
        self.lab.kubectl(CLUSTERS[name], "delete", "service", *services, "--ignore-not-found")

    def router(self, name: str) -> Speaker:
        return self.exchange.state(f"r-{name}")[f"r-{name}"]

    def routes(self, name: str) -> set[str]:
        return set(self.exchange.state(f"r-{name}", wire=False)[f"r-{name}"].routes)

    def settled(self) -> bool:
        """Every session that the documents ask for is up, seen from both of its ends, and has brought its routes."""
        state = self.exchange.state(wire=False)
        up = all(one.established for speaker in state.values() for one in speaker.neighbors.values())
        return up and all(set(state[f"r-{name}"].routes) == self.allowed(name) for name in ENDS)

    def allowed(self, name: str) -> set[str]:
        """What a site's router may know: all of its own, and the Pods and the mesh address of the other."""
        other = self.other(name)
        return self.pods(name) | self.vips(name) | self.pods(other) | {self.mesh(other)}

    def inside(self, netns: str, *command: str) -> str:
        done = subprocess.run(
            control.inside(self.lab.place.root, command, netns=netns),
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout

    def other(self, name: str) -> str:
        return next(one for one in ENDS if one != name)


@pytest.fixture(scope="module")
def sites(lab: Lab, fleet: Fleet) -> Iterator[Sites]:
    made = Sites(lab, fleet)
    for name in ENDS:
        site, _ = made.site(name)
        wanted = [service("ingress", str(site.lb.pool.start), labels=FIXED_LABELS)]
        if str(site.lb.vips.clustermesh_api) not in made.addresses(name).values():
            wanted.append(service("mesh", str(site.lb.vips.clustermesh_api), labels=FIXED_LABELS))
        made.apply(name, *wanted)
    for name in ENDS:
        eventually(partial(made.all_have_addresses, name), 30, partial(made.addresses, name))
    made.exchange.start_routers({name: made.configuration(name) for name in ENDS})
    for name, cluster in CLUSTERS.items():
        made.exchange.start_agents(name, cluster)
    try:
        yield made
    finally:
        made.exchange.stop()
        for name in ENDS:
            made.delete(name, "ingress", "mesh")


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


def test_bgp_07_the_mesh_address_is_reachable_over_the_tunnel_as_long_as_it_stands(sites: Sites) -> None:
    """Packets, by the routes that the routers have from each other; a listener stands in for the API server."""
    eventually(sites.settled, UP_S, sites.exchange.state)
    vip = sites.mesh("franca").partition("/")[0]
    speaker = f"g-franca-{sites.site('franca')[1].servers[0]}"
    client = f"g-sp-{sites.site('sp')[1].servers[0]}"
    assert not reaches(sites, client, vip), "nobody has the address yet"
    sites.exchange.install_routes()
    with listening(sites, vip):
        assert sites.exchange.state(speaker, wire=False)[speaker].neighbors
        eventually(lambda: reaches(sites, client, vip), 10, sites.exchange.state)
        control.request(sites.lab.place.root, op="cut", tunnel=TUNNEL)
        try:
            assert not reaches(sites, client, vip)
        finally:
            control.request(sites.lab.place.root, op="heal", tunnel=TUNNEL)
        eventually(sites.settled, UP_S, sites.exchange.state)
        sites.exchange.install_routes()
        assert reaches(sites, client, vip)


MESH_PORT = 2379
LISTENER = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
server.settimeout(120)
print("listening", flush=True)
while True:
    server.accept()[0].close()
"""


@contextmanager
def listening(sites: Sites, address: str) -> Iterator[None]:
    """Every node of Franca takes packets for the address, as Cilium's datapath does."""
    nodes = [f"g-franca-{name}" for name in sites.site("franca")[1].servers]
    processes = []
    try:
        for node in nodes:
            sites.inside(node, "ip", "addr", "add", f"{address}/32", "dev", "lo")
            command = ["timeout", "120", sys.executable, "-c", LISTENER, address, str(MESH_PORT)]
            process = subprocess.Popen(
                control.inside(sites.lab.place.root, command, netns=node), stdout=subprocess.PIPE, process_group=0
            )
            processes.append(process)
            assert process.stdout is not None and process.stdout.readline() == b"listening\n"
        yield
    finally:
        for node in nodes:
            sites.inside(node, "ip", "addr", "del", f"{address}/32", "dev", "lo")
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()


def reaches(sites: Sites, netns: str, address: str) -> bool:
    command = ["bash", "-c", f"timeout 3 bash -c '</dev/tcp/{address}/{MESH_PORT}' 2>/dev/null && echo yes || echo no"]
    return sites.inside(netns, *command) == "yes\n"


def test_a_cut_tunnel_takes_the_other_sites_routes_and_nothing_else_and_healing_brings_them_back(sites: Sites) -> None:
    eventually(sites.settled, UP_S, sites.exchange.state)
    place = sites.lab.place.root
    control.request(place, op="cut", tunnel=TUNNEL)
    try:

        def apart() -> bool:
            return all(sites.routes(name) == sites.pods(name) | sites.vips(name) for name in ENDS)

        eventually(apart, CUT_S, sites.exchange.state)
        state = sites.exchange.state(wire=False)
        for name in ENDS:
            down = {address for address, one in state[f"r-{name}"].neighbors.items() if not one.established}
            assert down == {ENDS[sites.other(name)]}
    finally:
        control.request(place, op="heal", tunnel=TUNNEL)
    eventually(sites.settled, UP_S, sites.exchange.state)
