"""The pulumi CLI on a project folder: what is planned, what the state holds, the update itself.

Leaves out what to think of a plan (`operations.guard`) and how it is shown (`cli`). Secrets stay masked, but for
`plain`.
"""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

QUICK_TIMEOUT_S = 300
PREVIEW_TIMEOUT_S = 1800
UPDATE_TIMEOUT_S = 4 * 3600
STOP_PATIENCE_S = 60
_FOLDER = "fleet-engine-"
# What the engine says, and what the person can do. The first that matches; the engine's own words follow.
_CURES = (
    (
        r"no stack named",
        "make the stack once: pulumi stack init {site} (docs/production.md, section 3)",
    ),
    (
        r"incorrect passphrase|passphrase must be set|secrets manager",
        "give this stack's passphrase: export PULUMI_CONFIG_PASSPHRASE_FILE=<file> (docs/production.md, section 3)",
    ),
    (
        r"currently locked",
        "another update of {site} runs: wait for it; if nobody is at work: pulumi cancel -s {site}, then try again",
    ),
    (
        r"PULUMI_ACCESS_TOKEN|unable to open state|\.pulumi/meta\.yaml|dial tcp|no such host|AccessDenied|logged in",
        "the backend of the state does not answer: check pulumi whoami -v, the network and its credentials "
        "(docs/production.md, section 2)",
    ),
)
_DONE = re.compile(
    r"^ ?(?:\+|~|-|\+-|\+\+|--|<|=) +\S+ (?P<name>\S+) (?P<what>created|updated|deleted|replaced|imported)"
)


