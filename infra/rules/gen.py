"""GEN: shape of the fleet as far as documents show it. Pinned versions and missing values are faults of shape."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.nodes import CPPS
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_009, DC_ADR_0001


@rule("GEN-06", source=DC_ADR_0001)
def profile_runs_kubernetes(fleet: Fleet) -> Iterator[Finding]:
    """A site has the profile cpps or datacenter: solo and lab installs run no Kubernetes."""
    for site_id, site in fleet.sites.items():
        if site.profile in ("solo", "lab"):
            remedy = "no Kubernetes for solo and lab: their node agent needs no stack"
            yield Finding(f"{site_id}.profile", site.profile, "cpps or datacenter", remedy)


@rule("GEN-09", source=ADR_009, profile=CPPS)
def site_has_one_main_cluster(fleet: Fleet) -> Iterator[Finding]:
    """A site has exactly one main cluster, and GPU settings stand on GPU clusters alone."""
    for site_id, site in fleet.sites.items():
        mains = [cluster.name for cluster in site.clusters.values() if cluster.role == "main"]
        if not mains:
            yield Finding(f"{site_id}.clusters", "no cluster with role main", "exactly one", "add the main cluster")
        for name in mains[1:]:
            yield Finding(
                f"{site_id}.clusters.{name}.role",
                f"main, like {mains[0]}",
                "one main cluster in a site",
                "make it a GPU cluster or remove it",
            )
    for path, _, cluster in fleet.clusters():
        if cluster.role == "main" and cluster.gpu is not None:
            yield Finding(f"{path}.gpu", "GPU settings", "none on a main cluster", "move them to the GPU cluster")
