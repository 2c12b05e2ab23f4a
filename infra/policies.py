"""Network policies that the program sets: what a namespace of an application may do before the application says more.

With Cilium each is a clusterwide policy that selects one namespace by name. So nothing here makes or owns a namespace
of an application, which Argo CD does, and no Pod ever starts there without the policy. With Flannel there is only the
core NetworkPolicy, which lives in its namespace: that is made if missing, and stays whatever happens here. What an
application needs beyond DNS, its own manifests allow: policies add up.
"""

from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.config import Cluster
from infra.names import KUBE_SYSTEM, TRAEFIK_NAMESPACE

NAMESPACE = "k8s:io.kubernetes.pod.namespace"
CLUSTER = "k8s:io.cilium.k8s.policy.cluster"  # from Cilium 1.19 on the default is the own cluster; until then all are
DNS_PODS = {"k8s-app": "kube-dns"}
DENY = {"ingress": True, "egress": True}
# Ports on which Traefik's containers listen; its Service maps 80 and 443 to them.
WEB_PORT, WEB_SECURE_PORT = "8000", "8443"


class Policies(pulumi.ComponentResource):
    """One policy for each managed namespace, and Traefik's, with Cilium alone.

    Needs the cluster's Kubernetes provider, and its CNI.
    """

    def __init__(self, name: str, cluster: Cluster, *, traefik: bool, opts: pulumi.ResourceOptions) -> None:
        super().__init__("fleet:policies:Policies", name, None, opts)
        for namespace in cluster.managed_namespaces:
            if cluster.cni == "cilium":
                self._clusterwide(f"{name}-{namespace}", f"default-deny-{namespace}", default_deny(cluster, namespace))
            else:
                self._core(f"{name}-{namespace}", namespace)
        if traefik:
            self._clusterwide(f"{name}-traefik", "isolate-traefik", isolated_traefik(cluster))
        self.register_outputs({})

    def _clusterwide(self, name: str, object_name: str, spec: dict[str, Any]) -> None:
        k8s.apiextensions.CustomResource(
            name,
            api_version="cilium.io/v2",
            kind="CiliumClusterwideNetworkPolicy",
            metadata={"name": object_name},
            spec=spec,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _core(self, name: str, namespace: str) -> None:
        home = k8s.core.v1.Namespace(
            f"{name}-namespace",
            metadata={"name": namespace},
            opts=pulumi.ResourceOptions(parent=self, retain_on_delete=True),  # with it the application would go
        )
        k8s.networking.v1.NetworkPolicy(
            name,
            metadata={"name": "default-deny", "namespace": namespace},
            spec=core_default_deny(),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[home]),
        )


def default_deny(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Nothing in, nothing out but DNS of the own cluster."""
    return {
        "description": f"Pods of {namespace} reach DNS alone until their own policies allow more.",
        "endpointSelector": {"matchLabels": {NAMESPACE: namespace}},
        "enableDefaultDeny": DENY,
        "ingress": [{}],
        "egress": [_dns(cluster)],
    }


def isolated_traefik(cluster: Cluster) -> dict[str, Any]:
    """Everyone may speak HTTP or TLS to Traefik and nothing else; it reaches DNS, the API server and its cluster.

    No way out to Let's Encrypt or Cloudflare: cert-manager alone asks for certificates and answers for the names
    (TRF-10), from a namespace that no policy here selects, and Traefik reads the Secrets that it writes.
    """
    plain = {"ports": [{"port": WEB_PORT, "protocol": "TCP"}], "rules": {"http": [{}]}}  # any request, but HTTP it is
    secure = {"ports": [{"port": WEB_SECURE_PORT, "protocol": "TCP"}]}  # Traefik itself ends TLS
    return {
        "description": "Traefik is entered through its web ports alone, and reaches its own cluster alone.",
        "endpointSelector": {"matchLabels": {NAMESPACE: TRAEFIK_NAMESPACE}},
        "enableDefaultDeny": DENY,
        "ingress": [{"fromEntities": ["world", "cluster"], "toPorts": [plain, secure]}],
        "egress": [_dns(cluster), {"toEntities": ["kube-apiserver", "cluster"]}],
    }


def core_default_deny() -> k8s.networking.v1.NetworkPolicySpecArgsDict:
    """The same for a cluster that knows the core kind alone."""
    dns: k8s.networking.v1.NetworkPolicyEgressRuleArgsDict = {
        "to": [
            {
                "namespace_selector": {"match_labels": {"kubernetes.io/metadata.name": KUBE_SYSTEM}},
                "pod_selector": {"match_labels": DNS_PODS},
            }
        ],
        "ports": [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")],
    }
    return {"pod_selector": {}, "policy_types": ["Ingress", "Egress"], "ingress": [], "egress": [dns]}


def _dns(cluster: Cluster) -> dict[str, Any]:
    pods = {NAMESPACE: KUBE_SYSTEM, CLUSTER: cluster.name, **{f"k8s:{key}": value for key, value in DNS_PODS.items()}}
    return {"toEndpoints": [{"matchLabels": pods}], "toPorts": [{"ports": [{"port": "53", "protocol": "ANY"}]}]}
