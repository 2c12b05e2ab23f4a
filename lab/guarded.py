"""The guard of production before each update of the lab: the same plan, the same stops, the same keys.

Left out: a first update until it came to its end, since there is nothing to lose before; and the demand for backups.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from infra.acknowledged import VARIABLE
from lab import LabError, control
from lab.documents import load_or_refuse
from lab.engine import Engine
from lab.place import Place
from operations import engine as production
from operations import update
from operations.guard import AcceptError, Stop

Say = Callable[[str], None]


def environment(
    engine: Engine, place: Place, site: str, accept: Mapping[str, str] | None, say: Say
) -> dict[str, str] | None:
    """What an update is handed: the record of what was accepted. None where the guard stops it."""
    runs = production.Engine(
        program=engine.toolchain / "pulumi",
        folder=place.work,
        environment=engine.environment(),
        within=lambda command: control.inside(place.root, command),
    )
    try:
        exported = runs.export(site)
        if not _came_to_an_end(exported):
            return {}
        began = time.monotonic()
        looked = update.look(runs, site, load_or_refuse(place.work), accept, backups=False, exported=exported)
    except (AcceptError, production.EngineError) as error:
        raise LabError(str(error)) from error
    for note in looked.verdict.notes:
        say(f"note: {note}")
    for fault in looked.faults:
        say(f"pulumi preview failed: {fault}")
    for stop in looked.verdict.stops:
        _stop(stop, site, say)
    say(f"guard: {len(looked.verdict.stops)} stops in {time.monotonic() - began:.0f} s")
    return {VARIABLE: update.record(looked)} if looked.clear else None


def _came_to_an_end(exported: Mapping[str, Any]) -> bool:
    """Whether an update of the stack ever did: the program's outputs are the last that it registers."""
    resources = (exported["deployment"] or {}).get("resources") or ()
    return any(one["type"] == update.STACK and one.get("outputs") for one in resources)


def _stop(stop: Stop, site: str, say: Say) -> None:
    way = f"; to do it all the same: fleet lab up {site} --accept '{stop.key}=reason'" if stop.acceptable else ""
    say(f"STOP [{stop.rule}] {stop.name}: {stop.change}; {stop.consequence}; instead: {stop.instead}{way}")
