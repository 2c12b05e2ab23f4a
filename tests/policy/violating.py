"""For each policy a stack that trips it and no other: resources of the real plans, each with one fault, or made up."""

import copy
from dataclasses import replace
from typing import Any

from google.protobuf import json_format

from tests.policy.analyzer import Asked, secret, stack

Stack = tuple[Asked, ...]
DROP = object()
CLUSTER = Asked(type="pulumi:providers:kubernetes", name="some-api", props={"kubeconfig": secret("x")})
OTHER = replace(CLUSTER, name="other-api")
ROOT = Asked(type="pulumi:providers:proxmoxve", name="root", props={"username": "root@pam", "password": secret("x")})
TOKEN = Asked(type="pulumi:providers:proxmoxve", name="token", props={"apiToken": secret("x")})
KARMADA = replace(CLUSTER, name="karmada-api")
CA_KEY = "-----BEGIN PRIVATE KEY-----"


def planned(kind: str, site: str = "norte", **changes: Any) -> Asked:
    """The first planned resource of a kind, with values changed by dotted path (`__` for the dot)."""
    found = next(one for one in stack(site) if one.type.endswith(kind))
    props = json_format.MessageToDict(found.properties)
    return replace(found, props=_changed(props, changes))


def _changed(props: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    props = copy.deepcopy(props)
    for path, value in changes.items():
        *above, last = path.split("__")
        holder: Any = props
        for key in above:
            holder = holder[int(key)] if isinstance(holder, list) else holder[key]
        if value is DROP:
            del holder[last]
        else:
            holder[last] = value
    return props


def release(name: str, on: Asked = CLUSTER, **more: Any) -> Asked:
    """A chart of some name, pinned and from a known repository."""
    repository = {"repo": "https://helm.cilium.io"}
    props = {"chart": name, "version": "1.2.3", "repositoryOpts": repository} | more
    return Asked(type="kubernetes:helm.sh/v3:Release", name=f"{on.name}-{name}", props=props, provider=on)


def made(kind: str, *, on: Asked = CLUSTER, name: str = "site", **props: Any) -> Asked:
    """A Kubernetes object, `kind` as in `apps/v1:Deployment`."""
    props.setdefault("metadata", {"name": name})
    return Asked(type=f"kubernetes:{kind}", name=f"{kind.rsplit(':', 1)[-1]}-{name}", props=props, provider=on)


def cilium(**changes: Any) -> Asked:
    """Outside the mesh unless a change says otherwise: its API needs a Service beside the release."""
    outside = {} if any(key.startswith("values__clustermesh") for key in changes) else {"values__clustermesh": DROP}
    return replace(planned(":Release", **outside, **changes), provider=CLUSTER)


def vm(**changes: Any) -> Asked:
    return planned(":VmLegacy", **changes)


def container(**changes: Any) -> Asked:
    return replace(planned(":ContainerLegacy", **changes), provider=ROOT)


def command(**changes: Any) -> Asked:
    return planned(":Command", **changes)


def policy(spec: dict[str, Any]) -> Asked:
    return made("policy.karmada.io/v1alpha1:PropagationPolicy", on=KARMADA, spec=spec)


def service(name: str = "web", annotations: dict[str, Any] | None = None, **spec: Any) -> Asked:
    metadata = {"name": name, "annotations": annotations or {}}
    return made("core/v1:Service", name=name, metadata=metadata, spec=spec)


def storage_class(name: str) -> Asked:
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    return made("storage.k8s.io/v1:StorageClass", name=name, metadata={"name": name, "annotations": default})


def flannel_server() -> Stack:
    """The Cilium of a site over servers that keep Flannel."""
    site = stack("norte")
    chart = next(one for one in site if one.type.endswith(":Release"))
    api = next(one for one in site if chart.provider and one.urn == chart.provider.urn)
    server = next(one for one in site if one.parent == api.parent and "-server-" in one.name)
    props = json_format.MessageToDict(server.properties)
    faulty = _changed(props, {"stdin": _stdin(props).replace('flannel-backend: "none"', "flannel-backend: vxlan")})
    mesh_api = next(one for one in site if one.type == "kubernetes:core/v1:Service")
    return (chart, mesh_api, api, replace(server, props=faulty))


def _stdin(props: dict[str, Any]) -> str:
    held = props["stdin"]
    return str(held["value"] if isinstance(held, dict) else held)


POOL = made("cilium.io/v2alpha1:CiliumLoadBalancerIPPool")
BGP_CLUSTER = "cilium.io/v2alpha1:CiliumBGPClusterConfig"
ADVERTISEMENT = "cilium.io/v2alpha1:CiliumBGPAdvertisement"
PODS = {"advertisementType": "PodCIDR"}
SERVICES = {"advertisementType": "Service", "selector": {"x": "y"}, "service": {"addresses": ["LoadBalancerIP"]}}
LOCAL = {"service.cilium.io/affinity": "local"}
GPU_DEVICES = [{"path": f"/dev/{name}"} for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "kmsg")]


