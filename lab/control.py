"""The lab seen from outside: start and stop its daemon, ask it, run something inside it.

Works for root and for an ordinary user where user namespaces are allowed. What runs inside is nobody's child here: see
`inside` for what that means to a caller.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab import PROJECT, LabError

__all__ = ["LabError", "inside", "request", "running", "start", "stop"]

READY_FD = "FLEET_LAB_READY_FD"  # Environment variable: the descriptor that hears when the lab is up.
NEEDED_PROGRAMS = {
    "unshare": "util-linux", "nsenter": "util-linux", "mount": "util-linux", "umount": "util-linux",
    "setsid": "util-linux", "ip": "iproute2", "env": "coreutils", "sh": "dash", "bash": "bash", "curl": "curl",
}  # fmt: skip
NAMESPACES = ("-n", "-m", "-p", "--fork", "--kill-child=SIGKILL", "--mount-proc")
SYSTEM_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin")
MIN_FREE_GIB = 1
START_TIMEOUT_S = 90.0
TERM_TIMEOUT_S = 8.0
KILL_TIMEOUT_S = 15.0
REQUEST_TIMEOUT_S = 120.0

# Daemons that this process started: it is their parent and has to reap them.
_children: dict[int, subprocess.Popen[bytes]] = {}


def start(labdir: Path) -> None:
    """Starts the daemon and waits until the lab is up; a lab that runs stays as it is.

    Raises LabError, and leaves nothing running, when the machine cannot carry a lab or the lab cannot be built.
    """
    for name in ("run", "logs", "nodes"):
        try:
            (labdir / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise LabError(f"cannot write in {labdir}: {error.strerror}; free or choose another place") from error
    with _only_one(labdir):
        if running(labdir):
            return
        _check_machine(labdir)
        flags = _user_namespace_flags()
        _spawn(labdir, flags)


def stop(labdir: Path) -> None:
    """Ends the daemon and with it everything in the lab; harmless when there is none."""
    record = _record(labdir)
    if record is not None and _alive(record):
        for number, patience in ((signal.SIGTERM, TERM_TIMEOUT_S), (signal.SIGKILL, KILL_TIMEOUT_S)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(record["pid"], number)
            if _wait_for_end(record, patience):
                break
        else:
            raise LabError(f"the lab's process {record['pid']} cannot be killed; it may wait for a disk")
    child = _children.pop(record["pid"], None) if record is not None else None
    if child is not None:
        child.wait(timeout=KILL_TIMEOUT_S)
    for name in ("daemon.json", "control.sock"):
        (labdir / "run" / name).unlink(missing_ok=True)
    for empty in (labdir / "run/netns").glob("*"):
        empty.unlink(missing_ok=True)


def running(labdir: Path) -> bool:
    """Whether the daemon of this lab is there."""
    record = _record(labdir)
    return record is not None and _alive(record)


def inside(labdir: Path, argv: Sequence[str], *, netns: str | None = None) -> list[str]:
    """The command line that runs `argv` in the lab's core, or in the network namespace `netns` of the lab.

    It keeps the caller's working directory. The command runs below nsenter, which passes on the exit code but neither
    signals nor its own death: whoever kills nsenter must also end the command, or stop the lab.
    """
    record = _record(labdir)
    if record is None or not _alive(record):
        raise LabError(f"no lab runs in {labdir}; start it with: fleet lab up")
    user = ["-U", "--preserve-credentials"] if record["user_namespace"] else []
    enter = [_program("nsenter"), "-t", str(record["pid"]), *user, "-m", "-p", "-n", "--"]
    if netns is not None:
        enter += ["nsenter", f"--net={labdir.absolute() / 'run/netns' / netns}", "--"]
    return [*enter, "env", "-C", str(Path.cwd()), *argv]


def request(labdir: Path, **message: Any) -> dict[str, Any]:
    """Asks the daemon. Raises LabError with its answer when it refuses, and when there is no daemon."""
    directory = -1
    try:
        directory = os.open(labdir / "run", os.O_DIRECTORY | os.O_RDONLY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(REQUEST_TIMEOUT_S)
            connection.connect(f"/proc/self/fd/{directory}/control.sock")
            connection.sendall(json.dumps(message).encode() + b"\n")
            data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    except TimeoutError as error:
        raise LabError(f"the lab did not answer {message.get('op')} within {REQUEST_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise LabError(f"no lab runs in {labdir}; start it with: fleet lab up") from error
    finally:
        if directory >= 0:
            os.close(directory)
    if not data:
        raise LabError(f"the lab ended before it answered {message.get('op')}; see {labdir}/logs/daemon.log")
    answer: dict[str, Any] = json.loads(data)
    if not answer.pop("ok"):
        raise LabError(answer["error"])
    return answer


def _spawn(labdir: Path, flags: list[str]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = labdir / "logs/daemon.log"
    with ours, theirs, log.open("ab") as output:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        environment = {
            "PATH": _search_path(),
            "PYTHONPATH": str(PROJECT),
            "PYTHONUNBUFFERED": "1",
            "LANG": "C.UTF-8",
            "HOME": str(labdir.absolute()),
            READY_FD: str(theirs.fileno()),
        }
        process = subprocess.Popen(
            [
                _program("unshare"),
                *flags,
                *NAMESPACES,
                "--",
                sys.executable,
                "-m",
                "lab.daemon",
                str(labdir.absolute()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            cwd="/",
            env=environment,
        )
        theirs.close()
        try:
            pid = _await_ready(ours, log)
            record = {"pid": pid, "started": _start_time(pid), "user_namespace": bool(flags)}
            _children[pid] = process
            (labdir / "run/daemon.json").write_text(json.dumps(record))
            message, _ = _receive(ours, log)
            if message != "ready":
                raise LabError(message.removeprefix("error: "))
        except BaseException:
            # unshare takes process 1 along, and that takes everything else.
            process.kill()
            process.wait(timeout=KILL_TIMEOUT_S)
            stop(labdir)
            raise


def _await_ready(connection: socket.socket, log: Path) -> int:
    message, pid = _receive(connection, log)
    if message != "hello":
        raise LabError(message.removeprefix("error: "))
    return pid


def _receive(connection: socket.socket, log: Path) -> tuple[str, int]:
    """A message of the daemon, and the sender's pid as seen from here: the kernel translates it."""
    connection.settimeout(START_TIMEOUT_S)
    try:
        data, ancillary, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(12))
    except TimeoutError as error:
        raise LabError(f"the lab was not up within {START_TIMEOUT_S:.0f} s; see {log}") from error
    if not data:
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it wrote nothing"]
        raise LabError(f"the lab's daemon ended at once: {last[0]}; see {log}")
    pid = next((struct.unpack("iII", part)[0] for _, kind, part in ancillary if kind == socket.SCM_CREDENTIALS), 0)
    return data.decode(errors="replace"), pid


