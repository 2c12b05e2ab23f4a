"""What crosses sites for the ClusterMesh: the shared CA, and the certificates that each site gets from it.

Both are secret configuration of the stack that uses them. They are made once and change only here, never in an update.
A file encrypted under a passphrase takes the CA to the next site; its certificates are made there, so that no
private key of a site leaves its stack. Leaves out passphrases and printing (`cli.credentials`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.certificates import Pair, faults, fingerprint
from infra.config import Fleet
from infra.config.reader import read
from infra.names import CILIUM_CA_CERT, CILIUM_CA_KEY, MESH_KEYS
from operations import expiry
from operations.authority import check_authority, new_authority, new_leaves
from operations.engine import Engine
from operations.sealed import SealError, opened, seal

KIND = "fleet-authority"
_OTHER_FILE = "export it anew at a site that has it: fleet credentials export <site> <file>"


class CredentialsError(Exception):
    """Nothing was changed; the text says what was found, what was expected and what to do."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a stack has. Private keys: never shown."""

    authority: Pair | None
    leaves: Mapping[str, Pair]  # by role; incomplete ones left out

    @property
    def public(self) -> dict[str, str]:
        """Certificates alone, PEM, by name."""
        ca = {expiry.AUTHORITY: self.authority[0]} if self.authority else {}
        return ca | {role: pair[0] for role, pair in self.leaves.items()}


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a command left behind."""

    held: Held
    made_authority: bool = False
    made_leaves: bool = False
    record: Path | None = None


def held(engine: Engine, site_id: str) -> Held:
    """Raises EngineError where the stack or its passphrase is missing."""
    config = engine.plain(site_id, ("config", "--json"))
    pairs = {role: _pair(config, *keys) for role, keys in MESH_KEYS.items()}
    return Held(
        authority=_pair(config, CILIUM_CA_CERT, CILIUM_CA_KEY),
        leaves={role: pair for role, pair in pairs.items() if pair is not None},
    )


def init(engine: Engine, fleet: Fleet, site_id: str) -> Done:
    """Makes what the stack lacks: the CA of a fleet that has none yet, and the site's certificates."""
    cluster, now = _cluster(fleet, site_id), held(engine, site_id)
    authority = now.authority
    if authority is None:
        _first(engine, fleet, site_id)
        authority = new_authority()
    else:
        _of_the_fleet(fleet, authority)
    sound = set(now.leaves) == set(MESH_KEYS) and not list(faults(authority[0], cluster, now.leaves))
    _sound(authority, _again(site_id))
    leaves = now.leaves if sound else new_leaves(authority, cluster)
    return _keep(engine, site_id, now, authority, leaves)


def export(engine: Engine, fleet: Fleet, site_id: str, passphrase: str) -> str:
    """The CA of a stack, encrypted. Raises CredentialsError."""
    authority = held(engine, site_id).authority
    if authority is None:
        raise CredentialsError(f"{site_id}: found no CA in its stack; make one: fleet credentials init {site_id}")
    _of_the_fleet(fleet, authority)
    _sound(authority, _again(site_id))
    plain = {"kind": KIND, "certificate": authority[0], "key": authority[1]}
    try:
        return seal(json.dumps(plain), passphrase)
    except SealError as error:
        raise CredentialsError(str(error)) from None


def take(engine: Engine, fleet: Fleet, site_id: str, sealed: str, passphrase: str) -> Done:
    """Puts an exported CA into the stack and makes the site's certificates from it."""
    cluster = _cluster(fleet, site_id)
    authority = _unsealed(sealed, passphrase)
    _of_the_fleet(fleet, authority)
    _sound(authority, _OTHER_FILE)
    _of_the_others(engine, fleet, site_id, authority)
    now = held(engine, site_id)
    if now.authority is not None and fingerprint(now.authority[0]) != fingerprint(authority[0]):
        raise CredentialsError(
            f"{site_id}: found another CA in its stack ({fingerprint(now.authority[0])}); expected none, or that of "
            f"the file ({fingerprint(authority[0])}). To go over to it: fleet credentials rotate {site_id} --ca --from "
            "<file>, which breaks the mesh until every site has it"
        )
    sound = set(now.leaves) == set(MESH_KEYS) and not list(faults(authority[0], cluster, now.leaves))
    return _keep(engine, site_id, now, authority, now.leaves if sound else new_leaves(authority, cluster))


def rotate(
    engine: Engine,
    fleet: Fleet,
    site_id: str,
    *,
    authority: bool = False,
    sealed: str | None = None,
    passphrase: str = "",
) -> Done:
    """Issues the site's certificates anew; with `authority` from a new CA, or from the one of a sealed file."""
    cluster, now = _cluster(fleet, site_id), held(engine, site_id)
    if now.authority is None:
        raise CredentialsError(f"{site_id}: found no CA in its stack; make one: fleet credentials init {site_id}")
    if sealed is not None:
        used = _unsealed(sealed, passphrase)
        _sound(used, _OTHER_FILE)
    elif authority:
        used = new_authority()
    else:
        used = now.authority
        _of_the_fleet(fleet, used)
        _sound(used, _again(site_id))
    return _keep(engine, site_id, now, used, new_leaves(used, cluster))


