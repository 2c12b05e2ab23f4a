"""ARG: Argo CD and the folders it reads; files of the repository are tests' matter.

That an Argo CD writes to clusters of its own site alone follows from the models: a site names no other.
"""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.decided import deviations
from infra.rules.members import apps
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ARCHITECTURE, SEEDS, TUTOR
from infra.violation import Level

APPS_ROOT = "apps"
NOT_KUBERNETES = frozenset({"infra", "config", "policy", "lab", "cli", "operations", "docs", "tests", "benchmarks"})


@rule("ARG-01", source=ARCHITECTURE)
def each_site_has_its_own_argo_cd(fleet: Fleet) -> Iterator[Finding]:
    """The Argo CDs of two sites are two: each has a name and a host name of its own."""
    taken: dict[tuple[str, str], str] = {}
    for site_id, site in fleet.sites.items():
        for key, value in (("name", site.argocd.name), ("host", site.argocd.host)) if site.argocd.enabled else ():
            before = taken.setdefault((key, value), f"{site_id}.argocd.{key}")
            if before != f"{site_id}.argocd.{key}":
                found = f"{value}, like {before}"
                yield Finding(f"{site_id}.argocd.{key}", found, "one of its own: sites share no Argo CD", "rename it")


@rule("ARG-05", level=Level.ACK, source=SEEDS["ARG-05"].source)
def folders_belong_to_one_cluster(fleet: Fleet) -> Iterator[Finding]:
    """A folder of applications goes to one cluster, and none lies inside another."""
    yield from deviations(fleet, "ARG-05")
    taken: list[tuple[str, str]] = []
    for path, _, cluster in fleet.clusters():
        for folder, owner in taken:
            if f"{cluster.apps}/".startswith(f"{folder}/") or f"{folder}/".startswith(f"{cluster.apps}/"):
                found = f"{cluster.apps}, beside {folder} of {owner}"
                remedy = "give each cluster a folder of its own"
                yield Finding(f"{path}.apps_folder", found, "a folder of one cluster", remedy, level=Level.ERROR)
        taken.append((cluster.apps, path))


@rule("ARG-06", source=ARCHITECTURE)
def folders_follow_the_layout(fleet: Fleet) -> Iterator[Finding]:
    """Local applications of a cluster lie in one folder below apps/."""
    for path, _, cluster in fleet.clusters():
        parts = cluster.apps.split("/")
        if parts[0] not in NOT_KUBERNETES and (parts[0] != APPS_ROOT or len(parts) != 2):  # the former: ARG-07
            remedy = "move it: clusters/ has the platform, federated/ what Karmada places, shared/ the bases"
            yield Finding(f"{path}.apps_folder", cluster.apps, "apps/<folder>", remedy)


@rule("ARG-07", source=ARCHITECTURE)
def argo_cd_reads_kubernetes_alone(fleet: Fleet) -> Iterator[Finding]:
    """Argo CD reads no folder of the program or of other products: it applies Kubernetes resources alone."""
    for path, _, cluster in fleet.clusters():
        if cluster.apps.split("/")[0] in NOT_KUBERNETES:
            yield Finding(f"{path}.apps_folder", cluster.apps, "apps/<folder>", "guests and routers are the program's")


@rule("ARG-08", level=Level.WARN, source=ARCHITECTURE)
def manifests_are_not_computed(fleet: Fleet) -> Iterator[Finding]:
    """Argo CD computes no manifests while it syncs, unless SOPS needs it to."""
    for site_id, site in fleet.sites.items():
        if site.argocd.plugins and site.secrets.backend != "sops":
            remedy = "render the manifests before they are committed"
            yield Finding(f"{site_id}.argocd.plugins", ", ".join(site.argocd.plugins), "none", remedy)


@rule("ARG-12", source=ARCHITECTURE)
def flux_is_refused(fleet: Fleet) -> Iterator[Finding]:
    """Flux is not used: Argo CD is the one GitOps tool."""
    for site_id, site in fleet.sites.items():
        if site.rejected.flux:
            yield Finding(f"{site_id}.rejected.flux", "true", "false", "remove it: Argo CD syncs the repository")


@rule("ARG-13", source=ARCHITECTURE)
def tutor_stays_where_it_is(fleet: Fleet) -> Iterator[Finding]:
    """Tutor is in production: one document names it, and the federation does not place it anew."""
    homes: list[str] = []
    for entry in apps(fleet):
        if entry.name != TUTOR:
            continue
        if homes:
            found = f"{TUTOR}, also at {homes[0]}"
            yield Finding(entry.path, found, "the one site where it runs", "name it in the document of its site alone")
        elif entry.app.federated:
            yield Finding(f"{entry.path}.federated", "true", "false", "leave it to the Argo CD of its site")
        homes.append(entry.path)
