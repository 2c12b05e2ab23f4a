"""The whole resource tree of a site under Pulumi mocks: no engine, no plugin, no network.

A recording monitor sees what the program declares: inputs, parents, providers, dependencies and secret marks. Tests
assert on the same record.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.runtime import mocks, rpc

from infra.config import Fleet
from infra.site import Inputs, SiteStack

PROJECT = "fleet"
MASK = "[secret]"
STACK = "pulumi:pulumi:Stack"

# Marks of the engine's wire format (pulumi SDK, `runtime/rpc.py`).
_SIGNATURE = "4dabf18193072939515e22adb298388d"
_SECRET = "1b47061264138c4ac30d75fd1eb44270"

# What providers compute and the program reads back. `stdout` is the one value that a script must print in a form.
_CREDENTIALS = json.dumps({"ca": "Q0E=", "token": "VE9LRU4="})
_IDENTITY = json.dumps({"uid": "00000000-0000-0000-0000-000000000000", "ca_hash": "0" * 64})
_RECOGNISED = json.dumps({"role": "server", "version": "plan-only"})
_JOIN_TOKEN = f"K10{'0' * 64}::server:plan-only-join-token"
_HOST_KEY = "ssh-ed25519 AAAA"


@dataclass(frozen=True)
class Declared:
    """One resource as the program declared it."""

    type: str
    name: str
    parent: str  # name of the parent; empty for the stack itself
    provider: str  # name of the explicit provider, empty for components and providers
    inputs: dict[str, Any]  # secrets in plain text: print `shown` instead
    shown: dict[str, Any]  # inputs with every secret masked where it stands, however deep
    secret: frozenset[str]  # inputs that are secret as a whole
    after: tuple[str, ...]  # names of resources it depends on
    protect: bool
    ignore_changes: tuple[str, ...]
    imported: str  # id of what exists already; empty for what the program makes
    retained: bool  # stays where it is when the resource goes

    def masked(self) -> dict[str, Any]:
        """For `--json`: secrets masked."""
        return {
            "type": self.type,
            "name": self.name,
            "parent": self.parent,
            "provider": self.provider,
            "dependencies": list(self.after),
            "protect": self.protect,
            **({"import": self.imported} if self.imported else {}),
            "inputs": self.shown,
        }


class _Answers(pulumi.runtime.Mocks):
    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        outputs = dict(args.inputs)
        if args.typ == "command:remote:Command":
            outputs |= {"stdout": _stdout(args.name), "stderr": ""}
        if args.typ == "random:index/randomPassword:RandomPassword":
            outputs |= {"result": "plan-only-" + args.name}
        if args.typ == "kubernetes:helm.sh/v3:Release":
            outputs |= {"status": {"status": "deployed"}}
        return f"{args.name}-id", outputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"the program must not look anything up: {args.token}")


def _stdout(name: str) -> str:
    printed = {
        "-bootstrap-": _IDENTITY,
        "-identity-": _IDENTITY,
        "-recognise-": _RECOGNISED,
        "-join-token-": f"{_JOIN_TOKEN}-of-{name}\n",
        "-credentials-": _CREDENTIALS,
    }
    return next((text for mark, text in printed.items() if mark in name), _HOST_KEY)


class Recorder(mocks.MockMonitor):
    """The monitor of a run: records every registration in order."""

    def __init__(self) -> None:
        super().__init__(_Answers())
        self.declared: dict[tuple[str, str], Declared] = {}

    def RegisterResource(self, request: Any) -> Any:
        reply = super().RegisterResource(request)  # type: ignore[no-untyped-call]
        key = (request.type, request.name)
        if key in self.declared:
            raise AssertionError(f"declared twice: {key}")
        state = rpc.deserialize_properties(request.object, keep_unknowns=True)
        self.declared[key] = Declared(
            type=request.type,
            name=request.name,
            parent=_name(request.parent),
            provider=_name(request.provider.rsplit("::", 1)[0]) if request.provider else "",
            inputs={name: rpc.unwrap_rpc_secret(value) for name, value in state.items()},
            shown={key: _masked(request.object.fields[key]) for key in sorted(request.object.fields)},
            secret=frozenset(name for name, value in state.items() if rpc.is_rpc_secret(value)),
            after=tuple(sorted({_name(urn) for urn in request.dependencies})),
            protect=bool(request.protect),
            ignore_changes=tuple(request.ignoreChanges),
            imported=request.importId,
            retained=request.retainOnDelete,
        )
        return reply


def _name(urn: str) -> str:
    return urn.rsplit("::", 1)[-1]


def _masked(value: Any) -> Any:
    """A protobuf `Value` as plain data. The SDK's own reader would hide a whole property for one secret leaf."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        fields = value.struct_value.fields
        if _SIGNATURE in fields and fields[_SIGNATURE].string_value == _SECRET:
            return MASK
        return {key: _masked(fields[key]) for key in sorted(fields) if fields[key].WhichOneof("kind") != "null_value"}
    if kind == "list_value":
        return [_masked(item) for item in value.list_value.values]
    plain = None if kind in (None, "null_value") else getattr(value, kind)
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def declare(program: Callable[[], object], stack: str = "plan") -> dict[tuple[str, str], Declared]:
    """Runs a program against the recorder and returns once every registration has landed."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    recorder = Recorder()
    pulumi.runtime.reset_options()  # forgets the stack of an earlier plan in this process
    try:
        pulumi.runtime.set_mocks(_Answers(), project=PROJECT, stack=stack, preview=False, monitor=recorder)
        pulumi.runtime.test(lambda: program() and None)()  # type: ignore[no-untyped-call]  # the SDK's mocks are not typed
    finally:
        pulumi.runtime.reset_options()
        loop.close()
        asyncio.set_event_loop(None)
    return recorder.declared


def plan(fleet: Fleet, site_id: str, inputs: Callable[[], Inputs]) -> dict[tuple[str, str], Declared]:
    """What the program declares for a site."""
    return declare(lambda: SiteStack(fleet, site_id, inputs()), stack=site_id)
