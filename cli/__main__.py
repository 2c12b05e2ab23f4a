"""`python -m cli`, which the launcher `fleet` runs."""

import signal
from types import FrameType

from cli.app import app
from cli.screen import prepare


def interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends a command as Ctrl-C does: what it started ends with it."""
    raise KeyboardInterrupt


prepare()
signal.signal(signal.SIGTERM, interrupt)
app(prog_name="fleet")
