"""`journalctl` inside a node: the lines of one or more units, as written by the services and by process 1.

No times, priorities or boots are kept, so an option that would need them is refused.
"""

import argparse
import sys
from collections import deque
from pathlib import Path

from lab.standins.service import JOURNAL
from lab.standins.units import full_name

DEFAULT_LINES = "10"


def lines_of(name: str, count: str) -> list[str]:
    """The last `count` lines of a unit, or all."""
    path = Path(JOURNAL, f"{full_name(name)}.log")
    if not path.exists():
        return []
    with path.open(errors="replace") as journal:
        return list(deque(journal, maxlen=None if count == "all" else int(count.lstrip("+"))))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="journalctl", add_help=False, allow_abbrev=False)
    parser.add_argument("-u", "--unit", action="append", required=True)
    parser.add_argument("-n", "--lines", nargs="?", default="all", const=DEFAULT_LINES)
    parser.add_argument("-o", "--output", default="short")
    for ignored in ("--no-pager", "-q", "--quiet", "-b", "-x", "-e", "-a", "--all", "--no-hostname"):
        parser.add_argument(ignored, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    found = [line for name in options.unit for line in lines_of(name, options.lines)]
    if found:
        sys.stdout.writelines(found)
    else:
        print("-- No entries --")


if __name__ == "__main__":
    main()
