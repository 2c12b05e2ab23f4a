"""What a router needs to know of its site and its peers, and the names that the router layer gives.

Every name on a router that is ours starts with FLEET; rule numbers among the site's own are of one band and carry our
mark in their description.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, summarize_address_range

from infra.config import Cluster, Fleet, Site
from infra.config.fleet import Tunnel
from infra.rules.doc import NODE_PREFIX

PREFIX = "FLEET"
MARK = "fleet: "  # starts the description of each rule and interface that stands among the site's own
BAND = range(5000, 6000)  # rule numbers of ours in base chains, chains of the site and NAT
CILIUM = "FLEET-CILIUM"


@dataclass(frozen=True)
class Link:
    """One tunnel of a site, seen from there."""

    tunnel: Tunnel
    peer_id: str
    peer: Site
    here: IPv4Address
    there: IPv4Address

    @property
    def tag(self) -> str:
        """Start of the names that belong to this peer."""
        return f"FLEET-SITE-{self.peer_id.upper()}"


def links(fleet: Fleet, site_id: str) -> list[Link]:
    """Tunnels to the sites that have a document. A peer without one is left out, and everything about it."""
    found = []
    for tunnel in fleet.common.tunnels:
        for peer_id in tunnel.ends if site_id in tunnel.ends else ():
            if peer_id != site_id and peer_id in fleet.sites:
                here, there = tunnel.ends[site_id], tunnel.ends[peer_id]
                found.append(Link(tunnel, peer_id, fleet.sites[peer_id], here, there))
    return found


def routed_clusters(site: Site) -> list[Cluster]:
    """Clusters whose Pods are announced to the router: those that run Cilium."""
    return [cluster for cluster in site.clusters.values() if cluster.cni == "cilium"]


def nodes(site: Site) -> list[IPv4Address]:
    """Addresses of the nodes that peer with the router, ascending."""
    return sorted({node.address for cluster in routed_clusters(site) for node in site.nodes(cluster)})


def mesh_api(site: Site) -> IPv4Address | None:
    """Address of the ClusterMesh API, where the site is in the mesh."""
    return site.lb.vips.clustermesh_api if site.mesh_member else None


def pool(site: Site) -> list[IPv4Network]:
    """The LoadBalancer pool as the fewest prefixes."""
    return list(summarize_address_range(site.lb.pool.start, site.lb.pool.stop))


def pods(site: Site) -> list[IPv4Network]:
    return [cluster.pod_cidr for cluster in routed_clusters(site)]


def announced(site: Site) -> list[tuple[IPv4Network, int]]:
    """What a site announces to its peers, each with the prefix length of the announced routes (BGP-05 to BGP-08)."""
    found = [(cidr, NODE_PREFIX) for cidr in pods(site)]
    mesh = mesh_api(site)
    if mesh is not None:
        found.append((IPv4Network(mesh), 32))
    if site.bgp.export_vips:
        found += [(block, 32) for block in pool(site)]
    return found


def tunnelled(site: Site) -> list[IPv4Network]:
    """What peers send into the tunnel towards a site, and accept out of it: no two of them overlap."""
    found = pods(site)
    if site.wireguard.route_lans:
        found.append(site.network.lan_cidr)
    further = [network for network, _ in announced(site) if network not in found]
    # Larger ones first, so that what lies in one of them is left out.
    for network in sorted(set(further), key=lambda one: (one.prefixlen, one)):
        if not any(network.subnet_of(known) for known in found):
            found.append(network)
    return found


def forwards_web(site: Site) -> bool:
    """Whether the public address leads to Traefik. Before the cut-over it leads to the old proxy: the site's own."""
    return (
        site.traefik.main
        and site.traefik.legacy_proxy is None
        and site.lb.vips.traefik is not None
        and site.vyos.public_address is not None
    )
