"""A VyOS router over SSH: what it has, and scripts that run on it. Its host key is the document's, never a first guess.

Scripts, and the keys in them, travel on standard input into a file of the router's memory that only its user can read.
Leaves out what is applied and whether it may be (`operations.router.plan`). Source: VyOS 1.4 and 1.5, scripting and
commit-confirm; nothing here has met a real router yet.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import asyncssh

from infra.config.network import RouterSsh
from infra.violation import shown

_Made = TypeVar("_Made")

CONNECT_TIMEOUT_S = 20
READ_TIMEOUT_S = 120
SCRIPT_TIMEOUT_S = 600  # beyond the router's own bound below
OP = "VYATTA_PAGER=cat /opt/vyatta/bin/vyatta-op-cmd-wrapper"
SAVED = "/config/config.boot"
TIMER = "commit-confirm.timer"
# The output goes to a file first: a connection that is lost must not end a commit half way.
_RUN = """\
umask 077
f=$(mktemp /dev/shm/fleet.XXXXXX) || exit 70
trap 'rm -f "$f" "$f.out"' EXIT
cat >"$f" || exit 70
timeout -k 5 540 sg vyattacfg -c "/bin/vbash $f" </dev/null >"$f.out" 2>&1
code=$?
tail -c 4000 "$f.out"
exit "$code"
"""
# Aliases of the template, `exit` among them, hold only for lines that are read after it.
_SESSION = """\
source /opt/vyatta/etc/functions/script-template
configure
/bin/cli-shell-api inSession || builtin exit 11
trap '/bin/cli-shell-api teardownSession' EXIT
"""
# What `set` and `commit` return through their aliases says nothing: a refused value is known by its words, a commit by
# what is left of the session. The prompt of commit-confirm repeats for ever without an answer.
_APPLY = """\
systemctl is-active --quiet {timer} && builtin exit 8
[ "$({op} show configuration commands | sha256sum | cut -c 1-64)" = {running} ] || builtin exit 9
judged() {{
    [ "$2" = 0 ] && [[ $said != *[Ff]ailed* && $said != *"not valid"* && $said != *ambiguous* ]] && return
    echo "refused: $1"
    echo "$said"
    builtin exit 10
}}
{session}{sets}
/bin/cli-shell-api sessionChanged || builtin exit 12
commit-confirm {minutes} <<<y
/bin/cli-shell-api sessionChanged && builtin exit 13
builtin exit 0
"""
_CONFIRM = """\
{session}confirm
systemctl is-active --quiet {timer} && builtin exit 14
save
builtin exit 0
"""
PENDING, CHANGED, REFUSED, NO_SESSION, NOTHING, UNCOMMITTED, UNCONFIRMED = range(8, 15)


class RouterError(Exception):
    """The router could not do it; the text says what was found and what to do."""


class Lost(RouterError):
    """The connection ended under a script: nobody here knows how far it came."""


@dataclass(frozen=True, kw_only=True)
class Router:
    """How a router is reached."""

    ssh: RouterSsh
    private_key: str = field(repr=False)  # OpenSSH


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a router has at one moment."""

    running: bytes = field(repr=False)  # `show configuration commands`; holds keys
    saved: bytes = field(repr=False)  # config.boot; holds keys
    armed: str  # since when a commit-confirm waits; empty where none does
    said: dict[str, str] = field(default_factory=dict)  # by op mode command


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How a script ended."""

    code: int
    said: str = field(repr=False)  # may quote what the script held


def look(router: Router, asked: Iterable[str] = ()) -> Seen:
    """Reads over a new connection; `asked`: further op mode commands. Raises RouterError."""

    async def read(connection: asyncssh.SSHClientConnection) -> Seen:
        timer = (
            await _read(connection, f"systemctl show {TIMER} --property=ActiveState,ActiveEnterTimestamp")
        ).decode()
        state = dict(line.split("=", 1) for line in timer.splitlines() if "=" in line)
        waits = state.get("ActiveState") == "active"
        return Seen(
            running=await _read(connection, f"{OP} show configuration commands"),
            saved=await _read(connection, f"cat {SAVED}"),
            armed=shown(state.get("ActiveEnterTimestamp") or "a time it does not tell", 60) if waits else "",
            said={one: (await _read(connection, f"{OP} {one}", fails=True)).decode(errors="replace") for one in asked},
        )

    return asyncio.run(_connected(router, read))


def copy_saved(router: Router, path: str) -> str:
    """Copies the saved configuration to a file on the router; returns its SHA-256. Raises RouterError."""

    async def copy(connection: asyncssh.SSHClientConnection) -> str:
        made = await _read(connection, f"umask 077; cp {SAVED} {path} && sync {path} && sha256sum {path}")
        return made.decode(errors="replace").split(" ")[0]

    return asyncio.run(_connected(router, copy))


def commit(router: Router, running: str, statements: Iterable[tuple[str, ...]], minutes: int) -> Ran:
    """Sets and commits, to be confirmed within `minutes`, if the running configuration still has that SHA-256.

    Raises Lost, or RouterError where nothing was sent.
    """
    sets = "\n".join(
        f"said=$(set {' '.join(shlex.quote(word) for word in statement)} 2>&1); judged {number} $?"
        for number, statement in enumerate(statements)
    )
    parts = {"op": OP, "timer": TIMER, "running": running, "session": _SESSION, "sets": sets, "minutes": minutes}
    return _script(router, _APPLY.format_map(parts))


def confirm(router: Router) -> Ran:
    """Confirms what waits, and saves. Raises Lost, or RouterError where nothing was sent."""
    return _script(router, _CONFIRM.format(timer=TIMER, session=_SESSION))


def _script(router: Router, text: str) -> Ran:
    async def run(connection: asyncssh.SSHClientConnection) -> Ran:
        try:
            done = await connection.run(
                f"/bin/bash -c {shlex.quote(_RUN)}",
                input=text.encode(),
                stderr=asyncssh.STDOUT,
                encoding=None,
                timeout=SCRIPT_TIMEOUT_S,
            )
        except (OSError, asyncssh.Error, TimeoutError):  # its text may quote what was sent
            raise Lost("the connection was lost while the router worked") from None
        if done.exit_status is None or done.exit_status < 0:
            raise Lost("the connection was lost while the router worked")
        return Ran(code=done.exit_status, said=_bytes(done.stdout).decode(errors="replace"))

    return asyncio.run(_connected(router, run))


async def _read(connection: asyncssh.SSHClientConnection, command: str, *, fails: bool = False) -> bytes:
    done = await connection.run(command, encoding=None, timeout=READ_TIMEOUT_S, stdin=asyncssh.DEVNULL)
    if done.exit_status != 0 and not fails:
        said = " ".join(_bytes(done.stderr).decode(errors="replace").split())[-300:]
        raise RouterError(
            f"`{command}` ended with {done.exit_status}: {shown(said, 300) or 'no word'}; nothing was changed by it"
        )
    return _bytes(done.stdout) if done.exit_status == 0 else b""


def _bytes(read: bytes | str | None) -> bytes:
    return read if isinstance(read, bytes) else (read or "").encode()


async def _connected(router: Router, work: Callable[[asyncssh.SSHClientConnection], Awaitable[_Made]]) -> _Made:
    ssh = router.ssh
    place = f"{ssh.user}@{ssh.address}"
    try:
        pinned = asyncssh.import_public_key(ssh.host_key)
    except asyncssh.KeyImportError:
        raise RouterError("vyos.ssh.host_key is no key that OpenSSH knows; correct it") from None
    try:
        key = asyncssh.import_private_key(router.private_key)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):  # its text may quote the key
        raise RouterError("fleet:sshPrivateKey is no private key without a passphrase; set it again") from None
    try:
        async with asyncssh.connect(
            str(ssh.address),
            ssh.port,
            username=ssh.user,
            client_keys=[key],
            known_hosts=([pinned], [], []),
            server_host_key_algs=["ssh-ed25519"],
            config=None,  # the program's own key and host key, whatever the person has configured
            agent_path=None,
            connect_timeout=CONNECT_TIMEOUT_S,
            login_timeout=CONNECT_TIMEOUT_S,
            keepalive_interval=10,
        ) as connection:
            return await work(connection)
    except asyncssh.HostKeyNotVerifiable:
        raise RouterError(
            f"{place}: found another host key than vyos.ssh.host_key; nothing was sent: if the router was made anew, "
            "read its key at its console (cat /etc/ssh/ssh_host_ed25519_key.pub) and correct the document"
        ) from None
    except asyncssh.PermissionDenied:
        raise RouterError(
            f"{place}: found a login that does not accept fleet:sshPrivateKey; add its public half there: "
            f"set system login user {ssh.user} authentication public-keys"
        ) from None
    except (OSError, TimeoutError, asyncssh.Error) as error:
        raise RouterError(f"{place}, port {ssh.port}: no answer ({str(error) or 'in time'})") from None
