"""The preview guard: plan and state in, stops and notes out.

Leaves out the engine (`operations.engine`) and what documents alone can show (`infra.rules`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from infra.config import Fleet
from operations.guard import clusters, guests, mesh, platform
from operations.guard.plan import Plan, read
from operations.guard.situation import MissingBackups, Situation
from operations.guard.stop import RULES, Accepted, AcceptError, Stop, Verdict, parsed, weighed

__all__ = ["RULES", "AcceptError", "Accepted", "Plan", "Stop", "Verdict", "as_json", "judge", "parsed", "read"]


def judge(
    plan: Plan,
    fleet: Fleet,
    site_id: str,
    accept: Mapping[str, str] | None = None,
    *,
    secret_binding: str = "",
    same_ca: Callable[[], bool] | None = None,
    missing_backups: MissingBackups | None = None,
) -> Verdict:
    """What stops a plan, less what `accept` (reasons by key) takes on. Raises AcceptError for a key of no stop."""
    now = Situation(plan, fleet, site_id, secret_binding, same_ca, missing_backups)
    found = [*guests.stops(now), *clusters.stops(now), *platform.stops(now), *mesh.stops(now)]
    found.sort(key=lambda stop: (stop.rule, stop.name, stop.field))
    return weighed(tuple(found), tuple(now.notes), dict(accept or {}))


def as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "stops": [stop.as_json() for stop in verdict.stops],
        "accepted": [one.stop.as_json() | {"reason": one.reason} for one in verdict.accepted],
        "notes": list(verdict.notes),
    }
