"""ClusterMesh layer: one site's half of the mesh. Its certificates, its part of the Cilium release, and its address.

Peers come from the sibling documents alone, so a site applies while another is down or not there yet. What Cilium does
with or without a mesh is `infra.cilium`; making certificates is `operations.credentials`.

Two things of the chart are left unused. It renders no Secret for the `local` user unless it makes all certificates
itself, so all four Secrets are ours and exist before the pods that mount them. And Helm waits until a LoadBalancer
Service has an address, which no pool can give before the release has brought the pool's kind: so the address belongs to
a Service of ours that comes after the pool, and the release is waited for like any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.addresses import FIXED_LABELS, address_annotations, service_class
from infra.certificates import DOMAIN, secret_name
from infra.config import Cluster, Fleet, LoadBalancer
from infra.names import ADVERTISE_LABEL, KUBE_SYSTEM, MESH_API_PORT

MAX_CLUSTERS = 255  # fixed for the life of every member, and the same on all
API_SERVER = {"k8s-app": "clustermesh-apiserver"}  # pods of the chart
ADDRESS_TIMEOUT = "5m"  # a pool gives an address within seconds, or never

SecretPair = tuple[pulumi.Input[str], pulumi.Input[str]]  # certificate and key, PEM, secret


@dataclass(frozen=True)
class Peer:
    """A member of the mesh in another site."""

    name: str
    address: IPv4Address  # of its mesh API


def peers(fleet: Fleet, site_id: str) -> list[Peer]:
    """Members of all other sites that have a document, by name."""
    others = [(site, site.mesh_member) for other, site in fleet.sites.items() if other != site_id]
    found = [Peer(cluster.name, site.lb.vips.clustermesh_api) for site, cluster in others if cluster is not None]
    return sorted(found, key=lambda peer: peer.name)


def mesh_values(found: list[Peer]) -> dict[str, pulumi.Input[object]]:
    """What the mesh adds to the values of the Cilium chart. Key names are those of Cilium 1.17."""
    clusters = [{"name": peer.name, "ips": [str(peer.address)], "port": MESH_API_PORT} for peer in found]
    return {
        "clustermesh": {
            "useAPIServer": True,
            "maxConnectedClusters": MAX_CLUSTERS,
            "config": {"enabled": True, "domain": DOMAIN, "clusters": clusters},
            "apiserver": {
                "kvstoremesh": {"enabled": True},  # agents ask their own API server; it alone dials the peers
                "service": {"type": "NodePort"},  # for the cluster's own agents; peers use the address of ours
                "tls": {"authMode": "cluster", "enableSecrets": False, "auto": {"enabled": False}},
            },
        }
    }


def api_service(lb: LoadBalancer) -> dict[str, Any]:
    """Metadata and spec of the Service that peers dial."""
    by_class = service_class(lb)
    return {
        "metadata": {
            "name": "clustermesh-api",
            "namespace": KUBE_SYSTEM,
            "labels": {ADVERTISE_LABEL: "true", **FIXED_LABELS},
            "annotations": address_annotations(lb, lb.vips.clustermesh_api),
        },
        "spec": {
            "type": "LoadBalancer",
            **({"load_balancer_class": by_class} if by_class else {}),
            "selector": API_SERVER,
            "ports": [{"name": "etcd", "port": MESH_API_PORT, "target_port": MESH_API_PORT, "protocol": "TCP"}],
        },
    }


def checks(cluster: Cluster, found: list[Peer]) -> list[str]:
    """Commands with which a person sees that the mesh works (MSH-15)."""
    context = cluster.context or cluster.name
    return [
        f"cilium clustermesh status --context {context} --wait",
        *(f"cilium connectivity test --context {context} --multi-cluster {peer.name}" for peer in found),
    ]


class MeshCertificates(pulumi.ComponentResource):
    """The four Secrets that Cilium's pods mount. Needs the cluster's Kubernetes provider; comes before Cilium."""

    def __init__(
        self,
        name: str,
        authority: pulumi.Input[str],  # certificate of the shared CA, PEM
        leaves: Mapping[str, SecretPair],
        opts: pulumi.ResourceOptions,
    ) -> None:
        super().__init__("fleet:clustermesh:MeshCertificates", name, None, opts)
        for role, (certificate, key) in leaves.items():
            k8s.core.v1.Secret(
                f"{name}-{role}",
                metadata={"name": secret_name(role), "namespace": KUBE_SYSTEM},
                type="kubernetes.io/tls",
                string_data={
                    "ca.crt": pulumi.Output.secret(authority),
                    "tls.crt": pulumi.Output.secret(certificate),
                    "tls.key": pulumi.Output.secret(key),
                },
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({})


class ClusterMesh(pulumi.ComponentResource):
    """The address of the mesh API. Needs the cluster's Kubernetes provider; comes after Cilium and its pool."""

    def __init__(self, name: str, lb: LoadBalancer, opts: pulumi.ResourceOptions) -> None:
        super().__init__("fleet:clustermesh:ClusterMesh", name, None, opts)
        service = api_service(lb)
        k8s.core.v1.Service(
            f"{name}-api",
            metadata=service["metadata"],
            spec=service["spec"],
            opts=pulumi.ResourceOptions(
                parent=self, custom_timeouts=pulumi.CustomTimeouts(create=ADDRESS_TIMEOUT, update=ADDRESS_TIMEOUT)
            ),
        )
        self.register_outputs({})
