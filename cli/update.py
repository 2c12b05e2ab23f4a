"""`fleet preview` and `fleet up`: the plan, the guard's verdict and the update, as a person sees them.

Leaves out judging (`operations.guard`) and the engine (`operations.engine`).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from cli import documents
from cli.engine import engine
from cli.faults import Stop
from cli.question import agreed
from cli.screen import say, show_json, table, warn
from infra.acknowledged import OUTPUT
from infra.config import Fleet
from infra.violation import InvariantError
from operations import faults, listing, update
from operations.engine import EngineError, diagnostics, telling
from operations.guard import AcceptError, as_json, parsed
from operations.guard.stop import Stop as GuardStop

MASKED = "[secret]"


def preview(site_id: str, accept: tuple[str, ...], *, as_json_output: bool) -> int:
    """Shows what an update would do and whether it may. Returns 1 where it may not."""
    with _told():
        given = parsed(accept)
        fleet = _fleet(site_id, as_json_output=as_json_output)
        if fleet is None:
            return 1
        looked = update.look(engine(documents.ROOT), site_id, fleet, given)
    if as_json_output:
        show_json({"site": site_id, "clear": looked.clear, **_plain(looked)})
    else:
        show(site_id, looked)
    return 0 if looked.clear else 1


def up(site_id: str, accept: tuple[str, ...], *, yes: bool) -> int:
    """Previews, asks, updates. Returns 1 where the guard stops it or the engine fails."""
    with _told():
        given = parsed(accept)
        fleet = _fleet(site_id, as_json_output=False)
        if fleet is None:
            return 1
        _refused_by_the_program(fleet, site_id)
        runs = engine(documents.ROOT)
        looked = update.look(runs, site_id, fleet, given)
    show(site_id, looked)
    if not looked.clear:
        say(f"{site_id}: nothing was changed.")
        return 1
    if not yes and not agreed(site_id, f"Update {site_id} as shown?"):
        say(f"{site_id}: nothing was changed.")
        return 1
    lines: list[str] = []

    def show_line(line: str) -> None:
        lines.append(line)
        if told := telling(line):
            say(told, "  ")

    with _told():
        code = update.apply(runs, site_id, looked, show_line)
    if code:
        said = diagnostics(lines)
        warn("\n".join(said))
        for remedy in faults.remedies(said):
            warn(remedy)
        warn(f"{site_id}: the update failed; what is done stays done: mend the cause, run it again")
        return 1
    for one in looked.verdict.accepted:
        say(f"recorded in the stack's outputs: {one.stop.key}, {one.reason}")
    with _told():
        outputs(runs.outputs(site_id))
    return 0


def _refused_by_the_program(fleet: Fleet, site_id: str) -> None:
    """The program would refuse after the question only. Raises InvariantError with everything it refuses."""
    from infra.stack import gates  # noqa: PLC0415  # brings the Kubernetes SDK: 2 s

    refused = list(gates(fleet, site_id))
    if refused:
        raise InvariantError(refused)


def reasons(accept: tuple[str, ...]) -> dict[str, str]:
    """Reasons by key. Raises Stop for what is neither."""
    with _told():
        return parsed(accept)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Errors that are messages to the person."""
    try:
        yield
    except (AcceptError, EngineError) as error:
        raise Stop(str(error)) from error


def show(site_id: str, looked: update.Looked) -> None:
    """Remarks, the diff, and the verdict."""
    for remark in looked.remarks:
        say(remark)
    for head, fields in listing.lines(looked.plan):
        say(head, "  ")
        for field in fields:
            say(field, "      ")
    say(f"{site_id}: {listing.counted(looked.plan)}.")
    for note in looked.verdict.notes:
        say(f"note: {note}")
    for one in looked.verdict.accepted:
        say(f"accepted for this run: {one.stop.key} {one.stop.name} {one.stop.change}; because: {one.reason}")
    for fault in looked.faults:
        warn(f"{site_id}: the engine refuses: {fault}")
    for stop in looked.verdict.stops:
        _stop(site_id, stop)
    number = len(looked.verdict.stops)
    say(f"guard: {number} stop{'' if number == 1 else 's'}." if number else "guard: no stops.")


def _stop(site_id: str, stop: GuardStop) -> None:
    say(f"STOP [{stop.rule}] {stop.name}")
    say(stop.change, "    ")
    say(f"consequence: {stop.consequence}", "    ")
    say(f"instead: {stop.instead}", "    ")
    if stop.acceptable:
        say(f"to do it all the same: fleet up {site_id} --accept '{stop.key}=reason'", "    ")
    else:
        say("nobody can accept this for a run", "    ")


def outputs(found: dict[str, Any]) -> None:
    """Outputs as a table, without secrets and without the record of acknowledgements."""
    rows = [
        (name, key, _text(value))
        for name, values in sorted(found.items())
        if isinstance(values, dict) and name != OUTPUT
        for key, value in values.items()
        if value != MASKED
    ]
    table(("output", "name", "value"), rows)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _fleet(site_id: str, *, as_json_output: bool) -> Fleet | None:
    judgement = documents.judged(documents.ROOT)
    documents.known_site(judgement, site_id)
    if judgement.fleet is not None and not judgement.stops:
        return judgement.fleet
    if as_json_output:
        show_json({"site": site_id, "clear": False, **judgement.as_json()})
    else:
        documents.show(judgement)
        say("Nothing was previewed.")
    return None


def _plain(looked: update.Looked) -> dict[str, Any]:
    return {
        "steps": listing.as_json(looked.plan),
        "refused": list(looked.faults),
        "remarks": list(looked.remarks),
        **as_json(looked.verdict),
    }
