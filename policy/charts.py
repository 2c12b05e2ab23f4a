"""Helm releases: pinned, from known repositories, and none of what the decisions refuse or allow once."""

import re
from collections.abc import Callable, Iterator

from infra import versions
from policy.judging import ADVISORY, Fault, Resource, by_provider, each, together
from policy.reading import UNKNOWN, at, dotted, is_off, leaves, text

RELEASE = "kubernetes:helm.sh/v3:Release"
CHARTS = (RELEASE, "kubernetes:helm.sh/v3:Chart", "kubernetes:helm.sh/v4:Chart")
REPOSITORIES = frozenset(
    chart.repository.rstrip("/")
    for chart in (versions.cilium(""), *vars(versions).values())
    if isinstance(chart, versions.Chart)
)
EXACT = re.compile(r"v?\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?")
GPU_OWNERS = ("hami", "nvidia-device-plugin")  # both report nvidia.com/gpu
REPLICATED_STORAGE = ("longhorn", "piraeus", "piraeus-operator", "linstor-csi", "linstor")


def chart_of(resource: Resource) -> str:
    """Name of the chart that a resource installs, whether from a repository, a registry or a file; else empty."""
    if resource.type not in CHARTS:
        return ""
    name = text(at(resource.props, "chart")).rstrip("/").rsplit("/", 1)[-1].removesuffix(".tgz")
    return name.removesuffix(f"-{text(at(resource.props, 'version'))}")


@each("GEN-08")
def charts_have_exact_versions(resource: Resource) -> Iterator[Fault]:
    """Every chart is pinned to one version."""
    if resource.type in CHARTS:
        version = at(resource.props, "version")
        if version is not UNKNOWN and not EXACT.fullmatch(text(version)):
            yield Fault("version", "an exact version")
        if at(resource.props, "devel") is True:
            yield Fault("devel", "false")


@each("GEN-08")
def charts_come_from_known_repositories(resource: Resource) -> Iterator[Fault]:
    """A chart comes from a repository of `infra/versions.py`, or from a file of the chart directory."""
    if resource.type not in CHARTS or UNKNOWN in (at(resource.props, "chart"), at(resource.props, "repositoryOpts")):
        return
    chart, repository = text(at(resource.props, "chart")), at(resource.props, "repositoryOpts", "repo")
    if chart.startswith("/") and chart.endswith(".tgz"):
        return
    if chart.startswith("oci://"):
        if chart.rsplit("/", 1)[0] not in REPOSITORIES:
            yield Fault("chart", "a registry of infra/versions.py")
    elif repository is not UNKNOWN and text(repository).rstrip("/") not in REPOSITORIES:
        yield Fault("repositoryOpts.repo", "a repository of infra/versions.py")


@each("GEN-08")
def images_are_pinned(resource: Resource) -> Iterator[Fault]:
    """No container image floats: neither `latest` nor an image without tag or digest."""
    if not resource.type.startswith("kubernetes:"):
        return
    in_chart = resource.type in CHARTS
    for path, value in leaves(resource.props):
        last, image = path[-1] if path else "", text(value)
        in_pod = last == "image" and {"containers", "initContainers", "ephemeralContainers"} & {*path}
        if in_pod and image and ":" not in image.rsplit("/", 1)[-1]:
            yield Fault(dotted(path), "an image with tag or digest")
        if (in_pod or (in_chart and last in ("image", "tag"))) and (image == "latest" or image.endswith(":latest")):
            yield Fault(dotted(path), "another tag than latest")


@each("GEN-10")
def replaceable_parts_are_unprotected(resource: Resource) -> Iterator[Fault]:
    """What is cheap to install again is not protected: only guests with state are."""
    if resource.type in CHARTS and resource.protect:
        yield Fault("protect", "false")


@each("MET-03")
def metallb_has_no_speaker(resource: Resource) -> Iterator[Fault]:
    """MetalLB runs its controller alone: Cilium announces the addresses."""
    speaker = at(resource.props, "values", "speaker", "enabled")
    if chart_of(resource) == "metallb" and not is_off(speaker):
        yield Fault("values.speaker.enabled", "false")


@each("BKP-09", level=ADVISORY)
def velero_uploads_with_kopia(resource: Resource) -> Iterator[Fault]:
    """Velero uploads with Kopia, never with Restic."""
    uploader = at(resource.props, "values", "configuration", "uploaderType")
    if chart_of(resource) == "velero" and uploader not in (None, "kopia", UNKNOWN):
        yield Fault("values.configuration.uploaderType", "kopia")


@together("GPU-08")
def gpus_have_one_owner(resources: list[Resource]) -> Iterator[Fault]:
    """One device plugin of a cluster reports nvidia.com/gpu: HAMi or NVIDIA's, never both."""
    yield from _at_most_one(resources, GPU_OWNERS, "HAMi or the NVIDIA device plugin, not both")


@together("STO-01")
def storage_has_one_replication(resources: list[Resource]) -> Iterator[Fault]:
    """A cluster has at most one replicated storage backend."""
    yield from _at_most_one(resources, REPLICATED_STORAGE, "one replicated storage backend")


@together("ARG-01")
def site_has_one_argocd(resources: list[Resource]) -> Iterator[Fault]:
    """A site has one ArgoCD."""
    found = [resource for resource in resources if chart_of(resource) == "argo-cd"]
    for extra in found[1:]:
        yield Fault("chart", "one ArgoCD in a stack", extra)


def _at_most_one(resources: list[Resource], charts: tuple[str, ...], expected: str) -> Iterator[Fault]:
    for cluster in by_provider(resources):
        found = [resource for resource in cluster if chart_of(resource) in charts]
        for extra in found[1:]:
            yield Fault("chart", f"{expected}; {found[0].name} is there already", extra)


def _refused(id: str, name: str, statement: str, charts: str) -> None:
    pattern = re.compile(charts)

    def check(resource: Resource) -> Iterator[Fault]:
        if pattern.fullmatch(chart_of(resource)):
            yield Fault("chart", "another chart, or none")

    check.__name__, check.__doc__ = name, statement
    register: Callable[..., object] = each(id)
    register(check)


_refused(
    "GPU-11",
    "datacenter_operators_stay_out",
    "GPU Operator, KubeVirt, CDI and KServe belong to the datacenter profile: here the host owns the driver.",
    "gpu-operator|kubevirt(-operator)?|cdi(-operator)?|kserve(-crd)?",
)
_refused("MSH-12", "submariner_stays_out", "Submariner is refused beside ClusterMesh.", "submariner(-.+)?")
_refused("STO-03", "openebs_stays_out", "OpenEBS is refused.", "openebs|mayastor|zfs-localpv|jiva")
_refused("BKP-15", "kasten_stays_out", "Kasten K10 is refused.", "k10")
_refused("ARG-12", "flux_stays_out", "Flux is refused.", "flux2?|flux-operator|flux-instance")
_refused("BGP-13", "no_second_speaker", "Cilium alone speaks BGP in a cluster.", "frr(-k8s)?|bird|kube-router|gobgp")
_refused("CIL-09", "no_second_network", "A cluster has one CNI.", "calico|tigera-operator|canal|flannel|weave(-net)?")
