"""Members of the federation, and which of them an app's labels select. Policies are written from the same selectors."""

from collections.abc import Iterator
from dataclasses import dataclass

from infra.config.cluster import Cluster
from infra.config.fleet import Fleet, Site
from infra.config.platform import App

HOLDS_STATE = frozenset({"stateful", "data"})
NEEDS_GPU = frozenset({"inference", "batch", "distributed"})


@dataclass(frozen=True)
class Member:
    """A cluster that joins Karmada."""

    path: str  # of the membership
    site: Site
    cluster: Cluster
    name: str
    labels: dict[str, str]


@dataclass(frozen=True)
class Named:
    """An app of a document."""

    path: str
    site_id: str
    site: Site
    name: str
    app: App


def members(fleet: Fleet) -> Iterator[Member]:
    """Every member of the fleet."""
    for path, site, cluster in fleet.clusters():
        joined = cluster.karmada
        if joined is not None:
            yield Member(f"{path}.karmada", site, cluster, joined.member_name, joined.labels)


def apps(fleet: Fleet) -> Iterator[Named]:
    """Every app of the fleet."""
    for site_id, site in fleet.sites.items():
        for name, app in site.apps.items():
            yield Named(f"{site_id}.apps.{name}", site_id, site, name, app)


def selector(entry: Named) -> dict[str, str]:
    """Labels that a member needs to get the app: those of its site where it holds state, those of GPUs where it runs
    on them."""
    bound = entry.app.site_pinned or entry.app.kind in HOLDS_STATE
    site = {"site": entry.site_id} if bound else {}
    return site | ({"provider": "onprem", "capability": "gpu"} if entry.app.kind in NEEDS_GPU else {})


def selected(fleet: Fleet, entry: Named) -> list[Member]:
    """Members that may get the app."""
    wanted = selector(entry).items()
    return [member for member in members(fleet) if wanted <= member.labels.items()]
