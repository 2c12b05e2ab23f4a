"""Brings every program into one directory, from the first source that has it, and tells how far it is.

The order of sources for each program: a binary on PATH (for a Pulumi plugin: among the engine's plugins) in exactly the
pinned version, an official download whose SHA-256 is known, a build. Left out: replacing a binary that is there
already. Found ones are copied, since nodes of the lab see this directory but not the rest of the machine; a
version manager's wrapper script would not survive that and is passed over.
"""

import errno
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.toolchain import cache, compiler, downloads
from lab.toolchain.cache import ToolchainError, bin_directory
from lab.toolchain.pins import COLD_BUILD_GIB, GO_WHEEL, PROGRAMS, Program

_ASKING_S = 10.0
_COLD_MINUTES = sum(program.cold_minutes for program in PROGRAMS)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One program, as `fleet toolchain` prints it."""

    program: str
    version: str
    """Pinned version; where we can only build another commit, both."""
    source: str
    """Where it came from, or would come from."""
    path: Path
    present: bool
    size_bytes: int
    """0 while it is missing."""
    minutes: float
    """Expected time until it is there, with empty caches on two cores."""


def plan() -> list[Planned]:
    """What `ensure` would do; reads, and asks programs on PATH for their version, but changes nothing."""
    releases = downloads.releases()
    planned = []
    for program in PROGRAMS:
        path = bin_directory() / program.name
        present = path.exists()
        source, minutes = _expected(program, releases)
        planned.append(
            Planned(
                program=program.name,
                version=_version(program),
                source=cache.origin(program) if present else source,
                path=path,
                present=present,
                size_bytes=path.stat().st_size if present else 0,
                minutes=0.0 if present else minutes,
            )
        )
    return planned


def _version(program: Program) -> str:
    return program.version if program.line is None else f"{program.version}, or {program.built_version} when built"


def _expected(program: Program, releases: dict[str, downloads.Release]) -> tuple[str, float]:
    if cache.stored(program).exists():
        return cache.origin(program), 0.0
    if found := _installed(program):
        return f"copied from {found}", 0.0
    if release := releases.get(program.name):
        return f"downloaded from {release.url}", 1.0
    return _built(program, None), program.cold_minutes


def _built(program: Program, go: compiler.Go | None) -> str:
    found = go or compiler.go_on_path()
    what = program.pinned_by if program.package == "." else program.package
    return f"built from {what} v{program.commit} with Go {found.version if found else GO_WHEEL + ' (fetched)'}"


def ensure(report: Callable[[str], None]) -> Path:
    """Returns the directory that holds every program, after bringing what is missing.

    A cold build takes 30 to 40 minutes on two cores; `report` gets a line for each step and every 20 seconds. Raises
    ToolchainError when something stays missing. An interrupt leaves complete binaries only; the next call goes on.
    """
    if not _missing():
        return bin_directory()
    with cache.only_writer(report):
        missing = _missing()  # another process may have brought them while we waited
        try:
            _bring(missing, report)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise
            raise ToolchainError(
                f"{error.filename or cache.root()}: {error.strerror}; what is complete is kept. "
                f"Make room there or set XDG_CACHE_HOME elsewhere, then run this again"
            ) from error
    return bin_directory()


def _missing() -> list[Program]:
    return [program for program in PROGRAMS if not (bin_directory() / program.name).exists()]


def _bring(missing: list[Program], report: Callable[[str], None]) -> None:
    releases = downloads.releases()
    absent = [program for program in missing if not cache.stored(program).exists()]
    for place, program in enumerate(absent, start=1):
        begun = time.monotonic()
        left = sum(later.cold_minutes for later in absent[place - 1 :])
        step = f"{program.name} {_version(program)} ({place} of {len(absent)})"
        origin = _bring_one(program, releases.get(program.name), step, left, report)
        size = cache.stored(program).stat().st_size
        report(f"{program.name}: ready after {time.monotonic() - begun:.0f} s, {size >> 20} MB, {origin}")
    for program in missing:
        cache.link(program)


def _bring_one(
    program: Program, release: downloads.Release | None, step: str, left: float, report: Callable[[str], None]
) -> str:
    tried = []
    with cache.workspace() as folder:
        if found := _installed(program):
            complete = Path(shutil.copyfile(found, folder / program.name))
            cache.publish(program, complete, origin := f"copied from {found}")
            return origin
        tried.append("no such version on this machine")
        if release is None:
            tried.append(f"no official download (no SHA-256 known; one may be given in {downloads.settings_file()})")
        else:
            report(f"{step}: downloading {release.url}")
            try:
                complete = downloads.download(release, program.name, folder, report)
            except downloads.Unreachable as error:
                report(f"{program.name}: {error}; building it instead")
                tried.append(f"download failed ({error})")
            else:
                cache.publish(program, complete, origin := f"downloaded from {release.url}")
                return origin
    try:
        go = compiler.obtain_go(report)
        cache.require_space(max(1.0, COLD_BUILD_GIB * left / _COLD_MINUTES), compiler.fills(go))
        report(
            f"{step}: building; {_minutes(program.cold_minutes)} with empty caches, {_minutes(left)} for all the rest"
        )
        with cache.workspace() as folder:
            cache.publish(program, compiler.build(program, go, folder, report), origin := _built(program, go))
    except ToolchainError as error:
        raise ToolchainError(f"{error}\n{program.name} was also looked for elsewhere: {'; '.join(tried)}.") from error
    return origin


def _minutes(expected: float) -> str:
    """On two cores."""
    return f"about {expected:.0f} min" if expected >= 1 else "under a minute"


def _installed(program: Program) -> Path | None:
    """A binary of exactly the pinned version that this machine has already."""
    if not program.version_args:
        home = Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")
        name = program.name.removeprefix("pulumi-")
        plugin = home / "plugins" / f"{name}-v{program.version}" / program.name
        return plugin if _is_binary(plugin) else None
    found = shutil.which(program.name)
    if found is None or not _is_binary(Path(found)):
        return None
    quiet = os.environ | {"PULUMI_SKIP_UPDATE_CHECK": "true"}
    try:
        shown = subprocess.run(
            [found, *program.version_args],
            check=False,
            capture_output=True,
            text=True,
            timeout=_ASKING_S,
            env=quiet,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    first = shown.stdout.strip().partition("\n")[0]
    exact = rf"(?<![\w.])v?{re.escape(program.version)}(?![\w.+-])"
    return Path(found).resolve() if re.search(exact, first) else None


def _is_binary(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False
