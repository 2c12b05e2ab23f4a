"""What holds in a cluster: what its document plans, or, where it was there before the program, what its servers run.

Leaves out how it is found out on a node (`scripts/recognise.sh`). The document says it under `current`; the script
stops where that is not so.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network

from infra.config import Cluster, Lxc, Vm
from infra.config.proxmox import Current

Guest = Vm | Lxc


@dataclass(frozen=True, kw_only=True)
class InForce:
    """Flags that are equal on every server, and the release."""

    pod_cidr: IPv4Network
    service_cidr: IPv4Network
    flannel_backend: str  # none where Cilium is, or will be, the CNI
    secrets_encryption: bool
    disable: tuple[str, ...]
    k3s_version: str

    @classmethod
    def planned(cls, cluster: Cluster) -> "InForce":
        """A cluster that the program makes."""
        return cls(
            pod_cidr=cluster.pod_cidr,
            service_cidr=cluster.service_cidr,
            flannel_backend="none" if cluster.cni == "cilium" else "vxlan",
            secrets_encryption=True,
            disable=cluster.disable,
            k3s_version=cluster.k3s_version,
        )

    @classmethod
    def found(cls, cluster: Cluster, current: Current) -> "InForce":
        """A cluster that runs already."""
        return cls(
            pod_cidr=current.pod_cidr or cluster.pod_cidr,
            service_cidr=current.service_cidr or cluster.service_cidr,
            flannel_backend=current.flannel_backend or "vxlan",
            secrets_encryption=current.secrets_encryption,
            disable=cluster.disable if current.disable is None else current.disable,
            k3s_version=current.k3s_version or cluster.k3s_version,
        )


def first_running(guests: Iterable[Guest]) -> Guest | None:
    """The first server of a cluster that was there before the program. Its token is the cluster's."""
    return next((guest for guest in guests if guest.in_cluster and _current(guest).runs == "server"), None)


def in_force(cluster: Cluster, servers: Iterable[Guest]) -> InForce:
    """What holds in a cluster today."""
    running = first_running(servers)
    return InForce.planned(cluster) if running is None else InForce.found(cluster, _current(running))


def waits_for_migration(cluster: Cluster, servers: Iterable[Guest]) -> bool:
    """Cilium is planned, but the servers still run Flannel: two CNIs on one cluster leave pods without a network."""
    return cluster.cni == "cilium" and in_force(cluster, servers).flannel_backend != "none"


def expected(cluster: Cluster, guest: Guest, nodes: list[Guest], flags: InForce) -> dict[str, str]:
    """What `recognise.sh` compares with, of one guest. A key that only servers have is left out for an agent."""
    current = _current(guest)
    common = {
        "role": current.runs,
        "version": current.k3s_version or flags.k3s_version,
        "nodes": " ".join(sorted(node.name for node in nodes if node.in_cluster)),
        "joining": " ".join(sorted(node.name for node in nodes if not node.in_cluster)),
    }
    if current.runs == "agent":
        return common
    own = InForce.found(cluster, current)
    without_flannel = "true" if own.flannel_backend == "none" else "false"
    return common | {
        "datastore": current.datastore or "etcd",
        "cluster-cidr": str(own.pod_cidr),
        "service-cidr": str(own.service_cidr),
        "flannel-backend": own.flannel_backend,
        "disable-network-policy": without_flannel,
        "disable-kube-proxy": without_flannel,
        "secrets-encryption": "true" if own.secrets_encryption else "false",
        "disable": ",".join(sorted(own.disable)),
    }


def _current(guest: Guest) -> Current:
    assert guest.current is not None, "rule PVE-03"
    return guest.current
