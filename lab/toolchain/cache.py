"""The folder that keeps the toolchain of one user: where things lie, one writer at a time, nothing half-written.

    <root>/programs/<program>-<digest>   one binary for each program and pin, shared by all sets of pins
    <root>/<key>/bin/                    the binaries of one set of pins: hard links into programs/

Left out: removing what older pins left behind; `rm -r` of the whole root is always safe and costs one cold build.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lab import LabError
from lab.toolchain.pins import PROGRAMS, Program

LOCK_WAIT_S = 2 * 60 * 60  # two cold builds; whoever holds the lock that long is stuck
_TOLD_EVERY_S = 30


class ToolchainError(LabError):
    """The toolchain is incomplete; the text says what is missing, what was tried and what to do."""


def root() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules: a relative path is to be ignored.
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "fleet" / "toolchain"


def bin_directory() -> Path:
    """Where the binaries of the present pins are or will be; says nothing about whether they are there."""
    key = hashlib.sha256("\0".join(program.digest() for program in PROGRAMS).encode()).hexdigest()[:16]
    return root() / key / "bin"


def stored(program: Program) -> Path:
    return root() / "programs" / f"{program.name}-{program.digest()[:16]}"


def origin(program: Program) -> str:
    """Where the stored binary came from, in words for the person at the keyboard."""
    with contextlib.suppress(OSError):
        return stored(program).with_suffix(".origin").read_text().strip()
    return "unknown"


def publish(program: Program, complete: Path, origin_text: str) -> None:
    """Moves a complete binary into place. It must lie on the cache's file system: a rename is all or nothing."""
    complete.chmod(0o755)
    place = stored(program)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.with_suffix(".origin").write_text(origin_text + "\n")
    complete.replace(place)


def link(program: Program) -> None:
    """Puts the stored binary into the directory of the present pins."""
    wanted = bin_directory() / program.name
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with workspace() as folder:
        new = folder / program.name
        try:
            new.hardlink_to(stored(program))
        except OSError:  # a file system without hard links
            shutil.copy2(stored(program), new)
        new.replace(wanted)


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """An empty folder on the cache's file system that is gone afterwards, whatever happens."""
    root().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=root()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def only_writer(report: Callable[[str], None], wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Holds the lock of the cache; waits for whoever holds it, and says so."""
    place = root() / "lock"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle = place.open("a+")
    except OSError as error:
        raise ToolchainError(
            f"cannot write to {place.parent}: {error.strerror}; set XDG_CACHE_HOME elsewhere"
        ) from error
    with handle:
        _lock(handle.fileno(), place, report, wait_s)
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        _sweep()
        yield  # closing the file releases the lock, as does the death of this process


def _lock(descriptor: int, place: Path, report: Callable[[str], None], wait_s: float) -> None:
    begun = time.monotonic()
    told = -_TOLD_EVERY_S * 1.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - begun
            holder = place.read_text().strip() or "unknown"
            if waited > wait_s:
                raise ToolchainError(
                    f"process {holder} has been preparing the toolchain for over {wait_s / 60:.0f} min; "
                    f"end it and run this again, what is complete is kept"
                ) from None
            if waited - told >= _TOLD_EVERY_S:
                told = waited
                report(f"waiting: process {holder} is preparing the toolchain ({waited:.0f} s)")
            time.sleep(min(1.0, wait_s))


def _sweep() -> None:
    """Removes work folders of processes that were killed; the caller holds the lock, so none is in use."""
    for folder in root().glob("work-*"):
        shutil.rmtree(folder, ignore_errors=True)


def require_space(gib: float, folders: dict[str, Path]) -> None:
    """Raises ToolchainError when a file system that a build fills has less free than `gib`."""
    for what, folder in folders.items():
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(there).free / 2**30
        if free < gib:
            raise ToolchainError(
                f"{what} ({folder}): {free:.1f} GiB free, a build of what is missing takes up to {gib:.0f} GiB; "
                f"free some space, or set XDG_CACHE_HOME, GOCACHE and GOMODCACHE to a larger disk"
            )
