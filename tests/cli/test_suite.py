"""`fleet test`: order, times, the first failure, and what becomes of steps that find no time."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli import suite
from tests.cli.project import ROOT

Steps = Callable[..., None]


def step(name: str, code: str, shown: bool = False) -> suite.Step:
    return suite.Step(name, (sys.executable, "-c", code), shown=shown)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Replaces the real steps; the one called `lab` stands for the tests in the lab."""

    def use(*static: suite.Step, lab: suite.Step, complete: bool = True) -> None:
        monkeypatch.setattr(suite, "_static_steps", lambda: iter(static))
        monkeypatch.setattr(suite, "_toolchain_complete", lambda: complete)
        monkeypatch.setattr(
            suite, "_pytest", lambda name, arguments: lab if suite.LAB in arguments else step("mocks", "pass")
        )

    for name in ("FLEET_TEST_BUDGET_S", "FLEET_TEST_COLD_BUDGET_S"):
        monkeypatch.delenv(name, raising=False)
    return use


def test_every_step_is_named_with_its_time(steps: Steps, capfd: pytest.CaptureFixture[str]) -> None:
    steps(step("first", "pass"), lab=step("in the lab", "print('9 passed')", shown=True))
    assert suite.run(False, []) == 0
    out = capfd.readouterr().out
    assert out.index("first: ok, ") < out.index("mocks: ok, ") < out.index("9 passed") < out.index("in the lab: ok, ")
    assert "all steps passed" in out


def test_the_first_failure_ends_the_run_and_shows_its_output(steps: Steps, capfd: pytest.CaptureFixture[str]) -> None:
    steps(step("first", "print('here is why'); raise SystemExit(3)"), lab=step("in the lab", "pass"))
    assert suite.run(False, []) == 3
    out = capfd.readouterr().out
    assert "first: failed (exit code 3)" in out
    assert "here is why" in out
    assert "mocks" not in out


def test_fast_leaves_the_lab_out(steps: Steps, capfd: pytest.CaptureFixture[str]) -> None:
    steps(lab=step("in the lab", "raise SystemExit(1)"))
    assert suite.run(True, []) == 0
    assert "in the lab" not in capfd.readouterr().out


def test_rehearsals_are_chosen_by_their_option_alone() -> None:
    def chosen(marks: str) -> str:
        options = ["-c", "pyproject.toml", "-q", "--collect-only", "-n", "0", "-m", marks]
        files = ["tests/lab/test_migration.py", "tests/lab/test_sites.py"]
        command = [sys.executable, "-m", "pytest", *options, *files]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout

    usual, rehearsals = chosen(suite.LAB), chosen("rehearsal")
    assert "test_sites.py::" in usual and "test_migration.py::" not in usual
    assert "test_migration.py::" in rehearsals and "test_sites.py::" not in rehearsals


def test_rehearsals_run_without_any_other_step(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rehearsal(name: str, arguments: list[str]) -> suite.Step:
        asked.append(arguments)
        return step(name, "raise SystemExit(4)")

    steps(step("first", "raise SystemExit(3)"), lab=step("in the lab", "pass"))
    monkeypatch.setattr(suite, "_pytest", rehearsal)
    assert suite.rehearse(["-x"]) == 4
    assert asked == [["-m", "rehearsal", "tests/lab", "-x"]]


@pytest.mark.parametrize(("complete", "code"), [(True, 1), (False, 0)])
def test_a_lab_without_time_is_named_and_fails_where_the_toolchain_was_there(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], complete: bool, code: int
) -> None:
    steps(lab=step("in the lab", "pass"), complete=complete)
    monkeypatch.setenv("FLEET_TEST_BUDGET_S", "60")
    assert suite.run(False, []) == code
    assert "not run for lack of time: all tests of the lab" in capfd.readouterr().out


def test_a_run_that_has_to_build_has_a_budget_of_its_own(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    steps(lab=step("in the lab", "print('9 passed')", shown=True), complete=False)
    monkeypatch.setenv("FLEET_TEST_BUDGET_S", "60")
    monkeypatch.setenv("FLEET_TEST_COLD_BUDGET_S", "4000")
    assert suite.run(False, []) == 0
    assert "not run for lack of time" not in capfd.readouterr().out


def test_a_step_over_the_budget_is_ended_with_everything_it_started(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = tmp_path / "pid"
    slow = suite.Step("slow", ("sh", "-c", f"sleep 60 & echo $! >'{place}'; echo so far; wait"))
    steps(slow, lab=step("in the lab", "pass"))
    monkeypatch.setenv("FLEET_TEST_BUDGET_S", "1")
    assert suite.run(False, []) == 1
    out = capfd.readouterr().out
    assert "slow: out of time" in out
    assert "so far" in out
    deadline = time.monotonic() + 5  # the kernel ends a killed process in its own time
    while _lives(place.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _lives(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_arguments_that_choose_no_test_of_one_run_are_no_failure(steps: Steps) -> None:
    empty = suite.Step("in the lab", ("sh", "-c", "exit 5", "pytest"))
    steps(lab=empty)
    assert suite.run(False, ["-k", "something"]) == 0
    steps(lab=empty)
    assert suite.run(False, []) == 5


def test_every_script_of_the_program_is_checked() -> None:
    names = " ".join(one.name for one in suite._static_steps())
    assert all(path.stem in names for path in suite.SCRIPTS.glob("*.sh") if path.stem != "lib")


def test_a_test_of_the_lab_after_the_deadline_is_dropped_named_and_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.lab\ndef test_late(): raise SystemExit('it ran')\ndef test_other(): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "tests.conftest", "-m", "", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "FLEET_TEST_DEADLINE": str(time.time() - 1), "FLEET_TEST_DROPPED_FAIL": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not run for lack of time: " in done.stdout
    assert "1 passed, 1 skipped" in done.stdout


def test_tests_with_a_lab_of_their_own_run_beside_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], steps: Steps, tmp_path: Path
) -> None:
    meet = (
        "import pathlib, sys, time\n"
        "mine, other = (pathlib.Path({folder!r}, name) for name in {names!r})\n"
        "mine.touch()\n"
        "end = time.monotonic() + 20\n"
        "while not other.exists() and time.monotonic() < end: time.sleep(0.05)\n"
        "print('met' if other.exists() else 'alone')\n"
        "sys.exit({code} if other.exists() else 9)\n"
    )

    def one(names: tuple[str, str], code: int) -> suite.Step:
        return step(names[0], meet.format(folder=str(tmp_path), names=names, code=code), shown=True)

    steps(lab=step("unused", "pass"))
    for code in (0, 4):
        both = {True: one(("shared", "parts"), 0), False: one(("parts", "shared"), code)}

        def chosen(_: str, arguments: list[str], both: dict[bool, suite.Step] = both) -> suite.Step:
            if suite.LAB not in arguments:
                return step("mocks", "pass")
            return both[any(argument.startswith("--ignore") for argument in arguments)]

        monkeypatch.setattr(suite, "_pytest", chosen)
        assert suite.run(False, []) == code
        out = capfd.readouterr().out
        assert out.count("met") == 2
        for path in tmp_path.iterdir():
            path.unlink()
