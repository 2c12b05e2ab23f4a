"""What the program of a Git revision would declare: its own `fleet plan`, run in a folder of its own.

Offline and without credentials: the environment of the run holds none. Leaves out how plans are compared (`cli.diff`).
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from cli.faults import Stop
from infra.config.loading import stack_files

ROOT = Path(__file__).resolve().parents[1]
WORKING_TREE = "."
PLAN_TIMEOUT_S = 180
GIT_TIMEOUT_S = 60
AT_ONCE = 2
# All that a plan needs; a revision that somebody sent in gets nothing more.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SYSTEMROOT")
Resources = dict[tuple[str, str], dict[str, Any]]  # by type and name


@dataclass(frozen=True, kw_only=True)
class SitePlan:
    """The resources of a site at a revision, or why there are none."""

    resources: Resources | None = None  # None: it could not be planned
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Revision:
    """One side of a comparison."""

    name: str  # as shown: a short commit, or `working tree`
    sites: dict[str, SitePlan] = field(default_factory=dict)  # sites it has; those left out were not asked for


def default_base() -> str:
    """Where the present branch left main."""
    for main in ("main", "origin/main"):
        done = _git("merge-base", main, "HEAD", check=False)
        if done.returncode == 0:
            return done.stdout.decode().strip()
    raise Stop("found neither main nor origin/main to compare with; expected a base: fleet diff BASE")


def planned(revision: str, wanted: Sequence[str]) -> Revision:
    """Plans the wanted sites (all where none is named) at a revision."""
    with _folder_of(revision) as (folder, name):
        sites = [site for site in stack_files(folder) if not wanted or site in wanted]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            plans = list(pool.map(lambda site: plan_in(folder, site), sites))
    return Revision(name=name, sites=dict(zip(sites, plans, strict=True)))


def plan_in(folder: Path, site: str) -> SitePlan:
    """Runs the program of a folder as it stands there."""
    if not (folder / "cli" / "plan.py").is_file():
        return SitePlan(faults=("this revision is older than `fleet plan`",))
    environment = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cli", "plan", site, "--json"],
            cwd=folder,
            env=environment | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PLAN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return SitePlan(faults=(f"its plan took longer than {PLAN_TIMEOUT_S} s",))
    return understood(done.returncode, done.stdout, done.stderr)


def understood(code: int, out: str, err: str) -> SitePlan:
    """What `fleet plan --json` said: resources, or the judgement that forbids them."""
    try:
        said = json.loads(out)
    except (ValueError, RecursionError):
        said = None
    with suppress(KeyError, TypeError, AttributeError):  # another form, of another time: said below
        if code == 0 and isinstance(said, list):
            return SitePlan(resources={(one["type"], one["name"]): dict(one) for one in said})
        if isinstance(said, dict) and said.get("violations"):
            return SitePlan(faults=tuple(_line(one) for one in said["violations"]))
    last = [line.strip() for line in err.splitlines() if line.strip(" │╭╮╰╯─")]
    return SitePlan(faults=(f"its plan ended with exit code {code}: {last[-1] if last else 'no message'}",))


def _line(violation: dict[str, str]) -> str:
    return "[{id}] {path}: found {found}; expected {expected}; {remedy}".format(**violation)


@contextmanager
def _folder_of(revision: str) -> Iterator[tuple[Path, str]]:
    if revision == WORKING_TREE:
        yield ROOT, "working tree"
        return
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", check=False)
    if commit.returncode:
        raise Stop(f"found no revision {revision}; expected a branch, tag or commit, or `.` for the working tree "
                   "(a shallow clone lacks most: git fetch --unshallow)")  # fmt: skip
    full = commit.stdout.decode().strip()
    archive = _git("archive", "--format=tar", full).stdout
    with tempfile.TemporaryDirectory(prefix="fleet-diff-") as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as packed:
            try:
                packed.extractall(folder, filter="data")
            except tarfile.FilterError as error:
                raise Stop(f"{revision}: {error}; expected no link that leads out of the folder") from None
        yield Path(folder), full[:12]


def _git(*arguments: str, check: bool = True) -> "subprocess.CompletedProcess[bytes]":
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise Stop("found no git; expected it on the PATH") from None
    except subprocess.TimeoutExpired:
        raise Stop(f"git {arguments[0]}: no answer within {GIT_TIMEOUT_S} s") from None
    if check and done.returncode:
        raise Stop(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done
