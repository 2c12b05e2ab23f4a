"""Generated artefacts of the sites: printed, written below `config/`, or compared with what lies there."""

from pathlib import Path

from cli import documents
from cli.faults import Stop
from cli.screen import say, warn
from infra.vyos import artefacts


def run(folder: Path | None, site: str | None, *, every: bool, write: bool, compare: bool) -> int:
    if (site is None) != every:
        raise Stop("expected the name of a site, or --all")
    if write and compare:
        raise Stop("expected one of --write and --check")
    root = folder or documents.ROOT
    judgement = documents.judged(root)
    if site is not None:
        documents.known_site(judgement, site)
    if judgement.fleet is None or judgement.stops:
        documents.show(judgement)
        say("Nothing was rendered.")
        return 1
    rendered: dict[str, str] = {}
    for one in judgement.sites if site is None else (site,):
        rendered |= artefacts.files(judgement.fleet, one)
    if compare:
        return _compare(root, rendered, complete=every)
    for path, text in rendered.items():
        if write:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
            say(f"wrote {path}")
        else:
            print(f"# {path}\n{text}")
    for path in _left_over(root, rendered) if every and write else ():
        (root / path).unlink()
        say(f"removed {path}: its site has no document")
    return 0


def _compare(root: Path, rendered: dict[str, str], *, complete: bool) -> int:
    stale = [path for path, text in rendered.items() if not _holds(root / path, text)]
    stale += _left_over(root, rendered) if complete else []
    for path in stale:
        warn(f"{path} is not what the documents say; run: ./fleet render --all --write")
    return 1 if stale else 0


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text


def _left_over(root: Path, rendered: dict[str, str]) -> list[str]:
    """Files of sites that are gone, in the folders of the parts alone."""
    found = (path for part in artefacts.PARTS for path in sorted((root / artefacts.FOLDER / part).glob("*.conf")))
    return [path for one in found if (path := one.relative_to(root).as_posix()) not in rendered]
