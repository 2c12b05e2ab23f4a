"""`fleet test`: everything that CI runs, in order, each step named with its time; the first failing step ends it.

FLEET_TEST_BUDGET_S bounds the whole run, FLEET_TEST_COLD_BUDGET_S one that has to build the toolchain. What finds no
time is named at the end; with a toolchain that was complete at the start that fails the run, since then only the tests
themselves can have become slow. Leaves out what a step checks: that stands in pyproject.toml and in the tests.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cli.documents import ROOT
from cli.screen import say
from lab.toolchain import PROGRAMS, bin_directory
from lab.toolchain.cache import root as cache_root

SCRIPTS = ROOT / "infra/k3s/scripts"
# Scripts that the program concatenates behind the library, as `infra.k3s.cluster` does.
JOINED = (("server", "identity"),)
PYTHON = (sys.executable, "-m")
BIN = Path(sys.executable).parent
LAB = "lab and not rehearsal"  # as pytest chooses
NOTHING_COLLECTED = 5  # exit code of pytest
# They need nothing of the lab that the others share, so they run beside those: a lab waits for most of its time.
WITH_A_LAB_OF_THEIR_OWN = (
    "interruptions",
    "k3s_standin",
    "nodes",
    "providers",
    "pve",
    "toolchain",
    "units",
    "import",
)
MARGIN_S = 20  # kept for the last test to end, and for taking the lab down
AFTER_THE_OTHERS = ("nice", "-n", "5")  # what runs beside has time to spare
LAB_AT_LEAST_S = 240  # below that the lab tests cannot begin
TERM_S, KILL_S = 30, 10


@dataclass(frozen=True)
class Step:
    name: str
    command: tuple[str, ...]
    stdin: str = ""
    shown: bool = False  # its output as it comes; else only when it fails


@dataclass(frozen=True)
class Outcome:
    code: int
    timed_out: bool = False


def run(fast: bool, arguments: Sequence[str]) -> int:
    """Exit code of the whole run."""
    began = time.monotonic()
    warm = fast or _toolchain_complete()
    budget = _budget(warm)
    dropped: list[str] = []
    for step in [
        *_static_steps(),
        _pytest("tests without the lab", ["-n", "auto", "--dist", "loadfile", *arguments]),
    ]:
        outcome = _run(step, budget - (time.monotonic() - began))
        if outcome.timed_out:
            say(f"{step.name}: no time left of FLEET_TEST_BUDGET_S={budget:.0f}")
            return 1
        if not _good(step, outcome, arguments):
            return outcome.code
    if not fast:
        code = _lab(arguments, began, budget, dropped, warm)
        if code:
            return code
    for name in dropped:
        say(f"not run for lack of time: {name}")
    if dropped and warm:
        say("the toolchain was complete at the start, so the tests themselves took too long: failed")
        return 1
    say(f"all steps passed in {time.monotonic() - began:.0f} s")
    return 0


def rehearse(arguments: Sequence[str]) -> int:
    """Exit code of the rehearsals alone, which CI has no time for."""
    return _run(_pytest("rehearsals in the lab", ["-m", "rehearsal", "tests/lab", *arguments]), float("inf")).code


def _lab(arguments: Sequence[str], began: float, budget: float, dropped: list[str], warm: bool) -> int:
    left = budget - (time.monotonic() - began) - MARGIN_S
    if not _toolchain_complete():
        build = Step("toolchain of the lab", (*PYTHON, "cli", "toolchain", "--build"), shown=True)
        outcome = _run(build, left - LAB_AT_LEAST_S) if left > LAB_AT_LEAST_S else Outcome(1, timed_out=True)
        if outcome.timed_out:
            dropped.append("all tests of the lab (its toolchain is not complete; what is built is kept)")
            return 0
        if outcome.code:
            return outcome.code
        left = budget - (time.monotonic() - began) - MARGIN_S
    if left < LAB_AT_LEAST_S:
        dropped.append("all tests of the lab")
        return 0
    # Tests that would begin after the deadline are dropped by tests/conftest.py, which then names them.
    deadline = "" if budget == float("inf") else str(time.time() + left)
    more = {"FLEET_TEST_DEADLINE": deadline, "FLEET_TEST_DROPPED_FAIL": str(int(warm))}
    shared, beside = ["-m", LAB, *arguments], None
    if all(argument.startswith("-") for argument in arguments):  # else they may name files
        alone = [f"tests/lab/test_{name}.py" for name in WITH_A_LAB_OF_THEIR_OWN]
        shared += ["tests/lab", *(f"--ignore={path}" for path in alone)]
        beside = _pytest("tests in labs of their own", ["-m", LAB, *arguments, *alone])
        beside = replace(beside, command=(*AFTER_THE_OTHERS, *beside.command))
    step = _pytest("tests in the lab", shared)
    with _beside(beside, more) as other_ended:
        began_lab = time.monotonic()
        outcome = _run(step, left + MARGIN_S, more)
        other = other_ended(max(TERM_S, left + MARGIN_S - (time.monotonic() - began_lab)))
    for ran, seen in ((step, outcome), (beside, other)):
        if seen.timed_out:
            dropped.append("a part of the tests in the lab: they were ended")
        elif ran is not None and not _good(ran, seen, arguments):
            return seen.code
    return 0


def _good(step: Step, outcome: Outcome, arguments: Sequence[str]) -> bool:
    """Arguments may choose tests of one of the two runs only."""
    return not outcome.code or (outcome.code == NOTHING_COLLECTED and bool(arguments) and "pytest" in step.command)


def _static_steps() -> Iterator[Step]:
    yield Step("format", (*PYTHON, "ruff", "format", "--check", "."))
    yield Step("lint", (*PYTHON, "ruff", "check", "."))
    yield Step(
        "types",
        (
            *PYTHON,
            "mypy",
            "--strict",
            f"--cache-dir={cache_root().parent / 'mypy'}",
            "infra",
            "cli",
            "lab",
            "operations",
            "policy",
        ),
    )
    yield Step("imports", (str(BIN / "lint-imports"),))
    shellcheck = str(BIN / "shellcheck")
    library = (SCRIPTS / "lib.sh").read_text(encoding="utf-8")
    scripts = [path for path in sorted(SCRIPTS.glob("*.sh")) if path.stem != "lib"]
    joined = [(path.stem,) for path in scripts if not _is_shell(path) and path.stem != "identity"]
    for names in (*joined, *JOINED):
        script = "\n".join([library, *((SCRIPTS / f"{name}.sh").read_text(encoding="utf-8") for name in names)])
        yield Step(f"shellcheck {'+'.join(names)}.sh", (shellcheck, "--shell=sh", "-"), stdin=script)
    workflows = sorted((ROOT / ".github/scripts").glob("*.sh"))
    files = [ROOT / "fleet", ROOT / ".ci/run", *workflows, *scripts, *sorted((ROOT / "lab/standins").rglob("*"))]
    shell = [str(path.relative_to(ROOT)) for path in files if path.is_file() and _is_shell(path)]
    yield Step(f"shellcheck {' '.join(Path(path).name for path in shell)}", (shellcheck, *shell))


def _is_shell(path: Path) -> bool:
    """Whether it is a program of its own, and no part of one."""
    with path.open("rb") as file:
        first = file.readline()
    return first.startswith(b"#!") and first.rstrip().endswith((b"/sh", b"bash"))


def _pytest(name: str, arguments: Sequence[str]) -> Step:
    # The file is named, since pytest would look for it beside any folder among the arguments.
    return Step(name, (*PYTHON, "pytest", "-c", "pyproject.toml", *arguments), shown=True)


def _run(step: Step, limit_s: float, more: dict[str, str] | None = None) -> Outcome:
    """Runs a step in a process group of its own, so that nothing of it outlives the step."""
    if limit_s <= 0:
        return Outcome(1, timed_out=True)
    if step.shown:
        say(f"--- {step.name}")
    began = time.monotonic()
    process = subprocess.Popen(
        step.command,
        cwd=ROOT,
        stdin=subprocess.PIPE if step.stdin else subprocess.DEVNULL,
        stdout=None if step.shown else subprocess.PIPE,
        stderr=None if step.shown else subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(more or {})},
    )
    output, timed_out = "", False
    try:
        output, _ = process.communicate(step.stdin or None, None if limit_s == float("inf") else limit_s)
    except subprocess.TimeoutExpired as expired:
        timed_out = True
        output = expired.output.decode(errors="replace") if isinstance(expired.output, bytes) else ""
    finally:
        _end(process)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
    say(f"{step.name}: {_verdict(process.returncode, timed_out)}, {time.monotonic() - began:.1f} s")
    if process.returncode and output:
        print(output, end="" if output.endswith("\n") else "\n", flush=True)
    return _outcome(process.returncode, timed_out)


def _verdict(code: int, timed_out: bool) -> str:
    return "out of time" if timed_out else "ok" if code == 0 else f"failed (exit code {code})"


def _outcome(code: int, timed_out: bool) -> Outcome:
    """A signal that ended a step, and a time that was up, are failures like any."""
    return Outcome(code if code > 0 else 1 if code or timed_out else 0, timed_out)


@contextmanager
def _beside(step: Step | None, more: dict[str, str]) -> Iterator[Callable[[float], Outcome]]:
    """Runs a step while the caller runs another; what is yielded waits for its end and prints its output then."""
    if step is None:
        yield lambda _: Outcome(0)
        return
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        )

        def ended(limit_s: float) -> Outcome:
            timed_out = False
            try:
                process.wait(None if limit_s == float("inf") else limit_s)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                _end(process)
            say(f"--- {step.name}")
            output.seek(0)
            print(output.read(), end="", flush=True)
            verdict = _verdict(process.returncode, timed_out)
            say(f"{step.name}: {verdict}, at most {time.monotonic() - began:.1f} s")
            return _outcome(process.returncode, timed_out)

        try:
            yield ended
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """SIGINT first: pytest then runs its finalizers, which take a lab down. Then whatever of its group is left."""
    for number, patience_s in ((signal.SIGINT, TERM_S), (signal.SIGTERM, KILL_S)):
        if process.poll() is None:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(patience_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(KILL_S)


def _budget(warm: bool) -> float:
    text = os.environ.get("FLEET_TEST_BUDGET_S", "")
    if not warm:
        text = os.environ.get("FLEET_TEST_COLD_BUDGET_S", text)
    return float(text) if text.isdigit() else float("inf")


def _toolchain_complete() -> bool:
    return all((bin_directory() / program.name).exists() for program in PROGRAMS)
