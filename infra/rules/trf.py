"""TRF: ingress and public names. Charts, routes, certificates and port forwards are tested where they are made."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.nodes import CPPS
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_009, ARCHITECTURE
from infra.violation import Level


@rule("TRF-03", source=ARCHITECTURE)
def public_names_lead_to_traefik(fleet: Fleet) -> Iterator[Finding]:
    """Public names of a site lead to its router's public address and from there to a Traefik."""
    for site_id, site in fleet.sites.items():
        if not site.dns.records:
            continue
        if site.vyos.public_address is None and not site.wireguard.dynamic:
            found = f"nothing for {', '.join(site.dns.records)}"
            remedy = "set it, or drop the records"
            yield Finding(f"{site_id}.vyos.public_address", found, "the address that the records point at", remedy)
        if not (site.traefik.main or site.traefik.gpu):
            found = f"{', '.join(site.dns.records)} without Traefik"
            remedy = "run Traefik on a cluster, or drop the records"
            yield Finding(f"{site_id}.dns.records", found, "names that a Traefik of the site answers for", remedy)


@rule("TRF-05", level=Level.WARN, source=ARCHITECTURE)
def old_path_stays_until_the_cut_over(fleet: Fleet) -> Iterator[Finding]:
    """The old proxy is named while it serves, and Traefik runs before the cut-over from it."""
    for site_id, site in fleet.sites.items():
        if site.traefik.legacy_proxy is not None and not site.traefik.main:
            found = f"{site.traefik.legacy_proxy}, with no Traefik on the main cluster to take over"
            remedy = "set traefik.main first; the cut-over is the last step"
            yield Finding(f"{site_id}.traefik.legacy_proxy", found, "traefik.main: true", remedy)


@rule("TRF-07", source=ADR_009, profile=CPPS)
def inference_has_a_route(fleet: Fleet) -> Iterator[Finding]:
    """Traefik of the GPU cluster serves inference under a host name."""
    for site_id, site in fleet.sites.items():
        traefik, path = site.traefik, f"{site_id}.traefik"
        has_cluster = any(cluster.role == "gpu" for cluster in site.clusters.values())
        served = sorted(name for name, app in site.apps.items() if app.kind == "inference")
        if traefik.gpu and not has_cluster:
            yield Finding(f"{path}.gpu", "true without a GPU cluster", "false", "set it to false")
        if traefik.inference_hosts and not traefik.gpu:
            found = f"{', '.join(traefik.inference_hosts)} without Traefik on the GPU cluster"
            yield Finding(f"{path}.inference_hosts", found, "traefik.gpu: true", "switch it on, or drop the host names")
        elif served and has_cluster and traefik.gpu_discovery == "traefik" and not traefik.inference_hosts:
            remedy = "switch traefik.gpu on and name a host"
            yield Finding(f"{path}.inference_hosts", f"nothing for {', '.join(served)}", "a host name", remedy)


@rule("TRF-09", source=ADR_009, profile=CPPS)
def gpu_services_are_not_found_by_mesh(fleet: Fleet) -> Iterator[Finding]:
    """The main cluster finds services of the GPU cluster by a URL, never by the ClusterMesh."""
    for site_id, site in fleet.sites.items():
        if site.traefik.gpu_discovery == "clustermesh":
            expected = "traefik, loadbalancer or external-name"
            remedy = "use traefik: the GPU cluster keeps Flannel and is no member of the mesh"
            yield Finding(f"{site_id}.traefik.gpu_discovery", "clustermesh", expected, remedy)


@rule("TRF-14", level=Level.WARN, source=ARCHITECTURE)
def sites_answer_for_their_own_names(fleet: Fleet) -> Iterator[Finding]:
    """A site has no public record of a name that another site serves."""
    served: dict[str, tuple[str, str]] = {}
    for site_id, site in fleet.sites.items():
        for host in (site.argocd.host, *site.traefik.inference_hosts):
            served.setdefault(host, (site_id, "served"))
    for site_id, site in fleet.sites.items():
        for index, host in enumerate(site.dns.records):
            owner, how = served.setdefault(host, (site_id, "recorded"))
            if owner != site_id:
                found = f"{host}, which {owner} has {how} already"
                remedy = "leave it to that site: traffic from outside stays regional"
                yield Finding(f"{site_id}.dns.records.{index}", found, "names that this site answers for", remedy)
