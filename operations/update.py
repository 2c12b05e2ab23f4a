"""From preview to update: look at the plan, let the guard judge it, then apply exactly what was looked at.

What a person accepts for one run is recorded in the stack's outputs. Leaves out asking and printing (`cli.update`).
"""

import base64
import getpass
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

from infra.acknowledged import KEPT_RUNS, OUTPUT, VARIABLE, is_entry
from infra.config import Fleet
from infra.names import CILIUM_CA_CERT, CILIUM_CA_KEY
from infra.violation import InvariantError, Violation
from operations import evidence, releases
from operations.engine import Engine, EngineError, Previewed, stamp
from operations.guard import Plan, Verdict, judge, read
from operations.guard.plan import at
from operations.guard.platform import is_cilium
from operations.guard.situation import MissingBackups

STACK = "pulumi:pulumi:Stack"


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A plan, what the guard thinks of it, and the state and documents that it holds for."""

    plan: Plan
    verdict: Verdict
    faults: tuple[str, ...]  # what the engine itself refuses, beyond what the guard stops
    remarks: tuple[str, ...]  # warnings and acknowledgements of the documents
    stamp: str
    runs: tuple[dict[str, str], ...]  # acceptances of earlier runs

    @property
    def clear(self) -> bool:
        return not self.verdict.stops and not self.faults


def look(
    engine: Engine,
    site_id: str,
    fleet: Fleet,
    accept: Mapping[str, str] | None = None,
    *,
    backups: bool = True,
    exported: dict[str, Any] | None = None,
) -> Looked:
    """Previews a site and judges the plan; `backups`: whether guests with state need a recorded one; `exported`: the
    state, where the caller has it already.

    Raises EngineError where there is no plan, AcceptError for a wrong key, InvariantError for a faulty record.
    """
    exported = engine.export(site_id) if exported is None else exported
    seen = stamp(exported, engine.folder)
    runs = recorded(exported)
    previewed = engine.preview(site_id, {VARIABLE: _text(runs)})
    try:
        plan = read(previewed.document, exported)
    except (AttributeError, KeyError, TypeError) as error:
        raise EngineError(
            f"{site_id}: the engine's plan or state is in no form that the guard knows ({type(error).__name__}); "
            "nothing was changed: compare pulumi version with the one of docs/production.md, section 1"
        ) from error
    verdict = judge(
        plan,
        fleet,
        site_id,
        accept,
        secret_binding=_binding(engine, site_id),
        same_ca=lambda: same_ca(engine, site_id),
        missing_backups=_backups(engine, site_id, fleet) if backups else None,
    )
    return Looked(
        plan=plan,
        verdict=verdict,
        faults=_faults(previewed, verdict),
        remarks=previewed.remarks,
        stamp=seen,
        runs=tuple(runs),
    )


def apply(engine: Engine, site_id: str, looked: Looked, on_line: Callable[[str], None]) -> int:
    """Updates a site as looked at; returns the engine's exit code. Raises EngineError if anything changed meanwhile."""
    if not looked.clear:
        raise EngineError(f"{site_id}: the plan has stops; nothing was changed")
    exported = engine.export(site_id)
    if stamp(exported, engine.folder) != looked.stamp:
        raise EngineError(
            f"{site_id}: state or documents changed since the preview; nothing was updated: run fleet up again"
        )
    if releases.waiting(exported):
        try:
            for release in releases.cut_off(engine.plain(site_id, ("stack", "export"))):
                releases.forget(release)
        except OSError as error:
            raise EngineError(
                f"{site_id}: a Helm release was cut off, and its cluster does not answer ({error}); bring the API "
                "back, then run fleet up again"
            ) from error
    if (exported.get("deployment") or {}).pop("pending_operations", None):
        # All that is left of them can be done again; guests, for which that is not so, were stops.
        engine.restore(site_id, exported)
    return engine.up(site_id, on_line, {VARIABLE: record(looked)})


def record(looked: Looked) -> str:
    """What the program is to publish: the acceptances of earlier runs and of this one."""
    return _text([*looked.runs, *accepted_now(looked.verdict)])


def accepted_now(verdict: Verdict) -> list[dict[str, str]]:
    """The record of what this run takes on."""
    when, who = datetime.now(UTC).isoformat(timespec="seconds"), _who()
    return [
        {
            "key": one.stop.key,
            "rule": one.stop.rule,
            "resource": one.stop.urn,
            "change": one.stop.change,
            "reason": one.reason,
            "when": when,
            "who": who,
        }
        for one in verdict.accepted
    ]


def recorded(exported: Mapping[str, Any]) -> list[dict[str, str]]:
    """Acceptances of earlier runs, from the outputs in the state."""
    for resource in (exported.get("deployment") or {}).get("resources") or ():
        if resource.get("type") == STACK:
            runs = at(resource.get("outputs") or {}, f"{OUTPUT}.runs")
            return [run for run in runs if is_entry(run)][-KEPT_RUNS:] if isinstance(runs, list) else []
    return []


def same_ca(engine: Engine, site_id: str) -> bool:
    """Whether the CA of the stack's config is the one that Cilium runs with. Compared in memory, never shown."""
    config, state = engine.plain(site_id, ("config", "--json")), engine.plain(site_id, ("stack", "export"))
    wanted = {
        name: base64.b64encode(str(at(config, f'["fleet:{key}"].value')).encode()).decode()
        for name, key in (("cert", CILIUM_CA_CERT), ("key", CILIUM_CA_KEY))
    }
    found = [
        {name: _opened(at(resource, f"inputs.values.tls.ca.{name}")) for name in wanted}
        for resource in (state.get("deployment") or {}).get("resources") or ()
        if is_cilium(str(resource.get("type")), resource["urn"], resource.get("inputs") or {})
    ]
    return bool(found) and all(one == wanted for one in found)


def _opened(value: Any) -> Any:
    return json.loads(value["plaintext"]) if isinstance(value, dict) and "plaintext" in value else value


def _backups(engine: Engine, site_id: str, fleet: Fleet) -> MissingBackups:
    record, faults = evidence.load(engine.folder, site_id)
    if faults:
        raise InvariantError(faults)

    def missing(touched: set[str], destroyed: set[str]) -> list[Violation]:
        return evidence.missing_evidence(fleet, site_id, touched, record, datetime.now(UTC), destroyed=destroyed)

    return missing


def _text(runs: list[dict[str, str]]) -> str:
    return json.dumps(runs[-KEPT_RUNS:])


def _binding(engine: Engine, site_id: str) -> str:
    """Changes with the encrypted values of the stack file, so that an acceptance of one CA is none of another."""
    try:
        config = yaml.safe_load((engine.folder / f"Pulumi.{site_id}.yaml").read_text(encoding="utf-8"))["config"]
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        return ""
    sealed = {key: value["secure"] for key, value in config.items() if isinstance(value, dict) and "secure" in value}
    return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


def _faults(previewed: Previewed, verdict: Verdict) -> tuple[str, ...]:
    """Where the engine refuses a protected resource that a stop names, the stop says it better."""
    if not previewed.failed:
        return ()
    stopped = {stop.urn for stop in verdict.stops}
    faults = tuple(
        fault for fault in previewed.faults if not ("protect" in fault and any(f'"{urn}"' in fault for urn in stopped))
    )
    if not faults and not verdict.stops:
        return ("the engine ended the preview without saying why",)
    return faults


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user, as in a container
        return "unknown"
