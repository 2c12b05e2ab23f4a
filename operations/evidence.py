"""The record of backups of a site, and what the maximum-caution set demands of it (BKP-01).

`evidence/<site>.yaml` lies beside the documents and is reviewed like them: what was backed up, how it is called where
it lies, when it was taken and by whom. Leaves out making backups (`operations.backup`). That a backup was made does not
say that it can be restored: that needs a rehearsal.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, Field

from infra.config import Fleet, Site, Vm
from infra.config.base import Model, NonEmpty
from infra.config.loading import parse
from infra.config.reader import read
from infra.violation import InvariantError, Level, Violation

FOLDER = "evidence"
MAX_AGE = timedelta(hours=24)
CLOCK_SKEW = timedelta(minutes=5)  # between the machine that recorded and the one that reads
SOURCE = "Principio orientador"
FORM = "%Y-%m-%dT%H:%M:%SZ"
# What each kind can be a backup of.
COVERS = {
    "proxmox-snapshot": ("guest",),
    "linstor-snapshot": ("guest",),
    "vzdump": ("guest",),
    "pbs": ("guest", "host"),
    "etcd-snapshot": ("etcd",),
    "vyos-archive": ("vyos",),
}
# They lie on the guest's own disks and go with it.
INSIDE = frozenset({"proxmox-snapshot", "linstor-snapshot"})
_GUEST_TYPE = re.compile(r"proxmoxve:.*:(?:VmLegacy|ContainerLegacy)$")
_GUEST_NAME = re.compile(r"guest-(.+)-(?:vm|ct)$")
_HEAD = """\
# Backups of this site, newest last: what `fleet backup` made or was told of. Reviewed and committed like the documents.
# Nothing is deleted here or there by the program; lines of backups that are gone may go.
"""


def a_time(text: str) -> str:
    try:
        datetime.strptime(text, FORM)
    except ValueError:
        raise ValueError("a UTC time such as 2026-11-30T22:15:00Z") from None
    return text


class Evidence(Model):
    """One backup."""

    what: Annotated[str, Field(pattern=r"^((guest|host|etcd)/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?|vyos)$")]
    """`guest/<name>`, `host/<name>`, `etcd/<cluster>` or `vyos`."""
    kind: Literal["proxmox-snapshot", "pbs", "vzdump", "etcd-snapshot", "vyos-archive", "linstor-snapshot"]
    """How it was made."""
    reference: NonEmpty
    """What it is called where it lies."""
    taken: Annotated[str, AfterValidator(a_time)]
    """When, in UTC."""
    by: NonEmpty
    """Who made or recorded it."""

    @property
    def at(self) -> datetime:
        return datetime.strptime(self.taken, FORM).replace(tzinfo=UTC)


class Record(Model):
    """All backups of a site."""

    evidence: tuple[Evidence, ...] = ()
    """Backups, newest last."""


def path_of(folder: Path, site_id: str) -> Path:
    return folder / FOLDER / f"{site_id}.yaml"


def load(folder: Path, site_id: str) -> tuple[Record, list[Violation]]:
    """The record of a site, empty where there is none; or what is wrong with its file."""
    path = path_of(folder, site_id)
    if not path.exists():
        return Record(), []
    data, violations = read(path)
    if violations:
        return Record(), violations
    record, violations = parse(Record, f"{FOLDER}.{site_id}", data)
    if record is None:
        return Record(), violations
    return record, list(_mismatches(record, site_id))


def add(folder: Path, site_id: str, made: Evidence) -> Path:
    """Records one backup at once, so that a failure of the next one loses nothing. Raises InvariantError."""
    record, violations = load(folder, site_id)
    violations += _mismatches(Record(evidence=(made,)), site_id)
    if violations:
        raise InvariantError(violations)
    path = path_of(folder, site_id)
    path.parent.mkdir(exist_ok=True)
    entries = sorted([*record.evidence, made], key=lambda one: one.at)
    text = _HEAD + yaml.safe_dump(
        {"evidence": [one.model_dump() for one in entries]}, sort_keys=False, allow_unicode=True, width=1000
    )
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
    return path


def unknown(site_id: str, site: Site, what: str) -> Violation | None:
    """Whether the site has no such thing."""
    kind, _, name = what.partition("/")
    known: dict[str, Collection[str]] = {
        "guest": site.guests,
        "host": site.proxmox.hosts,
        "etcd": site.clusters,
        "vyos": ("",),
    }
    if name in known.get(kind, ()):
        return None
    names = ", ".join([*site.guests, *site.proxmox.hosts, *site.clusters])
    return Violation(
        id="BKP-01",
        path=f"{FOLDER}.{site_id}",
        found=what,
        expected=f"vyos, or guest/, host/ or etcd/ with one of {names}",
        remedy="correct the name",
    )


def fresh(
    record: Record,
    what: str,
    now: datetime,
    max_age: timedelta = MAX_AGE,
    kinds: Collection[str] = tuple(COVERS),
) -> Evidence | None:
    """The newest backup that is no older than `max_age`; None where there is none, or only one from the future."""
    usable = [
        one
        for one in record.evidence
        if one.what == what and one.kind in kinds and now - max_age <= one.at <= now + CLOCK_SKEW
    ]
    return max(usable, key=lambda one: one.at, default=None)


def demanded_for(fleet: Fleet, site_id: str, type_token: str, name: str) -> tuple[str, ...]:
    """What a step on an existing resource demands a backup of: a guest with state or on ZFS, else nothing.

    K3s, Cilium and what else can be made again demand none (BKP-02); a server's script saves etcd by itself.
    """
    match = _GUEST_NAME.match(name) if _GUEST_TYPE.search(type_token) else None
    if match is None:
        return ()
    what = f"guest/{match[1]}"
    return (what,) if _cautious(fleet.sites[site_id], what) else ()


def missing_evidence(
    fleet: Fleet,
    site_id: str,
    touched: Iterable[str],
    record: Record,
    now: datetime,
    *,
    destroyed: Collection[str] = (),
    max_age: timedelta = MAX_AGE,
) -> list[Violation]:
    """What of `touched` is in the maximum-caution set and has no fresh backup.

    What is in `destroyed` takes the snapshots on its own disks along, so for that only a backup elsewhere counts.
    """
    site = fleet.sites[site_id]
    found = []
    for what in sorted({*touched, *destroyed}):
        kinds = [kind for kind in COVERS if not (what in destroyed and kind in INSIDE)]
        if not _cautious(site, what) or fresh(record, what, now, max_age, kinds):
            continue
        newest = max((one for one in record.evidence if one.what == what), key=lambda one: one.at, default=None)
        found.append(_missing(site_id, what, newest, now, max_age, what in destroyed))
    return found


def _missing(
    site_id: str, what: str, newest: Evidence | None, now: datetime, max_age: timedelta, destroyed: bool
) -> Violation:
    hours = f"{max_age.total_seconds() / 3600:.0f} h"
    state = "no recorded backup" if newest is None else _told(newest, now, max_age)
    return Violation(
        id="BKP-01",
        path=f"{FOLDER}.{site_id}.{what}",
        found=state,
        expected=f"a backup outside of the guest that is not older than {hours}, since its snapshots go with it"
        if destroyed
        else f"a backup that is not older than {hours}",
        remedy=_remedy(site_id, what, destroyed),
        source=SOURCE,
        level=Level.ACK,
    )


def _told(newest: Evidence, now: datetime, max_age: timedelta) -> str:
    reference = f"{newest.kind} {newest.reference}"
    if newest.at > now + CLOCK_SKEW:
        return f"{reference} from the future ({newest.taken})"
    if now - newest.at <= max_age:
        return f"{reference}, which goes with the guest"
    return f"{reference}, taken {newest.taken}"  # no age: a key of the guard must last longer than a minute


def _remedy(site_id: str, what: str, destroyed: bool) -> str:
    record = f"fleet backup {site_id} --record"
    kind, _, name = what.partition("/")
    if kind == "vyos":
        return f"archive the router's configuration, then: {record} vyos-archive:vyos=<file> --taken <time>"
    if kind == "host":
        return f"back up the host, then: {record} pbs:{what}=<snapshot> --taken <time>"
    if destroyed:
        return f"back it up to PBS, then: {record} pbs:{what}=<snapshot>"
    return f"fleet backup {site_id} --guest {name}"


def _cautious(site: Site, what: str) -> bool:
    kind, _, name = what.partition("/")
    if kind != "guest":
        return kind in ("vyos", "host")
    guest = site.guests.get(name)
    if guest is None:  # gone from the document: nothing says that it may be lost
        return True
    disks = guest.disks if isinstance(guest, Vm) else (guest.disk,)
    storages = (site.proxmox.storages.get(disk.storage) for disk in disks)
    return guest.stateful or any(storage is not None and storage.type == "zfspool" for storage in storages)


def _mismatches(record: Record, site_id: str) -> Iterator[Violation]:
    for index, one in enumerate(record.evidence):
        if one.what.partition("/")[0] not in COVERS[one.kind]:
            yield Violation(
                id="DOC-03",
                path=f"{FOLDER}.{site_id}.evidence.{index}.kind",
                found=f"{one.kind} of {one.what}",
                expected=f"one of {', '.join(kind for kind, of in COVERS.items() if one.what.partition('/')[0] in of)}",
                remedy="correct the value",
            )
