"""GPU: separation of the GPU clusters, driver and sharing. Changes of a driver show against the state alone."""

from collections.abc import Iterator

from infra.config.fleet import Fleet, Site
from infra.config.proxmox import Vm
from infra.rules.nodes import CPPS, gpu_containers, nodes, uses_gpu
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_005, ADR_009, PLAN
from infra.violation import Level

ON_GPUS = ("inference", "batch", "distributed")  # kinds of apps
PROOF_CASES = ("realtime-stateful", "l7-audit", "multi-tenant-l7", "pod-migration")
REVIEW_TRIGGERS = (
    "host-panic",
    "self-service-tenants",
    "clustermesh-needed",
    "kernel-isolation",
    "better-runtime",
    "cost-of-two-clusters",
    "mixed-workloads",
    "gpu-policy-compliance",
    "driver-instability",
    "extra-hardware",
)


@rule("GPU-01", source=ADR_009, profile=CPPS)
def gpus_stay_out_of_the_main_cluster(fleet: Fleet) -> Iterator[Finding]:
    """GPU cluster and main cluster are two: no guest is in both, and no main node has a GPU."""
    in_gpu = {node.path for node in nodes(fleet, "gpu")}
    for node in nodes(fleet, "main"):
        if _reviewed(node.site):
            continue
        if node.path in in_gpu:
            yield Finding(node.path, "a node of the main and of a GPU cluster", "a node of one of them", "name it once")
        elif uses_gpu(node.guest):
            key = "pci_mappings" if isinstance(node.guest, Vm) else "devices"
            found = f"a GPU in a node of {node.cluster.name}"
            yield Finding(f"{node.path}.{key}", found, "GPUs in nodes of GPU clusters alone", "make it a GPU node")


@rule("GPU-02", source=ADR_005, profile=CPPS)
def gpu_cluster_stands_alone(fleet: Fleet) -> Iterator[Finding]:
    """A GPU cluster has servers of its own and joins no other cluster."""
    for path, _, cluster in fleet.clusters():
        if cluster.role == "gpu" and cluster.joins is not None:
            yield Finding(f"{path}.joins", cluster.joins, "nothing", "remove it: the GPU cluster is standalone")


@rule("GPU-04", source=ADR_005, profile=CPPS)
def driver_versions_agree(fleet: Fleet) -> Iterator[Finding]:
    """A GPU container has exactly the driver version of its host."""
    for node, container in gpu_containers(fleet):
        host, mine = node.host, container.nvidia_driver
        if host is not None and (mine is None or mine != host.nvidia_driver):
            where = f"{node.path.split('.', 1)[0]}.proxmox.hosts.{host.name}.nvidia_driver"
            yield Finding(
                f"{node.path}.nvidia_driver",
                mine or "nothing",
                f"{host.nvidia_driver or 'a version'}, that of {where}",
                "set both to the version that the host runs",
            )


@rule("GPU-06", source=ADR_005, profile=CPPS)
def driver_changes_are_prepared(fleet: Fleet) -> Iterator[Finding]:
    """A driver change under a GPU container has a window, a way back, and a snapshot of the container."""
    for path, site, host in fleet.hosts():
        under = [guest.name for guest in site.containers if guest.host == host.name and uses_gpu(guest)]
        planned = host.planned_nvidia_driver
        if under and planned not in (None, host.nvidia_driver) and site.maintenance is None:
            yield Finding(
                f"{path}.planned_nvidia_driver",
                f"{planned} in place of {host.nvidia_driver or 'none'} under {', '.join(under)}, without maintenance",
                "maintenance with window, rollback_doc and snapshot_id",
                f"take a LINSTOR snapshot of {', '.join(under)}, then fill in `maintenance`",
            )


@rule("GPU-07", level=Level.WARN, source=ADR_005, profile=CPPS)
def gpu_hosts_are_watched(fleet: Fleet) -> Iterator[Finding]:
    """Kernel log and nvidia-smi of GPU hosts are watched."""
    for site_id, site in fleet.sites.items():
        hosts = [host.name for host in site.proxmox.hosts.values() if host.gpus]
        if hosts and not site.observability.gpu_host_watch:
            found = f"false with GPUs in {', '.join(hosts)}"
            yield Finding(f"{site_id}.observability.gpu_host_watch", found, "true", "set it to true")


@rule("GPU-09", level=Level.WARN, source=ADR_009, profile=CPPS)
def tenant_limits_need_hami(fleet: Fleet) -> Iterator[Finding]:
    """Limits per tenant take effect with HAMi alone."""
    for path, _, cluster in fleet.clusters():
        if cluster.gpu is not None and cluster.gpu.tenant_limits and cluster.gpu.sharing != "hami":
            found = f"true with sharing {cluster.gpu.sharing}"
            yield Finding(f"{path}.gpu.tenant_limits", found, "sharing: hami", "choose HAMi, or drop the limits")


@rule("GPU-10", source=ADR_005, profile=CPPS)
def vgpu_is_refused(fleet: Fleet) -> Iterator[Finding]:
    """vGPU GRID and vgpu-unlock are not used."""
    for path, _, cluster in fleet.clusters():
        if cluster.gpu is not None and cluster.gpu.vgpu:
            yield Finding(f"{path}.gpu.vgpu", "true", "false", "share GPUs with hami or time-slicing")


