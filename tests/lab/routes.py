"""Both sites of the lab as the network between them sees them: speakers, addresses, what may cross."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Network
from typing import Any

from infra.addresses import FIXED_LABELS
from infra.config import Cluster, Fleet, Site
from infra.vyos.artefacts import statements
from infra.vyos.statements import Statement
from lab import control
from lab.bgp.exchange import Exchange, Speaker
from tests.lab.conftest import Lab, eventually

CLUSTERS = {"franca": "cluster-fca", "sp": "cluster-sp"}
UP_S = 40.0  # the routers' hold time is 30 s
TUNNEL = "wg0"
ENDS = {"franca": "10.255.0.1", "sp": "10.255.0.2"}
BGP_CLASS = "io.cilium/bgp-control-plane"


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

    def run(self, netns: str, *command: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        inside = control.inside(self.lab.place.root, command, netns=netns)
        return subprocess.run(inside, capture_output=True, text=True, timeout=30, check=check)

    def other(self, name: str) -> str:
        return next(one for one in ENDS if one != name)

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Without the tunnel meanwhile."""
        control.request(self.lab.place.root, op="cut", tunnel=TUNNEL)
        try:
            yield
        finally:
            control.request(self.lab.place.root, op="heal", tunnel=TUNNEL)


def speaking(lab: Lab, fleet: Fleet) -> Iterator[Sites]:
    """Routers and nodes with their speakers, and in each site an address that has to stay at home."""
    made = Sites(lab, fleet)
    for name in ENDS:
        made.apply(name, service("ingress", str(made.site(name)[0].lb.pool.start), labels=FIXED_LABELS))
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
            made.delete(name, "ingress")