def advertised(*entries: dict[str, Any]) -> Stack:
    return (cilium(), made(ADVERTISEMENT, spec={"advertisements": [*entries]}))


def chart_that_is_refused(name: str) -> Stack:
    return (release(name),)


def violating() -> dict[str, Stack]:
    """By name of the policy."""
    gpu = {"site": "sp"}
    return {
        "PVE-01-guests-only": (Asked(type="proxmoxve:cluster/options:Options"),),
        "PVE-01-commands-leave-proxmox-alone": (command(create="pvecm add 192.0.2.1"),),
        "PVE-08-guests-are-distinct": (vm(), replace(vm(name="other"), name="second")),
        "BKP-03-guests-with-state-are-protected": (replace(vm(protection=True), protect=False),),
        "LXC-10-gpu-container-is-kept": (replace(container(**gpu, protection=False), protect=False),),
        "LXC-01-gpu-container-is-privileged": (container(**gpu, unprivileged=True),),
        "LXC-02-gpu-container-nests": (container(**gpu, features__nesting=False),),
        "LXC-03-gpu-container-keeps-keyctl": (container(**gpu, features__keyctl=DROP),),
        "LXC-04-gpu-arrives-as-device-nodes": (
            container(**gpu, devicePassthroughs=[*GPU_DEVICES, {"path": "/dev/vfio/vfio"}]),
        ),
        "LXC-05-device-list-is-complete": (container(**gpu, devicePassthroughs=[GPU_DEVICES[0], GPU_DEVICES[3]]),),
        "LXC-06-kubelet-gets-its-device": (container(**gpu, devicePassthroughs=GPU_DEVICES[:3]),),
        "LXC-08-other-containers-are-unprivileged": (container(**gpu, devicePassthroughs=[]),),
        "LXC-12-root-sets-up-privileged-containers": (replace(container(**gpu), provider=TOKEN),),
        "TIER-02-vms-have-no-pci-device": (vm(hostpcis=[{"device": "hostpci0", "mapping": "gpu"}]),),
        "MIG-10-commands-destroy-nothing": (command(delete="/usr/local/bin/k3s-uninstall.sh"),),
        "SEC-07-commands-keep-their-output-secret": (replace(command(), secret_outputs=("stdout",)),),
        "SEC-07-secrets-are-marked": (made("core/v1:ConfigMap", data={"key": CA_KEY}),),
        "K3S-13-join-tokens-and-kubeconfigs-are-secret": (command(create=f"join K10{'0' * 64}::server:abc"),),
        "GEN-08-charts-have-exact-versions": (release("argo-cd", version=">=1.2"),),
        "GEN-08-charts-come-from-known-repositories": (cilium(repositoryOpts__repo="https://charts.example.org"),),
        "GEN-08-images-are-pinned": (
            made("apps/v1:Deployment", spec={"template": {"spec": {"containers": [{"image": "a.example/b:latest"}]}}}),
        ),
        "GEN-10-replaceable-parts-are-unprotected": (replace(cilium(), protect=True),),
        "MET-03-metallb-has-no-speaker": (release("metallb"),),
        "BKP-09-velero-uploads-with-kopia": (release("velero", values={"configuration": {"uploaderType": "restic"}}),),
        "GPU-08-gpus-have-one-owner": (release("hami"), release("nvidia-device-plugin")),
        "STO-01-storage-has-one-replication": (release("longhorn"), release("piraeus-operator")),
        "ARG-01-site-has-one-argocd": (release("argo-cd"), release("argo-cd", on=OTHER)),
        "GPU-11-datacenter-operators-stay-out": chart_that_is_refused("gpu-operator"),
        "MSH-12-submariner-stays-out": chart_that_is_refused("submariner-operator"),
        "STO-03-openebs-stays-out": chart_that_is_refused("openebs"),
        "BKP-15-kasten-stays-out": chart_that_is_refused("k10"),
        "ARG-12-flux-stays-out": chart_that_is_refused("flux2"),
        "BGP-13-no-second-speaker": chart_that_is_refused("frr-k8s"),
        "CIL-09-no-second-network": chart_that_is_refused("tigera-operator"),
        "CIL-01-cilium-is-of-the-decided-line": (cilium(version="1.18.4"),),
        "CIL-04-pod-addresses-come-from-k3s": (cilium(values__ipam__mode="cluster-pool"),),
        "CIL-05-cilium-replaces-kube-proxy": (cilium(values__kubeProxyReplacement=False),),
        "K3S-07-cilium-knows-its-api-server": (cilium(values__k8sServiceHost=DROP),),
        "CIL-06-cilium-has-its-name-and-place": (cilium(namespace="default"),),
        "CIL-07-hubble-is-on": (cilium(values__hubble__relay__enabled=False),),
        "MSH-06-mesh-api-has-an-address": (
            cilium(values__clustermesh={"useAPIServer": True, "apiserver": {"service": {"type": "NodePort"}}}),
        ),
        "CIL-03-mesh-names-and-ids-are-unique": (
            cilium(),
            replace(cilium(values__cluster__name="other"), name="second", provider=OTHER),
        ),
        "CIL-09-cilium-takes-the-place-of-flannel": flannel_server(),
        "CIL-17-cilium-objects-need-cilium": (POOL,),
        "BGP-04-cluster-addresses-are-not-announced": advertised(
            PODS, SERVICES | {"service": {"addresses": ["LoadBalancerIP", "ClusterIP"]}}
        ),
        "BGP-11-bgp-uses-the-second-version": (cilium(), made("cilium.io/v2alpha1:CiliumBGPPeeringPolicy")),
        "BGP-13-metallb-does-not-speak": (made("metallb.io/v1beta2:BGPPeer"),),
        "BGP-03-both-kinds-of-prefix-are-announced": advertised(PODS),
        "BGP-14-bgp-references-lead-somewhere": (
            cilium(),
            made(BGP_CLUSTER, spec={"bgpInstances": [{"peers": [{"peerConfigRef": {"name": "nobody"}}]}]}),
        ),
        "MET-01-addresses-have-one-owner": (cilium(), POOL, made("metallb.io/v1beta1:IPAddressPool")),
        "MET-09-services-agree-on-their-class": (
            service("one", type="LoadBalancer", loadBalancerClass="a/b"),
            service("two", type="LoadBalancer"),
        ),
        "MSH-08-global-services-prefer-their-own-site": (
            cilium(),
            service(annotations={"service.cilium.io/global": "true"}),
        ),
        "MSH-09-mesh-annotations-are-texts": (
            cilium(),
            service(annotations=LOCAL | {"service.cilium.io/global": True}),
        ),
        "MSH-10-global-services-need-cilium": (service(annotations=LOCAL | {"service.cilium.io/global": "true"}),),
        "KAR-03-members-are-chosen-by-label": (policy({"placement": {"clusterAffinity": {"clusterNames": ["sp"]}}}),),
        "KAR-09-weights-need-division": (policy({"placement": {"replicaScheduling": {"weightPreference": {}}}}),),
        "KAR-18-secrets-are-not-propagated": (policy({"resourceSelectors": [{"apiVersion": "v1", "kind": "Secret"}]}),),
        "SEC-01-federated-secrets-stay-out": (made("core/v1:Secret", on=KARMADA, stringData=secret({"a": "b"})),),
        "STO-02-one-storage-class-is-the-default": (storage_class("one"), storage_class("two")),
        "ARG-13-production-app-is-left-alone": (made("core/v1:ConfigMap", metadata={"name": "tutor-openedx"}),),
        "ARG-07-argocd-gets-kubernetes-alone": (
            made("argoproj.io/v1alpha1:Application", spec={"source": {"path": "./config/vyos/sp"}}),
        ),
        "TRF-12-services-open-no-node-port": (service(type="NodePort"),),
        "NAMESPACES-say-their-pod-security": (made("core/v1:Namespace"),),
    }
