"""`fleet credentials`: passphrases, questions and printing. No secret is ever printed or an argument."""

import getpass
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from cli import documents
from cli.engine import engine
from cli.faults import Stop
from cli.question import agreed
from cli.screen import say, show_json, table
from infra.certificates import expiry, fingerprint, parsed, soon
from infra.config import Fleet
from infra.names import MESH_KEYS
from operations import credentials
from operations.credentials import CredentialsError, Done, Held
from operations.engine import Engine, EngineError
from operations.expiry import AUTHORITY
from operations.sealed import LONGEST_FILE

VARIABLE = "FLEET_CREDENTIALS_PASSPHRASE"
BREAKS = (
    "a new CA breaks the mesh: clusters of other sites turn this site's certificates down until each of them has the "
    "new CA too (export here, rotate --ca --from there) and was updated. Established flows between sites go on; what "
    "is new in one site stays unknown to the others meanwhile. Hubble's certificates change with it. Afterwards "
    "restart what keeps the old CA: kubectl -n kube-system rollout restart ds/cilium deploy/clustermesh-apiserver"
)


def init(site_id: str) -> None:
    with _told():
        runs, fleet = engine(documents.ROOT), _fleet(site_id)
        _report(site_id, fleet, credentials.init(runs, fleet, site_id))


def export(site_id: str, file: Path) -> None:
    if os.path.lexists(file):
        raise Stop(f"{file}: found a file; expected none there: name another, nothing is overwritten")
    with _told():
        runs, fleet = engine(documents.ROOT), _fleet(site_id)
        sealed = credentials.export(runs, fleet, site_id, _passphrase(new=True))
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as target:
            target.write(sealed)
    except OSError as error:
        raise Stop(f"{file}: {error.strerror}; name a file in a folder that you may write to") from None
    say(f"wrote {file}: the CA of the fleet, encrypted. Whoever has file and passphrase can join the mesh.")


def take(site_id: str, file: Path) -> None:
    with _told():
        runs, fleet = engine(documents.ROOT), _fleet(site_id)
        sealed = _read(file)
        _report(site_id, fleet, credentials.take(runs, fleet, site_id, sealed, _passphrase(new=False)))


def rotate(site_id: str, *, authority: bool, source: Path | None, yes: bool) -> None:
    if source is not None and not authority:
        raise Stop("found --from without --ca; expected both: the file holds a CA")
    with _told():
        runs, fleet = engine(documents.ROOT), _fleet(site_id)
        sealed = _read(source) if source else None
        if authority:
            say(BREAKS)
            if not yes and not agreed(site_id, f"Replace the CA of {site_id}?"):
                say(f"{site_id}: nothing was changed.")
                return
        phrase = _passphrase(new=False) if sealed is not None else ""
        done = credentials.rotate(runs, fleet, site_id, authority=authority, sealed=sealed, passphrase=phrase)
        _report(site_id, fleet, done)


def show(site_id: str, *, as_json: bool) -> None:
    with _told():
        runs: Engine = engine(documents.ROOT)
        _fleet(site_id)
        held = credentials.held(runs, site_id)
    if as_json:
        show_json(
            [dict(zip(("name", "subject", "sha256", "expires", "remark"), row, strict=True)) for row in _rows(held)]
        )
    else:
        table(("certificate", "subject", "sha256", "expires", ""), _rows(held))


def _report(site_id: str, fleet: Fleet, done: Done) -> None:
    table(("certificate", "subject", "sha256", "expires", ""), _rows(done.held))
    if done.made_authority:
        say(f"{site_id}: its stack has a CA that it did not have before.")
    say(f"{site_id}: certificates {'issued' if done.made_leaves else 'unchanged: they are sound'}.")
    if done.record:
        say(f"wrote {done.record.relative_to(documents.ROOT)}: commit it together with Pulumi.{site_id}.yaml.")
    assert done.held.authority is not None
    found = fingerprint(done.held.authority[0])
    if fleet.common.cilium.ca_sha256 != found:
        say(f"write into Pulumi.yaml: cilium.ca_sha256: {found}; and delete cilium.ca_sha256 from assumed there.")
    if done.made_leaves:
        say(f"They take effect with the next update: fleet up {site_id}.")


def _rows(held: Held) -> list[tuple[str, str, str, str, str]]:
    now, rows = datetime.now(UTC), []
    for name in (AUTHORITY, *MESH_KEYS):
        pem = held.public.get(name)
        if pem is None:
            rows.append((name, "", "", "", "missing"))
            continue
        try:
            subject, when = parsed(pem).subject.rfc4514_string(), expiry(pem)
            rows.append((name, subject, fingerprint(pem), when.strftime("%Y-%m-%d"), soon(when, now)))
        except ValueError:
            rows.append((name, "", "", "", "no certificate in PEM"))
    return rows


def _passphrase(*, new: bool) -> str:
    """From the environment, a file it names, or the terminal; never an argument."""
    given, named = os.environ.get(VARIABLE), os.environ.get(f"{VARIABLE}_FILE")
    if given:
        return given
    if named:
        return _read(Path(named)).rstrip("\n")
    if not sys.stdin.isatty():
        raise Stop(
            f"found no terminal to ask at; expected the passphrase in {VARIABLE} or a file named by {VARIABLE}_FILE"
        )
    typed = getpass.getpass("Passphrase of the file: ")
    if new and getpass.getpass("Once more: ") != typed:
        raise Stop("found two different passphrases; nothing was written")
    return typed


def _read(file: Path) -> str:
    try:
        with file.open("rb") as source:
            data = source.read(LONGEST_FILE + 1)
        if len(data) > LONGEST_FILE:
            raise Stop(f"{file}: found more than {LONGEST_FILE} bytes; expected a file of fleet credentials export")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "no text"
        raise Stop(f"{file}: {said}; expected a readable file") from None


def _fleet(site_id: str) -> Fleet:
    judgement = documents.judged(documents.ROOT)
    documents.known_site(judgement, site_id)
    if judgement.fleet is None:
        raise Stop("found documents that cannot be read; see: fleet check")
    return judgement.fleet


@contextmanager
def _told() -> Iterator[None]:
    """Errors that are messages to the person."""
    try:
        yield
    except (CredentialsError, EngineError) as error:
        raise Stop(str(error)) from error
    except EOFError:
        raise Stop("found the end of the input; expected an answer") from None
