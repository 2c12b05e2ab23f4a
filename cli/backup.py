"""`fleet backup`: makes or records backups of a site and prints what became of each."""

import getpass
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cli import documents
from cli.engine import opened
from cli.faults import Stop
from cli.screen import say, table
from infra.config import Fleet
from infra.violation import InvariantError
from operations import backup, evidence
from operations.evidence import CLOCK_SKEW, COVERS, FORM, Evidence

_RECORD = re.compile(r"(?P<kind>[a-z-]+):(?P<what>[a-z0-9/-]+)=(?P<reference>.+)")
_TIME_AT_END = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)$")


def run(folder: Path, site_id: str, guests: Sequence[str], records: Sequence[str], taken: str | None) -> int:
    """Exit code. Only what is to be made needs credentials; what is recorded needs none."""
    fleet = _fleet(folder, site_id)
    if records:
        if guests:
            raise Stop("found --guest and --record; expected one of them: what is recorded is not made")
        return _record(folder, site_id, fleet, records, taken)
    if taken is not None:
        raise Stop("found --taken without --record; a backup that is made now is taken now")
    _, faults = evidence.load(folder, site_id)
    if faults:
        raise InvariantError(faults)
    site = fleet.sites[site_id]
    for name in guests:
        if fault := evidence.unknown(site_id, site, f"guest/{name}"):
            raise InvariantError([fault])
    clusters = [cluster.name for cluster in site.clusters.values() if cluster.role == "main"]
    outcomes = backup.back_up(
        site_id,
        site,
        opened(folder, site_id, site),
        guests=guests or site.guests,
        clusters=[] if guests else clusters,
        by=person(),
        now=backup.utc_now(),
        keep=lambda made: evidence.add(folder, site_id, made),
        say=say,
    )
    say()
    table(
        ("what", "backup", "reference or reason"),
        [
            (
                one.what,
                one.made.kind if one.made else "none yet" if one.absent and not guests else "NOT MADE",
                "; ".join(text for text in (one.made.reference if one.made else "", one.remark) if text),
            )
            for one in outcomes
        ],
    )
    failed = [one for one in outcomes if one.made is None and (guests or not one.absent)]
    if any(one.made for one in outcomes):
        say(f"Recorded in {evidence.path_of(folder, site_id)}: review and commit it.")
    if failed:
        say(f"{len(failed)} of {len(outcomes)} not made. Run this again once that is mended; what is recorded stays.")
    return 1 if failed else 0


def _record(folder: Path, site_id: str, fleet: Fleet, records: Sequence[str], taken: str | None) -> int:
    made = [_parsed(text, taken, backup.utc_now()) for text in records]
    for one in made:
        if fault := evidence.unknown(site_id, fleet.sites[site_id], one.what):
            raise InvariantError([fault])
    for one in made:
        path = evidence.add(folder, site_id, one)
        say(f"recorded {one.kind} of {one.what}, taken {one.taken}, in {path}")
    return 0


def _parsed(text: str, taken: str | None, now: datetime) -> Evidence:
    """One `kind:what=reference`. Its time is never made up: it is given, or stands at the end of the reference."""
    match = _RECORD.fullmatch(text)
    if match is None or match["kind"] not in COVERS:
        kinds = ", ".join(COVERS)
        raise Stop(f"found --record {text}; expected KIND:WHAT=REFERENCE, for example "
                   f"pbs:guest/vm-cpps-04=vm/104/2026-11-30T22:15:00Z; kinds: {kinds}")  # fmt: skip
    written = _TIME_AT_END.search(match["reference"])
    time = taken or (written[1] if written else None)
    if time is None:
        raise Stop(f"--record {text}: found no time of the backup; expected --taken, for example 2026-11-30T22:15:00Z")
    try:
        one = Evidence.model_validate(
            {"what": match["what"], "kind": match["kind"], "reference": match["reference"], "taken": time}
            | {"by": person()}
        )
    except ValueError as error:
        first = str(error).splitlines()
        raise Stop(f"--record {text}: found no valid value of {first[1]}: {first[2].strip()}") from None
    if one.at > now + CLOCK_SKEW:
        raise Stop(f"--record {text}: found {time}, which is in the future (now: {now.strftime(FORM)}); correct it")
    return one


def _fleet(folder: Path, site_id: str) -> Fleet:
    judgement = documents.judged(folder)
    documents.known_site(judgement, site_id)
    if judgement.fleet is None:
        documents.show(judgement)
        raise Stop("the documents cannot be read; nothing was done")
    return judgement.fleet  # what rules object to is no reason against a backup


def person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "unknown"
