"""A node: what a started guest is. Own processes, mounts, host name and network; a disk; an SSH server.

The program's scripts run in it unchanged. Memory, CPU and disk sizes of the guest have no effect here, and its kernel
is the machine's.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Protocol

from lab import PROJECT, LabError, disk
from lab.net import Network, listen_in
from lab.ssh import SSH_PORT, SshServer
from lab.standins.init import EXIT_REBOOT

LEAF_PROGRAMS = PROJECT / "lab/standins/sbin"
GPU_PROGRAMS = frozenset(("nvidia-smi",))
BOOT_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 15.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Guest:
    """A Proxmox guest as its config describes it."""

    site: str
    name: str
    vmid: int
    kind: str  # "vm" or "lxc"
    host: str
    address: IPv4Interface
    gateway: IPv4Address | None
    dns: tuple[str, ...] | list[str] = ()
    user: str = "root"  # The cloud-init user; only this one can log in.
    ssh_keys: Sequence[str] = ()  # Lines of authorized_keys.
    devices: Sequence[str] = ()  # Paths that are passed through, such as /dev/nvidia0.


class GuestEvents(Protocol):
    """What the Proxmox fake tells the lab."""

    async def started(self, guest: Guest) -> None:
        """Power on; the config may differ from the last time."""

    async def stopped(self, guest: Guest) -> None:
        """Power off; the disk stays."""

    async def deleted(self, guest: Guest) -> None:
        """The guest and its disk are gone."""


class Node:
    """One guest's machine, running or not. Operations on one node wait for each other."""

    def __init__(self, guest: Guest, network: Network, labdir: Path, toolchain: Path) -> None:
        self.guest = guest
        self.since: datetime | None = None
        self.init_pid = 0  # In the lab's pid namespace; 0 when off.
        self._network = network
        self._toolchain = toolchain
        self._disk = labdir / "nodes" / guest.site / guest.name
        self._root = labdir / "run/root"
        self._log = labdir / "logs" / f"node-{guest.site}-{guest.name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ssh: SshServer | None = None
        self._lock = asyncio.Lock()

    @property
    def running(self) -> bool:
        """Whether the node is on."""
        return self._process is not None

    @property
    def netns(self) -> str:
        """Name of its network namespace."""
        return f"g-{self.guest.site}-{self.guest.name}"

    async def start(self) -> None:
        """Boots from its disk, which is made if there is none. A running node stays as it is."""
        async with self._lock:
            if self.running:
                return
            try:
                await self._start()
            except BaseException:
                await self._power_off()
                raise

    async def kill(self) -> None:
        """Pulls the plug: every process is gone at once. Connections end rather than hang, unlike those of a real
        machine, so that what waits for one need not wait for a TCP timeout.
        """
        async with self._lock:
            await self._power_off()

    async def wipe(self) -> None:
        """Pulls the plug and loses the disk. The node stays off."""
        async with self._lock:
            await self._power_off()
            await asyncio.to_thread(disk.wipe, self._disk)

    def enter(self, argv: Sequence[str], user: str) -> list[str]:
        """The command line that runs `argv` inside the running node, as a login of `user`."""
        home = disk.home(user)
        return [
            *("nsenter", "-t", str(self.init_pid), "-m", "-u", "-i", "-n", "-p", "--"),
            *("env", "-i", "-C", home, f"HOME={home}", f"USER={user}", f"LOGNAME={user}", f"PATH={PATH}"),
            *("LANG=C.UTF-8", "SHELL=/bin/bash"),
            *argv,
        ]

    async def run(self, script: str, timeout_s: float) -> str:
        """What a script of root's printed, without the last line's end. Raises LabError when it fails."""
        process = await asyncio.create_subprocess_exec(
            *self.enter(["/bin/sh"], "root"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, complaints = await asyncio.wait_for(process.communicate(script.encode()), timeout_s)
        except TimeoutError as error:
            process.kill()
            raise LabError(f"{self.guest.name}: a script of the lab did not end within {timeout_s:.0f} s") from error
        if process.returncode:
            raise LabError(f"{self.guest.name}: a script of the lab failed: {complaints.decode(errors='replace')}")
        return out.decode().rstrip("\n")

    async def _start(self) -> None:
        guest = self.guest
        gpu = any("nvidia" in device for device in guest.devices)
        leaves = [path.name for path in LEAF_PROGRAMS.iterdir() if gpu or path.name not in GPU_PROGRAMS]
        try:
            await asyncio.to_thread(disk.prepare, self._disk, guest, leaves)
        except OSError as error:
            raise LabError(f"cannot write the disk of {guest.name}: {error.strerror}: {error.filename}") from error
        await asyncio.to_thread(self._network.attach, self.netns, guest.site, guest.address, guest.gateway)
        self._root.mkdir(exist_ok=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, await asyncio.to_thread(self._log.open, "ab") as output:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            ours.settimeout(BOOT_TIMEOUT_S)
            self._process = await asyncio.create_subprocess_exec(
                *("nsenter", f"--net={self._network.path(self.netns)}", "--"),
                *("unshare", "-m", "-p", "-u", "-i", "--fork", "--kill-child=SIGKILL", "--"),
                *(sys.executable, "-IS", str(PROJECT / "lab/standins/boot.py")),
                *(json.dumps(self._boot_spec()), str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                cwd="/",
            )
            theirs.close()
            self.init_pid = await asyncio.to_thread(self._await_boot, ours)
        self._ssh = SshServer(guest.name, guest.user, guest.ssh_keys, self._disk / disk.HOST_KEY, self.enter)
        await self._ssh.start(listen_in(self._network.path(self.netns), str(guest.address.ip), SSH_PORT))
        self.since = datetime.now(UTC)
        self._watch = asyncio.create_task(self._watch_for_end(self._process))

    def _await_boot(self, connection: socket.socket) -> int:
        try:
            message, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(12))
        except TimeoutError as error:
            raise LabError(f"{self.guest.name} did not boot within {BOOT_TIMEOUT_S:.0f} s; see {self._log}") from error
        if message != b"ready":
            reason = message.decode(errors="replace").removeprefix("error: ") or f"it ended early; see {self._log}"
            raise LabError(f"{self.guest.name} did not boot: {reason}")
        # The kernel translates the sender's pid into our namespace.
        return next(struct.unpack("iII", data)[0] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS)  # type: ignore[no-any-return]  # struct says nothing about its types

    def _boot_spec(self) -> dict[str, object]:
        read_only = {str(PROJECT / "lab"), sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)}
        return {
            "root": str(self._root),
            "disk": str(self._disk),
            "hostname": self.guest.name,
            # A VM has a kernel of its own, and so this one.
            "devices": [*self.guest.devices, *(["/dev/kmsg"] if self.guest.kind == "vm" else [])],
            "binds": sorted(path for path in read_only if not path.startswith("/usr")),
            "toolchain": str(self._toolchain),
            "project": str(PROJECT),
            "python": sys.executable,
        }

    async def _watch_for_end(self, process: asyncio.subprocess.Process) -> None:
        """Notices that the node ended by itself: by `reboot`, `poweroff`, or a fault of the lab."""
        code = await process.wait()
        async with self._lock:
            if self._process is not process:
                return
            self._watch = None
            await self._power_off()
            log.info("%s ended by itself, exit code %d", self.guest.name, code)
        if code == EXIT_REBOOT:
            await self.start()

    async def _power_off(self) -> None:
        process, self._process = self._process, None
        watch, self._watch = self._watch, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # unshare ends only when the whole pid namespace is gone; before boot it takes its child along.
                os.kill(self.init_pid or process.pid, signal.SIGKILL)
            try:
                await asyncio.wait_for(process.wait(), KILL_TIMEOUT_S)
            except TimeoutError as error:
                raise LabError(
                    f"{self.guest.name} has a process that cannot be killed (waiting for a disk?)"
                ) from error
        if watch is not None:
            watch.cancel()
        ssh, self._ssh = self._ssh, None
        if ssh is not None:
            await ssh.stop()
        self.init_pid, self.since = 0, None
        await asyncio.to_thread(self._network.detach, self.netns)