class EngineError(Exception):
    """The engine could not do it; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Previewed:
    """What `pulumi preview --json` printed, and how it ended."""

    document: dict[str, Any]
    failed: bool

    @property
    def faults(self) -> tuple[str, ...]:
        """What the engine or the program complained of."""
        found = []
        for entry in self.document.get("diagnostics", []):
            text = str(entry.get("message", "")).strip()
            wrong = (
                entry.get("severity") == "error" or text.startswith("error:") or re.match(r"\[[A-Z0-9]+-\d\d\]", text)
            )
            if wrong and "preview failed" not in text:
                found.append(text.removeprefix("error:").strip())
        return tuple(dict.fromkeys(found))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Warnings and acknowledgements of the program: one line each."""
        texts = (str(entry.get("message", "")).strip() for entry in self.document.get("diagnostics", []))
        kept = (text for text in texts if re.match(r"(warning: \[|info: (accepted: \[|\d+ assumed))", text))
        return tuple(dict.fromkeys(kept))


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Runs pulumi for the stacks of one folder."""

    program: Path  # the pulumi binary
    folder: Path  # holds Pulumi.yaml and the stack files
    environment: Mapping[str, str] | None = None  # None: the caller's
    within: Callable[[list[str]], list[str]] = list  # wraps a command line, as a lab's network needs it

    def check(self) -> None:
        """Raises EngineError unless the binary answers in the major version of the program's SDK."""
        said = self._ran(["version"], "").stdout.strip().removeprefix("v")
        wanted = version("pulumi").split(".")[0]
        if said.split(".")[0] != wanted:
            raise EngineError(f"found pulumi {said or 'without a version'}; expected major version {wanted}")

    def preview(self, site: str, environment: Mapping[str, str] | None = None) -> Previewed:
        """The plan of a stack; also where the engine itself refuses it, as it does for protected resources."""
        done = self._ran(["preview", "--json", "--stack", site], site, environment, PREVIEW_TIMEOUT_S, check=False)
        try:
            document = json.loads(done.stdout)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise self._error(site, "preview", done)
        return Previewed(document=document, failed=done.returncode != 0)

    def export(self, site: str) -> dict[str, Any]:
        """The state of a stack, secrets encrypted."""
        return _mapping(self._ran(["stack", "export", "--stack", site], site).stdout, "stack export")

    def plain(self, site: str, arguments: Sequence[str]) -> dict[str, Any]:
        """What a command prints with its secrets in plain text: for comparisons in memory, never shown or kept."""
        done = self._ran([*arguments, "--show-secrets", "--stack", site], site, check=False)
        if done.returncode:
            done.stdout = ""  # that would be the secrets
            raise self._error(site, " ".join(arguments[:2]), done)
        return _mapping(done.stdout, " ".join(arguments[:2]))

    def keep_secret(self, site: str, key: str, value: str) -> None:
        """Encrypts a value into the stack file. It goes by standard input: others can read command lines."""
        self._ran(["config", "set", "--secret", "--raw", key, "--stack", site], site, stdin=value)

    def restore(self, site: str, exported: dict[str, Any]) -> None:
        """Puts a state in place of the one there is."""
        self._ran(["stack", "import", "--stack", site], site, stdin=json.dumps(exported))

    def outputs(self, site: str) -> dict[str, Any]:
        """Stack outputs, secrets masked. Empty before the first update."""
        text = self._ran(["stack", "output", "--json", "--stack", site], site).stdout
        return _mapping(text or "{}", "stack output")

    def up(self, site: str, on_line: Callable[[str], None], environment: Mapping[str, str] | None = None) -> int:
        """Updates a stack without a further preview; returns the exit code. On Ctrl-C the engine is asked to stop."""
        arguments = ["up", "--stack", site, "--skip-preview", "--yes", "--suppress-permalink=true", "--color", "never"]
        with own_temporary_folder() as folder:
            given = self._environment({**(environment or {}), **folder})
            return follow(self._command(arguments), given, on_line, UPDATE_TIMEOUT_S)

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        given = os.environ if self.environment is None else self.environment
        return {**given, "PULUMI_SKIP_UPDATE_CHECK": "true", **(more or {})}

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return self.within([str(self.program), *arguments, "--cwd", str(self.folder), "--non-interactive"])

    def _ran(
        self,
        arguments: Sequence[str],
        site: str,
        environment: Mapping[str, str] | None = None,
        timeout_s: int = QUICK_TIMEOUT_S,
        *,
        stdin: str | None = None,
        check: bool = True,
    ) -> "subprocess.CompletedProcess[str]":
        try:
            with own_temporary_folder() as folder:
                done = subprocess.run(
                    self._command(arguments),
                    env=self._environment({**(environment or {}), **folder}),
                    input=stdin,
                    stdin=subprocess.DEVNULL if stdin is None else None,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=timeout_s,
                    check=False,
                )
        except FileNotFoundError:
            raise EngineError(f"found no program {self.program}; expected the pulumi CLI (fleet toolchain)") from None
        except OSError as error:
            found = f"found {self.program}, which does not start ({error.strerror})"
            raise EngineError(f"{found}; expected the pulumi CLI (fleet toolchain)") from None
        except subprocess.TimeoutExpired:
            raise EngineError(f"pulumi {' '.join(arguments[:2])}: no answer within {timeout_s} s") from None
        if check and done.returncode:
            raise self._error(site, " ".join(arguments[:2]), done)
        return done

    def _error(self, site: str, what: str, done: "subprocess.CompletedProcess[str]") -> EngineError:
        return EngineError(explained(site, f"pulumi {what}", f"{done.stderr}\n{done.stdout}"))


def _mapping(printed: str, what: str) -> dict[str, Any]:
    """What the engine printed as JSON. It may be secret: a message holds none of it."""
    try:
        found = json.loads(printed)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise EngineError(f"pulumi {what}: found an answer that is no JSON object; expected one of the pulumi CLI")
    return found


