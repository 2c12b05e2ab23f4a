"""LoadBalancer addresses of one cluster: the pools, their one owner, and how a Service asks for an address.

The document's pool becomes two: `fixed` has the addresses of `lb.vips`, which nobody gets by chance, `site` the others.

The owner is Cilium (mode B of the decisions) or the controller of MetalLB (mode A); Cilium announces either way. Whose
Services those are, and which fixed address each gets, is their layers' matter.
"""

from ipaddress import IPv4Address
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.charts import install_chart
from infra.config import LoadBalancer
from infra.names import FIXED_ADDRESS_LABEL, LB_CLASS
from infra.versions import METALLB, bgp_api_version

METALLB_NAMESPACE = "metallb-system"
FIXED_LABELS = {FIXED_ADDRESS_LABEL: "true"}  # of every Service that asks for one of `lb.vips`, whoever installs it
SITE, FIXED = "site", "fixed"  # names of the pools
Ranges = list[tuple[IPv4Address, IPv4Address]]  # first and last address


def declare_pools(
    name: str,
    lb: LoadBalancer,
    cilium_version: str,
    directory: str | None,
    chart: pulumi.Resource,
    parent: pulumi.Resource,
) -> None:
    """The pools and, with MetalLB, its controller. `chart` is that of Cilium: it brings the network, and its kinds."""
    after_chart = pulumi.ResourceOptions(parent=parent, depends_on=[chart])
    if lb.mode == "cilium":
        _declare(name, bgp_api_version(cilium_version), "CiliumLoadBalancerIPPool", {}, pool_specs(lb), chart, parent)
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
    _declare(
        f"{name}-metallb",
        "metallb.io/v1beta1",
        "IPAddressPool",
        {"namespace": METALLB_NAMESPACE},
        metallb_pool_specs(lb),
        controller,  # its webhook judges pools
        parent,
    )


def _declare(
    name: str,
    api_version: str,
    kind: str,
    metadata: dict[str, str],
    specs: dict[str, dict[str, Any]],
    after: pulumi.Resource,
    parent: pulumi.Resource,
) -> None:
    """One pool after the other: until the first has let go of an address, the second has it in vain.

    When a fixed address changes, the two share one for a moment. Cilium sets the younger aside until they no longer do;
    MetalLB turns the first one down (docs/production.md).
    """
    before = [after]
    for pool, spec in specs.items():
        made = k8s.apiextensions.CustomResource(
            f"{name}-pool" if pool == SITE else f"{name}-pool-{pool}",
            api_version=api_version,
            kind=kind,
            metadata={"name": pool, **metadata},
            spec=spec,
            opts=pulumi.ResourceOptions(parent=parent, depends_on=before),
        )
        before = [*before, made]


def pool_specs(lb: LoadBalancer) -> dict[str, dict[str, Any]]:
    """Each CiliumLoadBalancerIPPool by its name; none overlap, since Cilium would not use the younger one."""
    blocks = {name: [{"start": str(a), "stop": str(b)} for a, b in ranges] for name, ranges in _split(lb).items()}
    selector = {FIXED: {"serviceSelector": {"matchLabels": FIXED_LABELS}}}
    return {name: {"blocks": found, **selector.get(name, {})} for name, found in blocks.items() if found}


def metallb_pool_specs(lb: LoadBalancer) -> dict[str, dict[str, Any]]:
    """Each IPAddressPool of MetalLB by its name; without an advertisement beside it MetalLB announces nothing."""
    addresses = {name: [f"{a}-{b}" for a, b in ranges] for name, ranges in _split(lb).items()}
    on_request = {FIXED: {"autoAssign": False}}
    return {name: {"addresses": found, **on_request.get(name, {})} for name, found in addresses.items() if found}


def _split(lb: LoadBalancer) -> dict[str, Ranges]:
    """The document's pool in two: what is given to anybody, and the fixed addresses."""
    fixed = sorted({vip for _, vip in lb.vips if vip is not None and vip in lb.pool})
    free: Ranges = []
    first = lb.pool.start
    for vip in fixed:
        if first < vip:
            free.append((first, vip - 1))
        first = vip + 1
    if first <= lb.pool.stop:
        free.append((first, lb.pool.stop))
    return {SITE: free, FIXED: [(vip, vip) for vip in fixed]}


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
    """Annotations by which a Service gets a fixed address from its owner; with Cilium it needs FIXED_LABELS too."""
    key = "lbipam.cilium.io/ips" if lb.mode == "cilium" else "metallb.io/loadBalancerIPs"
    return {key: str(address)}
