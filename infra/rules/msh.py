"""MSH: members of the ClusterMesh and its global Services. Annotations are tested where Services are declared.

Of the preconditions, disjoint ranges are NET-09, routed LANs NET-11, ids and names CIL-03, routes of Pods BGP-01 and
DOC-07, the way to the mesh API BGP-07; the datapath is one value; the firewall is rendered by `infra.vyos`, not said.
"""

from collections.abc import Iterator

from infra.config.fleet import Fleet, Site
from infra.rules.gpu import ON_GPUS
from infra.rules.members import HOLDS_STATE
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_009, ARCHITECTURE
from infra.violation import Level


@rule("MSH-01", source=ADR_009)
def only_cilium_joins_the_mesh(fleet: Fleet) -> Iterator[Finding]:
    """A cluster without Cilium has no Cilium id and is no member of the ClusterMesh; of a site the main one is."""
    for path, _, cluster in fleet.clusters():
        if cluster.cni == "cilium":
            if cluster.in_mesh and cluster.role != "main":
                found = f"true for a cluster with the role {cluster.role}"
                expected = "false: the one mesh API address of a site is its main cluster's"
                yield Finding(f"{path}.in_mesh", found, expected, "leave the mesh; others call its services by URL")
            continue
        if cluster.in_mesh:
            yield Finding(f"{path}.in_mesh", f"true with {cluster.cni}", "false", "leave the mesh, or use cilium")
        if cluster.cluster_id is not None:
            found = f"{cluster.cluster_id} with {cluster.cni}"
            yield Finding(f"{path}.cluster_id", found, "nothing", "drop the id, or use cilium")


@rule("MSH-02", source=ARCHITECTURE)
def members_are_joined(fleet: Fleet) -> Iterator[Finding]:
    """Every two sites with mesh members have a tunnel, since each member connects to each other one."""
    pairs = {frozenset(tunnel.ends) for tunnel in fleet.common.tunnels}
    before: list[str] = []
    for site_id, site in fleet.sites.items():
        members = _members(site)
        apart = [other for other in before if frozenset((other, site_id)) not in pairs] if members else []
        if apart:
            yield Finding(
                f"{site_id}.clusters.{members[0]}.in_mesh",
                f"true without a tunnel to {', '.join(apart)}",
                "a tunnel to every other site with a mesh member",
                "add it to common.tunnels, or leave the mesh",
            )
        before += [site_id] if members else []


@rule("MSH-03", level=Level.ACK, source=ARCHITECTURE)
def mesh_shares_a_ca(fleet: Fleet) -> Iterator[Finding]:
    """The clusters of the mesh share one CA."""
    sites = tuple(site_id for site_id, site in fleet.sites.items() if _members(site))
    if fleet.common.cilium.ca_mode != "shared" and sites:
        remedy = "share the CA, or accept it under accept.MSH-03 of a site in the mesh"
        yield Finding("common.cilium.ca_mode", fleet.common.cilium.ca_mode, "shared", remedy, sites=sites)


@rule("MSH-10", source=ADR_009)
def global_services_lie_in_the_mesh(fleet: Fleet) -> Iterator[Finding]:
    """A Service is global in a cluster of the mesh alone: elsewhere the annotation has no effect."""
    for site_id, site in fleet.sites.items():
        flannel = [cluster.name for cluster in site.clusters.values() if cluster.role == "gpu" and not cluster.in_mesh]
        for name, app in site.apps.items():
            path = f"{site_id}.apps.{name}.is_global"
            if app.is_global and app.kind in ON_GPUS and flannel:
                remedy = "drop it: other sites call the app by its URL"
                yield Finding(path, f"true for an app of {flannel[0]}, outside the mesh", "false", remedy)
            elif app.is_global and not _members(site):
                yield Finding(path, f"true, while no cluster of {site_id} is in the mesh", "false", "drop it, or join")


@rule("MSH-11", source=ARCHITECTURE)
def the_mesh_moves_no_traffic(fleet: Fleet) -> Iterator[Finding]:
    """Automatic failover of an app without state needs a layer outside the clusters that moves its traffic."""
    for site_id, site in fleet.sites.items():
        for name, app in site.apps.items():
            if app.failover == "automatic" and app.kind not in HOLDS_STATE and site.dns.failover_by is None:
                found = "automatic, with nothing that moves traffic between sites"
                remedy = "name the layer under dns.failover_by, or set failover to none"
                yield Finding(f"{site_id}.apps.{name}.failover", found, "dns.failover_by", remedy)


@rule("MSH-12", source=ARCHITECTURE)
def submariner_is_refused(fleet: Fleet) -> Iterator[Finding]:
    """Submariner does not run beside ClusterMesh."""
    for site_id, site in fleet.sites.items():
        if site.rejected.submariner:
            yield Finding(
                f"{site_id}.rejected.submariner", "true", "false", "remove it: ClusterMesh joins the clusters"
            )


@rule("MSH-14", source=ARCHITECTURE)
def global_services_have_a_twin(fleet: Fleet) -> Iterator[Finding]:
    """A global Service has the same name in the documents of two sites."""
    homes: dict[str, int] = {}
    for site in fleet.sites.values():
        for name, app in site.apps.items():
            homes[name] = homes.get(name, 0) + app.is_global
    for site_id, site in fleet.sites.items():
        for name, app in site.apps.items():
            if app.is_global and homes[name] < 2:
                expected = f"an app {name} with is_global in a second site"
                remedy = "declare it there under the same name, or drop is_global"
                yield Finding(f"{site_id}.apps.{name}.is_global", "true in this site alone", expected, remedy)


def _members(site: Site) -> list[str]:
    return [cluster.name for cluster in site.clusters.values() if cluster.in_mesh]
