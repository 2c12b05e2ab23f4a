"""How a command ends: every expected error is one clear message and an exit code, never a traceback.

What nobody expected is one line as well, with its traceback in a log; FLEET_DEBUG=1 shows it at once.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from cli.screen import warn

INTERRUPTED = 130
# Errors that are messages to the person. By name, because only what a command uses is imported.
_MESSAGES = (
    ("infra.violation", "InvariantError"),
    ("lab", "LabError"),
    ("lab.toolchain.cache", "ToolchainError"),
)


class Stop(Exception):
    """A command cannot go on; the text says what was found, what was expected and what to do."""


class Group(TyperGroup):
    """A group of commands that ends as this module says."""

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()  # here, where a reader that went away can still be handled
        except KeyboardInterrupt:
            warn("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of a pipe went away: `fleet plan sp | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except _messages() as error:
            warn(str(error))
            raise typer.Exit(1) from None
        except Exception as error:
            if type(error).__module__.startswith(("typer", "click")):
                raise
            if os.environ.get("FLEET_DEBUG") == "1":
                traceback.print_exc()
            warn(f"unexpected {type(error).__name__}: {_first_line(error)}; {_logged()}")
            raise typer.Exit(1) from None


def _messages() -> tuple[type[BaseException], ...]:
    known = [getattr(sys.modules[module], name, None) for module, name in _MESSAGES if module in sys.modules]
    return (Stop, *(error for error in known if error is not None))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no message"


def _logged() -> str:
    """Keeps the traceback of the present exception, readable by its owner alone, and says where."""
    try:
        place = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fleet" / "error.log"
        place.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as log:
            traceback.print_exc(file=log)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return "set FLEET_DEBUG=1 to see where"
    return f"the traceback is in {place}"
