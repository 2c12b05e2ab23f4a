"""OBS: logs and metrics. Hubble and the collectors are tested on the declared releases."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.nodes import CPPS
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_009
from infra.violation import Level


@rule("OBS-02", level=Level.WARN, source=ADR_009, profile=CPPS)
def gpu_clusters_are_observed(fleet: Fleet) -> Iterator[Finding]:
    """Logs and metrics of GPU clusters reach OpenObserve through a collector."""
    for site_id, site in fleet.sites.items():
        clusters = [cluster.name for cluster in site.clusters.values() if cluster.role == "gpu"]
        if clusters and not site.observability.collector:
            found = f"false with {', '.join(clusters)}, which has no Hubble"
            yield Finding(f"{site_id}.observability.collector", found, "true", "set it to true")
        if clusters and site.observability.openobserve is None:
            found = f"nothing with {', '.join(clusters)}"
            yield Finding(f"{site_id}.observability.openobserve", found, "the URL of OpenObserve", "set it")
