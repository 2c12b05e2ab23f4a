"""The SSH server of a node: logins with the guest's keys, commands and shells that run inside the node.

Served by the lab's one process on a socket of the node's network namespace. Passwords, SFTP, forwarding and agents are
refused: nothing in the program needs them on a guest.
"""

import asyncio
import contextlib
import fcntl
import io
import logging
import os
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from pathlib import Path

import asyncssh

SSH_PORT = 22
CHUNK_BYTES = 1 << 16
LOGIN_TIMEOUT_S = 30

log = logging.getLogger(__name__)

Enter = Callable[[Sequence[str], str], list[str]]
Process = asyncssh.SSHServerProcess[bytes]


class SshServer:
    """One node's server; `enter` gives the command line that runs another inside the node."""

    def __init__(self, name: str, user: str, authorized_keys: Sequence[str], host_key: Path, enter: Enter) -> None:
        self._name = name
        self._user = user
        self._host_key = host_key
        self._enter = enter
        self._keys: list[asyncssh.SSHKey] = []
        for line in authorized_keys:
            try:
                self._keys.append(asyncssh.import_public_key(line))
            except asyncssh.KeyImportError as error:
                log.warning("%s: a line of its SSH keys is not a public key: %s", name, error)
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._acceptor: asyncssh.SSHAcceptor | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serves on a socket that listens already."""
        self._acceptor = await asyncssh.listen(
            sock=listener,
            server_factory=lambda: _Login(self._user, self._keys, self._connections),
            process_factory=self._serve,
            server_host_keys=[str(self._host_key)],
            encoding=None,
            allow_scp=False,
            agent_forwarding=False,
            login_timeout=LOGIN_TIMEOUT_S,
        )

    async def stop(self) -> None:
        """Closes the port and ends every connection."""
        if self._acceptor is not None:
            self._acceptor.close()
        for connection in list(self._connections):
            connection.abort()

    async def _serve(self, process: Process) -> None:
        user = process.get_extra_info("username")
        try:
            if process.term_type is not None:
                code = await self._run_on_terminal(process, user)
            else:
                code = await self._run(process, user)
            if code < 0:
                process.exit_with_signal("KILL")
            else:
                process.exit(code)
        except (OSError, asyncssh.Error) as error:
            log.info("%s: session ended: %s", self._name, error)
            process.close()

    async def _run(self, process: Process, user: str) -> int:
        argv = ["/bin/sh", "-c", process.command] if process.command is not None else ["/bin/bash", "-l"]
        child = await asyncio.create_subprocess_exec(
            *self._enter(argv, user),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert child.stdin and child.stdout and child.stderr
        stdin = asyncio.create_task(_feed(process, child.stdin))
        try:
            # As sshd does, wait for the command and for everything that still holds its output.
            await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))
            return await child.wait()
        finally:
            stdin.cancel()

    async def _run_on_terminal(self, process: Process, user: str) -> int:
        argv = ["/bin/bash", "-lc", process.command] if process.command is not None else ["/bin/bash", "-l"]
        ours, theirs = os.openpty()
        columns, rows, _, _ = process.term_size
        _resize(ours, columns, rows)
        try:
            child = await asyncio.create_subprocess_exec(
                *self._enter(["setsid", "--ctty", "--wait", "env", f"TERM={process.term_type}", *argv], user),
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        reader = asyncio.StreamReader()
        with io.FileIO(ours, "r") as terminal:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), terminal
            )
            typed = asyncio.create_task(_type(process, ours))
            try:
                await _copy(reader, process.stdout)
                return await child.wait()
            finally:
                typed.cancel()
                transport.close()


class _Login(asyncssh.SSHServer):
    """Lets in the guest's user with one of the guest's keys."""

    def __init__(self, user: str, keys: list[asyncssh.SSHKey], connections: set[asyncssh.SSHServerConnection]) -> None:
        self._user = user
        self._keys = keys
        self._connections = connections
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == self._user and key in self._keys


async def _copy(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):  # A terminal ends with EIO; a client may leave early.
        while data := await source.read(CHUNK_BYTES):
            sink.write(data)
            await sink.drain()


async def _feed(process: Process, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await process.stdin.read(CHUNK_BYTES):
            sink.write(data)
            await sink.drain()
    sink.close()


async def _type(process: Process, terminal: int) -> None:
    while True:
        try:
            data = await process.stdin.read(CHUNK_BYTES)
        except asyncssh.TerminalSizeChanged as change:
            _resize(terminal, change.width, change.height)
            continue
        except asyncssh.BreakReceived:
            data = b"\x03"
        except (OSError, asyncssh.Error):
            return
        if not data:
            return
        os.write(terminal, data)


def _resize(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
