"""Stand-in for the `command` provider: remote.Command, remote.CopyToRemote and local.Command, really run.

As in the real one: any changed input runs `update`, or `create` again where there is none; only `triggers` replace; a
failed creation leaves nothing in the state; the error names the command, the exit status and what it printed, never
its standard input. Left out: `assetPaths`, `archivePaths`, remote.CopyFile and the functions `run` and `runOutput`.
"""

import asyncio
import codecs
import hashlib
import json
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

import asyncssh
import pulumi
import pulumi_command.local
import pulumi_command.remote
from pulumi.provider.experimental.provider import CheckFailure
from pulumi.runtime.proto import engine_pb2

from lab.providers import STANDS_IN_FOR
from lab.providers.difference import Change
from lab.providers.difference import Kind as Happening
from lab.providers.serving import Refused, log, serve
from lab.providers.ssh import DEFAULTS, connected
from lab.providers.stand_in import Kind, StandIn
from lab.providers.values import UNKNOWN, Properties

STREAMS: Final = {"stdout": ("stdout", "stdoutAndStderr"), "stderr": ("stderr", "stdoutAndStderr")}
"""Stream to the values of `logging` that show it; without `logging` both are shown."""

ACCEPTED_ENVIRONMENT: Final = re.compile(r"LANG|LC_.*")
"""What Debian's sshd accepts by default (AcceptEnv in sshd_config); guests keep that."""

READ_SIZE: Final = 65536

Received = Callable[[str, str], Awaitable[None]]


class _Command(Kind):
    """What local and remote commands share."""

    computed = frozenset({"stdout", "stderr"})
    replaces = frozenset({"triggers"})

    async def run(self, script: str, inputs: Properties, previous: Properties) -> Properties:
        """Runs `script` and returns what it printed. Raises Refused when it fails."""
        printed: dict[str, list[str]] = {"stdout": [], "stderr": []}
        combined: list[str] = []
        shown = inputs.get("logging")

        async def received(stream: str, text: str) -> None:
            printed[stream].append(text)
            combined.append(text)
            if shown is None or shown in STREAMS[stream]:
                for line in text.splitlines():
                    await log(line, passing=True)

        failure = await self.execute(script, inputs, previous, received)
        if failure is not None:
            raise Refused(f"{failure}: running {json.dumps(script)}:\n{''.join(combined)}")
        return {stream: "".join(pieces).removesuffix("\n") for stream, pieces in printed.items()}

    async def execute(self, script: str, inputs: Properties, previous: Properties, received: Received) -> str | None:
        """Runs `script`; returns how it failed, in the real provider's words, or nothing."""
        raise NotImplementedError

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        outputs = {"stdout": "", "stderr": ""}
        if "create" in inputs:
            outputs = await self.run(inputs["create"], inputs, {})
        return name + secrets.token_hex(4), outputs

    async def read(self, resource_id: str, state: Properties) -> tuple[str, Properties, Properties] | None:
        if not state:
            raise Refused(f"a command cannot be imported: nothing can be read for the id {resource_id!r}")
        return await super().read(resource_id, state)

    async def update(
        self, resource_id: str, state: Properties, inputs: Properties, changed: list[Change]
    ) -> Properties:
        script = inputs.get("update", inputs.get("create"))
        if script is None:
            return {stream: state.get(stream, "") for stream in STREAMS}
        return await self.run(script, inputs, state)

    async def delete(self, resource_id: str, state: Properties) -> None:
        if "delete" in state:
            await self.run(state["delete"], state, state)

    def preview_outputs(self, state: Properties, changed: list[Change]) -> Properties:
        # All outputs depend on all inputs.
        return dict.fromkeys(self.computed, UNKNOWN)

    @staticmethod
    def environment(inputs: Properties, previous: Properties) -> dict[str, str]:
        """The variables of the program, and what the previous run printed unless that is switched off."""
        variables = dict(inputs.get("environment", {}))
        if inputs.get("addPreviousOutputInEnv", True):
            variables |= {f"PULUMI_COMMAND_{name.upper()}": previous[name] for name in STREAMS if previous.get(name)}
        return variables


class RemoteCommand(_Command):
    token = "command:remote:Command"
    arguments = pulumi_command.remote.CommandArgs
    always_secret = frozenset({"connection"})

    def normal(self, inputs: Properties) -> Properties:
        return _with_connection_defaults(inputs)

    def invalid(self, inputs: Properties) -> Iterator[CheckFailure]:
        for name in inputs.get("environment", {}):
            if not ACCEPTED_ENVIRONMENT.fullmatch(name):
                yield CheckFailure(
                    f"environment.{name}",
                    f"sshd accepts only LANG and LC_* by default (AcceptEnv), so '{name}' would fail the command; "
                    "pass it on standard input, or as VAR=value before the command",
                )

    async def execute(self, script: str, inputs: Properties, previous: Properties, received: Received) -> str | None:
        variables = {}
        for name, value in self.environment(inputs, previous).items():
            if ACCEPTED_ENVIRONMENT.fullmatch(name):
                variables[name] = value
            else:
                await log(f"Unable to set '{name}'. This only works if your SSH server is configured to accept "
                          "these variables via AcceptEnv.", severity=engine_pb2.WARNING)  # fmt: skip
        async with connected(inputs["connection"]) as client:
            process = await client.create_process(script, env=variables, encoding="utf-8", errors="replace")
            async with process:
                feeding = asyncio.create_task(_feed_remote(process, inputs.get("stdin", "")))
                try:
                    await asyncio.gather(
                        _drain_remote(process.stdout, "stdout", received),
                        _drain_remote(process.stderr, "stderr", received),
                    )
                    await process.wait_closed()
                finally:
                    feeding.cancel()
        if process.exit_signal is not None:
            return f"Process exited with signal {process.exit_signal[0]}"
        if process.exit_status is None:
            return "wait: remote command exited without exit status or exit signal"
        return None if process.exit_status == 0 else f"Process exited with status {process.exit_status}"


