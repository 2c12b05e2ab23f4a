"""The launcher `fleet`, in a folder that holds nothing else: with stand-ins for Python, and once for real."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.project import ROOT

# Stands for `python3` and for the interpreter of the virtual environment it makes. Writes what it was asked for to
# $LOG; PIP says how pip ends.
PYTHON = """\
#!/bin/sh
case "$*" in
*version_info*2*) echo "${VERSION:-3.11}" ;;
*'(3, 11)'*) [ "${VERSION:-3.11}" != 3.9 ] ;;
*ensurepip*) [ -z "${NO_VENV:-}" ] ;;
'-m venv '*)
    echo venv >>"$LOG"
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
'-m pip --version') ;;
*' install '*)
    echo pip >>"$LOG"
    sleep "${PIP_TAKES:-0}"
    [ "${PIP:-works}" = works ] || { echo 'ERROR: No matching distribution found'; exit 1; } ;;
'-P -m cli '*) echo "cli $PYTHONPATH $*" ;;
*) exit 9 ;;
esac
"""

# Every program that the launcher or its stand-in uses.
PROGRAMS = ("sh", "cat", "cksum", "cp", "date", "dirname", "grep", "mkdir", "mv", "readlink", "rm", "sleep", "tail")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A project folder with a space in its name, and a PATH with the stand-in alone."""
    root = tmp_path / "a copy"
    root.mkdir()
    shutil.copy(ROOT / "fleet", root)
    (root / "requirements.lock").write_text("one==1\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found
        (programs / name).symlink_to(found)
    _python(programs / "python3")
    return root


def _python(path: Path) -> None:
    path.write_text(PYTHON)
    path.chmod(0o755)


def environment(root: Path, **more: str) -> dict[str, str]:
    return {"PATH": str(root.parent / "bin"), "LOG": str(root.parent / "log"), **more}


def launch(root: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(root / "fleet"), *arguments],
        cwd="/",
        env=environment(root, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def log(root: Path) -> list[str]:
    path = root.parent / "log"
    return path.read_text().split() if path.exists() else []


def test_first_use_makes_the_environment_says_so_and_runs_the_command(copy: Path) -> None:
    done = launch(copy, "check", "two words")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"cli {copy} -P -m cli check two words\n"
    assert "one to three minutes" in done.stderr
    assert log(copy) == ["venv", "pip"]
    assert not (copy / ".venv/.lock").exists()


def test_second_use_does_nothing_but_run_the_command(copy: Path) -> None:
    launch(copy, "check")
    done = launch(copy, "check")
    assert done.stderr == ""
    assert log(copy) == ["venv", "pip"]


def test_a_changed_lock_updates_the_environment(copy: Path) -> None:
    launch(copy, "check")
    (copy / "requirements.lock").write_text("one==2\n")
    assert launch(copy, "check").returncode == 0
    assert log(copy) == ["venv", "pip", "pip"]


def test_a_moved_folder_gets_a_new_environment(copy: Path) -> None:
    launch(copy, "check")
    moved = copy.rename(copy.parent / "moved")
    assert launch(moved, "check").returncode == 0
    assert log(moved) == ["venv", "pip", "venv", "pip"]


def test_an_interrupted_first_use_is_completed(copy: Path) -> None:
    failed = launch(copy, "check", PIP="fails")
    assert failed.returncode == 1
    assert not (copy / ".venv/.complete").exists()
    assert launch(copy, "check").returncode == 0
    assert log(copy) == ["venv", "pip", "pip"]


def test_a_failing_pip_is_told_with_its_reason_and_its_log(copy: Path) -> None:
    done = launch(copy, "check", PIP="fails")
    assert done.returncode == 1
    assert "No matching distribution found" in done.stderr
    assert "PIP_INDEX_URL" in done.stderr
    assert str(copy / ".venv/pip.log") in done.stderr
    assert not (copy / ".venv/.lock").exists()


def test_an_old_python_is_named(copy: Path) -> None:
    done = launch(copy, "check", VERSION="3.9")
    assert done.returncode == 1
    assert "no Python 3.11 or newer" in done.stderr
    assert "python3 is 3.9" in done.stderr
    assert not (copy / ".venv").exists()


def test_no_python_at_all_is_told(copy: Path) -> None:
    (copy.parent / "bin/python3").unlink()
    done = launch(copy, "check")
    assert done.returncode == 1
    assert "no Python 3.11 or newer" in done.stderr


def test_a_newer_python_under_another_name_is_found(copy: Path) -> None:
    (copy.parent / "bin/python3").write_text("#!/bin/sh\nexit 127\n")  # a shim of a version manager
    _python(copy.parent / "bin/python3.12")
    assert launch(copy, "check").returncode == 0


def test_a_missing_venv_module_names_its_package(copy: Path) -> None:
    done = launch(copy, "check", NO_VENV="1")
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr


def test_a_folder_that_cannot_be_written_is_told(copy: Path) -> None:
    (copy / ".venv").write_text("")  # root may write anywhere, but not make a folder of a file
    done = launch(copy, "check")
    assert done.returncode == 1
    assert "cannot write to" in done.stderr


def test_a_symbolic_link_leads_to_the_project(copy: Path) -> None:
    (copy.parent / "one").symlink_to("a copy/fleet")
    (copy.parent / "two").symlink_to(copy.parent / "one")
    done = subprocess.run(
        [str(copy.parent / "two"), "check"],
        cwd="/",
        env=environment(copy),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith(f"cli {copy} ")


def test_two_launchers_at_once_install_once(copy: Path) -> None:
    running = [
        subprocess.Popen(
            [str(copy / "fleet"), "check"],
            env=environment(copy, PIP_TAKES="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    ended = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], ended
    assert all(out.startswith("cli ") for out, _ in ended)
    assert any("another launcher" in err for _, err in ended)
    assert log(copy) == ["venv", "pip"]


def test_the_lock_of_a_dead_launcher_is_taken_over(copy: Path) -> None:
    gone = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True).stdout
    (copy / ".venv/.lock").mkdir(parents=True)
    (copy / ".venv/.lock/pid").write_text(gone)
    begun = time.monotonic()
    assert launch(copy, "check").returncode == 0
    assert time.monotonic() - begun < 10


def test_ctrl_c_during_first_use_leaves_no_lock(copy: Path) -> None:
    process = subprocess.Popen(
        [str(copy / "fleet"), "check"],
        env=environment(copy, PIP_TAKES="30"),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 20
        while "pip" not in log(copy):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=10) == 130
    finally:
        process.kill()
        process.wait()
    assert not (copy / ".venv/.lock").exists()
    assert launch(copy, "check").returncode == 0


def test_an_incomplete_project_is_told(copy: Path) -> None:
    (copy / "requirements.lock").unlink()
    done = launch(copy, "check")
    assert done.returncode == 1
    assert "requirements.lock" in done.stderr


def test_a_real_python_makes_a_real_environment(tmp_path: Path) -> None:
    """Without packages, so that no network is needed."""
    shutil.copy(ROOT / "fleet", tmp_path)
    (tmp_path / "requirements.lock").write_text("")
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli/__init__.py").write_text("")
    (tmp_path / "cli/__main__.py").write_text("import sys; print(sys.prefix, sys.argv[1:])")
    done = subprocess.run(
        [str(tmp_path / "fleet"), "a", "b c"],
        cwd="/",
        env={**os.environ, "PATH": f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == f"{tmp_path / '.venv'} ['a', 'b c']\n", done.stderr


def test_the_environment_of_another_folder_is_left_alone(copy: Path, tmp_path: Path) -> None:
    assert launch(copy, "check").returncode == 0
    other = tmp_path / "other"
    other.mkdir()
    for name in ("fleet", "requirements.lock"):
        shutil.copy(copy / name, other)
    (other / ".venv").symlink_to(copy / ".venv")
    refused = launch(other, "check")
    assert refused.returncode == 1
    assert "is a symbolic link" in refused.stderr
    assert launch(copy, "check").stderr == "", "nothing is to be prepared again"
