"""How text reaches the person: wrapped with a hanging indent on a terminal, one line each where nobody looks.

Ids and paths are never broken, so that they can be copied and searched for. Leaves out colours: what is printed must
read the same in a terminal, in a file and in CI.
"""

import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

MINIMUM = 24  # columns; below that a hanging indent leaves no room
PIPED = 200  # columns for trees where the output is no terminal


def prepare() -> None:
    """Output works whatever the streams are: closed ones swallow it, poor encodings get escapes."""
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def width() -> int | None:
    """Columns to wrap at; None where output is no terminal and nobody set COLUMNS."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return max(MINIMUM, shutil.get_terminal_size().columns)
    return None


def console() -> Console:
    """For trees and tables of Rich; no colour, no spinner and no control sequence unless on a terminal."""
    return Console(width=width() or PIPED, highlight=False, markup=False, emoji=False)


def wrapped(text: str, indent: str = "", hanging: str = "    ") -> str:
    columns = width()
    if columns is None:
        return indent + text
    return textwrap.fill(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def say(text: str = "", indent: str = "") -> None:
    print(wrapped(text, indent) if text else "", flush=True)


def warn(text: str) -> None:
    """To standard error: what is wrong, line by line."""
    for line in text.splitlines():
        print(wrapped(line), file=sys.stderr, flush=True)


def show_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, last_wraps: bool = True) -> None:
    """Aligned columns, the last one free; one block for each row where the columns would leave it no room."""
    lines = [list(row) for row in rows]
    widths = [max(len(row[place]) for row in [list(headers), *lines]) for place in range(len(headers) - 1)]
    taken = sum(widths) + 2 * len(widths)
    columns = width()
    if columns is not None and columns - taken < 30:
        for row in lines:
            say("  ".join(cell for cell in row[:-1] if cell))
            print(wrapped(row[-1], "    ", hanging=""))
        return
    for row in [list(headers), *lines]:
        start = "".join(cell.ljust(size + 2) for cell, size in zip(row[:-1], widths, strict=True))
        if columns is None or not last_wraps:
            print((start + row[-1]).rstrip())
        else:
            print(
                textwrap.fill(
                    row[-1] or "-",
                    columns,
                    initial_indent=start,
                    subsequent_indent=" " * taken,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