@rule("GPU-13", source=ADR_005, profile=CPPS)
def mig_is_refused(fleet: Fleet) -> Iterator[Finding]:
    """A5000 and A5500 have no MIG hardware."""
    for path, _, cluster in fleet.clusters():
        if cluster.gpu is not None and cluster.gpu.mig:
            yield Finding(
                f"{path}.gpu.mig", f"true on {cluster.gpu.model}", "false", "share GPUs with hami or time-slicing"
            )


@rule("GPU-14", source=ADR_009)
def distributed_jobs_stay_in_a_cluster(fleet: Fleet) -> Iterator[Finding]:
    """A job that spans GPUs stays inside one cluster."""
    if fleet.common.multikueue.distributed_over_sites:
        remedy = "keep distributed jobs out of MultiKueue"
        yield Finding("common.multikueue.distributed_over_sites", "true", "false", remedy)


@rule("GPU-15", level=Level.ACK, source=ADR_009, cases=PROOF_CASES, profile=CPPS)
def gpu_runtime_is_chosen(fleet: Fleet) -> Iterator[Finding]:
    """A GPU cluster names its runtime, has guests of that kind, and VMs need a proven case."""
    for path, site, cluster in fleet.clusters():
        if cluster.role != "gpu":
            continue
        if cluster.gpu is None:
            remedy = "choose the runtime; there is no default"
            yield Finding(f"{path}.gpu", "nothing", "the GPU platform with its runtime", remedy, level=Level.ERROR)
            continue
        for node in site.nodes(cluster):
            if node.kind != cluster.gpu.runtime:
                yield Finding(
                    f"{path}.gpu.runtime",
                    f"{cluster.gpu.runtime}, while {node.name} is of kind {node.kind}",
                    "the kind of all its guests",
                    "correct the runtime or the guest",
                    level=Level.ERROR,
                )
        if cluster.gpu.runtime == "vm":
            remedy = f"use lxc, or name a case under accept.GPU-15: {', '.join(PROOF_CASES)}"
            yield Finding(f"{path}.gpu.runtime", "vm", "lxc until VMs are proven", remedy)


@rule("GPU-16", level=Level.ACK, source=ADR_005, cases=REVIEW_TRIGGERS, profile=CPPS)
def review_names_its_trigger(fleet: Fleet) -> Iterator[Finding]:
    """Only a named review trigger moves GPUs into the main cluster or into a VM on Tier 3."""
    remedy = f"name the trigger under accept.GPU-16: {', '.join(REVIEW_TRIGGERS)}"
    for path, site, guest in fleet.guests():
        host = site.proxmox.hosts.get(guest.host)
        if not _reviewed(site) or host is None or host.hardware_tier != "3":
            continue  # without the acknowledgement TIER-02 and GPU-01 refuse these, and say so once
        if isinstance(guest, Vm) and guest.pci_mappings:
            yield Finding(
                f"{path}.pci_mappings", f"a GPU of the Tier 3 host {host.name} in a VM", "a container", remedy
            )
    for node in nodes(fleet, "main"):
        if _reviewed(node.site) and uses_gpu(node.guest):
            yield Finding(node.path, f"a GPU in a node of {node.cluster.name}", "a GPU cluster", remedy)


@rule("GPU-17", level=Level.WARN, source=ADR_005, profile=CPPS)
def gpu_code_is_reviewed(fleet: Fleet) -> Iterator[Finding]:
    """Code that runs on GPUs was reviewed before production."""
    for site_id, site in fleet.sites.items():
        for name, app in site.apps.items():
            if app.kind in ON_GPUS and not app.reviewed:
                yield Finding(
                    f"{site_id}.apps.{name}.reviewed", "false", "true", "review its code, then set it to true"
                )


@rule("GPU-19", level=Level.ACK, source=PLAN, profile=CPPS)
def one_sharing_layer(fleet: Fleet) -> Iterator[Finding]:
    """KAI and HAMi do not share the same GPUs."""
    for path, _, cluster in fleet.clusters():
        if cluster.gpu is not None and cluster.gpu.kai and cluster.gpu.sharing == "hami":
            remedy = "choose one, or accept both under accept.GPU-19"
            yield Finding(f"{path}.gpu.kai", "true beside HAMi", "one sharing layer", remedy)


@rule("GPU-20", source=PLAN, profile=CPPS)
def gpu_nodes_carry_their_model(fleet: Fleet) -> Iterator[Finding]:
    """Nodes of a GPU cluster carry the label gpu.model of the GPUs they have."""
    for node in nodes(fleet, "gpu"):
        platform = node.cluster.gpu
        if platform is None:
            continue
        labels = {**node.cluster.node_labels, **node.guest.node_labels}
        models = {gpu.model for gpu in node.host.gpus} if node.host is not None else set()
        cluster_path = f"{node.path.split('.', 1)[0]}.clusters.{node.cluster.name}"
        if labels.get("gpu.model") != platform.model:
            yield Finding(
                f"{cluster_path}.node_labels",
                f"gpu.model {labels.get('gpu.model', 'missing')} on {node.guest.name}",
                f"gpu.model: {platform.model}",
                "set the label, since queues and overrides select on it",
            )
        if node.host is not None and models != {platform.model}:
            yield Finding(
                f"{cluster_path}.gpu.model",
                f"{platform.model}, while {node.host.name} has {', '.join(sorted(models)) or 'no GPU'}",
                "the model of the GPUs of its hosts",
                "correct the model or move the guest",
            )


def _reviewed(site: Site) -> bool:
    return "GPU-16" in site.accept
