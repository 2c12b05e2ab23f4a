"""The commands of a made-up VyOS, as a program that keeps its state in files. A stand-in: no line of it is VyOS's.

It takes the paths that `infra.vyos.paths` allows and refuses all others; a commit-confirm that nobody confirms ends in
the saved configuration, as a restart would. Called as `vyatta.py STATE COMMAND WORDS...`.
"""

import sys
import time
from collections.abc import Iterable
from pathlib import Path

from infra.vyos.paths import template_of
from infra.vyos.statements import Statement, read

VERSION = "1.4"
KEY = "cHVibGljLXB1YmxpYy1wdWJsaWMtcHVibGljLXB1Yi4="  # what it says of every private key


def as_commands(statements: Iterable[Statement]) -> str:
    quoted = {one: one[-1].replace("'", "'\\''") for one in statements}
    return "".join(f"set {' '.join(one[:-1])} '{last}'\n" for one, last in quoted.items())


def as_saved(statements: Iterable[Statement]) -> str:
    """Blocks that are written apart merge, so that each statement may have its own."""
    blocks = []
    for one in statements:
        last = one[-1].replace("\\", "\\\\").replace('"', '\\"')
        blocks.append(" {\n".join(one[:-1]) + f' {{\n"{last}"\n' + "}\n" * (len(one) - 1))
    return "".join(blocks) + '\n// vyos-config-version: "bgp@6:firewall@15:nat@8"\n// Release version: made up\n'


class Router:
    def __init__(self, state: Path) -> None:
        self.active, self.saved = state / "active", state / "config/config.boot"
        self.session, self.armed, self.state = state / "session", state / "armed", state
        if self.armed.exists() and time.time() > float(self.armed.read_text()):
            self.active.write_text(as_commands(read(self.saved.read_text())))
            self.armed.unlink()
            self.session.unlink(missing_ok=True)
            (state / "restarted").touch()

    def trap(self, name: str) -> str | None:
        """What a test wants to go wrong."""
        path = self.state / f"trap-{name}"
        return path.read_text() if path.exists() else None

    def set(self, *words: str) -> int:
        refused = self.trap("refuses")
        if template_of(words, VERSION) is None or (refused and refused in words):
            print(f"Value validation failed: {' '.join(words)}\nSet failed")
            return 0  # as VyOS does: its alias returns what printing returned
        with self.session.open("a") as session:
            session.write(as_commands([words]))
        return 0

    def commit_confirm(self, minutes: str) -> int:
        if sys.stdin.readline().strip() not in ("y", "yes") or self.armed.exists():
            return 1
        self.armed.write_text(str(time.time() + 60 * float(minutes)))
        if self.trap("commit") is not None:
            print("Commit failed")
            return 1
        new = read(self.session.read_text())
        single = {one[:-1] for one in new if (path := template_of(one, VERSION)) and path.kind == "value"}
        kept = [one for one in read(self.active.read_text()) if one[:-1] not in single]
        lost = self.trap("loses")
        self.active.write_text(as_commands(one for one in [*kept, *new] if not (lost and lost in one)))
        self.session.write_text("")
        return 0

    def confirm(self) -> int:
        self.armed.unlink(missing_ok=True)
        return 0

    def save(self) -> int:
        if self.trap("save") is None:
            self.saved.write_text(as_saved(read(self.active.read_text())))
        return 0

    def begin(self) -> int:
        self.session.write_text("")
        return 0

    def api(self, what: str) -> int:
        if what == "teardownSession":
            self.session.unlink(missing_ok=True)
            return 0
        there = self.session.exists() if what == "inSession" else bool(self.session.read_text())
        return 0 if there else 1

    def systemctl(self, verb: str, *_: str) -> int:
        if verb == "is-active":
            return 0 if self.armed.exists() else 3
        print("ActiveState=active\nActiveEnterTimestamp=Tue 2026-12-01 02:11:04 UTC" if self.armed.exists()
              else "ActiveState=inactive\nActiveEnterTimestamp=")  # fmt: skip
        return 0

    def op(self, *words: str) -> int:
        active = read(self.active.read_text())
        match words:
            case ("show", "configuration", "commands"):
                print(self.active.read_text(), end="")
            case ("show", "interfaces", "wireguard", name, "public-key"):
                if self.trap("tunnel") is not None or not any(one[2:3] == (name,) for one in active):
                    print("Unable to access interface: No such device")
                    return 1
                print(KEY)
            case ("show", "ip", "bgp", "summary"):
                print("Neighbor V AS Up/Down")
                for one in dict.fromkeys(one[3] for one in active if one[:3] == ("protocols", "bgp", "neighbor")):
                    print(f"{one} 4 65001 never")
            case _:
                print("Invalid command")
                return 1
        return 0


if __name__ == "__main__":
    router = Router(Path(sys.argv[1]))
    sys.exit(getattr(router, sys.argv[2])(*sys.argv[3:]))
