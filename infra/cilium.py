"""Cilium layer: the CNI of one cluster, its LoadBalancer pool, and its BGP peering with the site's router.

ClusterMesh is a layer of its own; its seam here is `CiliumArgs.mesh_values`, merged into the chart's values. What the
router must be told is rendered elsewhere from the same document.
"""

import base64
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.charts import install_chart
from infra.config import Bgp, Cluster, LoadBalancer
from infra.config.fleet import CiliumLine
from infra.names import ADVERTISE_LABEL, BGP_GROUP_LABEL, KUBE_SYSTEM, LB_CLASS
from infra.versions import cilium

# The agent reaches its API server through K3s's own loopback endpoint, never through the API address that kube-vip
# keeps: that would wait for the network it is to bring up.
LOOPBACK_API = ("127.0.0.1", 6444)


@dataclass(frozen=True, kw_only=True)
class CiliumArgs:
    cluster: Cluster
    line: CiliumLine
    lb: LoadBalancer
    bgp: Bgp
    router: str  # IPv4 address of the site's router in the LAN
    ca: tuple[pulumi.Input[str], pulumi.Input[str]]  # certificate and key of the shared CA, PEM, secret
    charts: str | None  # chart directory
    mtu: int | None = None  # bytes of the path below the Pods; none lets Cilium look at the node's interface
    mesh_values: dict[str, pulumi.Input[object]] | None = None  # chart values of the ClusterMesh layer


class Cilium(pulumi.ComponentResource):
    """Cilium, its address pool and its peering. Needs the cluster's Kubernetes provider in `opts.providers`."""

    status: pulumi.Output[str]  # Helm release status, "deployed" once the chart is up

    def __init__(self, name: str, args: CiliumArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__("fleet:cilium:Cilium", name, None, opts)
        certificate, key = args.ca
        values: dict[str, pulumi.Input[object]] = {
            **chart_values(args.cluster, args.line, args.lb, args.mtu),
            "tls": {"ca": {"cert": _secret_base64(certificate), "key": _secret_base64(key)}},
            **(args.mesh_values or {}),
        }
        chart = install_chart(
            f"{name}-chart",
            cilium(args.line.version),
            values,
            KUBE_SYSTEM,
            args.charts,
            pulumi.ResourceOptions(parent=self),
        )
        after_chart = pulumi.ResourceOptions(parent=self, depends_on=[chart])  # its operator brings the kinds
        if args.lb.mode == "cilium":
            self._object(f"{name}-pool", args.line, "CiliumLoadBalancerIPPool", "site", pool_spec(args.lb), after_chart)
        group = {BGP_GROUP_LABEL: "site"}
        peer = self._object(
            f"{name}-peer", args.line, "CiliumBGPPeerConfig", "router", peer_spec(args.bgp), after_chart
        )
        self._object(
            f"{name}-advertisement",
            args.line,
            "CiliumBGPAdvertisement",
            "site",
            advertisement_spec(),
            after_chart,
            labels=group,
        )
        self._object(
            f"{name}-bgp",
            args.line,
            "CiliumBGPClusterConfig",
            "site",
            cluster_spec(args.bgp, args.router),
            pulumi.ResourceOptions(parent=self, depends_on=[peer]),  # referred to by name alone
        )
        self.status = chart.status.status
        self.register_outputs({"status": self.status})

    def _object(
        self,
        name: str,
        line: CiliumLine,
        kind: str,
        object_name: str,
        spec: dict[str, Any],
        opts: pulumi.ResourceOptions,
        labels: dict[str, str] | None = None,
    ) -> k8s.apiextensions.CustomResource:
        return k8s.apiextensions.CustomResource(
            name,
            api_version=bgp_api_version(line.version),
            kind=kind,
            metadata={"name": object_name, **({"labels": labels} if labels else {})},
            spec=spec,
            opts=opts,
        )


def bgp_api_version(cilium_version: str) -> str:
    """BGP and LB-IPAM kinds moved to v2 with Cilium 1.18 (BGP-11)."""
    minor = tuple(int(part) for part in cilium_version.split(".")[:2])
    return "cilium.io/v2" if minor >= (1, 18) else "cilium.io/v2alpha1"


def chart_values(
    cluster: Cluster, line: CiliumLine, lb: LoadBalancer, mtu: int | None = None
) -> dict[str, pulumi.Input[object]]:
    """Values of the chart without secrets. Key names are those of Cilium 1.17."""
    host, port = LOOPBACK_API
    return {
        "cluster": {"name": cluster.name, "id": cluster.cluster_id or 0},
        "ipam": {"mode": "kubernetes"},  # Pod CIDR has one home: K3s (CIL-04)
        "k8s": {"requireIPv4PodCIDR": True},
        "routingMode": line.datapath,
        **({"tunnelProtocol": "vxlan"} if line.datapath == "tunnel" else {}),
        **({"MTU": mtu} if mtu is not None else {}),  # Cilium takes its encapsulation off itself
        "kubeProxyReplacement": True,
        "k8sServiceHost": host,
        "k8sServicePort": port,
        "bpf": {"masquerade": True},
        "bgpControlPlane": {"enabled": True},
        "enableLBIPAM": lb.mode == "cilium",
        "defaultLBServiceIPAM": "lbipam" if lb.mode == "cilium" and lb.binding == "default" else "none",
        "l2announcements": {"enabled": lb.l2_announcements},
        # Two operators on one node would leave one pending for ever: they refuse to share a host.
        "operator": {"replicas": min(2, len(cluster.servers) + len(cluster.agents)), "rollOutPods": True},
        "rollOutCiliumPods": True,
        "hubble": {
            "enabled": True,
            "relay": {"enabled": True},
            "ui": {"enabled": True},
            # With a cron job the first install would wait for certificates that come after it.
            "tls": {"auto": {"enabled": True, "method": "helm"}},
        },
        "upgradeCompatibility": ".".join(line.version.split(".")[:2]),
    }


def pool_spec(lb: LoadBalancer) -> dict[str, Any]:
    return {"blocks": [{"start": str(lb.pool.start), "stop": str(lb.pool.stop)}]}


def peer_spec(bgp: Bgp) -> dict[str, Any]:
    restart = (
        {"enabled": True, "restartTimeSeconds": bgp.graceful_restart_s}
        if bgp.graceful_restart_s
        else {"enabled": False}
    )
    return {
        "timers": {"holdTimeSeconds": bgp.hold_time_s, "keepAliveTimeSeconds": bgp.keepalive_s},
        "gracefulRestart": restart,
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
    return {
        "bgpInstances": [
            {
                "name": "site",
                "localASN": bgp.cilium_asn,
                "peers": [
                    {
                        "name": "router",
                        "peerASN": bgp.vyos_asn,
                        "peerAddress": router,
                        "peerConfigRef": {"name": "router"},
                    }
                ],
            }
        ]
    }


def service_class(lb: LoadBalancer) -> str | None:
    """loadBalancerClass that every LoadBalancer Service of a site sets, or none sets (MET-09)."""
    return LB_CLASS if lb.binding == "class" else None


def _secret_base64(pem: pulumi.Input[str]) -> pulumi.Output[str]:
    """The chart wants base64 of the PEM text."""
    return pulumi.Output.secret(pem).apply(lambda text: base64.b64encode(text.encode()).decode())
