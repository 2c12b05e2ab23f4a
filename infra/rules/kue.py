"""KUE: GPU queues and MultiKueue. Queues, flavors and worker kubeconfigs are tested on the declared resources."""

import re
from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.config.proxmox import Vm
from infra.names import GPU_QUEUES
from infra.rules.nodes import CPPS, nodes, uses_gpu
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_009, PLAN
from infra.violation import Level

OVER_SITES = ("fine-tuning", "ocr", "dataset-generation", "graphrag", "embeddings")  # jobs of one GPU
_GPU_NODE = re.compile(r"^/dev/nvidia[0-9]+$")


@rule("KUE-03", source=PLAN, profile=CPPS)
def quotas_fit_the_gpus(fleet: Fleet) -> Iterator[Finding]:
    """The quotas of a GPU cluster add up to no more GPUs than its nodes have."""
    for path, site, cluster in fleet.clusters():
        if cluster.gpu is None or cluster.role != "gpu":
            continue
        installed = sum(
            len(guest.pci_mappings) if isinstance(guest, Vm) else len(set(filter(_GPU_NODE.match, guest.devices)))
            for guest in site.nodes(cluster)
        )
        queues = cluster.gpu.queues
        if queues.interactive_gpus + queues.batch_gpus > installed:
            found = f"{queues.interactive_gpus} interactive and {queues.batch_gpus} batch"
            remedy = "lower a quota, or give the nodes more GPUs"
            yield Finding(f"{path}.gpu.queues", found, f"no more than the GPUs of its nodes: {installed}", remedy)


@rule("KUE-06", source=ADR_009)
def manager_owns_no_gpu(fleet: Fleet) -> Iterator[Finding]:
    """The MultiKueue manager is the main cluster of a cpps site and owns no GPU."""
    manager = fleet.common.multikueue.manager
    site = fleet.sites.get(manager)
    if site is None:
        return  # unknown: DOC-06
    if site.profile != CPPS:
        found = f"{manager}, of profile {site.profile}"
        yield Finding("common.multikueue.manager", found, "a site whose GPUs have a cluster of their own", "name it")
    for node in nodes(fleet, "main"):
        if node.site is site and uses_gpu(node.guest) and "GPU-16" in site.accept:  # without a review GPU-01 says it
            found = f"{manager}, whose {node.guest.name} has a GPU in {node.cluster.name}"
            yield Finding("common.multikueue.manager", found, "a manager without GPUs", "name another site")


@rule("KUE-07", level=Level.ACK, source=ADR_009)
def manager_is_no_worker(fleet: Fleet) -> Iterator[Finding]:
    """Jobs that the manager runs itself have a queue of their own, which MultiKueue does not dispatch."""
    multikueue = fleet.common.multikueue
    if multikueue.own_queue in GPU_QUEUES:
        found = f"{multikueue.own_queue}, which MultiKueue dispatches"
        remedy = f"choose another name, or accept it under accept.KUE-07 of {multikueue.manager}"
        expected = "a queue of its own"
        yield Finding("common.multikueue.own_queue", found, expected, remedy, sites=(multikueue.manager,))


@rule("KUE-09", source=ADR_009, profile=CPPS)
def queues_are_the_same_everywhere(fleet: Fleet) -> Iterator[Finding]:
    """With MultiKueue all GPU clusters have the queues of the same labs."""
    first: tuple[str, frozenset[str]] | None = None
    for path, _, cluster in fleet.clusters() if fleet.common.multikueue.enabled else ():
        if cluster.gpu is None or cluster.role != "gpu":
            continue
        labs = frozenset(cluster.gpu.queues.labs)
        first = first or (path, labs)
        if labs != first[1]:
            expected = f"{', '.join(sorted(first[1]))}, like {first[0]}.gpu.queues.labs"
            remedy = "name the same labs: a job finds its queue in every worker"
            yield Finding(f"{path}.gpu.queues.labs", ", ".join(sorted(labs)), expected, remedy)


@rule("KUE-11", source=ADR_009)
def jobs_over_sites_are_of_one_gpu(fleet: Fleet) -> Iterator[Finding]:
    """Only classes of jobs that need one GPU run in another site."""
    for index, workload in enumerate(fleet.common.multikueue.workloads):
        if workload not in OVER_SITES:
            remedy = "remove it: such jobs stay in the cluster they are submitted to"
            expected = f"one of {', '.join(OVER_SITES)}"
            yield Finding(f"common.multikueue.workloads.{index}", workload, expected, remedy)


@rule("KUE-12", level=Level.WARN, source=ADR_009)
def jobs_over_sites_find_their_data(fleet: Fleet) -> Iterator[Finding]:
    """With MultiKueue each site with a GPU cluster, and the manager's, has an object store."""
    multikueue = fleet.common.multikueue
    for site_id, site in fleet.sites.items() if multikueue.enabled else ():
        takes_part = site_id == multikueue.manager or any(cluster.role == "gpu" for cluster in site.clusters.values())
        if takes_part and site.object_store is None:
            remedy = "name a replicated object store, so that a job finds its data where it runs"
            yield Finding(f"{site_id}.object_store", "nothing", "an object store with MultiKueue on", remedy)


@rule("KUE-17", source=ADR_009)
def multikueue_has_workers(fleet: Fleet) -> Iterator[Finding]:
    """MultiKueue is on with two GPU clusters or more."""
    workers = [cluster.name for _, _, cluster in fleet.clusters() if cluster.role == "gpu"]
    if fleet.common.multikueue.enabled and len(workers) < 2:
        found = f"true with {len(workers)} GPU clusters ({', '.join(workers) or 'none'})"
        remedy = "leave it off until a second GPU cluster exists"
        yield Finding("common.multikueue.enabled", found, "false, or two GPU clusters", remedy)
