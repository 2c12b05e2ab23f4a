"""The documents of a folder, judged: what `check` prints, and what every other command does before it starts."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cli.faults import Stop
from cli.screen import say
from infra.config import Fleet, load
from infra.config.loading import PROJECT_FILE, stack_files
from infra.rules import judge
from infra.violation import Violation
from operations import expiry

# FLEET_PROJECT: another folder of documents, such as the copies of a lab (lab/run.py).
ROOT = Path(os.environ.get("FLEET_PROJECT") or Path(__file__).resolve().parents[1])


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Everything the models and the rules say of a folder."""

    sites: tuple[str, ...]
    fleet: Fleet | None  # None: a fault of shape, so that no rule could run
    stops: tuple[Violation, ...]
    warnings: tuple[Violation, ...] = ()
    accepted: tuple[tuple[Violation, str], ...] = ()  # with the reason given

    @property
    def assumed(self) -> dict[str, list[str]]:
        """Paths of assumed values by document."""
        if self.fleet is None:
            return {}
        return {
            "common": list(self.fleet.common.assumed),
            **{site_id: list(site.assumed) for site_id, site in self.fleet.sites.items()},
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "sites": list(self.sites),
            "violations": [_plain(violation) for violation in self.stops],
            "warnings": [_plain(violation) for violation in self.warnings],
            "accepted": [_plain(violation) | {"reason": reason} for violation, reason in self.accepted],
            "assumed": self.assumed,
        }


def judged(folder: Path) -> Judgement:
    if not folder.is_dir():
        raise Stop(
            f"{folder}: found no such folder; expected one with {PROJECT_FILE}; correct --folder or FLEET_PROJECT"
        )
    sites = tuple(stack_files(folder))
    fleet, faults = load(folder)
    if fleet is None:
        return Judgement(sites=sites, fleet=None, stops=tuple(faults))
    verdict = judge(fleet)
    ending, damaged = _certificates(folder, sites)
    return Judgement(
        sites=sites,
        fleet=fleet,
        stops=(*verdict.stops, *damaged),
        warnings=(*verdict.warnings, *ending),
        accepted=verdict.accepted,
    )


def _certificates(folder: Path, sites: tuple[str, ...]) -> tuple[list[Violation], list[Violation]]:
    """Certificates that end soon, by what is recorded of them; and faults of those records."""
    ending: list[Violation] = []
    damaged: list[Violation] = []
    for site_id in sites:
        record, faults = expiry.load(folder, site_id)
        damaged += faults
        ending += expiry.due(record, site_id, datetime.now(UTC))
    return ending, damaged


def known_site(judgement: Judgement, site_id: str) -> None:
    """Raises Stop for a site that has no stack file."""
    if site_id not in judgement.sites:
        raise Stop(f"found no site {site_id}; expected one of {', '.join(judgement.sites) or '(none)'}")


def show(judgement: Judgement) -> None:
    """Every violation, warning and acknowledgement, grouped by document."""
    _section("", judgement, judgement.stops)
    _section("Warnings", judgement, judgement.warnings)
    reasons = dict(judgement.accepted)
    _section("Accepted", judgement, tuple(reasons), reasons)
    if judgement.fleet is None and judgement.stops:
        say("The rules run once these faults of shape are mended; they may show more.")
    counts = {root: len(paths) for root, paths in judgement.assumed.items() if paths}
    if counts:
        each = ", ".join(f"{root} {count}" for root, count in counts.items())
        say(f"{sum(counts.values())} assumed values ({each}): a real update refuses until each is confirmed.")
    say(
        f"{_count(len(judgement.sites), 'site')}, {_count(len(judgement.stops), 'violation')}, "
        f"{_count(len(judgement.warnings), 'warning')}, {len(judgement.accepted)} accepted."
    )


def _section(
    title: str, judgement: Judgement, found: tuple[Violation, ...], reasons: dict[Violation, str] | None = None
) -> None:
    if not found:
        return
    if title:
        say(f"{title}:")
    groups: dict[str, list[Violation]] = {}
    for violation in found:
        groups.setdefault(_document(violation, judgement.sites), []).append(violation)
    for name in sorted(groups):
        say(name, "  " if title else "")
        for violation in sorted(groups[name], key=lambda one: (one.path, one.id)):
            because = f"; because: {reasons[violation]}" if reasons else ""
            say(f"{violation}{because}", "    " if title else "  ")
    say()


def _document(violation: Violation, sites: tuple[str, ...]) -> str:
    """File name of the document a violation belongs to."""
    if violation.site == "common":
        return PROJECT_FILE
    if violation.site in sites:
        return f"Pulumi.{violation.site}.yaml"
    return violation.path.split(":", 1)[0]  # a fault of the file itself: `Pulumi.sp.yaml:12`


def _plain(violation: Violation) -> dict[str, str]:
    return {
        "id": violation.id,
        "path": violation.path,
        "found": violation.found,
        "expected": violation.expected,
        "remedy": violation.remedy,
        "source": violation.source,
        "level": str(violation.level),
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
