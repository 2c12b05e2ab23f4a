"""Log lines in the format of K3s on standard error, and the error that ends the process."""

import sys
from datetime import UTC, datetime


class Fatal(Exception):
    """Ends the process with exit status 1; its text becomes the last log line."""


def _write(level: str, message: str) -> None:
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    quoted = message.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    print(f'time="{stamp}" level={level} msg="{quoted}"', file=sys.stderr, flush=True)


def info(message: str) -> None:
    _write("info", message)


def warning(message: str) -> None:
    _write("warning", message)


def error(message: str) -> None:
    _write("error", message)


def fatal(message: str) -> None:
    _write("fatal", message)
