"""Cilium layer: the CNI of one cluster, and with it the LoadBalancer pool and the BGP peering.

ClusterMesh is a layer of its own; its seam here is `CiliumArgs.mesh_values`, merged into the chart's values.
"""

import base64
from dataclasses import dataclass

import pulumi

from infra.addresses import declare_pools
from infra.bgp import Peering, declare_peering
from infra.charts import install_chart
from infra.config import Bgp, Cluster, LoadBalancer
from infra.config.fleet import CiliumLine
from infra.names import KUBE_SYSTEM
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
    router_on_link: bool = True  # the router is a neighbour of every node
    bgp_password: pulumi.Input[str] | None = None  # secret; None without authentication
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
        declare_pools(name, args.lb, args.line.version, args.charts, chart, self)
        peering = Peering(
            cilium_version=args.line.version,
            bgp=args.bgp,
            router=args.router,
            on_link=args.router_on_link,
            password=args.bgp_password,
        )
        declare_peering(name, peering, chart, self)
        self.status = chart.status.status
        self.register_outputs({"status": self.status})


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


def _secret_base64(pem: pulumi.Input[str]) -> pulumi.Output[str]:
    """The chart wants base64 of the PEM text."""
    return pulumi.Output.secret(pem).apply(lambda text: base64.b64encode(text.encode()).decode())
