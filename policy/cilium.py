"""Cilium: values of its release, uniqueness in the stack, and nothing of it where it does not run."""

import re
from collections.abc import Iterator
from typing import Any

from infra.names import KUBE_SYSTEM
from infra.rules.seeds import SEEDS, Prefix
from policy.charts import CHARTS, chart_of
from policy.judging import ADVISORY, Fault, Resource, by_provider, each, together
from policy.reading import UNKNOWN, at, is_on, text

SERVICE = "kubernetes:core/v1:Service"
CLUSTER_IDS = range(1, 256)
NO_FLANNEL = re.compile(r"(?m)^flannel-backend:\s*[\"']?none[\"']?\s*$")
CLUSTER_CIDR = re.compile(r"(?m)^cluster-cidr:")  # only the settings of a server have it


def is_cilium(resource: Resource) -> bool:
    return chart_of(resource) == "cilium"


def may_have_cilium(cluster: list[Resource]) -> bool:
    return any(is_cilium(one) or (one.type in CHARTS and at(one.props, "chart") is UNKNOWN) for one in cluster)


@each("CIL-01", level=ADVISORY)
def cilium_is_of_the_decided_line(resource: Resource) -> Iterator[Fault]:
    """Cilium has a version of the line that is decided."""
    decided = SEEDS["CIL-01"].values["common"]["cilium.version"]
    version = at(resource.props, "version")
    if not is_cilium(resource) or not isinstance(decided, Prefix) or version is UNKNOWN:
        return
    if not text(version).startswith(decided.text):
        yield Fault("version", f"{decided.text}x")


@each("CIL-04")
def pod_addresses_come_from_k3s(resource: Resource) -> Iterator[Fault]:
    """Cilium takes Pod addresses from Kubernetes, so that the Pod CIDR has one home."""
    if is_cilium(resource) and at(resource.props, "values", "ipam", "mode") not in ("kubernetes", UNKNOWN):
        yield Fault("values.ipam.mode", "kubernetes")


@each("CIL-05")
def cilium_replaces_kube_proxy(resource: Resource) -> Iterator[Fault]:
    """Cilium replaces kube-proxy."""
    if is_cilium(resource) and not is_on(at(resource.props, "values", "kubeProxyReplacement")):
        yield Fault("values.kubeProxyReplacement", "true")


@each("K3S-07")
def cilium_knows_its_api_server(resource: Resource) -> Iterator[Fault]:
    """Without kube-proxy Cilium is told where the API server is."""
    for key in ("k8sServiceHost", "k8sServicePort"):
        if is_cilium(resource) and at(resource.props, "values", key) in (None, ""):
            yield Fault(f"values.{key}", "a value: nothing else routes to the API server")


@each("CIL-06")
def cilium_has_its_name_and_place(resource: Resource) -> Iterator[Fault]:
    """The release is called cilium and lives in kube-system."""
    for key, expected in (("name", "cilium"), ("namespace", KUBE_SYSTEM)):
        if is_cilium(resource) and at(resource.props, key) not in (expected, UNKNOWN):
            yield Fault(key, expected)


@each("CIL-07")
def hubble_is_on(resource: Resource) -> Iterator[Fault]:
    """Hubble and its relay are on."""
    for path in (("enabled",), ("relay", "enabled")):
        if is_cilium(resource) and not is_on(at(resource.props, "values", "hubble", *path)):
            yield Fault(f"values.hubble.{'.'.join(path)}", "true")


@together("MSH-06")
def mesh_api_has_an_address(resources: list[Resource]) -> Iterator[Fault]:
    """The ClusterMesh API is reached through an address of the LoadBalancer pool."""
    for cluster in by_provider(resources):
        # The Service is the chart's own, or one beside it: Helm would wait for an address that comes after the release.
        beside = any(one.type == SERVICE and _leads_to_the_mesh_api(at(one.props, "spec")) for one in cluster)
        for release in filter(is_cilium, cluster):
            mesh = at(release.props, "values", "clustermesh")
            kind = at(mesh, "apiserver", "service", "type")
            if at(mesh, "useAPIServer") is True and kind not in ("LoadBalancer", UNKNOWN) and not beside:
                yield Fault("values.clustermesh.apiserver.service.type", "LoadBalancer, here or beside", release)


def _leads_to_the_mesh_api(spec: Any) -> bool:
    kind, app = at(spec, "type"), at(spec, "selector", "k8s-app")
    return kind in ("LoadBalancer", UNKNOWN) and app in ("clustermesh-apiserver", UNKNOWN)


@together("CIL-03")
def mesh_names_and_ids_are_unique(resources: list[Resource]) -> Iterator[Fault]:
    """Cluster name and id of Cilium are unique, and the id is one of 1 to 255 (0 stays out of the mesh)."""
    taken: dict[tuple[str, object], Resource] = {}
    for release in filter(is_cilium, resources):
        cluster = at(release.props, "values", "cluster")
        for key in ("name", "id"):
            value = at(cluster, key)
            if not isinstance(value, str | int | float) or value == 0:
                continue
            first = taken.setdefault((key, value), release)
            if first is not release:
                yield Fault(f"values.cluster.{key}", f"another value than that of {first.name}", release)
            if key == "id" and value not in CLUSTER_IDS:
                yield Fault("values.cluster.id", "a number from 1 to 255", release)


@together("CIL-09")
def cilium_takes_the_place_of_flannel(resources: list[Resource]) -> Iterator[Fault]:
    """A cluster with Cilium has K3s servers without Flannel, and one without Cilium has them with it."""
    by_urn = {resource.urn: resource for resource in resources}
    with_cilium = {by_urn[one.provider].parent for one in resources if is_cilium(one) and one.provider in by_urn}
    clusters = {one.parent for one in resources if one.type == "pulumi:providers:kubernetes"} - {""}
    for command in resources:
        settings = text(at(command.props, "stdin"))
        if command.type != "command:remote:Command" or command.parent not in clusters:
            continue
        if CLUSTER_CIDR.search(settings) and bool(NO_FLANNEL.search(settings)) != (command.parent in with_cilium):
            yield Fault("stdin", "flannel-backend: none where Cilium is installed, and there alone", command)


@together("CIL-17")
def cilium_objects_need_cilium(resources: list[Resource]) -> Iterator[Fault]:
    """A cluster without Cilium has no Cilium objects: nothing would act on them."""
    for cluster in by_provider(resources):
        if not may_have_cilium(cluster):
            for resource in cluster:
                if resource.type.startswith("kubernetes:cilium.io/"):
                    yield Fault("kind", "none of cilium.io in a cluster without Cilium", resource)
