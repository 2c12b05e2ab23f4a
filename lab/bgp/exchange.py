"""The exchange of routes in a running lab: starts the speakers of routers and nodes, and tells what they know.

Started when asked for, not by `fleet lab up`: most of what the lab is used for needs no route. An agent of Cilium
follows its API server; here each call of `follow` does.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.vyos.statements import Statement
from lab import LabError, control
from lab.bgp import agent, router
from lab.place import Place

KUBECTL_TIMEOUT_S = 60
COMMAND_TIMEOUT_S = 20
PROTOCOL = 186  # by which the kernel tells routes of BGP from others
KINDS = {
    "nodes": "Node",
    "services": "Service",
    "endpoint_slices": "EndpointSlice",
    "secrets": "Secret",
    "clusters": "CiliumBGPClusterConfig",
    "peers": "CiliumBGPPeerConfig",
    "advertisements": "CiliumBGPAdvertisement",
    "overrides": "CiliumBGPNodeConfigOverride",
}
ASKED = (
    "nodes,services,endpointslices.discovery.k8s.io,ciliumbgpclusterconfigs.cilium.io,ciliumbgppeerconfigs.cilium.io,"
    "ciliumbgpadvertisements.cilium.io,ciliumbgpnodeconfigoverrides.cilium.io"
)
SECRETS_NAMESPACE = "kube-system"


@dataclass(frozen=True)
class Neighbor:
    """One session as its speaker sees it."""

    established: bool
    received: frozenset[str]  # prefixes, before any filter
    sent: frozenset[str]


@dataclass(frozen=True)
class Speaker:
    """What one speaker knows."""

    neighbors: dict[str, Neighbor]  # by address
    routes: dict[str, tuple[str, ...]]  # by prefix: next hops; what its filters let in


class Exchange:
    """The speakers of a lab. Names of nodes are those of the lab's guests, sites those of the documents."""

    def __init__(self, place: Place, toolchain: Path) -> None:
        self._place, self._kubectl = place, toolchain / "kubectl"
        self._announced: dict[str, frozenset[str]] = {}  # by network, what its agent said last

    def start_routers(self, configurations: Mapping[str, Iterable[Statement]]) -> None:
        """Starts, or starts anew, the router of each site with its rendered configuration."""
        secrets = json.loads(self._place.secrets.read_text())
        speakers = {
            f"r-{site}": {
                "configuration": router.configuration(statements, secrets[site].get("bgp_password", "")),
                "announced": [],
            }
            for site, statements in configurations.items()
        }
        control.request(self._place.root, op="bgp-start", speakers=speakers)

    def start_agents(self, site: str, cluster: str) -> None:
        """Starts, or starts anew, a speaker on each node of a cluster that its objects select."""
        found = agent.agents(self._objects(cluster))
        if not found:
            raise LabError(f"{cluster}: its API server has no CiliumBGPClusterConfig that selects a node")
        speakers = {
            f"g-{site}-{node}": {"configuration": one.configuration, "announced": sorted(one.announced)}
            for node, one in found.items()
        }
        control.request(self._place.root, op="bgp-start", speakers=speakers)
        self._announced |= {f"g-{site}-{node}": one.announced for node, one in found.items()}

    def follow(self, site: str, cluster: str) -> None:
        """Brings what the nodes of a cluster announce to what its API server says now."""
        for node, one in agent.agents(self._objects(cluster)).items():
            name = f"g-{site}-{node}"
            before = self._announced.get(name, frozenset())
            self.announce(name, one.announced - before)
            self.withdraw(name, before - one.announced)
            self._announced[name] = one.announced

    def announce(self, name: str, prefixes: Iterable[str]) -> None:
        """Makes a speaker announce prefixes, whoever asked for them."""
        control.request(self._place.root, op="bgp-announce", name=name, prefixes=sorted(prefixes))

    def withdraw(self, name: str, prefixes: Iterable[str]) -> None:
        """Takes prefixes back."""
        control.request(self._place.root, op="bgp-announce", name=name, prefixes=sorted(prefixes), withdraw=True)

    def install_routes(self) -> None:
        """Gives the kernels of the routers the routes that their speakers have now, and takes away older ones.

        A router's own daemon does that at once; here each call does.
        """
        for name, speaker in self.state(wire=False).items():
            if not name.startswith("r-"):
                continue
            lines = [f"route flush proto {PROTOCOL}"]
            for prefix, hops in sorted(speaker.routes.items()):
                ways = " ".join(f"nexthop via {hop}" for hop in hops)
                lines.append(f"route replace {prefix} proto {PROTOCOL} {ways}")
            command = control.inside(self._place.root, ["ip", "-batch", "-"], netns=name)
            _printed(f"{name}: ip -batch -", command, COMMAND_TIMEOUT_S, "\n".join(lines) + "\n")

    def stop(self) -> None:
        """Ends all speakers."""
        control.request(self._place.root, op="bgp-stop")
        self._announced.clear()

    def state(self, *names: str, wire: bool = True) -> dict[str, Speaker]:
        """By network, `r-<site>` for a router and `g-<site>-<node>` for a node; all of them where none is named.

        Without `wire`, which takes its time, what a neighbour sent and got stays empty.
        """
        answer = control.request(self._place.root, op="bgp-state", names=names, wire=wire)["speakers"]
        return {name: _speaker(one) for name, one in answer.items()}

    def _objects(self, cluster: str) -> agent.Objects:
        items = self._get(cluster, ASKED, "--all-namespaces")
        by_kind = {name: [one for one in items if one["kind"] == kind] for name, kind in KINDS.items()}
        if any("authSecretRef" in peer["spec"] for peer in by_kind["peers"]):
            by_kind["secrets"] = self._get(cluster, "secrets", "--namespace", SECRETS_NAMESPACE)
        return agent.Objects(**by_kind)

    def _get(self, cluster: str, *what: str) -> list[dict[str, Any]]:
        file = self._place.kubeconfigs / f"{cluster}.yaml"
        command = [str(self._kubectl), "--kubeconfig", str(file), "get", *what, "-o", "json", "--request-timeout=20s"]
        inside = control.inside(self._place.root, command)
        text = _printed(f"{cluster}: kubectl get {what[0]}", inside, KUBECTL_TIMEOUT_S)
        items: list[dict[str, Any]] = json.loads(text)["items"]
        return items


def _printed(what: str, command: list[str], timeout_s: float, text: str | None = None) -> str:
    """Output of a command that reads `text`. Raises LabError, with `what` it was, when it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=timeout_s)
    if done.returncode:
        raise LabError(f"{what}: {done.stderr.strip()}")
    return done.stdout


def _speaker(answer: dict[str, Any]) -> Speaker:
    return Speaker(
        neighbors={
            address: Neighbor(one["established"], frozenset(one["received"]), frozenset(one["sent"]))
            for address, one in answer["neighbors"].items()
        },
        routes={prefix: tuple(hops) for prefix, hops in answer["routes"].items()},
    )
