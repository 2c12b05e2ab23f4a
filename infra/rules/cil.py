"""CIL: Cilium of the clusters. Values of the chart are tested on the declared release."""

import re
from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.names import PLATFORM_NAMESPACES
from infra.rules.decided import deviations
from infra.rules.nodes import CPPS, nodes
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_005, ADR_009, ARCHITECTURE, SEEDS
from infra.violation import Level

# Kubernetes minors that a Cilium line is tested with (Cilium documentation, Kubernetes compatibility).
KUBERNETES = {"1.17": range(29, 33)}
LAST_WITH_EXTERNAL_WORKLOADS = (1, 17)
CILIUM_ON_GPU = (
    "realtime-stateful",
    "l7-audit",
    "multi-tenant-l7",
    "pod-migration",
    "bursting",
    "advanced-multikueue",
    "single-hubble-view",
)
_MINOR = re.compile(r"^v?1\.(\d{1,6})\.")


@rule("CIL-01", level=Level.ACK, source=SEEDS["CIL-01"].source)
def cilium_release_is_the_decided_one(fleet: Fleet) -> Iterator[Finding]:
    """Both main clusters run one Cilium 1.17 release, on a Kubernetes minor that it supports."""
    yield from deviations(fleet, "CIL-01")
    line = ".".join(fleet.common.cilium.version.split(".")[:2])
    supported = KUBERNETES.get(line)
    for path, _, cluster in fleet.clusters():
        minor = _MINOR.match(cluster.k3s_version)
        if cluster.cni == "cilium" and supported and minor and int(minor.group(1)) not in supported:
            yield Finding(
                f"{path}.k3s_version",
                cluster.k3s_version,
                f"Kubernetes 1.{supported[0]} to 1.{supported[-1]}, which Cilium {line} supports",
                "choose a K3s release of these minors",
                level=Level.ERROR,
            )


@rule("CIL-03", source=ARCHITECTURE)
def cilium_names_and_ids_are_unique(fleet: Fleet) -> Iterator[Finding]:
    """Cluster names and Cilium ids are unique in the fleet, and a mesh member has an id."""
    ids: dict[int, str] = {}
    names: dict[str, str] = {}
    for path, _, cluster in fleet.clusters():
        if cluster.name in names:
            found = f"{cluster.name}, like {names[cluster.name]}"
            yield Finding(path, found, "a name of its own", "rename one of the clusters")
        names.setdefault(cluster.name, path)
        if cluster.cluster_id is None:
            if cluster.in_mesh and cluster.cni == "cilium":
                yield Finding(f"{path}.cluster_id", "nothing", "an id from 1 to 255 in the mesh", "choose a free id")
        elif cluster.cluster_id in ids:
            found = f"{cluster.cluster_id}, like {ids[cluster.cluster_id]}"
            yield Finding(f"{path}.cluster_id", found, "an id of its own", "choose a free id")
        if cluster.cluster_id is not None:
            ids.setdefault(cluster.cluster_id, f"{path}.cluster_id")


@rule("CIL-08", level=Level.ACK, source=ADR_009, cases=CILIUM_ON_GPU, profile=CPPS)
def gpu_clusters_keep_flannel(fleet: Fleet) -> Iterator[Finding]:
    """A GPU cluster keeps Flannel unless one of the listed cases needs Cilium there."""
    for path, _, cluster in fleet.clusters():
        by_runtime = cluster.gpu is not None and cluster.gpu.runtime == "vm"  # then GPU-15 asks for the case
        if cluster.role == "gpu" and cluster.cni == "cilium" and not by_runtime:
            remedy = f"use flannel, or name a case under accept.CIL-08: {', '.join(CILIUM_ON_GPU)}"
            yield Finding(f"{path}.cni", "cilium", "flannel on a GPU cluster", remedy)


@rule("CIL-10", level=Level.ACK, source=ADR_005, profile=CPPS)
def cilium_runs_in_vms(fleet: Fleet) -> Iterator[Finding]:
    """Cilium runs in VMs: upstream does not support it in a container, which needs privilege, nesting and keyctl."""
    for node in nodes(fleet):
        container = node.guest
        if node.cluster.cni != "cilium" or container.kind != "lxc":
            continue
        remedy = "use a VM, or accept the lack of upstream support under accept.CIL-10"
        yield Finding(f"{node.path}.kind", f"lxc for a node of {node.cluster.name}", "vm under Cilium", remedy)
        for key in ("privileged", "nesting", "keyctl"):
            if node.cluster.role == "main" and not getattr(container, key):
                yield Finding(f"{node.path}.{key}", "false", "true under Cilium", "set it to true", level=Level.ERROR)


@rule("CIL-11", source=ADR_009)
def system_namespaces_are_left_alone(fleet: Fleet) -> Iterator[Finding]:
    """The default-deny policy covers application namespaces, never those of Kubernetes or the platform."""
    for path, _, cluster in fleet.clusters():
        for index, namespace in enumerate(cluster.managed_namespaces):
            if namespace.startswith("kube-") or namespace in PLATFORM_NAMESPACES:
                expected = "a namespace of an application"
                yield Finding(f"{path}.managed_namespaces.{index}", namespace, expected, "remove it from the list")


@rule("CIL-13", level=Level.ACK, source=ARCHITECTURE)
def mesh_holds_no_machines(fleet: Fleet) -> Iterator[Finding]:
    """Machines outside Kubernetes do not join the mesh; from Cilium 1.18 on they cannot."""
    version = fleet.common.cilium.version
    gone = tuple(int(part) for part in version.split(".")[:2] if len(part) < 7) > LAST_WITH_EXTERNAL_WORKLOADS
    for site_id, site in fleet.sites.items():
        if site.rejected.external_workloads:
            yield Finding(
                f"{site_id}.rejected.external_workloads",
                f"true with Cilium {version}",
                "false",
                "drop it: the feature is gone" if gone else "drop it, or accept it under accept.CIL-13",
                level=Level.ERROR if gone else None,
            )
