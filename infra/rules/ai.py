"""AI: who routes the calls of an app. Backends and their limits are tested on the gateway's own configuration."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.members import apps
from infra.rules.registry import Finding, rule, with_article
from infra.rules.seeds import PLAN

ROUTERS = {"inference": "tensorzero", "batch": "kueue", "distributed": "kueue", "data": "global-service"}
OTHERS = ("traefik", "global-service")  # of every other class, if any


@rule("AI-01", source=PLAN)
def each_class_has_its_router(fleet: Fleet) -> Iterator[Finding]:
    """TensorZero routes interactive GPU calls, Kueue batch jobs, and global Services data."""
    gateway = bool(fleet.absent) or any(site.tensorzero.enabled for site in fleet.sites.values())
    for entry in apps(fleet):
        router, due = entry.app.router, ROUTERS.get(entry.app.kind)
        if due is not None and router != due:
            found = f"{router or 'nothing'} for {with_article(entry.app.kind)} app"
            yield Finding(f"{entry.path}.router", found, due, "correct the router or the kind")
        elif due is None and router is not None and router not in OTHERS:
            found = f"{router} for a {entry.app.kind} app"
            yield Finding(f"{entry.path}.router", found, f"{' or '.join(OTHERS)}, or none", "correct one of the two")
        elif router == "tensorzero" and not gateway:
            remedy = "enable it in one document"
            yield Finding(f"{entry.path}.router", "tensorzero, which no site runs", "a site with tensorzero", remedy)
