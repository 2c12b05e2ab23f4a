"""Process 1 of a node: starts enabled units, restarts and reaps, answers the `systemctl` stand-in.

One loop, no threads. Timers are known and shown but never fire; targets are all reached. The node ends when this
process does: by a signal from outside, or by exit code after `reboot` and `poweroff`.
"""

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab.standins import units
from lab.standins.service import NOTIFY_SOCKET, Service
from lab.standins.units import BUILT_IN_TARGETS, UnitError, UnitFile

CONTROL_SOCKET = "/run/systemd/standin"
EXIT_REBOOT = 81
EXIT_POWEROFF = 82
IDLE_S = 30.0
REQUEST_LIMIT_BYTES = 1 << 16

Reply = Callable[[dict[str, object]], None]


class Init:
    """The loaded units and the loop."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.active_timers: dict[str, UnitFile] = {}
        self.started = time.time()
        self.exit_code: int | None = None
        Path("/run/systemd/system").mkdir(parents=True, exist_ok=True)
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.control.bind(CONTROL_SOCKET)
        Path(CONTROL_SOCKET).chmod(0o600)
        self.control.listen(64)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.notify.bind(NOTIFY_SOCKET)
        self.wake_read, self.wake_write = os.pipe()
        for descriptor in (self.wake_read, self.wake_write):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def boot(self) -> None:
        """Starts what is enabled, what others come after first."""
        names = sorted({path.name for path in Path("/etc/systemd/system").glob("*.target.wants/*")})
        done: list[str] = []

        def visit(name: str, depth: int = 0) -> None:
            unit = units.load(name)
            if name in done or unit is None or depth > len(names):
                return
            for before in unit.words("Unit", "After"):
                if before in names:
                    visit(before, depth + 1)
            if name not in done:
                done.append(name)

        for name in names:
            visit(name)
        for name in done:
            self.start(name, lambda result: None)

    def run(self) -> int:
        """Serves until the node is to end; returns the exit code that says how."""
        while self.exit_code is None:
            deadlines = [service.deadline for service in self.services.values() if service.deadline is not None]
            wait = min(IDLE_S, max(0.0, min(deadlines) - time.monotonic())) if deadlines else IDLE_S
            ready, _, _ = select.select([self.control, self.notify, self.wake_read], [], [], wait)
            if self.wake_read in ready:
                os.read(self.wake_read, 4096)
            # Before reaping: the last words of a process that has already gone still count.
            if self.notify in ready:
                self._hear()
            self._reap()
            now = time.monotonic()
            for service in list(self.services.values()):
                if service.deadline is not None and service.deadline <= now:
                    service.timed_out()
                service.trim_journal()
            if self.control in ready:
                self._accept()
        return self.exit_code

    def start(self, name: str, reply: Reply) -> None:
        """`systemctl start`, with what the unit requires and wants."""
        if name in BUILT_IN_TARGETS:
            reply({"ok": True})
            return
        try:
            unit = self._unit(name)
        except UnitError as error:
            reply({"ok": False, "reason": "bad-setting", "text": str(error)})
            return
        if unit is None:
            reply({"ok": False, "reason": "not-found"})
            return
        if not name.endswith(".service"):
            self.active_timers[name] = unit
            reply({"ok": True})
            return
        service = self.services[name]
        for other in unit.words("Unit", "Requires") + unit.words("Unit", "Wants"):
            if other.endswith(".service") and units.find(other) and other != name:
                needed = self.services.get(other)
                if needed is None or needed.active in ("inactive", "failed"):
                    self.start(other, lambda result: None)
        for other in unit.words("Unit", "After"):
            earlier = self.services.get(other)
            if earlier is not None and earlier.active == "activating" and earlier.sub != "auto-restart":
                earlier.start(lambda good: service.start(lambda good: reply(_job(good, service))))
                return
        service.start(lambda good: reply(_job(good, service)))

    def stop(self, name: str, reply: Reply) -> None:
        """`systemctl stop`."""
        if name in self.active_timers:
            del self.active_timers[name]
        elif name in self.services:
            self.services[name].stop(lambda good: reply({"ok": True}))
            return
        elif units.find(name) is None:
            reply({"ok": False, "reason": "not-loaded"})
            return
        reply({"ok": True})

    def restart(self, name: str, reply: Reply) -> None:
        """`systemctl restart`: a stop, then a start."""
        self.stop(name, lambda result: self.start(name, reply))

    def properties(self, name: str) -> dict[str, str]:
        """What `systemctl show` prints, in the order in which systemd prints it."""
        if name in BUILT_IN_TARGETS:
            return {"Id": name, "LoadState": "loaded", "ActiveState": "active", "SubState": "active"}
        try:
            unit = self._unit(name)
        except UnitError as error:
            return {"Id": name, "LoadState": "bad-setting", "ActiveState": "inactive", "SubState": "dead",
                    "LoadError": str(error)}  # fmt: skip
        shown: dict[str, str] = {}
        active, sub, since = "inactive", "dead", self.started
        if name in self.services:
            service = self.services[name]
            active, sub, since = service.active, service.sub, service.since
            shown = {
                "Type": service.kind,
                "Restart": service.unit.last("Service", "Restart", "no"),
                "MainPID": str(service.main_pid),
                "ControlPID": str(service.control_pid),
                "StatusText": service.status_text,
                "Result": service.result,
                "NRestarts": str(service.n_restarts),
                "ExecMainPID": str(service.main_pid),
                "ExecMainCode": str(service.exec_main_code),
                "ExecMainStatus": str(service.exec_main_status),
                "KillMode": service.unit.last("Service", "KillMode", "control-group"),
                "InvocationID": service.invocations[-1] if service.invocations else "",
            }
        elif name.endswith(".service"):
            shown = {"MainPID": "0", "Result": "success", "NRestarts": "0", "ExecMainStatus": "0"}
        elif name in self.active_timers:
            active, sub = "active", "waiting"
        return shown | {
            "Id": name,
            "Description": unit.expand(unit.last("Unit", "Description", name)) if unit else name,
            "LoadState": "loaded" if unit else "not-found",
            "ActiveState": active,
            "SubState": sub,
            "FragmentPath": str(unit.path) if unit else "",
            "NeedDaemonReload": "yes" if unit and unit.changed_on_disk() else "no",
            "ActiveEnterTimestamp": time.strftime("%a %Y-%m-%d %H:%M:%S %Z", time.localtime(since)),
        }

    def reload(self) -> None:
        """`systemctl daemon-reload`: what runs keeps running, with the new settings for its next step."""
        for name, service in list(self.services.items()):
            try:
                unit = units.load(name)
            except UnitError as error:
                service.log(str(error))
                continue
            if unit is not None:
                service.unit = unit
                _warn(service)
            elif service.active in ("inactive", "failed"):
                del self.services[name]

    def _unit(self, name: str) -> UnitFile | None:
        if name in self.services:
            return self.services[name].unit
        if name in self.active_timers:
            return self.active_timers[name]
        unit = units.load(name)
        if unit is not None and name.endswith(".service"):
            for section, key in (("Service", "ExecStart"), ("Service", "ExecStartPre")):
                for line in unit.all(section, key):
                    units.parse_command(unit, line)
            self.services[name] = Service(unit)
            _warn(self.services[name])
        return unit

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for service in list(self.services.values()):
                if pid in (service.main_pid, service.control_pid):
                    service.exited(pid, status)

    def _hear(self) -> None:
        data, ancillary, _, _ = self.notify.recvmsg(4096, socket.CMSG_SPACE(12))
        pid = next((struct.unpack("iII", part)[0] for _, kind, part in ancillary if kind == socket.SCM_CREDENTIALS), 0)
        lines = (line.partition("=") for line in data.decode(errors="replace").splitlines())
        message = {key: value for key, _, value in lines}
        for service in self.services.values():
            if pid == service.main_pid or pid in service.members():
                service.notified(pid, message)
                return

    def _accept(self) -> None:
        connection, _ = self.control.accept()
        connection.settimeout(2)
        try:
            data = b""
            while not data.endswith(b"\n") and len(data) < REQUEST_LIMIT_BYTES:
                part = connection.recv(4096)
                if not part:
                    break
                data += part
            request = json.loads(data)
        except (OSError, ValueError):
            connection.close()
            return

        def reply(answer: dict[str, object]) -> None:
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                pass  # Whoever asked has gone; the job was done all the same.
            finally:
                connection.close()

        self._serve(request, reply)

    def _serve(self, request: dict[str, str], reply: Reply) -> None:
        operation, name = request["op"], request.get("unit", "")
        jobs: dict[str, Callable[[str, Reply], None]] = {
            "start": self.start,
            "stop": self.stop,
            "restart": self.restart,
        }
        if operation not in jobs:
            reply(self._answer(operation, name, request))
        elif not request.get("no_block"):
            jobs[operation](name, reply)
        elif operation != "stop" and units.find(name) is None and name not in BUILT_IN_TARGETS:
            reply({"ok": False, "reason": "not-found"})
        else:
            reply({"ok": True})
            jobs[operation](name, lambda result: None)

    def _answer(self, operation: str, name: str, request: dict[str, str]) -> dict[str, object]:
        """What takes no time."""
        if operation == "properties":
            return {"ok": True, "properties": self.properties(name)}
        if operation == "list":
            return {"ok": True, "units": [*self.services, *self.active_timers]}
        if operation == "daemon-reload":
            self.reload()
        elif operation == "reset-failed":
            for service in self.services.values():
                if name in ("", service.unit.name):
                    service.reset_failed()
        elif operation == "kill" and name in self.services:
            for pid in self.services[name].members():
                os.kill(pid, int(request["signal"]))
        elif operation in ("reboot", "poweroff"):
            self.exit_code = EXIT_REBOOT if operation == "reboot" else EXIT_POWEROFF
        else:
            return {"ok": False, "reason": "not-loaded"}
        return {"ok": True}


def _job(good: bool, service: Service) -> dict[str, object]:
    return {"ok": good} if good else {"ok": False, "reason": "failed", "text": service.result}


def _warn(service: Service) -> None:
    for warning in service.unit.warnings:
        service.log(warning)


def main() -> None:
    """`python -m lab.standins.init READY_FD`: tells READY_FD when the node is up."""
    ready = socket.socket(fileno=int(sys.argv[1]))
    init = Init()
    init.boot()
    ready.send(b"ready")
    ready.close()
    sys.exit(init.run())


if __name__ == "__main__":
    main()
