"""What may be applied to a router, and what is missing there (NET-15).

Adds `set` lines alone; what is to be deleted stays a person's. Leaves out doing it (`operations.router.change`).
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from infra.config import Fleet, Site
from infra.violation import InvariantError, Violation, assumed_value
from infra.vyos.artefacts import statements
from infra.vyos.ownership import Difference, difference, is_open, key_of
from infra.vyos.paths import template_of
from infra.vyos.reach import links
from infra.vyos.statements import Statement, Unreadable, command, read, release_line
from operations.router.ssh import RouterError, Seen

# What the renderer reads of a document; other assumed values are no matter of the router.
_USED = {
    "common": re.compile(r"(tunnels|multikueue)(\..+)?|cilium(\.datapath)?"),
    "own": re.compile(
        r"(vyos|wireguard|bgp|lb|traefik|clusters)(\..+)?|network(\.lan_cidr)?|guests(\.[^.]+(\.address)?)?"
    ),
    "peer": re.compile(r"(wireguard|bgp|lb|clusters)(\..+)?|network(\.lan_cidr)?"),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done on a router, and what it was when that was decided."""

    wanted: tuple[Statement, ...]
    found: Difference
    before: tuple[Statement, ...]
    running_sha256: str
    saved_sha256: str
    unsaved: bool  # what is there of ours is not saved: an earlier run ended between commit and save
    armed: str  # since when a commit-confirm waits

    @property
    def finish(self) -> bool:
        """Nothing is to be set, but an earlier run is to be brought to its end."""
        return not self.found.set and (self.unsaved or bool(self.armed))


def allowed(fleet: Fleet, site_id: str) -> Site:
    """Raises InvariantError unless the document opted in and a person confirmed every value that is used."""
    site = fleet.sites[site_id]
    if not site.vyos.apply or site.vyos.ssh is None:
        raise InvariantError(
            [
                Violation(
                    id="NET-15",
                    path=f"{site_id}.vyos.apply",
                    found="false",
                    expected="true, with vyos.ssh and vyos.backup_ref",
                    remedy="let a person load what fleet vyos diff prints, or opt in (docs/production.md, section 13)",
                )
            ]
        )
    roots = [("common", fleet.common.assumed, "common"), (site_id, site.assumed, "own")]
    roots += [(link.peer_id, link.peer.assumed, "peer") for link in links(fleet, site_id)]
    faults = [
        assumed_value(root, path, " that the router's configuration follows from")
        for root, paths, kind in roots
        for path in paths
        if _USED[kind].fullmatch(path)
    ]
    if faults:
        raise InvariantError(faults)
    return site


def plan(fleet: Fleet, site_id: str, seen: Seen) -> Plan:
    """What to do. Raises RouterError where a person has to do something first."""
    version = fleet.sites[site_id].vyos.version
    running, saved = words(seen.running, "running"), words(seen.saved, "saved")
    line = release_line(seen.saved.decode(errors="replace"))
    if line not in (None, version):
        raise RouterError(f"found a router with VyOS {line}; expected {version}; correct {site_id}.vyos.version")
    wanted = tuple(statements(fleet, site_id))
    found = difference(running, wanted, version)
    strange = [one for one in sorted(set(running) ^ set(saved)) if not _of_ours(one, wanted, version)]
    waits = f"a commit-confirm waits there since {seen.armed}, and " if seen.armed else ""
    if strange:
        what = ", ".join(dict.fromkeys(" ".join(one[:-1]) for one in strange[:5]))
        raise RouterError(
            f"found {waits}{len(strange)} unsaved changes that are not of this program ({what}); expected none, since "
            "what is not saved goes when a commit is taken back: save or discard them on the router"
        )
    unsaved = set(running) != set(saved)
    if found.set and (unsaved or seen.armed):
        raise RouterError(
            f"found {waits}a configuration of ours that is not saved and no longer what the documents say; confirm and "
            "save it on the router (configure; confirm; save; exit) or wait until it is taken back, then run this again"
        )
    if found.set and found.obstacles:
        raise RouterError("\n".join(f"in the way: {one}" for one in found.obstacles))
    return Plan(
        wanted=wanted,
        found=found,
        before=tuple(running),
        running_sha256=hashlib.sha256(seen.running).hexdigest(),
        saved_sha256=hashlib.sha256(seen.saved).hexdigest(),
        unsaved=unsaved,
        armed=seen.armed,
    )


def keys_needed(found: Difference) -> tuple[str, ...]:
    """Secrets of the stack that the router lacks. Raises RouterError for a public key that no document has."""
    for one in found.open:
        if one[-2] == "public-key":
            raise RouterError(f"{' '.join(one[:-1])}: no document has that key; set wireguard.public_key of the peer")
    return tuple(dict.fromkeys(key_of(one) for one in found.open))


def filled(found: Difference, secrets: Mapping[str, str], version: str) -> tuple[Statement, ...]:
    """The statements to set, with their keys in. Raises RouterError, without the value, for one that VyOS refuses."""
    made = []
    for one in found.set:
        full = (*one[:-1], secrets[key_of(one)].strip()) if is_open(one) else one
        try:
            fits = template_of(full, version) is not None and bool(command(full, has_value=True))
        except ValueError:
            fits = False
        if not fits or is_open(full):
            what = f"fleet:{key_of(one)}" if is_open(one) else " ".join(one)
            raise RouterError(f"{what}: found a value that VyOS does not take at {' '.join(one[:-1])}; set it again")
        made.append(full)
    return tuple(made)


def _of_ours(statement: Statement, wanted: tuple[Statement, ...], version: str) -> bool:
    """Whether an unsaved statement, or the saved one in its place, comes from a run of this program."""
    if statement in wanted:
        return True
    single = {one[:-1] for one in wanted if (path := template_of(one, version)) and path.kind == "value"}
    return statement[:-1] in single


def words(text: bytes, which: str) -> list[Statement]:
    try:
        return read(text.decode("utf-8"))
    except (UnicodeDecodeError, Unreadable) as error:
        told = str(error) if isinstance(error, Unreadable) else "it is no text"
        raise RouterError(f"the {which} configuration of the router cannot be read: {told}") from None
