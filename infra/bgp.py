"""BGP of one cluster: Cilium speaks on each of its nodes, with the site's router as the one peer.

What the router must be told is rendered elsewhere from the same document; what the Pods' routes are for the other sites
is the routers' matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.config import Bgp
from infra.config.network import BgpNode
from infra.names import ADVERTISE_LABEL, BGP_GROUP_LABEL, KUBE_SYSTEM
from infra.versions import bgp_api_version

PASSWORD_SECRET = "fleet-bgp"  # in the namespace that Cilium reads such Secrets from
INSTANCE, PEER = "site", "router"  # names by which the objects find one another
BEYOND_A_ROUTER = 2  # hops of an external peer that is not on-link; Cilium's default is one


@dataclass(frozen=True, kw_only=True)
class Peering:
    """What the peering of a cluster needs of its site."""

    cilium_version: str
    bgp: Bgp
    router: str  # IPv4 address of the site's router in the LAN
    on_link: bool = True  # the router is a neighbour of every node
    password: pulumi.Input[str] | None = None  # secret; for a site with authentication


def declare_peering(
    name: str, peering: Peering, chart: pulumi.Resource, parent: pulumi.Resource
) -> k8s.apiextensions.CustomResource:
    """The objects of the peering. They wait for `chart`, whose operator brings their kinds."""
    bgp, version = peering.bgp, peering.cilium_version
    before: list[pulumi.Resource] = [chart]
    if bgp.authenticated and peering.password is not None:
        # Before the peer: Cilium would run the session without a password rather than wait for one.
        before.append(_password(f"{name}-bgp-password", peering.password, parent))
    after_chart = pulumi.ResourceOptions(parent=parent, depends_on=[chart])

    def custom(
        suffix: str, kind: str, metadata: dict[str, Any], spec: dict[str, Any], opts: pulumi.ResourceOptions
    ) -> k8s.apiextensions.CustomResource:
        return k8s.apiextensions.CustomResource(
            f"{name}-{suffix}",
            api_version=bgp_api_version(version),
            kind=kind,
            metadata=metadata,
            spec=spec,
            opts=opts,
        )

    peer = custom(
        "peer",
        "CiliumBGPPeerConfig",
        {"name": PEER},
        peer_spec(bgp, on_link=peering.on_link),
        pulumi.ResourceOptions(parent=parent, depends_on=before),
    )
    labels = {BGP_GROUP_LABEL: "site"}
    custom(
        "advertisement", "CiliumBGPAdvertisement", {"name": "site", "labels": labels}, advertisement_spec(), after_chart
    )
    overrides = [
        custom(f"bgp-{node}", "CiliumBGPNodeConfigOverride", {"name": node}, spec, after_chart)
        for node, spec in override_specs(bgp.node_overrides).items()
    ]
    return custom(
        "bgp",
        "CiliumBGPClusterConfig",
        {"name": "site"},
        cluster_spec(bgp, peering.router),
        pulumi.ResourceOptions(parent=parent, depends_on=[peer, *overrides]),  # referred to by name alone
    )


def _password(name: str, password: pulumi.Input[str], parent: pulumi.Resource) -> k8s.core.v1.Secret:
    return k8s.core.v1.Secret(
        name,
        metadata={"name": PASSWORD_SECRET, "namespace": KUBE_SYSTEM},
        string_data={"password": pulumi.Output.secret(password)},
        opts=pulumi.ResourceOptions(parent=parent),
    )


def peer_spec(bgp: Bgp, *, on_link: bool = True) -> dict[str, Any]:
    """How Cilium speaks with the router."""
    restart = (
        {"enabled": True, "restartTimeSeconds": bgp.graceful_restart_s}
        if bgp.graceful_restart_s
        else {"enabled": False}
    )
    external = bgp.cilium_asn != bgp.vyos_asn
    return {
        "timers": {
            "connectRetryTimeSeconds": bgp.connect_retry_s,
            "holdTimeSeconds": bgp.hold_time_s,
            "keepAliveTimeSeconds": bgp.keepalive_s,
        },
        "gracefulRestart": restart,
        # An internal peer may be any number of hops away.
        **({"ebgpMultihop": BEYOND_A_ROUTER} if external and not on_link else {}),
        **({"authSecretRef": PASSWORD_SECRET} if bgp.authenticated else {}),
        "families": [{"afi": "ipv4", "safi": "unicast", "advertisements": {"matchLabels": {BGP_GROUP_LABEL: "site"}}}],
    }


def advertisement_spec() -> dict[str, Any]:
    """Pod CIDR and LoadBalancer addresses, never a ClusterIP (BGP-03, BGP-04)."""
    every_service = {"matchExpressions": [{"key": ADVERTISE_LABEL, "operator": "NotIn", "values": ["false"]}]}
    return {
        "advertisements": [
            {"advertisementType": "PodCIDR"},
            {
                "advertisementType": "Service",
                "service": {"addresses": ["LoadBalancerIP"]},
                "selector": every_service,  # without one, nothing is announced
            },
        ]
    }


def cluster_spec(bgp: Bgp, router: str) -> dict[str, Any]:
    """Who speaks with whom: every node with the router."""
    return {
        "bgpInstances": [
            {
                "name": INSTANCE,
                "localASN": bgp.cilium_asn,
                "peers": [
                    {
                        "name": PEER,
                        "peerASN": bgp.vyos_asn,
                        "peerAddress": router,
                        "peerConfigRef": {"name": PEER},
                    }
                ],
            }
        ]
    }


def override_specs(nodes: Mapping[str, BgpNode]) -> dict[str, dict[str, Any]]:
    """By node, whose name the object must have: what differs there. Nodes without a difference have none."""
    found = {}
    for name, node in nodes.items():
        settings = {
            **({"routerID": str(node.router_id)} if node.router_id else {}),
            **({"localPort": node.local_port} if node.local_port else {}),
        }
        if settings:
            found[name] = {"bgpInstances": [{"name": INSTANCE, **settings}]}
    return found
