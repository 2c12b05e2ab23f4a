"""Runs the speakers of the lab: one GoBGP for a router or a node, inside its network, alive as long as the lab.

A configuration goes in by standard input and its secrets reach no disk. What the speakers know is asked of them with
their own command-line program.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lab import LabError

COMMAND_TIMEOUT_S = 10.0
READY_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 3.0
ADDRESS = "127.0.0.1:50051"  # of GoBGP's API, in the network of the speaker
SMALL = {"GOGC": "40", "GOMAXPROCS": "1"}

ESTABLISHED = 6


class Speakers:
    """All speakers, by the name of their network namespace."""

    def __init__(self, namespace: Callable[[str], Path], toolchain: Path, logs: Path) -> None:
        self._namespace, self._toolchain, self._logs = namespace, toolchain, logs
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str, configuration: dict[str, Any], announced: Iterable[str]) -> None:
        """Starts a speaker anew. Raises LabError when it does not come up."""
        await self.stop(name)
        place = self._logs / f"bgp-{name}.log"
        command = [str(self._toolchain / "gobgpd"), "-t", "json", "-f", "/dev/stdin", "--api-hosts", ADDRESS]
        command = ["env", *(f"{key}={value}" for key, value in SMALL.items()), *command, "--pprof-disable", "-p"]
        with place.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *self._inside(name), *command, stdin=asyncio.subprocess.PIPE, stdout=output, stderr=output, cwd="/"
            )
        self._running[name] = process
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(configuration).encode())
            await process.stdin.drain()
        process.stdin.close()
        await self._until_ready(name, place)
        for prefix in sorted(announced):
            await self._ask(name, "global", "rib", "add", prefix)

    async def announce(self, name: str, prefixes: Iterable[str], *, withdraw: bool) -> None:
        """Adds prefixes to what a speaker announces, or takes them back."""
        for prefix in prefixes:
            await self._ask(name, "global", "rib", "del" if withdraw else "add", prefix)

    async def stop(self, name: str) -> None:
        """Ends a speaker; its neighbours see the session end. Absent is fine."""
        process = self._running.pop(name, None)
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def stop_all(self) -> None:
        """Ends every speaker."""
        for name in [*self._running]:
            await self.stop(name)

    async def state(self, names: Iterable[str], *, wire: bool) -> dict[str, Any]:
        """By speaker, all of them where none is named: its neighbours and its best routes.

        With `wire` also what each neighbour sent and got: two more questions for each, of some 50 ms.
        """
        return {name: await self._state(name, wire) for name in names or sorted(self._running)}

    async def _state(self, name: str, wire: bool) -> dict[str, Any]:
        if name not in self._running:
            raise self._unknown(name)
        if self._running[name].returncode is not None:
            return {"running": False, "neighbors": {}, "routes": {}}
        neighbors = {}
        for one in json.loads(await self._ask(name, "-j", "neighbor")) or ():
            address = one["conf"]["neighbor_address"]
            up = one["state"].get("session_state") == ESTABLISHED
            neighbors[address] = {
                "asn": one["conf"]["peer_asn"],
                "established": up,
                "received": await self._prefixes(name, "neighbor", address, "adj-in") if up and wire else [],
                "sent": await self._prefixes(name, "neighbor", address, "adj-out") if up and wire else [],
            }
        table = json.loads(await self._ask(name, "-j", "global", "rib") or "{}")
        routes = {prefix: sorted(map(_next_hop, paths)) for prefix, paths in table.items()}
        return {"running": True, "neighbors": neighbors, "routes": routes}

    def _unknown(self, name: str) -> LabError:
        return LabError(f"no BGP speaker of {name}; expected one of: {', '.join(self._running) or 'none yet'}")

    def _inside(self, name: str) -> list[str]:
        return ["nsenter", f"--net={self._namespace(name)}", "--"]

    async def _prefixes(self, name: str, *what: str) -> list[str]:
        return sorted(json.loads(await self._ask(name, "-j", *what) or "{}"))

    async def _until_ready(self, name: str, place: Path) -> None:
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        process = self._running[name]
        while True:
            try:
                await self._ask(name, "global")
                return
            except LabError as error:
                if process.returncode is None and asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(0.1)
                    continue
                await self.stop(name)
                raise LabError(f"the BGP speaker of {name} did not come up; see {place}") from error

    async def _ask(self, name: str, *arguments: str) -> str:
        if name not in self._running:
            raise self._unknown(name)
        host, _, port = ADDRESS.partition(":")
        process = await asyncio.create_subprocess_exec(
            *self._inside(name),
            *(str(self._toolchain / "gobgp"), "-u", host, "-p", port, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd="/",
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), COMMAND_TIMEOUT_S)
        except TimeoutError as error:
            process.kill()
            await process.wait()
            raise LabError(f"the BGP speaker of {name} did not answer within {COMMAND_TIMEOUT_S:.0f} s") from error
        if process.returncode:
            raise LabError(f"the BGP speaker of {name}: {' '.join(out.decode(errors='replace').split())}")
        return out.decode()


def _next_hop(path: dict[str, Any]) -> str:
    return next((str(one["nexthop"]) for one in path["attrs"] if "nexthop" in one), "")