def follow(
    command: Sequence[str], environment: Mapping[str, str], on_line: Callable[[str], None], limit_s: float
) -> int:
    """Runs an engine and passes each line on; the exit code, negative where a signal ended it.

    On Ctrl-C and when the time is up the engine is asked to stop, and given time to write its state.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # A terminal's Ctrl-C must reach the engine once: twice makes it drop its work. And what wraps it, such as
        # nsenter, may pass no signal on: the group reaches the engine.
        process_group=0,
    )
    watchdog = threading.Timer(limit_s, _end, [process])
    watchdog.daemon = True
    watchdog.start()
    assert process.stdout is not None
    try:
        with process.stdout as lines:
            for line in lines:
                on_line(line.rstrip("\n"))
        return process.wait()
    finally:
        watchdog.cancel()
        _end(process)


@contextlib.contextmanager
def own_temporary_folder(within: Path | None = None) -> Iterator[dict[str, str]]:
    """What to add to an engine's environment: the kubernetes provider writes kubeconfigs, tokens included, into the
    folder of temporary files and leaves them there. This one goes with the run.

    So do the plugins of an engine that was killed. They outlive it and carry on with what they were asked for: a Helm
    record that such a plugin writes late would stand in the way of the next update.
    """
    above = Path(tempfile.gettempdir() if within is None else within).absolute()
    _end_orphans(above)
    with tempfile.TemporaryDirectory(prefix=_FOLDER, dir=above, ignore_cleanup_errors=True) as folder:
        try:
            yield {"TMPDIR": folder}
        finally:
            _end_orphans(above)


def _end_orphans(above: Path) -> None:
    """Ends plugins below whose temporary folder no engine runs any more, those of this user alone."""
    prefix = f"TMPDIR={above / _FOLDER}".encode()
    running: dict[bytes, list[tuple[int, bytes]]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            name = (entry / "cmdline").read_bytes().split(b"\0")[0].rpartition(b"/")[2]
            if name.startswith(b"pulumi"):
                for variable in (entry / "environ").read_bytes().split(b"\0"):
                    if variable.startswith(prefix):
                        running.setdefault(variable, []).append((int(entry.name), name))
    for processes in running.values():
        if all(name != b"pulumi" for _, name in processes):
            for process, _ in processes:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)


def explained(site: str, what: str, text: str) -> str:
    """The engine's complaint as one message that says what to do."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "using pulumi-" not in line]
    said = " ".join([line for line in lines if line.startswith("error:")] or lines)[:600].removeprefix("error:").strip()
    cure = next((cure for pattern, cure in _CURES if re.search(pattern, said)), "see docs/production.md, section 8")
    return f"{site}: {what}: {said or 'no message'}; {cure.format(site=site)}"


def stamp(exported: dict[str, Any], folder: Path) -> str:
    """Names one state and one set of documents: whatever changes in either between preview and update changes it."""
    known = hashlib.sha256(json.dumps(exported.get("deployment"), sort_keys=True).encode())
    for path in sorted(folder.glob("Pulumi*.yaml")):
        known.update(path.name.encode() + b"\0" + path.read_bytes())
    return known.hexdigest()


def telling(line: str) -> str | None:
    """A finished step of an update, short; None for other lines."""
    done = _DONE.match(line)
    if done is None:
        return None
    seconds = re.search(r"\(([\d.]+s)\)", line)
    return f"{done['what']} {done['name']}" + (f" ({seconds[1]})" if seconds else "")


def without_cancellations(lines: Sequence[str]) -> list[str]:
    """Lines without the tracebacks of what a failed step cut off: the program's registrations that waited beside it."""
    kept = list(lines)
    ends = [at for at, line in enumerate(kept) if line.strip() == "Exception: context canceled"]
    for end in reversed(ends):
        start = next((at for at in range(end, -1, -1) if kept[at].strip().startswith("error:")), None)
        if start is not None and any("Traceback" in line for line in kept[start:end]):
            del kept[start : end + 1]
    return kept


def complaints(lines: Sequence[str], noise: Sequence[str]) -> list[str]:
    """The engine's diagnostics with their head, without outputs, cancellations and lines that hold some of `noise`."""
    lines = without_cancellations(lines)
    start = next((at for at, line in enumerate(lines) if line.startswith("Diagnostics:")), max(0, len(lines) - 30))
    stop = next((at for at, line in enumerate(lines) if at > start and line.startswith("Outputs:")), len(lines))
    return [line for line in lines[start:stop] if not any(part in line for part in noise)]


def diagnostics(lines: Sequence[str]) -> list[str]:
    """What an update that failed says of it, without what it says at every run."""
    noise = (": using pulumi-", "expected to have version", "info: ", "warning: ", "update failed")
    return [line for line in complaints(lines, noise)[1:] if line.strip()]


def _end(process: "subprocess.Popen[str]") -> None:
    """Asks the engine to stop, as Ctrl-C does, then insists."""
    for number, patience_s in ((signal.SIGINT, STOP_PATIENCE_S), (signal.SIGKILL, STOP_PATIENCE_S)):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience_s)
