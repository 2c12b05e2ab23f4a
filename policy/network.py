"""What a cluster tells the network: BGP, LoadBalancer addresses, and Services that span clusters."""

from collections.abc import Iterator
from typing import Any

from policy.charts import chart_of
from policy.cilium import may_have_cilium
from policy.judging import ADVISORY, Fault, Resource, by_provider, each, together
from policy.objects import SERVICE, annotations, kind_of, name_of
from policy.reading import UNKNOWN, Path, at, dotted, entries, leaves

GLOBAL = "service.cilium.io/global"
AFFINITY = "service.cilium.io/affinity"
ANNOTATIONS = "service.cilium.io/"
SPEAKER_KINDS = ("BGPPeer", "BGPAdvertisement", "L2Advertisement", "BFDProfile")


@each("BGP-04")
def cluster_addresses_are_not_announced(resource: Resource) -> Iterator[Fault]:
    """BGP announces LoadBalancer addresses and Pods, never a ClusterIP."""
    if kind_of(resource) == "CiliumBGPAdvertisement":
        for path, value in leaves(at(resource.props, "spec")):
            if value == "ClusterIP":
                yield Fault(f"spec.{dotted(path)}", "LoadBalancerIP")


@each("BGP-11")
def bgp_uses_the_second_version(resource: Resource) -> Iterator[Fault]:
    """BGP is configured with the v2 kinds of Cilium, not with CiliumBGPPeeringPolicy."""
    if kind_of(resource) == "CiliumBGPPeeringPolicy":
        yield Fault("kind", "CiliumBGPClusterConfig with CiliumBGPPeerConfig and CiliumBGPAdvertisement")


@each("BGP-13")
def metallb_does_not_speak(resource: Resource) -> Iterator[Fault]:
    """MetalLB announces nothing: Cilium alone speaks BGP in a cluster."""
    if resource.type.startswith("kubernetes:metallb.io/") and kind_of(resource) in SPEAKER_KINDS:
        yield Fault("kind", "no kind of MetalLB that announces")


@together("BGP-03")
def both_kinds_of_prefix_are_announced(resources: list[Resource]) -> Iterator[Fault]:
    """A cluster that announces anything announces its Pods and its LoadBalancer addresses."""
    for cluster in by_provider(resources):
        found = [one for one in cluster if kind_of(one) == "CiliumBGPAdvertisement"]
        texts = [(path, value) for one in found for path, value in leaves(at(one.props, "spec"))]
        if not found or any(value is UNKNOWN for _, value in texts):
            continue
        types = {value for path, value in texts if path[-1:] == ("advertisementType",)}
        addresses = {value for path, value in texts if "addresses" in path}
        for missing in sorted({"PodCIDR", "Service"} - types):
            yield Fault("spec.advertisements", f"an advertisement of type {missing}", found[0])
        if "Service" in types and "LoadBalancerIP" not in addresses:
            yield Fault("spec.advertisements", "LoadBalancerIP among the addresses", found[0])


@together("BGP-14")
def bgp_references_lead_somewhere(resources: list[Resource]) -> Iterator[Fault]:
    """Peers refer to a peer configuration that is there, and Services are announced through a selector."""
    for cluster in by_provider(resources):
        known = [name_of(one) for one in cluster if kind_of(one) == "CiliumBGPPeerConfig"]
        for one in cluster:
            if kind_of(one) == "CiliumBGPClusterConfig":
                for path, reference in _peer_references(one):
                    if reference not in (*known, UNKNOWN) and UNKNOWN not in known:
                        yield Fault(dotted(path), "the name of a CiliumBGPPeerConfig of the cluster", one)
            if kind_of(one) == "CiliumBGPAdvertisement":
                for index, entry in _advertisements(one):
                    if at(entry, "advertisementType") == "Service" and not at(entry, "selector"):
                        where = f"spec.advertisements[{index}].selector"
                        yield Fault(where, "a selector: without one nothing is announced", one)


@together("MET-01")
def addresses_have_one_owner(resources: list[Resource]) -> Iterator[Fault]:
    """Cilium or MetalLB hands out LoadBalancer addresses, never both."""
    for cluster in by_provider(resources):
        pools = [one for one in cluster if kind_of(one) == "CiliumLoadBalancerIPPool"]
        for one in cluster:
            if pools and (chart_of(one) == "metallb" or one.type.startswith("kubernetes:metallb.io/")):
                yield Fault("kind", f"no MetalLB beside {pools[0].name}", one)


@together("MET-09")
def services_agree_on_their_class(resources: list[Resource]) -> Iterator[Fault]:
    """Every LoadBalancer Service of a cluster names the same loadBalancerClass, or none does."""
    for cluster in by_provider(resources):
        services = [one for one in cluster if one.type == SERVICE and at(one.props, "spec", "type") == "LoadBalancer"]
        for one in services[1:]:
            mine, first = (at(service.props, "spec", "loadBalancerClass") for service in (one, services[0]))
            if UNKNOWN not in (mine, first) and mine != first:
                yield Fault("spec.loadBalancerClass", f"the class of {services[0].name}", one)


@each("MSH-08", level=ADVISORY)
def global_services_prefer_their_own_site(resource: Resource) -> Iterator[Fault]:
    """A global Service prefers backends of its own cluster."""
    held = annotations(resource)
    if resource.type == SERVICE and held.get(GLOBAL) == "true" and held.get(AFFINITY) not in ("local", UNKNOWN):
        yield Fault(f"metadata.annotations.{AFFINITY}", "local")


@each("MSH-09")
def mesh_annotations_are_texts(resource: Resource) -> Iterator[Fault]:
    """Annotations of global Services are texts, and the affinity one that Cilium knows."""
    for key, value in annotations(resource).items():
        if key.startswith(ANNOTATIONS) and value is not UNKNOWN:
            if not isinstance(value, str):
                yield Fault(f"metadata.annotations.{key}", "a text, such as 'true' in quotes")
            elif key == AFFINITY and value not in ("local", "remote", "none"):
                yield Fault(f"metadata.annotations.{key}", "local, remote or none")


@together("MSH-10")
def global_services_need_cilium(resources: list[Resource]) -> Iterator[Fault]:
    """A cluster without Cilium has no global Service: the annotation would have no effect."""
    for cluster in by_provider(resources):
        if not may_have_cilium(cluster):
            for one in cluster:
                if any(key.startswith(ANNOTATIONS) for key in annotations(one)):
                    yield Fault("metadata.annotations", f"none below {ANNOTATIONS} without Cilium", one)


def _advertisements(resource: Resource) -> Iterator[tuple[int, dict[str, Any]]]:
    yield from entries(at(resource.props, "spec", "advertisements"))


def _peer_references(resource: Resource) -> Iterator[tuple[Path, Any]]:
    for i, instance in entries(at(resource.props, "spec", "bgpInstances")):
        for j, peer in entries(at(instance, "peers")):
            path = ("spec", "bgpInstances", i, "peers", j, "peerConfigRef", "name")
            yield path, at(peer, "peerConfigRef", "name")
