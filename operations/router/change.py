"""Changes a router: a backup first, a commit to be confirmed, and the confirmation once it was read back.

It is read back over a new connection. Whatever goes wrong before the confirmation leaves the commit to the router,
which takes back what nobody confirms. Leaves out SSH (`operations.router.ssh`), asking and printing (`cli.applying`).
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from infra.config import Site
from infra.violation import shown
from infra.vyos.ownership import difference
from infra.vyos.paths import TYPES
from infra.vyos.statements import Statement
from operations.evidence import FORM, Evidence
from operations.router import ssh
from operations.router.plan import Plan, words
from operations.router.ssh import Lost, Ran, Router, RouterError

VERIFY_S = 60  # a commit has to show within that
PAUSE_S = 3
BACKUP = "/config/fleet-backup-{time}.boot"
NEIGHBORS = "show ip bgp summary"
_RELOAD = ("system", "config-management", "commit-confirm", "action", "reload")
_UNSAVED = "not saved: the router's next restart would lose it; run this again, or there: configure; save; exit"
_BEFORE_COMMIT = {
    ssh.PENDING: "a commit-confirm waits there since a moment ago: somebody else is at work; run this again later",
    ssh.CHANGED: "its configuration changed since it was read; run this again",
    ssh.NO_SESSION: "it opened no configuration session: its user may not configure, or another session is stuck",
    ssh.NOTHING: "it finds nothing changed by these lines, though it lacks them; compare by hand: fleet vyos diff",
    70: "it could not keep the script in /dev/shm; look at its memory",
}


class Waiting(RouterError):
    """A commit is there, or may be, that nobody confirmed; the router will take it back."""


def back_up(router: Router, decided: Plan, by: str, now: datetime, keep: Callable[[Evidence], object]) -> str:
    """A copy of the configuration on the router, and a record of it here; its content holds keys and stays there."""
    path = BACKUP.format(time=now.strftime("%Y%m%dT%H%M%SZ"))
    digest = ssh.copy_saved(router, path)
    if digest != decided.saved_sha256:
        raise RouterError(f"{path}: found another content than was read before; nothing was changed: run this again")
    reference = f"{router.ssh.user}@{router.ssh.address}:{path} sha256:{digest}"
    keep(
        Evidence.model_validate(
            {"what": "vyos", "kind": "vyos-archive", "reference": reference, "taken": now.strftime(FORM), "by": by}
        )
    )
    return reference


def commit(
    router: Router, site: Site, decided: Plan, lines: tuple[Statement, ...], secrets: Iterable[str], due: datetime
) -> None:
    """Sets and commits, and leaves it unconfirmed. Raises RouterError where nothing changed, else Waiting."""
    try:
        ran = ssh.commit(router, decided.running_sha256, lines, site.vyos.confirm_minutes)
    except Lost as error:
        raise Waiting(f"{error}; if it came to the commit, {consequence(site, decided, due)}") from None
    if ran.code == 0:
        return
    said = _masked(ran, secrets)
    if ran.code == ssh.REFUSED and (number := re.findall(r"^refused: (\d+)$", ran.said, re.MULTILINE)):
        refused = " ".join(decided.found.set[int(number[0])])
        raise RouterError(f"VyOS refused: set {refused} ({said}); nothing was changed")
    if ran.code in _BEFORE_COMMIT:
        raise RouterError(f"{_BEFORE_COMMIT[ran.code]}; nothing was changed ({said})")
    raise Waiting(
        f"the commit failed or did not end ({said}); parts of it may be in force: {consequence(site, decided, due)}"
    )


def settle(
    router: Router, site: Site, decided: Plan, lines: tuple[Statement, ...], secrets: Iterable[str], due: datetime
) -> None:
    """Reads back over a new connection, then confirms and saves. Raises Waiting where that is not done."""
    later = consequence(site, decided, due)
    deadline = time.monotonic() + VERIFY_S
    while faults := _verified(router, site, decided, lines):
        if time.monotonic() > deadline:
            raise Waiting(f"not confirmed: {'; '.join(faults)}; {later}")
        time.sleep(PAUSE_S)
    try:
        ran = ssh.confirm(router)
        after = ssh.look(router)
        running = words(after.running, "running")
        saved = set(running) == set(words(after.saved, "saved"))
        gone = list(_missing(running, decided, lines, site.vyos.version))
    except RouterError as error:
        raise Waiting(f"nobody here knows whether it was confirmed and saved ({error}); if not, {later}") from None
    if ran.code or after.armed:
        raise Waiting(f"not confirmed ({_masked(ran, secrets)}); {later}")
    if gone:
        raise Waiting(f"taken back before it was confirmed: {'; '.join(gone)}; run this again")
    if not saved:
        raise Waiting(f"confirmed, but {_UNSAVED} ({_masked(ran, secrets)})")


def consequence(site: Site, decided: Plan, due: datetime | None = None) -> str:
    """What the router does with a commit that nobody confirms, and what a person can do about it."""
    if decided.finish and not decided.armed:
        return _UNSAVED
    at = f", at about {due.strftime('%H:%M:%S')} UTC" if due and not decided.finish else ""
    since = f", which waits since {decided.armed}" if decided.armed else ""
    softly = site.vyos.version != "1.4" and _RELOAD in decided.before
    does = (
        "goes back to the configuration before, without a restart"
        if softly
        else "RESTARTS into its saved configuration, the one before"
    )
    return (
        f"unless somebody confirms, the router {does}, {site.vyos.confirm_minutes} minutes after the commit{since}{at}"
        ". To keep the commit: mend the cause and run this again before that, or on the router: configure; confirm; "
        "save; exit. To go back at once: on the router: reboot now"
    )


def _verified(router: Router, site: Site, decided: Plan, lines: tuple[Statement, ...]) -> list[str]:
    """What keeps a commit from being confirmed."""
    interfaces = sorted({one[2] for one in decided.wanted if one[:2] == ("interfaces", "wireguard")})
    keys = {name: f"show interfaces wireguard {name} public-key" for name in interfaces}
    neighbors = sorted({one[3] for one in decided.wanted if one[:3] == ("protocols", "bgp", "neighbor")})
    try:
        seen = ssh.look(router, [*keys.values(), NEIGHBORS])
        running = words(seen.running, "running")
    except RouterError as error:
        return [f"it cannot be read back: {error}"]
    faults = list(_missing(running, decided, lines, site.vyos.version))
    if not seen.armed and not decided.unsaved:
        faults.append("no commit-confirm waits there, so nothing takes the commit back; save or undo it by hand")
    for name, asked in keys.items():
        said = seen.said[asked].split()
        if not any(TYPES["key"](word) for word in said):
            faults.append(f"there is no interface {name}")
        elif site.wireguard.public_key not in (None, *said):
            faults.append(f"{name} has another key pair than wireguard.public_key says")
    listed = set(seen.said[NEIGHBORS].split())
    faults += [f"BGP has no neighbor {one}" for one in neighbors if one not in listed]
    return faults


def _missing(running: list[Statement], decided: Plan, lines: tuple[Statement, ...], version: str) -> Iterator[str]:
    there = {one[:length] for one in running for length in range(1, len(one) + 1)}
    for one, masked in zip(lines, decided.found.set, strict=False):
        if one not in there:
            yield f"it lacks: {' '.join(masked)}"
    for one in difference(running, decided.wanted, version).set if not lines else ():
        yield f"it lacks: {' '.join(one)}"
    replaced = {one[:-1] for one in lines}
    for one in decided.before:
        if one not in there and one[:-1] not in replaced:
            yield f"it lost: {' '.join(one[:-1])}"


def _masked(ran: Ran, secrets: Iterable[str]) -> str:
    """The router's own words on one line, without any secret."""
    said = ran.said
    for secret in secrets:
        said = said.replace(secret.strip(), "***")
    return shown(" ".join(said.split())[-300:], 300) or f"it ended with {ran.code}, without a word"
