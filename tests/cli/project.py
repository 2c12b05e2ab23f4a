"""Copies of the documents that a test may break, and the command line run on them as a person runs it."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from typer.testing import CliRunner

from cli.app import app
from tests.rules.documents import Documents

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both streams with every run of white space as one space: wrapping is no matter of the message."""
        return " ".join((self.out + " " + self.err).split())


def fleet(*arguments: str) -> Ran:
    """In this process: quick."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def fleet_process(*arguments: str, **environment: str) -> Ran:
    """As a process of its own, from a foreign folder."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli", *arguments],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def folder_with(target: Path, documents: Documents) -> Path:
    """A folder as the project's root is, with these documents."""
    shutil.copy(ROOT / "__main__.py", target)
    for name, value in documents.items():
        if name == "common":
            whole = {"name": "fleet", "runtime": "python", "config": {"fleet:common": {"value": value}}}
            path = target / "Pulumi.yaml"
        else:
            whole, path = {"config": {"fleet:site": value}}, target / f"Pulumi.{name}.yaml"
        path.write_text(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return target
