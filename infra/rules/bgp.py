"""BGP: numbers, addresses, names of the peers. What is announced is tested on declared objects and rendered filters."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.decided import deviations
from infra.rules.ranges import is_host_of
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ARCHITECTURE, SEEDS
from infra.violation import Level


@rule("BGP-01", level=Level.ACK, source=SEEDS["BGP-01"].source)
def asn_belongs_to_one_site(fleet: Fleet) -> Iterator[Finding]:
    """Each site has its own ASN: 65001 in Franca, 65002 in São Paulo."""
    yield from deviations(fleet, "BGP-01")
    taken: dict[int, str] = {}
    for site_id, site in fleet.sites.items():
        path, asn = f"{site_id}.bgp.site_asn", site.bgp.site_asn
        if asn in taken:
            found = f"{asn}, like {taken[asn]}"
            yield Finding(path, found, "an ASN of its own", "give the site another ASN", level=Level.ERROR)
        taken.setdefault(asn, path)


@rule("BGP-02", source=ARCHITECTURE)
def cilium_peers_in_the_lan(fleet: Fleet) -> Iterator[Finding]:
    """Cilium peers with the router of its own LAN alone."""
    for site_id, site in fleet.sites.items():
        if not is_host_of(site.network.lan_cidr, site.vyos.lan_address):
            expected = f"an address of the LAN {site.network.lan_cidr}"
            yield Finding(
                f"{site_id}.vyos.lan_address", site.vyos.lan_address, expected, "name the router's LAN address"
            )


@rule("BGP-06", level=Level.ACK, source=ARCHITECTURE)
def vips_stay_at_home(fleet: Fleet) -> Iterator[Finding]:
    """LoadBalancer addresses are not announced to other sites."""
    for site_id, site in fleet.sites.items():
        if site.bgp.export_vips:
            yield Finding(f"{site_id}.bgp.export_vips", "true", "false", "drop it, or accept it under accept.BGP-06")


@rule("BGP-07", source=ARCHITECTURE)
def mesh_api_is_reachable(fleet: Fleet) -> Iterator[Finding]:
    """Peers reach the ClusterMesh API of a mesh member, through the LAN route or an exported VIP."""
    for site_id, site in fleet.sites.items():
        vip, lan = site.lb.vips.clustermesh_api, site.network.lan_cidr
        if not any(cluster.in_mesh for cluster in site.clusters.values()) or site.bgp.export_vips or vip in lan:
            continue  # whether the LAN itself is routed is NET-11's matter
        remedy = "take an address of the LAN, or export the VIPs"
        yield Finding(
            f"{site_id}.lb.vips.clustermesh_api", f"{vip}, outside the LAN {lan}", "an address peers reach", remedy
        )


@rule("BGP-09", source=ARCHITECTURE)
def router_speaks_for_its_site(fleet: Fleet) -> Iterator[Finding]:
    """The router uses the ASN of its site, and Cilium that one or a number that no other site uses."""
    owners = {site.bgp.site_asn: site_id for site_id, site in fleet.sites.items()}
    for site_id, site in fleet.sites.items():
        bgp = site.bgp
        if bgp.vyos_asn != bgp.site_asn:
            expected = f"{bgp.site_asn}, the ASN of the site"
            yield Finding(f"{site_id}.bgp.vyos_asn", bgp.vyos_asn, expected, "correct one of the two")
        owner = owners.get(bgp.cilium_asn, site_id)
        if owner != site_id and bgp.cilium_asn != bgp.site_asn:
            found = f"{bgp.cilium_asn}, the ASN of {owner}"
            yield Finding(f"{site_id}.bgp.cilium_asn", found, f"{bgp.site_asn} or an unused ASN", "choose another")


@rule("BGP-12", level=Level.WARN, source=ARCHITECTURE)
def neighbours_need_arp(fleet: Fleet) -> Iterator[Finding]:
    """A pool inside the LAN is out of reach for its neighbours there, since BGP answers no ARP."""
    for site_id, site in fleet.sites.items():
        lan, pool = site.network.lan_cidr, site.lb.pool
        if (pool.start in lan or pool.stop in lan) and not site.lb.l2_announcements:
            yield Finding(
                f"{site_id}.lb.pool",
                f"{pool}, inside the LAN {lan}",
                "a pool that hosts of the LAN reach other than through the router",
                "accept the way through the router, set lb.l2_announcements, or move the pool",
            )


@rule("BGP-14", source=ARCHITECTURE)
def node_settings_reach_a_node(fleet: Fleet) -> Iterator[Finding]:
    """Every reference of the peering leads somewhere, announcements select something, and router ids differ."""
    for site_id, site in fleet.sites.items():
        speakers = {
            guest.name: guest.address
            for cluster in site.clusters.values()
            if cluster.cni == "cilium"
            for guest in site.nodes(cluster)
        }
        ids = {"vyos.lan_address": site.vyos.lan_address}
        ids |= {f"guests.{name}.address": address for name, address in speakers.items()}
        for name, node in site.bgp.node_overrides.items():
            path = f"{site_id}.bgp.node_overrides.{name}"
            if name not in speakers:
                expected = f"a node that runs Cilium: {', '.join(speakers) or 'none here'}"
                yield Finding(path, name, expected, "correct the name, or drop the entry")
            for key, taken in ids.items():
                if node.router_id == taken and key != f"guests.{name}.address":
                    found = f"{node.router_id}, the router id of {site_id}.{key}"
                    yield Finding(f"{path}.router_id", found, "a router id of its own", "choose another")
            if node.router_id is not None:
                ids[f"bgp.node_overrides.{name}.router_id"] = node.router_id
