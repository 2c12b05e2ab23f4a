"""DCP: sites of the datacenter profile, and that the two profiles stay apart.

A document of that profile still has the shape of a cpps one; what no layer of that profile can show yet is left out.
"""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.nodes import CPPS
from infra.rules.registry import Finding, rule
from infra.rules.seeds import DC_ADR_0001

DATACENTER = "datacenter"
OTHER_PLATFORMS = ("openstack", "libvirt")


@rule("DCP-01", source=DC_ADR_0001)
def profiles_are_not_mixed(fleet: Fleet) -> Iterator[Finding]:
    """Regions belong to datacenter sites; Proxmox and clusters split off for GPUs belong to cpps sites."""
    for site_id, site in fleet.sites.items():
        for product in OTHER_PLATFORMS if site.profile == CPPS else ():
            if getattr(site.rejected, product):
                remedy = "remove it: Proxmox runs the guests of a cpps site"
                yield Finding(f"{site_id}.rejected.{product}", "true", "false", remedy)
        if site.profile == CPPS and site.region is not None:
            found = f"{site.region} in a site of profile cpps"
            yield Finding(f"{site_id}.region", found, "nothing", "remove it, or set profile to datacenter")
    for path, site, cluster in fleet.clusters():
        if site.profile == DATACENTER and cluster.role == "gpu":
            remedy = "run GPUs, VMs and containers in the one cluster of the region"
            yield Finding(f"{path}.role", "gpu in a datacenter site", "main", remedy)


@rule("DCP-07", source=DC_ADR_0001, profile=DATACENTER)
def workloads_share_one_network(fleet: Fleet) -> Iterator[Finding]:
    """VMs and containers of a datacenter site share Cilium."""
    for path, _, cluster in fleet.clusters():
        if cluster.cni != "cilium":
            yield Finding(f"{path}.cni", cluster.cni, "cilium", "use cilium: nothing is doubled for a kind of workload")


@rule("DCP-09", source=DC_ADR_0001, profile=DATACENTER)
def regions_have_one_site(fleet: Fleet) -> Iterator[Finding]:
    """A datacenter site has a region, and a region has one site."""
    regions: dict[str, str] = {}
    for site_id, site in fleet.sites.items():
        if site.region is None:
            yield Finding(f"{site_id}.region", "nothing", "the region of a datacenter site", "name it")
        elif site.region in regions:
            found = f"{site.region}, like {regions[site.region]}"
            yield Finding(f"{site_id}.region", found, "a region of its own", "join the two, or name another region")
        else:
            regions[site.region] = f"{site_id}.region"


@rule("DCP-11", source=DC_ADR_0001, profile=DATACENTER)
def vms_are_of_kubevirt(fleet: Fleet) -> Iterator[Finding]:
    """Proxmox, OpenStack and plain libvirt run no guests of a datacenter site."""
    for site_id, site in fleet.sites.items():
        remedy = "remove it: KubeVirt runs the VMs of a datacenter site"
        if site.guests:
            yield Finding(f"{site_id}.guests", f"{len(site.guests)} guests on Proxmox", "none", remedy)
        for product in OTHER_PLATFORMS:
            if getattr(site.rejected, product):
                yield Finding(f"{site_id}.rejected.{product}", "true", "false", remedy)


@rule("DCP-13", source=DC_ADR_0001, profile=DATACENTER)
def gpus_have_one_device_plugin(fleet: Fleet) -> Iterator[Finding]:
    """HAMi does not run beside the device plugin of the GPU Operator."""
    for path, _, cluster in fleet.clusters():
        if cluster.gpu is not None and cluster.gpu.sharing == "hami":
            remedy = "leave sharing to the GPU Operator: none or time-slicing"
            yield Finding(f"{path}.gpu.sharing", "hami beside the operator's plugin", "one owner of the GPUs", remedy)
