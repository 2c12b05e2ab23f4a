"""Serves a stand-in to the engine and carries what the SDK's own server leaves out.

That is: errors without a Python traceback, resources that exist but are not finished (the engine keeps them and tries
again), the old inputs of a diff, and log lines that belong to a resource.
"""

import argparse
import asyncio
import os
import signal
import sys
from contextvars import ContextVar
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import struct_pb2
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.provider.experimental.provider import Provider
from pulumi.provider.experimental.server import ProviderServicer
from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, provider_pb2, provider_pb2_grpc, status_pb2

from lab.providers.lifeline import follow_parent

STATUS_DETAILS: Final = "grpc-status-details-bin"

OLD_INPUTS: Final[ContextVar[dict[str, PropertyValue]]] = ContextVar("old_inputs")
"""Inputs of the last successful update, while the engine asks for a diff, an update or a deletion."""

_ENGINE: ContextVar[engine_pb2_grpc.EngineStub | None] = ContextVar("engine", default=None)
_URN: ContextVar[str] = ContextVar("urn", default="")


class Refused(Exception):
    """Something the person at the keyboard can act on; its text is all that is shown."""


class Unfinished(Exception):
    """The resource exists under `resource_id`, but what was asked for is not complete."""

    def __init__(self, resource_id: str, state: dict[str, PropertyValue], reason: str) -> None:
        super().__init__(reason)
        self.resource_id = resource_id
        self.state = state


async def log(
    message: str, *, severity: engine_pb2.LogSeverity.ValueType = engine_pb2.INFO, passing: bool = False
) -> None:
    """Shows a line for the resource in hand; a `passing` one only while the update runs."""
    engine = _ENGINE.get()
    if engine is not None:  # there is none in a unit test
        await engine.Log(engine_pb2.LogRequest(severity=severity, message=message, urn=_URN.get(), ephemeral=passing))


class Servicer(ProviderServicer):
    """The SDK's servicer, with the four things of the module's first lines."""

    engine: engine_pb2_grpc.EngineStub

    async def _answer(self, method: str, request: Any, context: Any) -> Any:
        _ENGINE.set(self.engine)
        _URN.set(getattr(request, "urn", ""))
        if hasattr(request, "old_inputs"):
            OLD_INPUTS.set(PropertyValue.unmarshal_map(request.old_inputs))
        try:
            return await getattr(super(), method)(request, context)
        except Exception as error:
            # The SDK raises a new error that has the traceback in its text; the cause hangs on it.
            cause = error.__context__ or error
            if isinstance(cause, Unfinished):
                details = unfinished_details(cause, request.news if method == "Update" else request.properties)
                await context.abort(grpc.StatusCode.UNKNOWN, str(cause), details)
            if isinstance(cause, Refused):
                await context.abort(grpc.StatusCode.UNKNOWN, str(cause))
            raise

    async def CheckConfig(self, request: Any, context: Any) -> Any:
        return await self._answer("CheckConfig", request, context)

    async def Configure(self, request: Any, context: Any) -> Any:
        return await self._answer("Configure", request, context)

    async def Check(self, request: Any, context: Any) -> Any:
        return await self._answer("Check", request, context)

    async def Diff(self, request: Any, context: Any) -> Any:
        return await self._answer("Diff", request, context)

    async def Create(self, request: Any, context: Any) -> Any:
        return await self._answer("Create", request, context)

    async def Read(self, request: Any, context: Any) -> Any:
        return await self._answer("Read", request, context)

    async def Update(self, request: Any, context: Any) -> Any:
        return await self._answer("Update", request, context)

    async def Delete(self, request: Any, context: Any) -> Any:
        return await self._answer("Delete", request, context)


def unfinished_details(error: Unfinished, inputs: struct_pb2.Struct) -> tuple[tuple[str, bytes]]:
    """The trailing metadata by which the engine tells "exists, but failed" from "does not exist"."""
    detail = provider_pb2.ErrorResourceInitFailed(
        id=error.resource_id,
        properties=PropertyValue.marshal_map(error.state),
        reasons=[str(error)],
        inputs=inputs,
    )
    status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=str(error))
    status.details.add().Pack(detail)

    return ((STATUS_DETAILS, status.SerializeToString()),)


def serve(provider: Provider, version: str) -> None:
    """Runs until the engine ends it, or is gone."""
    # SIGINT is how the engine ends a plugin, after ten seconds by force. One from the terminal does not come here: the
    # engine gives every plugin a process group of its own.
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    follow_parent()
    parser = argparse.ArgumentParser(description="Provider plugin; started by the Pulumi engine.")
    parser.add_argument("engine", help="address of the engine")
    engine: str = parser.parse_known_args()[0].engine

    async def run() -> None:
        server = grpc.aio.server(options=_GRPC_CHANNEL_OPTIONS)
        servicer = Servicer(sys.argv[1:], version, provider, engine)
        provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
        async with grpc.aio.insecure_channel(engine, options=_GRPC_CHANNEL_OPTIONS) as channel:
            servicer.engine = engine_pb2_grpc.EngineStub(channel)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            print(port, flush=True)
            await server.wait_for_termination()

    asyncio.run(run())
