"""One service of a node: its states and processes, as systemd moves them.

Processes of a service are known by the INVOCATION_ID they inherit, since a node has no cgroups of its own; a process
that wipes its environment is therefore out of reach of KillMode=control-group.
"""

import io
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from lab.standins import units
from lab.standins.units import Command, UnitError, UnitFile

JOURNAL = Path("/var/log/journal-standin")
JOURNAL_LIMIT_BYTES = 16 << 20
JOURNAL_KEPT_BYTES = 2 << 20
NOTIFY_SOCKET = "/run/systemd/notify"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_TIMEOUT_S = 90.0
DEFAULT_RESTART_S = 0.1
CLEAN_SIGNALS = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE))
EXIT_EXEC = 203
EXIT_CHDIR = 200

Waiter = Callable[[bool], None]


class Service:
    """State of one loaded .service unit. All methods return at once; waiters are called when a job has ended."""

    def __init__(self, unit: UnitFile) -> None:
        self.unit = unit
        self.active, self.sub, self.result = "inactive", "dead", "success"
        self.main_pid = self.control_pid = self.exec_main_status = self.exec_main_code = self.n_restarts = 0
        self.status_text = ""
        self.since = time.time()
        self.deadline: float | None = None
        self.invocations: list[str] = []
        self._queue: list[Command] = []
        self._command: Command | None = None
        self._stopping = False
        self._waiters: list[tuple[str, Waiter]] = []
        self._starts: list[float] = []

    # Jobs -------------------------------------------------------------------------------------------------------

    def start(self, waiter: Waiter | None = None) -> None:
        """`systemctl start`. A service that waits for its restart keeps waiting, as with systemd."""
        if self.active == "active":
            if waiter is not None:
                waiter(True)
            return
        if waiter is not None:
            self._waiters.append(("start", waiter))
        if self.active in ("activating", "deactivating"):
            return
        self.n_restarts = 0
        self._enter_start()

    def stop(self, waiter: Waiter | None = None) -> None:
        """`systemctl stop`."""
        if self.active in ("inactive", "failed"):
            if waiter is not None:
                waiter(True)
            return
        overruled = [earlier for job, earlier in self._waiters if job == "start"]
        self._waiters = [(job, earlier) for job, earlier in self._waiters if job == "stop"]
        if waiter is not None:
            self._waiters.append(("stop", waiter))
        for earlier in overruled:
            earlier(False)
        if self.sub == "auto-restart":
            self._set("inactive", "dead")
        elif not self._stopping:
            self.log(f"Stopping {self.description}...")
            self._enter_stop("success")

    def reset_failed(self) -> None:
        """`systemctl reset-failed`: forgets the failure and the count of restarts."""
        self.n_restarts, self._starts = 0, []
        if self.active == "failed":
            self.result = "success"
            self._set("inactive", "dead")

    # Events -----------------------------------------------------------------------------------------------------

    def exited(self, pid: int, status: int) -> None:
        """A process that init reaped was ours."""
        code, signalled = (os.waitstatus_to_exitcode(status), os.WIFSIGNALED(status))
        result = "success" if code == 0 else "signal" if signalled else "exit-code"
        is_main = pid == self.main_pid
        if is_main:
            self.main_pid = 0
            self.exec_main_code, self.exec_main_status = (2, -code) if signalled else (1, code)
            if signalled and -code in CLEAN_SIGNALS and self.kind != "oneshot":
                result = "success"
        else:
            self.control_pid = 0
        if result != "success":
            who = "Main process" if is_main else "Control process"
            how = f"killed, status={-code}/{signal.Signals(-code).name[3:]}" if signalled else f"exited, status={code}"
            self.log(f"{who} exited, code={how}{'' if signalled else '/FAILURE'}")
        if self._command is not None and self._command.may_fail and (not is_main or self.kind == "oneshot"):
            result = "success"
        try:
            self._after_exit(is_main, result)
        except UnitError as error:
            self.log(str(error))
            self._ended("resources")

    def notified(self, pid: int, message: dict[str, str]) -> None:
        """sd_notify from one of our processes."""
        if self.unit.last("Service", "NotifyAccess", "main") == "main" and pid != self.main_pid:
            self.log(f"Got notification message from PID {pid}, but reception only permitted for main PID")
            return
        self.status_text = message.get("STATUS", self.status_text)
        if message.get("MAINPID", "").isdecimal():
            self.main_pid = int(message["MAINPID"])
        if message.get("READY") == "1" and self.kind == "notify" and self.sub == "start":
            self._enter_post()

    def timed_out(self) -> None:
        """The deadline has passed."""
        self.deadline = None
        if self.sub == "auto-restart":
            self.n_restarts += 1
            self.log(f"Scheduled restart job, restart counter is at {self.n_restarts}.")
            self._enter_start()
        elif self.sub.startswith("stop"):
            self.log(f"State '{self.sub}' timed out. Killing.")
            self.result = "timeout"
            self._signal(signal.SIGKILL, everything=self._kill_mode != "process")
        else:
            self.log(f"{self.sub} operation timed out. Terminating.")
            self._enter_stop("timeout")

    # What others read -------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """Type=, with systemd's default."""
        return self.unit.last("Service", "Type") or ("simple" if self.unit.all("Service", "ExecStart") else "oneshot")

    @property
    def description(self) -> str:
        """`name - Description`, as in systemd's messages."""
        return f"{self.unit.name} - {self.unit.expand(self.unit.last('Unit', 'Description', self.unit.name))}"

    def members(self) -> list[int]:
        """Processes that carry one of our invocation ids."""
        marks = [f"INVOCATION_ID={invocation}".encode() for invocation in self.invocations]
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != 1:
                try:
                    environment = (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if any(mark in environment for mark in marks):
                    found.append(int(entry.name))
        return found

    def log(self, message: str) -> None:
        """A line of systemd's own in the unit's journal."""
        with self._journal() as journal:
            journal.write(f"{self.unit.name}: {message}\n".encode())

    # Transitions ------------------------------------------------------------------------------------------------

    def _enter_start(self) -> None:
        now, unit = time.monotonic(), self.unit
        self._stopping, self.result, self.status_text = False, "success", ""
        for condition in unit.all("Unit", "ConditionPathExists"):
            path = condition.lstrip("!")
            if Path(unit.expand(path)).exists() == condition.startswith("!"):
                self.log(f"{self.description} was skipped because of an unmet condition check ({condition}).")
                self._set("inactive", "dead", condition_failed=True)
                return
        interval = unit.seconds("StartLimitIntervalSec", 10.0, "Unit")
        burst = int(unit.last("Unit", "StartLimitBurst", "5"))
        self._starts = [start for start in self._starts if now - start < interval]
        if interval > 0 and len(self._starts) >= burst > 0:
            self.log("Start request repeated too quickly.")
            self._fail_without_restart("start-limit-hit")
            return
        self._starts.append(now)
        limit = DEFAULT_TIMEOUT_S if self.kind != "oneshot" else float("inf")
        timeout = unit.seconds("TimeoutStartSec", unit.seconds("TimeoutSec", limit)) or float("inf")
        self.deadline = None if timeout == float("inf") else now + timeout
        self.invocations = [*self.invocations[-9:], os.urandom(16).hex()]
        self.log(f"Starting {self.description}...")
        try:
            self._queue = self._commands("ExecStartPre")
            self._set("activating", "start-pre")
            self._next()
        except UnitError as error:
            self.log(str(error))
            self._ended("resources")

    def _next(self) -> None:
        """Runs the next command of the present phase, or enters the next phase."""
        if self._queue:
            self._command = self._queue.pop(0)
            pid = self._spawn(self._command)
            if self.sub == "start":
                self.main_pid = pid
            else:
                self.control_pid = pid
            return
        self._command = None
        if self.sub == "start-pre":
            self._enter_main()
        elif self.sub == "start":
            self._enter_post()
        elif self.sub == "start-post":
            self._enter_running()
        elif self.sub == "stop":
            self._enter_kill()
        elif self.sub == "stop-post":
            self._ended(self.result)

    def _enter_main(self) -> None:
        commands = self._commands("ExecStart")
        self._set("activating", "start")
        if self.kind == "oneshot":
            self._queue = commands
            self._next()
            return
        if len(commands) != 1:
            raise UnitError("Service has more than one ExecStart= setting or none, which is only allowed for oneshot.")
        self._command = commands[0]
        pid = self._spawn(self._command)
        if self.kind == "forking":
            self.control_pid = pid
        else:
            self.main_pid = pid
        if self.kind in ("simple", "exec", "idle"):
            self._enter_post()

    def _enter_post(self) -> None:
        self._queue = self._commands("ExecStartPost")
        self._set("activating", "start-post")
        self._next()

    def _enter_running(self) -> None:
        self.deadline = None
        if self.kind == "oneshot":
            if self.unit.last("Service", "RemainAfterExit") in ("yes", "true", "1", "on"):
                self.log(f"Finished {self.description}.")
                self._set("active", "exited")
            else:
                self.log(f"Finished {self.description}.")
                self._ended("success")
            return
        self.log(f"Started {self.description}.")
        self._set("active", "running")
        if not self.main_pid and self.kind != "forking":  # It ended while ExecStartPost ran.
            self._enter_stop_post("success" if self.exec_main_status == 0 else "exit-code")

    def _enter_stop(self, result: str) -> None:
        self._stopping, self.result = result == "success", result
        was_running = self.active == "active"
        self._queue = []
        if was_running:
            self._queue = self._commands("ExecStop")
        self._stop_deadline()
        self._set("deactivating", "stop")
        self._next()

    def _enter_kill(self) -> None:
        self._set("deactivating", "stop-sigterm")
        name = self.unit.last("Service", "KillSignal", "SIGTERM")
        self._stop_deadline()
        if self._kill_mode != "none":
            self._signal(signal.Signals[name], everything=self._kill_mode == "control-group")
        if not self.main_pid and not self.control_pid:
            self._enter_stop_post(self.result)

    def _enter_stop_post(self, result: str) -> None:
        if result != "success" and self.result == "success":
            self.result = result
        self._queue = self._commands("ExecStopPost")
        self._stop_deadline()
        self._set("deactivating", "stop-post")
        self._next()

    def _after_exit(self, is_main: bool, result: str) -> None:
        if self.sub in ("start-pre", "start-post", "stop", "stop-post") and not is_main:
            if result == "success" or self.sub.startswith("stop"):
                self._next()
            else:
                self._enter_stop(result)
        elif self.sub == "start":
            if result != "success":
                self._enter_stop_post(result)
            elif self.kind == "notify":
                self.log("Main process ended before it was ready.")
                self._enter_stop_post("protocol")
            elif self.kind == "forking":
                self._enter_post()
            else:
                self._next()
        elif self.sub == "running" or (self.sub == "stop-sigterm" and not self.main_pid and not self.control_pid):
            self._enter_stop_post(result)

    def _ended(self, result: str) -> None:
        """No process of the service's own is left: it is dead, failed, or due for a restart."""
        self.result = result
        self.deadline = None
        self.main_pid = self.control_pid = 0
        if self._kill_mode in ("control-group", "mixed"):
            self._signal(signal.SIGKILL, everything=True)
        policy = self.unit.last("Service", "Restart", "no")
        wanted = {
            "always": self.kind != "oneshot" or result != "success",
            "on-success": result == "success",
            "on-failure": result != "success",
            "on-abnormal": result in ("signal", "timeout", "core-dump", "watchdog"),
            "on-abort": result in ("signal", "core-dump"),
        }.get(policy, False)
        if wanted and not self._stopping:
            if result != "success":
                self.log(f"Failed with result '{result}'.")
            delay = self.unit.seconds("RestartSec", DEFAULT_RESTART_S)
            self._set("activating", "auto-restart")
            self.deadline = time.monotonic() + delay
        elif result == "success":
            self._set("inactive", "dead")
        else:
            self._fail_without_restart(result)

    def _fail_without_restart(self, result: str) -> None:
        self.result = result
        self.log(f"Failed with result '{result}'.")
        self._set("failed", "failed")

    def _set(self, active: str, sub: str, *, condition_failed: bool = False) -> None:
        if active != self.active:
            self.since = time.time()
        self.active, self.sub = active, sub
        if active in ("active", "inactive", "failed") or sub == "auto-restart":
            if active in ("inactive", "failed"):
                self.deadline = None
            good = active == "active" or condition_failed or (active == "inactive" and self.result == "success")
            waiters, self._waiters = self._waiters, []
            for job, waiter in waiters:
                if job == "start" and self._stopping and active in ("inactive", "failed"):
                    # Asked for while it was stopping: its turn has come.
                    self.start(waiter)
                else:
                    waiter(good if job == "start" else True)

    def _commands(self, key: str) -> list[Command]:
        return [units.parse_command(self.unit, line) for line in self.unit.all("Service", key)]

    def _stop_deadline(self) -> None:
        timeout = self.unit.seconds("TimeoutStopSec", self.unit.seconds("TimeoutSec", DEFAULT_TIMEOUT_S))
        self.deadline = None if timeout in (0, float("inf")) else time.monotonic() + timeout

    # Processes --------------------------------------------------------------------------------------------------

    @property
    def _kill_mode(self) -> str:
        return self.unit.last("Service", "KillMode", "control-group")

    def _signal(self, number: int, *, everything: bool) -> None:
        pids = {pid for pid in (self.main_pid, self.control_pid) if pid}
        for pid in pids | (set(self.members()) if everything else set()):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _journal(self) -> io.FileIO:
        JOURNAL.mkdir(parents=True, exist_ok=True)
        return (JOURNAL / f"{self.unit.name}.log").open("ab", buffering=0)

    def trim_journal(self) -> None:
        """Keeps the tail of a journal that has grown too long; its writers append, so they need not know."""
        path = JOURNAL / f"{self.unit.name}.log"
        if path.exists() and path.stat().st_size > JOURNAL_LIMIT_BYTES:
            tail = path.read_bytes()[-JOURNAL_KEPT_BYTES:]
            with path.open("r+b") as journal:
                journal.truncate(0)
                journal.write(tail)

    def _spawn(self, command: Command) -> int:
        unit = self.unit
        environment = {
            "PATH": DEFAULT_PATH,
            "LANG": "C.UTF-8",
            "INVOCATION_ID": self.invocations[-1],
            **units.read_environment(unit),
        }
        if self.kind == "notify":
            environment["NOTIFY_SOCKET"] = NOTIFY_SOCKET
        if self.main_pid:
            environment["MAINPID"] = str(self.main_pid)
        argv = units.expand_variables(command.argv, environment) if command.expands else list(command.argv)
        for key, root in (("RuntimeDirectory", "/run"), ("StateDirectory", "/var/lib")):
            for name in unit.words("Service", key):
                Path(root, name).mkdir(parents=True, exist_ok=True)
        directory = unit.expand(unit.last("Service", "WorkingDirectory", "/"))
        with self._journal() as journal:
            pid = os.fork()
            if pid:
                return pid
            code = EXIT_EXEC
            try:
                null = os.open("/dev/null", os.O_RDONLY)
                os.dup2(null, 0)
                os.dup2(journal.fileno(), 1)
                os.dup2(journal.fileno(), 2)
                os.setsid()
                os.umask(int(unit.last("Service", "UMask", "0022"), 8))
                signal.pthread_sigmask(signal.SIG_SETMASK, [])
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                _limit(unit)
                code = EXIT_CHDIR
                os.chdir(directory.lstrip("-"))
                code = EXIT_EXEC
                os.execvpe(argv[0], argv, environment)
            except BaseException as error:
                os.write(2, f"{unit.name}: Failed at step EXEC spawning {argv[0]}: {error}\n".encode())
            finally:
                os._exit(code)


def _limit(unit: UnitFile) -> None:
    """Limits as far as the machine allows; a node cannot raise what its lab was given."""
    for key, number in (("NOFILE", resource.RLIMIT_NOFILE), ("NPROC", resource.RLIMIT_NPROC),
                        ("CORE", resource.RLIMIT_CORE)):  # fmt: skip
        text = unit.last("Service", f"Limit{key}").split(":")[0]
        if text:
            hard = resource.getrlimit(number)[1]
            wanted = resource.RLIM_INFINITY if text == "infinity" else int(text)
            if hard != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > hard):
                wanted = hard
            resource.setrlimit(number, (wanted, hard))
