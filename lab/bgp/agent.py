"""What Cilium's agents of a cluster would say in BGP, from the objects that the program gave to its API server.

Each node speaks with the peers of the CiliumBGPClusterConfig that selects it, and announces what the advertisements
that its peer configuration selects ask for: the Pod range of its Node, addresses of Services. What is left out: IPv6,
attributes of announcements, and pools of Pod addresses.
Source: the schemas of Cilium 1.17 and its documentation of the BGP control plane.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
CLASSES = (None, "io.cilium/bgp-control-plane")  # of Services that the BGP control plane looks at
ADDRESSES = {"LoadBalancerIP", "ClusterIP", "ExternalIP"}
RECONNECT_S = 5  # of the lab, at most: a person waits for it


@dataclass(frozen=True, kw_only=True)
class Objects:
    """Those of one cluster, as lists of its API server."""

    nodes: list[Json]
    services: list[Json]
    endpoint_slices: list[Json]
    secrets: list[Json]  # of kube-system
    clusters: list[Json]
    peers: list[Json]
    advertisements: list[Json]
    overrides: list[Json]


@dataclass(frozen=True, kw_only=True)
class Agent:
    """The speaker of one node."""

    configuration: Json  # GoBGP's
    announced: frozenset[str]  # prefixes


def agents(objects: Objects) -> dict[str, Agent]:
    """By node. Nodes that no configuration selects have none."""
    found = {}
    for node in objects.nodes:
        labels = node["metadata"].get("labels", {})
        for cluster in objects.clusters:
            if selects(cluster["spec"].get("nodeSelector"), labels):
                found[node["metadata"]["name"]] = _agent(objects, node, cluster["spec"]["bgpInstances"][0])
    return found


def _agent(objects: Objects, node: Json, instance: Json) -> Agent:
    name, address = node["metadata"]["name"], _internal(node)
    override: Json = next(
        (
            one
            for entry in objects.overrides
            if entry["metadata"]["name"] == name
            for one in entry["spec"]["bgpInstances"]
            if one["name"] == instance["name"]
        ),
        {},
    )
    announced: set[str] = set()
    neighbors = []
    for peer in instance.get("peers", ()):
        reference = peer.get("peerConfigRef", {}).get("name")
        settings: Json = next((one["spec"] for one in objects.peers if one["metadata"]["name"] == reference), {})
        neighbors.append(_neighbor(objects, peer, settings, instance["localASN"], address))
        for family in settings.get("families", ()):
            for advertisement in objects.advertisements:
                if selects(family.get("advertisements"), advertisement["metadata"].get("labels", {}), nothing=False):
                    for entry in advertisement["spec"]["advertisements"]:
                        announced |= set(_announced(objects, node, entry))
    return Agent(
        configuration={
            "global": {
                "config": {
                    "as": instance["localASN"],
                    "router-id": override.get("routerID", address),
                    "port": override.get("localPort", -1),  # dials only
                }
            },
            "neighbors": neighbors,
        },
        announced=frozenset(announced),
    )


def _neighbor(objects: Objects, peer: Json, settings: Json, local_asn: int, address: str) -> Json:
    timers, restart = settings.get("timers", {}), settings.get("gracefulRestart", {})
    external = peer["peerASN"] != local_asn
    hops = settings.get("ebgpMultihop", 1)
    graceful = bool(restart.get("enabled"))
    return {
        "config": {
            "neighbor-address": peer["peerAddress"],
            "peer-as": peer["peerASN"],
            "auth-password": _password(objects, settings.get("authSecretRef")),
        },
        "timers": {
            "config": {
                "connect-retry": min(RECONNECT_S, timers.get("connectRetryTimeSeconds", 120)),
                "idle-hold-time-after-reset": RECONNECT_S,
                "hold-time": timers.get("holdTimeSeconds", 90),
                "keepalive-interval": timers.get("keepAliveTimeSeconds", 30),
            }
        },
        "transport": {
            "config": {
                "local-address": address,
                "remote-port": settings.get("transport", {}).get("peerPort", 179),
            }
        },
        "ebgp-multihop": {"config": {"enabled": external and hops > 1, "multihop-ttl": hops}},
        "graceful-restart": {
            "config": {"enabled": graceful, "restart-time": restart.get("restartTimeSeconds", 120) if graceful else 0}
        },
        "afi-safis": [
            {
                "config": {"afi-safi-name": f"{family['afi']}-{family['safi']}", "enabled": True},
                "mp-graceful-restart": {"config": {"enabled": graceful}},
            }
            for family in settings.get("families", ())
        ],
    }


def _announced(objects: Objects, node: Json, entry: Json) -> Iterator[str]:
    kind = entry["advertisementType"]
    if kind == "PodCIDR":
        yield from filter(None, [node["spec"].get("podCIDR")])
    elif kind == "Service" and entry.get("selector") is not None:  # without one, nothing is announced
        kinds = set(entry.get("service", {}).get("addresses", ())) & ADDRESSES
        for service in objects.services:
            if selects(entry["selector"], _labels(service)) and _concerns(objects, node, service):
                for address in _addresses(service, kinds):
                    yield f"{address}/32"


def _addresses(service: Json, kinds: set[str]) -> Iterator[str]:
    spec = service["spec"]
    if "LoadBalancerIP" in kinds and spec.get("type") == "LoadBalancer":
        entries = service.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
        yield from (entry["ip"] for entry in entries if "ip" in entry)
    if "ClusterIP" in kinds and spec.get("clusterIP") not in (None, "", "None"):
        yield spec["clusterIP"]
    if "ExternalIP" in kinds:
        yield from spec.get("externalIPs", ())


def _concerns(objects: Objects, node: Json, service: Json) -> bool:
    """Whether the node speaks for it: of our class, and with an endpoint here where traffic must not go on."""
    if service["spec"].get("loadBalancerClass") not in CLASSES:
        return False
    if service["spec"].get("externalTrafficPolicy") != "Local":
        return True
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    return any(
        endpoint.get("nodeName") == node["metadata"]["name"] and endpoint.get("conditions", {}).get("ready", True)
        for one in objects.endpoint_slices
        if one["metadata"]["namespace"] == namespace
        and one["metadata"].get("labels", {}).get("kubernetes.io/service-name") == name
        for endpoint in one.get("endpoints") or ()
    )


def _labels(service: Json) -> dict[str, str]:
    """Its own, and the two by which Cilium lets a selector name it."""
    metadata = service["metadata"]
    named = {"io.kubernetes.service.name": metadata["name"], "io.kubernetes.service.namespace": metadata["namespace"]}
    return {**metadata.get("labels", {}), **named}


def selects(selector: Json | None, labels: Mapping[str, str], *, nothing: bool = True) -> bool:
    """Kubernetes' label selectors. `nothing` is what the absence of a selector means."""
    if selector is None:
        return nothing
    terms = [*selector.get("matchExpressions", ())]
    terms += [
        {"key": key, "operator": "In", "values": [value]} for key, value in selector.get("matchLabels", {}).items()
    ]
    return all(_holds(term, labels) for term in terms)


def _holds(term: Json, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(term["key"]), term.get("values", ())
    return {
        "In": value is not None and value in values,
        "NotIn": value is None or value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[term["operator"]]


def _password(objects: Objects, name: str | None) -> str:
    """Empty where the Secret is missing: the agent then speaks without a password, and the router refuses it."""
    for secret in objects.secrets:
        if name and secret["metadata"]["name"] == name:
            return base64.b64decode(secret.get("data", {}).get("password", "")).decode()
    return ""


def _internal(node: Json) -> str:
    return next(str(one["address"]) for one in node["status"]["addresses"] if one["type"] == "InternalIP")
