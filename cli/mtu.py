"""`fleet mtu`: the budget of packet sizes, path by path."""

from pathlib import Path

import typer

from cli import documents
from cli.screen import say, table
from infra.mtu import budgets


def run(folder: Path, site_id: str | None) -> None:
    """Of one site, or of all. A document that contradicts itself is shown instead."""
    judgement = documents.judged(folder)
    if site_id is not None:
        documents.known_site(judgement, site_id)
    against = tuple(stop for stop in judgement.stops if stop.id == "NET-14")
    if judgement.fleet is None or against:
        for stop in against:
            say(str(stop))
        if judgement.fleet is None:
            documents.show(judgement)
        raise typer.Exit(1)
    rows = [
        (site, budget.path, str(budget.mtu), budget.why)
        for site in ([site_id] if site_id else judgement.fleet.sites)
        for budget in budgets(judgement.fleet, site)
    ]
    table(("site", "path", "bytes", "from"), rows)
