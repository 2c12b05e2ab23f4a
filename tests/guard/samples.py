"""Plans and states that the real engine printed for a lab, trimmed; and steps made from them.

Trimmed: outputs, scripts, source positions; ciphertexts and keys are placeholders.
"""

import copy
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from infra.config import Fleet, load
from operations.guard import Plan, Verdict, judge, read

FOLDER = Path(__file__).parent / "samples"
FRANCA = ("server_renamed", "servers_removed", "servers_reordered", "unprotected")
Raw = dict[str, Any]


@lru_cache(maxsize=1)
def fleet() -> Fleet:
    found, faults = load(Path(__file__).parents[2])
    assert found is not None, faults
    return found


def raw(name: str) -> Raw:
    sample: Raw = json.loads((FOLDER / f"{name}.json").read_text())
    return sample


def site_of(name: str) -> str:
    return "franca" if name in FRANCA else "sp"


def judged(name: str, accept: dict[str, str] | None = None, **more: Any) -> Verdict:
    site = site_of(name)
    return judge(read(raw(name), raw(f"state-{site}")), fleet(), site, accept, **more)


def resource(site: str, name: str) -> Raw:
    """A resource of a state."""
    return next(one for one in raw(f"state-{site}")["deployment"]["resources"] if one["urn"].endswith(f"::{name}"))


def step(site: str, name: str, op: str, change: Callable[[Raw], None] = lambda inputs: None, **fields: Any) -> Raw:
    """A step on a resource of a state; without further fields the provider says nothing of what differs."""
    old = resource(site, name)
    new = copy.deepcopy(old)
    change(new.setdefault("inputs", {}))  # a component has none
    made: Raw = {"op": op, "urn": old["urn"], "oldState": old, "detailedDiff": None}
    if op not in ("delete",):
        made["newState"] = new
    return made | fields


def plan(site: str, *steps: Raw, pending: list[Raw] | None = None) -> Plan:
    state = raw(f"state-{site}")
    state["deployment"]["pending_operations"] = pending or []
    return read({"steps": list(steps)}, state)


def verdict(site: str, *steps: Raw, pending: list[Raw] | None = None, **more: Any) -> Verdict:
    return judge(plan(site, *steps, pending=pending), fleet(), site, **more)


def found(verdict: Verdict) -> set[tuple[str, str]]:
    """Rule and resource of each stop."""
    return {(stop.rule, stop.name) for stop in verdict.stops}