class LocalCommand(_Command):
    token = "command:local:Command"
    arguments = pulumi_command.local.CommandArgs

    def invalid(self, inputs: Properties) -> Iterator[CheckFailure]:
        for name in ("assetPaths", "archivePaths"):
            if name in inputs:
                yield CheckFailure(name, f"'{name}' is not acted out by the stand-in provider")

    async def execute(self, script: str, inputs: Properties, previous: Properties, received: Received) -> str | None:
        program = [*(inputs.get("interpreter") or ["/bin/sh", "-c"]), script]
        process = await asyncio.create_subprocess_exec(
            *program,
            cwd=inputs.get("dir"),
            env={**os.environ, **self.environment(inputs, previous)},
            stdin=asyncio.subprocess.PIPE if inputs.get("stdin") else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None and process.stderr is not None
        try:
            await asyncio.gather(
                _feed_local(process.stdin, inputs.get("stdin", "")),
                _drain_local(process.stdout, "stdout", received),
                _drain_local(process.stderr, "stderr", received),
            )
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        if code < 0:
            return f"signal: {-code}"
        return None if code == 0 else f"exit status {code}"


class CopyToRemote(Kind):
    token = "command:remote:CopyToRemote"
    arguments = pulumi_command.remote.CopyToRemoteArgs
    always_secret = frozenset({"connection"})
    replaces = frozenset({"triggers"})

    def normal(self, inputs: Properties) -> Properties:
        return _with_connection_defaults(inputs)

    def invalid(self, inputs: Properties) -> Iterator[CheckFailure]:
        if not isinstance(inputs["source"], pulumi.FileAsset | pulumi.StringAsset) and inputs["source"] is not UNKNOWN:
            yield CheckFailure("source", "the stand-in provider copies file and text assets only")

    def also_changed(self, state: Properties, inputs: Properties, ignored: Any) -> Iterator[Change]:
        # The path of a file asset is equal when the file is not.
        if inputs["source"] is not UNKNOWN and state.get("__hash") != _hash(inputs["source"]):
            yield Change("source", Happening.UPDATE)

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        await self._copy(inputs)
        return secrets.token_hex(4), {"__hash": _hash(inputs["source"])}

    async def update(
        self, resource_id: str, state: Properties, inputs: Properties, changed: list[Change]
    ) -> Properties:
        if {change.top for change in changed} - {"connection"} or state.get("__hash") != _hash(inputs["source"]):
            await self._copy(inputs)
        return {"__hash": _hash(inputs["source"])}

    async def read(self, resource_id: str, state: Properties) -> tuple[str, Properties, Properties] | None:
        return resource_id, {}, {"__hash": state.get("__hash")}

    @staticmethod
    async def _copy(inputs: Properties) -> None:
        target: str = inputs["remotePath"]
        source = inputs["source"]
        async with connected(inputs["connection"]) as client:
            try:
                async with client.start_sftp_client() as sftp:
                    if await sftp.isdir(target):
                        if isinstance(source, pulumi.StringAsset):
                            raise Refused(f"remote path {target} is a directory; a text asset needs a file path")
                        target = f"{target.rstrip('/')}/{Path(source.path).name}"
                    await sftp.makedirs(str(PurePosixPath(target).parent), exist_ok=True)
                    async with sftp.open(target, "wb") as file:
                        await file.write(_content(source))
            except asyncssh.SFTPError as error:
                raise Refused(f"failed to write to remote path {target}: {error}") from error


def _content(source: Any) -> bytes:
    return source.text.encode() if isinstance(source, pulumi.StringAsset) else Path(source.path).read_bytes()


def _hash(source: Any) -> str:
    return hashlib.sha256(_content(source)).hexdigest()


def _with_connection_defaults(inputs: Properties) -> Properties:
    if not isinstance(inputs.get("connection"), dict):
        return inputs
    connection = DEFAULTS | inputs["connection"]
    if isinstance(connection.get("proxy"), dict):
        connection["proxy"] = DEFAULTS | connection["proxy"]
    return inputs | {"connection": connection}


async def _feed_remote(process: asyncssh.SSHClientProcess[str], text: str) -> None:
    try:
        process.stdin.write(text)
        await process.stdin.drain()
        process.stdin.write_eof()
    except (BrokenPipeError, ConnectionError):
        pass  # the command ended without reading all of it


async def _drain_remote(reader: asyncssh.SSHReader[str], stream: str, received: Received) -> None:
    while piece := await reader.read(READ_SIZE):
        await received(stream, piece)


async def _feed_local(writer: asyncio.StreamWriter | None, text: str) -> None:
    if writer is None:
        return
    try:
        writer.write(text.encode())
        await writer.drain()
    except (BrokenPipeError, ConnectionError):
        pass  # the command ended without reading all of it
    writer.close()


async def _drain_local(reader: asyncio.StreamReader, stream: str, received: Received) -> None:
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    while piece := await reader.read(READ_SIZE):
        await received(stream, decode(piece))


def provider() -> StandIn:
    return StandIn([RemoteCommand(), LocalCommand(), CopyToRemote()])


if __name__ == "__main__":
    serve(provider(), STANDS_IN_FOR["command"])
