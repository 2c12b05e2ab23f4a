"""A made-up router behind a real SSH server and a real bash; what stands for VyOS in it is `tests/vyos/vyatta.py`."""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

import asyncssh

from infra.vyos.statements import Statement, read
from tests.operations.loop import Loop
from tests.vyos.vyatta import as_commands, as_saved

ROOT = Path(__file__).parents[2]
ALIASES = {
    "configure": "begin",
    "set": "set",
    "commit-confirm": "commit_confirm",
    "confirm": "confirm",
    "save": "save",
    "exit": "api teardownSession; builtin exit",
}
PATHS = ("/opt/vyatta/", "/config/", "/bin/vbash", "/bin/cli-shell-api", "/dev/shm/")


class StandIn:
    """The server, and what the router behind it has."""

    def __init__(self, loop: Loop, state: Path) -> None:
        self.loop, self.state = loop, state
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.commands: list[str] = []
        self.drop_once_armed = False
        for folder in ("bin", "config", "dev/shm", "opt/vyatta/bin", "opt/vyatta/etc/functions"):
            (state / folder).mkdir(parents=True)
        program = f"'{sys.executable}' -S '{ROOT}/tests/vyos/vyatta.py' '{state}'"
        for name, text in {
            "bin/vbash": 'exec /bin/bash "$@"',
            "bin/sg": '[ "$1 $2" = "vyattacfg -c" ] && exec /bin/sh -c "$3"',
            "bin/cli-shell-api": f'exec {program} api "$@"',
            "bin/systemctl": f'exec {program} systemctl "$@"',
            "opt/vyatta/bin/vyatta-op-cmd-wrapper": f'exec {program} op "$@"',
        }.items():
            (state / name).write_text(f"#!/bin/sh\n{text}\n")
            (state / name).chmod(0o755)
        aliases = [f"alias {name}={_quoted(f'{program} {does}')}" for name, does in ALIASES.items()]
        template = "\n".join(["shopt -s expand_aliases", *aliases, ""])
        (state / "opt/vyatta/etc/functions/script-template").write_text(template)
        loop.run(self._start())

    async def _start(self) -> None:
        keys = asyncssh.import_authorized_keys(self.key.export_public_key().decode())
        self.server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[self.host_key],
            authorized_client_keys=keys,
            process_factory=self._serve,
            encoding=None,
        )
        self.port = self.server.sockets[0].getsockname()[1]

    async def _serve(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        self.commands.append(process.command or "")
        child = await asyncio.create_subprocess_exec(
            *("/bin/bash", "-c", self._below(process.command or "")),
            env={
                "PATH": f"{self.state}/bin:/usr/bin:/bin",
                "PYTHONPATH": str(ROOT),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        sent = await process.stdin.read()
        out, err = await child.communicate(self._below(sent.decode()).encode())
        if self.drop_once_armed and self.armed:
            self.drop_once_armed = False
            process.get_extra_info("connection").abort()
            return
        process.stdout.write(out)
        process.stderr.write(err)
        process.exit(child.returncode or 0)

    def _below(self, text: str) -> str:
        """The router's paths are below the folder of its state."""
        for path in PATHS:
            text = text.replace(path, f"{self.state}{path}")
        return text

    def give(self, running: Iterable[Statement], saved: Iterable[Statement] | None = None) -> None:
        running = list(running)
        (self.state / "active").write_text(as_commands(running))
        (self.state / "config/config.boot").write_text(as_saved(running if saved is None else saved))

    def trap(self, name: str, value: str = "") -> None:
        (self.state / f"trap-{name}").write_text(value)

    def run_out(self) -> None:
        """The minutes of the commit-confirm pass, all at once."""
        (self.state / "armed").write_text("0")

    def mend(self) -> None:
        for path in self.state.glob("trap-*"):
            path.unlink()

    @property
    def armed(self) -> bool:
        return (self.state / "armed").exists()

    @property
    def running(self) -> set[Statement]:
        return set(read((self.state / "active").read_text()))

    @property
    def saved(self) -> set[Statement]:
        return set(read((self.state / "config/config.boot").read_text()))

    @property
    def backups(self) -> list[Path]:
        return sorted((self.state / "config").glob("fleet-backup-*"))

    def close(self) -> None:
        async def stop() -> None:
            self.server.close()
            await self.server.wait_closed()

        self.loop.run(stop())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
