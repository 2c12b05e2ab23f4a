"""What people took upon themselves, as an output of the stack: in the document for good, by key for one run.

`fleet up` hands the accepted stops of its guard, and those of earlier runs, in an environment variable; a plain
`pulumi up` has none and so begins the list anew. Leaves out deciding what is accepted (`infra.rules`,
`operations.guard`).
"""

import json
import os
from typing import Any

from infra.config import Fleet
from infra.violation import InvariantError, Violation

VARIABLE = "FLEET_ACCEPTED"
OUTPUT = "acknowledged"
KEPT_RUNS = 50
FIELDS = ("key", "rule", "resource", "change", "reason", "when", "who")


def acknowledged(fleet: Fleet, site_id: str) -> dict[str, Any]:
    """The output. Raises InvariantError for a variable that holds something else."""
    accept = fleet.sites[site_id].accept
    document = {
        id: reason if isinstance(reason, str) else f"{reason.case}: {reason.reason}" for id, reason in accept.items()
    }
    return {"document": document, "runs": given(os.environ.get(VARIABLE, ""), site_id)}


def given(text: str, site_id: str) -> list[dict[str, str]]:
    """The entries of the variable, the latest last."""
    try:
        entries = json.loads(text or "[]")
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, list) or not all(is_entry(entry) for entry in entries):
        fault = Violation(
            id="OPS-03",
            path=f"{site_id}.{VARIABLE}",
            found="something else",
            expected=f"a JSON list of mappings with the texts {', '.join(FIELDS)}",
            remedy="leave the variable to fleet up",
        )
        raise InvariantError([fault])
    return [{field: entry[field] for field in FIELDS} for entry in entries[-KEPT_RUNS:]]


def is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(field), str) for field in FIELDS)
