"""The question before a change, at a real terminal."""

import os
import pty
import subprocess
import sys

import pytest

from tests.cli.project import ROOT

ASK = "from cli.question import agreed; print('answer', agreed('sp', 'Update sp as shown?'))"


@pytest.mark.parametrize(
    ("typed", "answer"), [("sp\n", "True"), (" sp \n", "True"), ("\n", "False"), ("yes\n", "False"), ("\x04", "False")]
)
def test_only_the_name_of_the_site_is_a_yes_and_the_end_of_input_is_a_no(typed: str, answer: str) -> None:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", ASK],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        ) as asking:
            os.write(ours, typed.encode())
            out, err = asking.communicate(timeout=30)
        assert out.endswith(f"answer {answer}\n"), (out, err)
        assert not err
    finally:
        os.close(ours)
        os.close(theirs)


def test_without_a_terminal_nobody_is_asked() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert "expected --yes where nobody can answer" in done.stderr
