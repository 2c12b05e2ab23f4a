"""Objects in a cluster that are of no one layer: storage classes, namespaces, applications, exposure."""

from collections.abc import Iterator
from typing import Any

from infra.names import KUBE_SYSTEM
from policy.judging import ADVISORY, Fault, Resource, by_provider, each, together
from policy.reading import at, entries, text

SERVICE = "kubernetes:core/v1:Service"
SECRET = "kubernetes:core/v1:Secret"
NAMESPACE = "kubernetes:core/v1:Namespace"
STORAGE_CLASS = "kubernetes:storage.k8s.io/v1:StorageClass"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
POD_SECURITY = "pod-security.kubernetes.io/enforce"
PRODUCTION_APP = "tutor-openedx"
OUTSIDE_KUBERNETES = ("infra", "config/vyos")  # folders of the repository


def kind_of(resource: Resource) -> str:
    """Kind of a Kubernetes object; empty for all else."""
    return resource.type.rsplit(":", 1)[-1] if resource.type.startswith("kubernetes:") else ""


def name_of(resource: Resource) -> Any:
    return at(resource.props, "metadata", "name")


def annotations(resource: Resource) -> dict[str, Any]:
    held = at(resource.props, "metadata", "annotations") if resource.type.startswith("kubernetes:") else None
    return held if isinstance(held, dict) else {}


@together("STO-02")
def one_storage_class_is_the_default(resources: list[Resource]) -> Iterator[Fault]:
    """A cluster has one default StorageClass."""
    for cluster in by_provider(resources):
        classes = [one for one in cluster if one.type == STORAGE_CLASS]
        default = [one for one in classes if annotations(one).get(DEFAULT_CLASS) in ("true", True)]
        for extra in default[1:]:
            yield Fault(f"metadata.annotations.{DEFAULT_CLASS}", f"false: {default[0].name} is the default", extra)


@each("ARG-13")
def production_app_is_left_alone(resource: Resource) -> Iterator[Fault]:
    """Nothing declares, moves or deletes what is in production since before this program."""
    for path in (("metadata", "name"), ("metadata", "namespace"), ("name",), ("namespace",)):
        if resource.type.startswith("kubernetes:") and at(resource.props, *path) == PRODUCTION_APP:
            yield Fault(".".join(path), "another name: ArgoCD keeps that application")


@each("ARG-07")
def argocd_gets_kubernetes_alone(resource: Resource) -> Iterator[Fault]:
    """ArgoCD applies Kubernetes manifests, nothing of Proxmox or the routers."""
    if resource.type.startswith("kubernetes:argoproj.io/"):
        spec = at(resource.props, "spec")
        sources = [("spec.source", at(spec, "source"))]
        sources += [(f"spec.sources[{index}]", source) for index, source in entries(at(spec, "sources"))]
        for where, source in sources:
            path = text(at(source, "path")).strip("./")
            if any(path == folder or path.startswith(f"{folder}/") for folder in OUTSIDE_KUBERNETES):
                yield Fault(f"{where}.path", "a folder of Kubernetes manifests")


@each("TRF-12")
def services_open_no_node_port(resource: Resource) -> Iterator[Fault]:
    """Services are exposed by addresses of the pool, not by ports of the nodes."""
    if resource.type == SERVICE and at(resource.props, "spec", "type") == "NodePort":
        yield Fault("spec.type", "ClusterIP behind the ingress, or LoadBalancer")


@each("NAMESPACES", level=ADVISORY)
def say_their_pod_security(resource: Resource) -> Iterator[Fault]:
    """A namespace says which level of Pod security it enforces. No decision asks for it; it costs one label."""
    labels = at(resource.props, "metadata", "labels")
    ours = resource.type == NAMESPACE and name_of(resource) != KUBE_SYSTEM
    if ours and at(labels, POD_SECURITY) in (None, ""):
        yield Fault(f"metadata.labels.{POD_SECURITY}", "privileged, baseline or restricted")
