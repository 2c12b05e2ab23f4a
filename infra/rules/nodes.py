"""Which guests are nodes of which clusters, and which of them use a GPU. Names that lead nowhere are left out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from infra.config.cluster import Cluster
from infra.config.fleet import Fleet, Site
from infra.config.proxmox import Host, Lxc, Vm

CPPS = "cpps"  # profile that the rules about Proxmox, tiers, containers and split clusters belong to


@dataclass(frozen=True)
class Place:
    """One entry of `servers` or `agents`."""

    path: str
    site_id: str
    site: Site
    cluster: Cluster
    name: str  # of a guest, unless it leads nowhere


@dataclass(frozen=True)
class Node:
    """A guest that a cluster of its site names."""

    path: str  # of the guest
    site: Site
    cluster: Cluster
    guest: Vm | Lxc

    @property
    def host(self) -> Host | None:
        return self.site.proxmox.hosts.get(self.guest.host)


def places(fleet: Fleet) -> Iterator[Place]:
    """Each name that a cluster lists, servers first."""
    for path, site, cluster in fleet.clusters():
        for role, names in (("servers", cluster.servers), ("agents", cluster.agents)):
            for index, name in enumerate(names):
                yield Place(f"{path}.{role}.{index}", path.split(".", 1)[0], site, cluster, name)


def nodes(fleet: Fleet, role: Literal["main", "gpu"] | None = None) -> Iterator[Node]:
    """Guests that are nodes, of clusters of one role or of all."""
    for place in places(fleet):
        guest = place.site.guests.get(place.name)
        if guest is not None and role in (None, place.cluster.role):
            yield Node(f"{place.site_id}.guests.{guest.name}", place.site, place.cluster, guest)


def gpu_containers(fleet: Fleet) -> Iterator[tuple[Node, Lxc]]:
    """Nodes of GPU clusters that are containers."""
    for node in nodes(fleet, "gpu"):
        if isinstance(node.guest, Lxc):
            yield node, node.guest


def nvidia_devices(container: Lxc) -> tuple[str, ...]:
    """Its NVIDIA device nodes."""
    return tuple(device for device in container.devices if device.startswith("/dev/nvidia"))


def uses_gpu(guest: Vm | Lxc) -> bool:
    """Whether a GPU is passed into the guest."""
    return bool(guest.pci_mappings if isinstance(guest, Vm) else nvidia_devices(guest))
