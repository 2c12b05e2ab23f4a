"""`fleet vyos apply`: the plan for a router, the question, and what became of it."""

from datetime import timedelta
from pathlib import Path

from cli import documents
from cli.backup import person
from cli.engine import engine
from cli.faults import Stop
from cli.question import agreed
from cli.screen import say, warn
from infra.config import Fleet, Site
from infra.names import SSH_PRIVATE_KEY
from infra.violation import InvariantError
from infra.vyos.ownership import key_of
from infra.vyos.paths import commands
from infra.vyos.statements import deletion
from operations import evidence
from operations.access import secrets_of
from operations.backup import utc_now
from operations.engine import EngineError
from operations.router import change, plan, ssh
from operations.router.plan import Plan
from operations.router.ssh import Router, RouterError


def run(folder: Path, site_id: str, *, yes: bool, dry_run: bool) -> int:
    """Exit code. Raises Stop or InvariantError, with what the router has afterwards."""
    try:
        return _run(folder, site_id, yes=yes, dry_run=dry_run)
    except (EngineError, RouterError) as error:
        raise Stop(f"{site_id}: {str(error).removeprefix(f'{site_id}: ')}") from None


def _run(folder: Path, site_id: str, *, yes: bool, dry_run: bool) -> int:
    fleet = _fleet(folder, site_id)
    site = plan.allowed(fleet, site_id)
    _, faults = evidence.load(folder, site_id)
    if faults:
        raise InvariantError(faults)
    assert site.vyos.ssh is not None  # `allowed` saw it
    runs = engine(folder)
    private_key = secrets_of(runs, site_id, (SSH_PRIVATE_KEY,))[SSH_PRIVATE_KEY]
    place = Router(ssh=site.vyos.ssh, private_key=private_key)
    decided = plan.plan(fleet, site_id, ssh.look(place))
    _show(site_id, site, decided)
    if not decided.found.set and not decided.finish:
        say(f"{site_id}: the router has everything that the documents say; nothing to do.")
        return 0
    needed = plan.keys_needed(decided.found)
    secrets = secrets_of(runs, site_id, needed) if needed else {}
    lines = plan.filled(decided.found, secrets, site.vyos.version)
    if dry_run or not (yes or agreed(site_id, f"Change the router of {site_id} as shown?")):
        say(f"{site_id}: nothing was changed.")
        return 0 if dry_run else 1
    due = utc_now() + timedelta(minutes=site.vyos.confirm_minutes)
    try:
        if not decided.finish:
            kept = change.back_up(place, decided, person(), utc_now(), lambda made: evidence.add(folder, site_id, made))
            say(f"backup, on the router alone: {kept}")
            say(f"Recorded in {evidence.path_of(folder, site_id)}: review and commit it.")
            change.commit(place, site, decided, lines, secrets.values(), due)
            say(f"committed, to be confirmed within {site.vyos.confirm_minutes} minutes; reading it back first")
        change.settle(place, site, decided, lines, secrets.values(), due)
    except KeyboardInterrupt:
        warn(f"{site_id}: if it came to the commit, {change.consequence(site, decided, due)}")
        raise
    say(f"{site_id}: read back over a new connection, confirmed and saved.")
    return 0


def _show(site_id: str, site: Site, decided: Plan) -> None:
    for line in commands(decided.found.set, site.vyos.version):
        say(line, "  ")
    for one in decided.found.open:
        if one[-2] != "public-key":
            say(f"{one[-1]} stands for the secret fleet:{key_of(one)}", "  ")
    for one in decided.found.delete:
        say(f"left to a person, since this command only adds: {deletion(one)}", "  ")
    if decided.finish:
        waits = f"a commit-confirm waits since {decided.armed}" if decided.armed else "its configuration is not saved"
        say(f"{site_id}: an earlier run is not at its end: {waits}. This run reads it back, confirms and saves.")
    elif decided.found.set:
        say(f"{site_id}: {len(decided.found.set)} to set. Should that fail, {change.consequence(site, decided)}.")


def _fleet(folder: Path, site_id: str) -> Fleet:
    judgement = documents.judged(folder)
    documents.known_site(judgement, site_id)
    if judgement.fleet is None or judgement.stops:
        documents.show(judgement)
        raise Stop("the documents have faults; nothing was applied")
    return judgement.fleet
