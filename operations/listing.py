"""A plan as a person reads it: each resource with the fields that change, secrets masked.

The data of a command is taken apart, so that a changed setting shows instead of a changed script.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from operations.guard.known import pairs, sections
from operations.guard.plan import CREATE, DELETE, IMPORT, REPLACE, Change, Plan, Step, differences
from operations.guard.stop import said

SIGNS = {CREATE: "+", DELETE: "-", REPLACE: "+-", IMPORT: "="}
PAIRS = ("node", "artifacts", "labels", "sysctl", "minimums")
_ORDER = (DELETE, REPLACE, CREATE, IMPORT)


def lines(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """Each step with its fields, what ends first."""
    order = {op: place for place, op in enumerate(_ORDER)}
    for step in sorted(plan.steps, key=lambda one: order.get(one.op, len(order))):
        yield f"{SIGNS.get(step.op, '~')} {step.op} {step.name} ({step.type})", [_field(one) for one in fields(step)]


def fields(step: Step) -> list[Change]:
    """The fields that change. Created and deleted resources have none: they are named."""
    found: list[Change] = []
    for change in step.changes:
        if change.path == "stdin" and isinstance(change.old, str) and isinstance(change.new, str):
            found += _data(change.old, change.new) or [Change(path="stdin", old="a script", new="a changed script")]
        else:
            found.append(change)
    known = {change.path for change in found}
    hidden = [name for name in step.reasons if not any(path.startswith(name) for path in known)]
    return found + [Change(path=name, old="a value", new="another value") for name in hidden]


def counted(plan: Plan) -> str:
    """How many steps of each kind."""
    numbers: dict[str, int] = {}
    for step in plan.steps:
        numbers[step.op] = numbers.get(step.op, 0) + 1
    return ", ".join(f"{number} to {op}" for op, number in sorted(numbers.items())) or "no changes"


def as_json(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "op": step.op,
            "resource": step.urn,
            "fields": [{"path": one.path, "old": said(one.old), "new": said(one.new)} for one in fields(step)],
        }
        for step in plan.steps
    ]


def _field(change: Change) -> str:
    return f"{change.path}: {said(change.old)} -> {said(change.new)}"


def _data(old: str, new: str) -> list[Change]:
    before, after = sections(old), sections(new)
    found: list[Change] = []
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name, ""), after.get(name, "")
        if one != other:
            changed = list(differences(_parsed(name, one), _parsed(name, other), name))
            found += changed or [Change(path=name, old="as it is", new="changed")]
    return found


def _parsed(name: str, text: str) -> Mapping[str, Any]:
    if name in PAIRS:
        return pairs(text)
    if name.endswith(".yaml") and "\n---" not in text:
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            return {}
        return value if isinstance(value, dict) else {}
    return {}
