"""`systemctl` inside a node: the verbs that installing and running K3s needs, answered in systemd's words.

An unknown verb or option is an error, as with systemd; a verb that systemd knows and this does not says so.
"""

import argparse
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from lab.standins import units
from lab.standins.init import CONTROL_SOCKET

WANTS = Path("/etc/systemd/system")
UNIT_TYPES = (".service", ".timer")
EXIT_NOT_RUNNING = 3
EXIT_NO_SUCH_UNIT = 4
EXIT_NOT_LOADED = 5
KNOWN_TO_SYSTEMD = ("mask", "unmask", "edit", "isolate", "link", "preset", "revert", "set-property", "list-jobs")


def ask(operation: str, **message: object) -> dict[str, object]:
    """One request to process 1; waits for as long as the job takes, as systemctl does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(CONTROL_SOCKET)
        except OSError as error:
            sys.exit(f"Failed to connect to bus: {error.strerror}")
        connection.sendall(json.dumps({"op": operation, **message}).encode() + b"\n")
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    if not data:
        sys.exit("Failed to read from bus: the node is shutting down")
    answer: dict[str, object] = json.loads(data)
    return answer


def properties(name: str) -> dict[str, str]:
    """The unit's properties, with the state of its file."""
    answer = ask("properties", unit=name)["properties"]
    assert isinstance(answer, dict)
    return {**answer, "UnitFileState": file_state(name) or ""}


def file_state(name: str) -> str | None:
    """enabled, disabled, static; None without a file."""
    if units.find(name) is None:
        return None
    if any(WANTS.glob(f"*.wants/{name}")) or any(WANTS.glob(f"*.requires/{name}")):
        return "enabled"
    unit = units.load(name)
    return (
        "disabled" if unit and (unit.words("Install", "WantedBy") or unit.words("Install", "RequiredBy")) else "static"
    )


def report(verb: str, name: str, answer: dict[str, object]) -> int:
    """Says what went wrong; returns the exit code."""
    if answer["ok"]:
        return 0
    reason = answer.get("reason")
    if reason in ("not-found", "not-loaded"):
        print(f"Failed to {verb} {name}: Unit {name} {str(reason).replace('-', ' ')}.", file=sys.stderr)
        return EXIT_NOT_LOADED
    if reason == "bad-setting":
        print(f"Failed to {verb} {name}: Unit {name} has a bad unit file setting: {answer['text']}", file=sys.stderr)
        return 1
    cause = {
        "exit-code": "the control process exited with error code",
        "signal": "a fatal signal was delivered to the control process",
        "timeout": "a timeout was exceeded",
        "protocol": "the service did not take the steps required by its unit configuration",
        "resources": "of unavailable resources or another system error",
    }.get(str(answer.get("text")), "it could not be started")
    print(f'Job for {name} failed because {cause}.\nSee "systemctl status {name}" and "journalctl -xeu {name}" '
          "for details.", file=sys.stderr)  # fmt: skip
    return 1


def enable(name: str, *, on: bool, quiet: bool) -> int:
    """Makes or removes the links that say what is started at boot."""
    unit = units.load(name)
    if unit is None:
        verb = "enable" if on else "disable"
        print(f"Failed to {verb} unit: Unit file {name} does not exist.", file=sys.stderr)
        return 1
    for kind, key in (("wants", "WantedBy"), ("requires", "RequiredBy")):
        for target in unit.words("Install", key):
            link = WANTS / f"{target}.{kind}" / name
            if on and not link.is_symlink():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(unit.path)
                if not quiet:
                    print(f"Created symlink {link} → {unit.path}.", file=sys.stderr)
    if not on:
        for link in [*WANTS.glob(f"*.wants/{name}"), *WANTS.glob(f"*.requires/{name}")]:
            link.unlink()
            if not quiet:
                print(f'Removed "{link}".', file=sys.stderr)
    return 0


def show(name: str, wanted: list[str], *, value: bool) -> int:
    """Prints in systemd's order, whatever the order asked for."""
    for key, text in properties(name).items():
        if not wanted or key in wanted:
            print(text if value else f"{key}={text}")
    return 0


