"""Commands about a site's router. Reading a configuration touches no network and prints no secret."""

import sys
from pathlib import Path

from cli import documents
from cli.faults import Stop
from cli.screen import warn
from infra.vyos import artefacts
from infra.vyos.ownership import difference
from infra.vyos.paths import commands
from infra.vyos.statements import Unreadable, deletion, read, release_line

LIMIT = 16 << 20  # bytes; a saved configuration has some kilobytes
EQUAL, DIFFERENT, INCOMPARABLE = range(3)


def diff(folder: Path | None, site: str, file: str) -> int:
    try:
        return _diff(folder or documents.ROOT, site, file)
    except (Stop, Unreadable) as error:
        warn(str(error))
        return INCOMPARABLE


def _diff(root: Path, site: str, file: str) -> int:
    judgement = documents.judged(root)
    documents.known_site(judgement, site)
    if judgement.fleet is None or judgement.stops:
        raise Stop("the documents have faults; run: fleet check")
    version = judgement.fleet.sites[site].vyos.version
    text = _text(file)
    line = release_line(text)
    if line not in (None, version):
        raise Stop(f"found a configuration of VyOS {line}; expected {version}; correct {site}.vyos.version")
    found = difference(read(text), artefacts.statements(judgement.fleet, site), version)
    for statement in found.delete:
        print(deletion(statement))
    for line_to_set in commands(found.set, version):
        print(line_to_set)
    for statement in found.open:
        warn(f"to be put in by a person: {' '.join(statement)}")
    for obstacle in found.obstacles:
        warn(f"in the way: {obstacle}")
    return DIFFERENT if found or found.obstacles else EQUAL


def _text(file: str) -> str:
    try:
        if file == "-":
            data = sys.stdin.buffer.read(LIMIT + 1)
        else:  # a pipe too, as `<(ssh ...)` is one
            with Path(file).open("rb") as source:
                data = source.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise Stop(f"found more than {LIMIT >> 20} MiB; expected the configuration of a router")
        return data.decode("utf-8")
    except OSError as error:
        raise Stop(
            f"{file}: {(error.strerror or 'unreadable').lower()}; expected the output of `show configuration commands`"
        ) from error
    except UnicodeDecodeError as error:
        raise Stop(f"{file}: found no text; expected the configuration of a router") from error
