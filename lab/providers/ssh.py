"""SSH connections as the `command` provider makes them: which options count, how often it dials, what its errors say.

Left out: the ssh-agent of an encrypted key on a terminal; nobody is there to ask.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncssh

from lab.providers.serving import Refused, log

DEFAULTS: Final = {"user": "root", "port": 22, "dialErrorLimit": 10, "perDialTimeout": 15}
UNLIMITED: Final = -1
FIRST_PAUSE_S: Final = 0.1
PAUSE_GROWTH: Final = 1.5
LONGEST_PAUSE_S: Final = 5.0

Connection = Mapping[str, Any]


@asynccontextmanager
async def connected(connection: Connection) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A connection to the host, through `proxy` where one is given. Raises Refused when it cannot be had."""
    tunnel: asyncssh.SSHClientConnection | None = None
    if "proxy" in connection:
        tunnel = await _dial(DEFAULTS | dict(connection["proxy"]), "Dial proxy", None)
    try:
        client = await _dial(connection, "Dial", tunnel)
        async with client:
            yield client
    finally:
        if tunnel is not None:
            tunnel.close()
            await tunnel.wait_closed()


async def _dial(
    connection: Connection, action: str, tunnel: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection:
    options = _options(connection)
    limit, pause, failed = connection["dialErrorLimit"], FIRST_PAUSE_S, 0
    while True:
        try:
            return await asyncssh.connect(
                connection["host"], int(connection["port"]), tunnel=tunnel or (), options=options
            )
        except (TimeoutError, OSError, asyncssh.Error) as error:
            failed += 1
            if limit != UNLIMITED and failed > limit:
                raise Refused(f"after {failed - 1} failed attempts: {_reason(connection, error)}") from error
            await log(f"{action} {failed}/{'inf' if limit == UNLIMITED else limit} failed: retrying", passing=True)
        await asyncio.sleep(pause)
        pause = min(pause * PAUSE_GROWTH, LONGEST_PAUSE_S)


def _reason(connection: Connection, error: Exception) -> str:
    where = f"{connection['host']}:{int(connection['port'])}"
    match error:
        case asyncssh.HostKeyNotVerifiable():
            return "ssh: handshake failed: ssh: host key mismatch"
        case asyncssh.PermissionDenied():
            return f"ssh: handshake failed: ssh: unable to authenticate as {connection['user']} at {where}"
        case asyncio.TimeoutError():
            return f"dial tcp {where}: i/o timeout"
        case _:
            return f"dial tcp {where}: {error}"


def _options(connection: Connection) -> asyncssh.SSHClientConnectionOptions:
    """Only what the program gives counts: no ~/.ssh, no default keys."""
    try:
        keys = None
        if "privateKey" in connection:
            keys = [asyncssh.import_private_key(connection["privateKey"], connection.get("privateKeyPassword"))]
        known_hosts: Any = None  # any key is taken, as the real provider does
        if "hostKey" in connection:
            known_hosts = ([asyncssh.import_public_key(connection["hostKey"])], [], [])
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise Refused(f"the SSH key of the connection to {connection['host']} cannot be read: {error}") from error
    return asyncssh.SSHClientConnectionOptions(
        config=None,
        username=connection["user"],
        password=connection.get("password"),
        client_keys=keys,
        agent_path=connection.get("agentSocketPath") or os.environ.get("SSH_AUTH_SOCK"),
        known_hosts=known_hosts,
        connect_timeout=connection["perDialTimeout"] or None,
        login_timeout=connection["perDialTimeout"] or 0,
        keepalive_interval=30,
    )
