"""The address ranges of the fleet with their paths, and the pairs of them that overlap."""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Literal

from infra.config.base import AddressRange
from infra.config.fleet import Fleet

Kind = Literal["tunnel", "lan", "vips", "storage", "pool", "pods", "services"]


@dataclass(frozen=True)
class Owner:
    """Whose range it is."""

    site_id: str | None = None  # none for a tunnel
    cluster: str | None = None
    gpu: bool = False  # a GPU cluster
    joined: bool = False  # a cluster that Cilium or the mesh connects


@dataclass(frozen=True)
class Range:
    """One range of addresses that a document claims."""

    path: str
    kind: Kind
    first: int
    last: int
    text: str
    owner: Owner = Owner()

    def __str__(self) -> str:
        return f"{self.text} ({self.path})"


def all_ranges(fleet: Fleet) -> Iterator[Range]:
    """Every range, in the order of the documents."""
    for index, tunnel in enumerate(fleet.common.tunnels):
        yield Range(f"common.tunnels.{index}.cidr", "tunnel", *_bounds(tunnel.cidr))
    for site_id, site in fleet.sites.items():
        network, pool = site.network, site.lb.pool
        yield Range(f"{site_id}.network.lan_cidr", "lan", *_bounds(network.lan_cidr), Owner(site_id))
        yield Range(f"{site_id}.network.storage_cidr", "storage", *_bounds(network.storage_cidr), Owner(site_id))
        for index, cidr in enumerate(network.vip_ranges):
            yield Range(f"{site_id}.network.vip_ranges.{index}", "vips", *_bounds(cidr), Owner(site_id))
        first, last = sorted((int(pool.start), int(pool.stop)))  # reversed: DOC-07
        yield Range(f"{site_id}.lb.pool", "pool", first, last, str(pool), Owner(site_id))
        for cluster in site.clusters.values():
            path, gpu = f"{site_id}.clusters.{cluster.name}", cluster.role == "gpu"
            owner = Owner(site_id, cluster.name, gpu, cluster.cni == "cilium" or cluster.in_mesh)
            yield Range(f"{path}.pod_cidr", "pods", *_bounds(cluster.pod_cidr), owner)
            yield Range(f"{path}.service_cidr", "services", *_bounds(cluster.service_cidr), owner)


def overlaps(fleet: Fleet) -> list[tuple[Range, Range]]:
    """Overlapping pairs, each in the order of the documents. A sweep, so that many sites cost little."""
    ordered = list(all_ranges(fleet))
    place = {entry.path: index for index, entry in enumerate(ordered)}
    found: list[tuple[Range, Range]] = []
    active: list[Range] = []
    for entry in sorted(ordered, key=lambda entry: (entry.first, entry.last)):
        active = [other for other in active if other.last >= entry.first]
        found += [(other, entry) if place[other.path] < place[entry.path] else (entry, other) for other in active]
        active.append(entry)
    return sorted(found, key=lambda pair: (place[pair[1].path], place[pair[0].path]))


def left_to_gpu_rule(first: Range, second: Range) -> bool:
    """Whether a pair of ranges of two clusters is K3S-14's, not NET-09's: a GPU cluster is one of the two."""
    mine, other = first.owner, second.owner
    two_clusters = mine.cluster is not None and other.cluster is not None and mine != other
    return two_clusters and (mine.gpu or other.gpu)


def holds(network: IPv4Network, addresses: AddressRange) -> bool:
    """Whether a network holds all of a range."""
    return addresses.start in network and addresses.stop in network


def is_host_of(network: IPv4Network, address: IPv4Address) -> bool:
    """Whether an address is one that a machine of the network may have."""
    edges = () if network.prefixlen >= 31 else (network.network_address, network.broadcast_address)
    return address in network and address not in edges


def _bounds(cidr: IPv4Network) -> tuple[int, int, str]:
    return int(cidr.network_address), int(cidr.broadcast_address), str(cidr)