def _cluster(fleet: Fleet, site_id: str) -> str:
    cluster = fleet.sites[site_id].mesh_member
    if cluster is None:
        raise CredentialsError(f"{site_id}: found no main cluster with in_mesh; expected one: there is nothing to make")
    return cluster.name


def _again(site_id: str) -> str:
    """The way on where a stack holds half of an old CA and half of a new one."""
    return (
        f"if a rotation was cut off, run it again: fleet credentials rotate {site_id} --ca, with --from <file> where "
        "another site has the fleet's CA"
    )


def _sound(authority: Pair, remedy: str) -> None:
    try:
        check_authority(authority)
    except (ValueError, TypeError) as error:
        told = f"found a CA that issues nothing: {error}; expected a CA and its own key; {remedy}"
        raise CredentialsError(told) from None


def _unsealed(sealed: str, passphrase: str) -> Pair:
    try:
        plain: Any = json.loads(opened(sealed, passphrase))
        if plain["kind"] != KIND:
            raise CredentialsError("found a file of another kind; expected one that fleet credentials export wrote")
        pair = (str(plain["certificate"]), str(plain["key"]))
        fingerprint(pair[0])
    except SealError as error:
        raise CredentialsError(str(error)) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CredentialsError("found a damaged file; expected one that fleet credentials export wrote") from None
    return pair


def _of_the_fleet(fleet: Fleet, authority: Pair) -> None:
    wanted = fleet.common.cilium.ca_sha256
    try:
        found = fingerprint(authority[0])
    except ValueError:
        raise CredentialsError(
            "found a CA that is no certificate in PEM; replace it: fleet credentials import"
        ) from None
    if wanted is not None and found != wanted:
        raise CredentialsError(
            f"[MSH-03] found a CA with fingerprint {found}; expected {wanted} (common.cilium.ca_sha256): take the "
            "file of a site that has it, or correct the document after rotate --ca"
        )


def _of_the_others(engine: Engine, fleet: Fleet, site_id: str, authority: Pair) -> None:
    """What other sites recorded is compared even where the documents have no fingerprint yet."""
    for other in fleet.sites.keys() - {site_id}:
        record, _ = expiry.load(engine.folder, other)
        recorded = {one.sha256 for one in record.certificates if one.name == expiry.AUTHORITY}
        if recorded - {fingerprint(authority[0])}:
            raise CredentialsError(
                f"[MSH-03] found a file with the CA {fingerprint(authority[0])}; expected that of {other}, "
                f"{', '.join(recorded)} ({expiry.path_of(engine.folder, other).relative_to(engine.folder)}): export it "
                "there and import that file; to give the fleet a new one: fleet credentials rotate --ca, site by site"
            )


def _first(engine: Engine, fleet: Fleet, site_id: str) -> None:
    """A second CA would split the fleet: refused as soon as anything says that there is a first one."""
    how = f"bring it from there: fleet credentials export <site> <file>, then fleet credentials import {site_id} <file>"
    if fleet.common.cilium.ca_sha256 is not None:
        raise CredentialsError(
            f"{site_id}: found no CA in its stack, while common.cilium.ca_sha256 names that of the fleet; {how}"
        )
    for other in fleet.sites:
        data, _ = read(engine.folder / f"Pulumi.{other}.yaml")
        if other != site_id and f"fleet:{CILIUM_CA_CERT}" in ((data or {}).get("config") or {}):
            raise CredentialsError(f"{site_id}: found no CA in its stack, while {other} has one; {how}")


def _keep(engine: Engine, site_id: str, now: Held, authority: Pair, leaves: Mapping[str, Pair]) -> Done:
    """Stores what is new, then records when it ends. Cut off half-way, pairs that do not match are refused by `up`."""
    done = Held(authority=authority, leaves=leaves)
    wanted = {(CILIUM_CA_CERT, CILIUM_CA_KEY): (authority, now.authority)}
    wanted |= {keys: (leaves[role], now.leaves.get(role)) for role, keys in MESH_KEYS.items()}
    for keys, (fresh, old) in wanted.items():
        for key, value, before in zip(keys, fresh, old or ("", ""), strict=True):
            if value != before:
                engine.keep_secret(site_id, f"fleet:{key}", value)
    try:
        record = expiry.write(engine.folder, site_id, done.public)
    except OSError as error:
        raise CredentialsError(
            f"{expiry.path_of(engine.folder, site_id)}: {error.strerror}. The stack has everything, but "
            "when it ends was not recorded: make that a file that can be written, then run fleet credentials init "
            f"{site_id}"
        ) from None
    return Done(
        held=done,
        made_authority=authority != now.authority,
        made_leaves=dict(leaves) != dict(now.leaves),
        record=record,
    )


def _pair(config: Mapping[str, Any], certificate: str, key: str) -> Pair | None:
    found = [(config.get(f"fleet:{name}") or {}).get("value") for name in (certificate, key)]
    return (str(found[0]), str(found[1])) if all(found) else None
