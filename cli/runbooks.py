"""Runbooks by topic: text that is rendered from the documents of a site."""

from cli import hand_over, migration, proxy_cutover, rebuild, way_back
from cli.faults import Stop
from cli.steps import main_clusters, servers
from infra.config import Cluster, Fleet, Site
from infra.k3s import lxc_host

TOPICS = ("lxc-host", "hand-over", "cni-migration", "cni-rollback", "proxy-cutover")


def text(fleet: Fleet, site_id: str, topic: str) -> str:
    """Raises Stop for an unknown topic, and for one that the site has nothing of."""
    if topic not in TOPICS:
        raise Stop(f"found no topic {topic}; expected one of {', '.join(TOPICS)}")
    site = fleet.sites[site_id]
    if topic == "hand-over":
        held = [guest for guest in site.guests.values() if guest.existing and guest.older_project]
        if not held:
            raise Stop(f"no guest of site {site_id} names an older_project; {topic} is for guests that one holds")
        return "\n".join(hand_over.runbook(site_id, guest) for guest in held)
    if topic == "proxy-cutover":
        if site.traefik.legacy_proxy is None:
            raise Stop(f"site {site_id} names no traefik.legacy_proxy; {topic} is for a proxy that still serves")
        return proxy_cutover.runbook(fleet, site_id)
    if topic == "cni-migration":
        if not site.migration.from_flannel:
            raise Stop(f"site {site_id} has no migration.from_flannel; {topic} is for a main cluster that runs Flannel")
        way = rebuild if site.migration.mode == "rebuild" else migration
        return "\n".join(way.runbook(fleet, site_id, cluster) for cluster in _whole(site_id, site, topic))
    if topic == "cni-rollback":
        moved = [cluster for cluster in main_clusters(site) if any(one.existing for one in servers(site, cluster))]
        if not (site.migration.from_flannel or moved):
            raise Stop(f"no main cluster of site {site_id} ever ran Flannel; {topic} is for one that came from it")
        return "\n".join(way_back.runbook(fleet, site_id, cluster) for cluster in _whole(site_id, site, topic))
    parts = [lxc_host.runbook(container) for container in site.containers]
    if not parts:
        raise Stop(f"site {site_id} has no container; {topic} is for hosts of GPU containers")
    return "\n".join(parts)


def _whole(site_id: str, site: Site, topic: str) -> list[Cluster]:
    """The main clusters, each with all of its nodes. Steps that leave one out would end in half a cluster.

    Other faults of the documents are no reason: the way back is wanted when things are not as they should be.
    """
    found = main_clusters(site)
    unknown = [name for cluster in found for name in (*cluster.servers, *cluster.agents) if name not in site.guests]
    if unknown or not found:
        what = f"found nodes that are no guests: {', '.join(unknown)}" if unknown else "found no main cluster"
        raise Stop(f"site {site_id}: {what}; {topic} needs every node of one; see: fleet check")
    return found
