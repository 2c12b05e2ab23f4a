"""Child processes of the stand-in: started with a log file, stopped in order, and dead when this process is."""

import asyncio
import ctypes
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import log
from .log import Fatal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def binary(name: str) -> str:
    """Path of a program of the lab's toolchain; Fatal if it is in none of the places."""
    for folder in (os.environ.get("FLEET_LAB_BIN", ""), "/opt/fleet-lab/bin"):
        if folder and os.access(Path(folder, name), os.X_OK):
            return str(Path(folder, name))
    # never a link in /usr/local/bin: that one leads back to this program
    found = shutil.which(name, path="/usr/bin:/bin")
    if found:
        return found
    raise Fatal(f"program {name} not found in FLEET_LAB_BIN or /opt/fleet-lab/bin; build the lab's toolchain first")


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """One running program; its output goes to a file that is emptied at each start."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log_file: Path) -> None:
        self.name = name
        self.log_file = log_file
        self._process = process

    @classmethod
    async def start(cls, name: str, argv: Sequence[str], log_file: Path, env: Mapping[str, str]) -> "Child":
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **env},
                preexec_fn=_die_with_parent,
            )
        return cls(name, process, log_file)

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def wait(self) -> int:
        return await self._process.wait()

    async def must_run(self) -> None:
        """Raises Fatal when the program ends, with the end of what it wrote."""
        status = await self.wait()
        for line in self.tail(4):
            log.error(f"{self.name}: {line}")
        raise Fatal(f"{self.name} exited: status {status}")

    async def stop(self, patience_s: float = 8) -> None:
        if not self.running:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), patience_s)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def tail(self, lines: int) -> list[str]:
        return self.log_file.read_text(errors="replace").splitlines()[-lines:]


async def run(argv: Sequence[str], timeout_s: float = 60) -> tuple[int, str]:
    """Runs a short program; status 124 when it had to be killed."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        preexec_fn=_die_with_parent,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        process.kill()
        await process.wait()
        return 124, f"{argv[0]} took longer than {timeout_s:.0f} s"
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output.decode(errors="replace")