def status(name: str) -> int:
    """A person's view of a unit."""
    shown = properties(name)
    if shown["LoadState"] == "not-found":
        print(f"Unit {name} could not be found.", file=sys.stderr)
        return EXIT_NO_SUCH_UNIT
    print(f"● {name} - {shown.get('Description', name)}")
    print(f"     Loaded: {shown['LoadState']} ({shown.get('FragmentPath', '')}; {shown['UnitFileState']})")
    print(f"     Active: {shown['ActiveState']} ({shown['SubState']}) since {shown.get('ActiveEnterTimestamp', '')}")
    if shown.get("MainPID", "0") != "0":
        print(f"   Main PID: {shown['MainPID']}")
    if shown.get("StatusText"):
        print(f'     Status: "{shown["StatusText"]}"')
    return 0 if shown["ActiveState"] in ("active", "reloading") else EXIT_NOT_RUNNING


def is_active(names: list[str], *, quiet: bool, failed: bool = False) -> int:
    """is-active and is-failed: 0 when one of them is."""
    found = [properties(name) for name in names]
    if not quiet:
        for shown in found:
            print(shown["ActiveState"])
    if any(shown["ActiveState"] == ("failed" if failed else "active") for shown in found):
        return 0
    if failed:
        return 1
    return EXIT_NO_SUCH_UNIT if all(shown["LoadState"] == "not-found" for shown in found) else EXIT_NOT_RUNNING


def is_enabled(names: list[str], *, quiet: bool) -> int:
    """0 when one of them starts at boot."""
    good = False
    for name in names:
        state = file_state(name)
        if state is None:
            print(f"Failed to get unit file state for {name}: No such file or directory", file=sys.stderr)
        elif not quiet:
            print(state)
        good = good or state in ("enabled", "static")
    return 0 if good else 1


def list_units(suffix: str | None, *, files: bool) -> int:
    """One line a unit."""
    names: set[str] = set()
    if files:
        names = {p.name for d in units.SEARCH_PATH for p in Path(d).glob("*.*") if p.suffix in UNIT_TYPES}
    else:
        loaded = ask("list")["units"]
        assert isinstance(loaded, list)
        names = set(loaded)
    for name in sorted(names):
        if suffix is None or name.endswith(f".{suffix}"):
            shown = properties(name)
            tail = shown["UnitFileState"] if files else f"{shown['ActiveState']} {shown['SubState']}"
            print(f"{name} {tail}" if files else f"{name} {shown['LoadState']} {tail} {shown.get('Description', '')}")
    return 0


def worst(codes: list[int]) -> int:
    """The exit code of a command that took several units."""
    return next((code for code in codes if code), 0)


def run(options: argparse.Namespace) -> int:
    """Carries out one command line."""
    verb, names = options.verb or "list-units", [units.full_name(name) for name in options.units]
    if verb in WITHOUT_UNITS:
        return WITHOUT_UNITS[verb](options)
    if verb in KNOWN_TO_SYSTEMD:
        print(f"{verb}: not in this stand-in for systemctl", file=sys.stderr)
    elif verb not in WITH_UNITS and verb not in OF_EACH_UNIT:
        print(f"Unknown command verb {verb}.", file=sys.stderr)
    elif not names:
        print("Too few arguments.", file=sys.stderr)
    elif verb in WITH_UNITS:
        return WITH_UNITS[verb](names, options)
    else:
        return worst([OF_EACH_UNIT[verb](verb, name, options) for name in names])
    return 1


def power(options: argparse.Namespace) -> int:
    """reboot, poweroff, halt."""
    ask("reboot" if options.verb == "reboot" else "poweroff")
    return 0


def reload(options: argparse.Namespace) -> int:
    """daemon-reload."""
    ask("daemon-reload")
    return 0


def is_system_running(options: argparse.Namespace) -> int:
    """Always, or nobody could ask."""
    print("running")
    return 0


