"""LoadBalancer addresses of one cluster: the pool, its one owner, and how a Service asks for an address.

The owner is Cilium (mode B of the decisions) or the controller of MetalLB (mode A); Cilium announces either way. Whose
Services those are, and which fixed address each gets, is their layers' matter.
"""

from ipaddress import IPv4Address
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.charts import install_chart
from infra.config import LoadBalancer
from infra.names import LB_CLASS
from infra.versions import METALLB, bgp_api_version

METALLB_NAMESPACE = "metallb-system"


def declare_pool(
    name: str,
    lb: LoadBalancer,
    cilium_version: str,
    directory: str | None,
    chart: pulumi.Resource,
    parent: pulumi.Resource,
) -> None:
    """The pool and, with MetalLB, its controller. `chart` is that of Cilium: it brings the network, and its kinds."""
    after_chart = pulumi.ResourceOptions(parent=parent, depends_on=[chart])
    if lb.mode == "cilium":
        k8s.apiextensions.CustomResource(
            f"{name}-pool",
            api_version=bgp_api_version(cilium_version),
            kind="CiliumLoadBalancerIPPool",
            metadata={"name": "site"},
            spec=pool_spec(lb),
            opts=after_chart,
        )
        return
    namespace = k8s.core.v1.Namespace(
        f"{name}-metallb-namespace", metadata={"name": METALLB_NAMESPACE}, opts=after_chart
    )
    controller = install_chart(
        f"{name}-metallb",
        METALLB,
        metallb_values(lb),
        METALLB_NAMESPACE,
        directory,
        pulumi.ResourceOptions(parent=parent, depends_on=[namespace]),
    )
    k8s.apiextensions.CustomResource(
        f"{name}-metallb-pool",
        api_version="metallb.io/v1beta1",
        kind="IPAddressPool",
        metadata={"name": "site", "namespace": METALLB_NAMESPACE},
        spec=metallb_pool_spec(lb),
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[controller]),  # its webhook judges pools
    )


def pool_spec(lb: LoadBalancer) -> dict[str, Any]:
    """CiliumLoadBalancerIPPool."""
    return {"blocks": [{"start": str(lb.pool.start), "stop": str(lb.pool.stop)}]}


def metallb_pool_spec(lb: LoadBalancer) -> dict[str, Any]:
    """IPAddressPool of MetalLB; without an advertisement beside it MetalLB announces nothing."""
    return {"addresses": [f"{lb.pool.start}-{lb.pool.stop}"]}


def metallb_values(lb: LoadBalancer) -> dict[str, pulumi.Input[object]]:
    """The controller alone. Both speakers are off by name: with one alone the other would take the BGP port."""
    return {
        "controller": {"enabled": True},
        "speaker": {"enabled": False, "frr": {"enabled": False}},
        "frrk8s": {"enabled": False},
        "crds": {"enabled": True},
        # Cilium announces Services of its own class and of none, so no other one will do.
        "loadBalancerClass": service_class(lb) or "",
    }


def service_class(lb: LoadBalancer) -> str | None:
    """loadBalancerClass that every LoadBalancer Service of a site sets, or none sets (MET-09)."""
    return LB_CLASS if lb.binding == "class" else None


def address_annotations(lb: LoadBalancer, address: IPv4Address) -> dict[str, str]:
    """Annotations by which a Service gets a fixed address of the pool from its owner."""
    key = "lbipam.cilium.io/ips" if lb.mode == "cilium" else "metallb.io/loadBalancerIPs"
    return {key: str(address)}