def _check_machine(labdir: Path) -> None:
    if sys.platform != "linux":
        raise LabError("the lab is made of Linux namespaces; expected Linux, use a virtual machine")
    missing = {name: package for name, package in NEEDED_PROGRAMS.items() if _find(name) is None}
    if missing:
        names = ", ".join(f"{name} (package {package})" for name, package in missing.items())
        raise LabError(f"the lab needs programs that this machine lacks: {names}; install them")
    free_gib = shutil.disk_usage(labdir).free / 2**30
    if free_gib < MIN_FREE_GIB:
        raise LabError(f"{labdir} has {free_gib:.1f} GiB free; expected at least {MIN_FREE_GIB} GiB; free some space")


def _user_namespace_flags() -> list[str]:
    """Root needs no user namespace, except where it is a root of fewer rights, as in a container: the root of a user
    namespace has them all.
    """
    own, none = ["-U", "-r"], list[str]()
    candidates = [own] if os.geteuid() != 0 else [none, own] if _has_all_capabilities() else [own, none]
    reason = ""
    for flags in candidates:
        probe = subprocess.run(
            [_program("unshare"), *flags, *NAMESPACES, "--", "true"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        if probe.returncode == 0:
            return flags
        reason = " ".join(probe.stderr.split())
    raise LabError(f"this machine refuses the namespaces that the lab is made of ({reason}); {_remedy()}")


def _has_all_capabilities() -> bool:
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    status = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in status if line.startswith("CapEff:"))
    return int(effective, 16) == (1 << last + 1) - 1


def _remedy() -> str:
    settings = {
        "kernel/unprivileged_userns_clone": ("0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
        "kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        "user/max_user_namespaces": ("0", "sudo sysctl user.max_user_namespaces=10000"),
    }
    for key, (bad, remedy) in settings.items():
        with contextlib.suppress(OSError):
            if Path("/proc/sys", key).read_text().strip() == bad:
                return f"user namespaces are off here; allow them with: {remedy}"
    return "allow user namespaces, run as root, or, in a container, run it privileged"


@contextlib.contextmanager
def _only_one(labdir: Path) -> Iterator[None]:
    with (labdir / "run/lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LabError(f"another command is starting the lab in {labdir}; wait for it to end") from error
        yield


def _record(labdir: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads((labdir / "run/daemon.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return record


def _alive(record: dict[str, Any]) -> bool:
    """The pid may have been given to another process since; its start time tells."""
    started = _start_time(record["pid"])
    return started is not None and started == record["started"]


def _start_time(pid: int) -> int | None:
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _wait_for_end(record: dict[str, Any], patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while _alive(record):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _search_path() -> str:
    """An ordinary user's PATH often lacks the folders of `ip` and its like."""
    present = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([*present, *(path for path in SYSTEM_PATH if path not in present)])


def _find(name: str) -> str | None:
    return shutil.which(name, path=_search_path())


def _program(name: str) -> str:
    found = _find(name)
    if found is None:
        raise LabError(f"the lab needs {name} (package {NEEDED_PROGRAMS[name]}); install it")
    return found