def reset_failed(options: argparse.Namespace) -> int:
    """All units, or those named."""
    names = [units.full_name(name) for name in options.units] or [""]
    return worst([report(options.verb, name, ask("reset-failed", unit=name)) for name in names])


def run_job(verb: str, name: str, options: argparse.Namespace) -> int:
    """start, stop and the kinds of restart."""
    shown = properties(name)
    if verb == "try-restart" and shown["ActiveState"] != "active":
        return 0
    if verb != "stop" and shown.get("NeedDaemonReload") == "yes":
        print(f"Warning: The unit file, source configuration file or drop-ins of {name} changed on disk. "
              "Run 'systemctl daemon-reload' to reload units.", file=sys.stderr)  # fmt: skip
    operation = verb if verb in ("start", "stop") else "restart"
    return report(operation, name, ask(operation, unit=name, no_block=options.no_block))


def run_enable(verb: str, name: str, options: argparse.Namespace) -> int:
    """enable and disable, with --now."""
    code = enable(name, on=verb != "disable", quiet=options.quiet)
    if code == 0 and options.now:
        code = run_job("stop" if verb == "disable" else "start", name, options)
    return code


def run_show(verb: str, name: str, options: argparse.Namespace) -> int:
    """show."""
    return show(name, [key for text in options.property for key in text.split(",")], value=options.value)


def run_kill(verb: str, name: str, options: argparse.Namespace) -> int:
    """kill."""
    text = options.signal.upper()
    number = int(text) if text.isdecimal() else signal.Signals[text if text.startswith("SIG") else f"SIG{text}"]
    return report(verb, name, ask(verb, unit=name, signal=int(number)))


def run_cat(verb: str, name: str, options: argparse.Namespace) -> int:
    """cat."""
    unit = units.load(name)
    if unit is None:
        print(f"No files found for {name}.", file=sys.stderr)
        return 1
    for source in unit.sources:
        print(f"# {source}\n{Path(source).read_text()}")
    return 0


WITHOUT_UNITS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list-units": lambda options: list_units(options.type, files=False),
    "list-unit-files": lambda options: list_units(options.type, files=True),
    "list-timers": lambda options: list_units("timer", files=False),
    "daemon-reload": reload,
    "daemon-reexec": reload,
    "reboot": power,
    "poweroff": power,
    "halt": power,
    "is-system-running": is_system_running,
    "reset-failed": reset_failed,
}
WITH_UNITS: dict[str, Callable[[list[str], argparse.Namespace], int]] = {
    "is-active": lambda names, options: is_active(names, quiet=options.quiet),
    "is-failed": lambda names, options: is_active(names, quiet=options.quiet, failed=True),
    "is-enabled": lambda names, options: is_enabled(names, quiet=options.quiet),
}
OF_EACH_UNIT: dict[str, Callable[[str, str, argparse.Namespace], int]] = {
    **dict.fromkeys(("start", "stop", "restart", "try-restart", "reload-or-restart"), run_job),
    **dict.fromkeys(("enable", "reenable", "disable"), run_enable),
    "show": run_show,
    "status": lambda verb, name, options: status(name),
    "kill": run_kill,
    "cat": run_cat,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="systemctl", add_help=False, allow_abbrev=False)
    parser.add_argument("verb", nargs="?")
    parser.add_argument("units", nargs="*")
    parser.add_argument("--no-block", action="store_true")
    parser.add_argument("--now", action="store_true")
    parser.add_argument("--value", action="store_true")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("-p", "-P", "--property", action="append", default=[])
    parser.add_argument("-s", "--signal", default="SIGTERM")
    parser.add_argument("-t", "--type")
    for ignored in ("--no-pager", "--system", "-l", "--full", "--no-legend", "--plain", "-a", "--all", "-f", "--force",
                    "--no-ask-password", "--no-reload", "--no-wall"):  # fmt: skip
        parser.add_argument(ignored, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-n", "--lines", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version="systemd 252 (stand-in of the lab)")
    try:
        code = run(parser.parse_intermixed_args())
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)
    sys.exit(code)


if __name__ == "__main__":
    main()
