"""The Python language host: runs `__main__.py` of a program directory, and Python policy packs, for the engine.

Left out: installing dependencies and looking up required plugins. The interpreter that runs this host has the
dependencies, and plugins are those on PATH.
"""

import os
import queue
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import IO, Any, Final

import grpc
from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto import language_pb2, language_pb2_grpc

from lab.providers.lifeline import follow_parent

UNEXPECTED: Final = "python inline source runtime error"  # how the SDK's server begins all but a RunError
MESSAGE_LIMIT: Final = 400 * 1024 * 1024  # bytes; the engine's own limit


class Host(LanguageServer):
    """Serves one program or policy pack; the engine starts a host for each."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def Handshake(self, request: Any, context: Any) -> Any:
        return language_pb2.LanguageHandshakeResponse()

    def Run(self, request: Any, context: Any) -> Any:
        directory = Path(request.info.program_directory or request.program)
        os.chdir(request.pwd or directory)
        sys.path.insert(0, str(directory))

        def program() -> None:
            runpy.run_path(str(directory / "__main__.py"), run_name="__main__")

        self.program = program
        reply = super().Run(request, context)  # type: ignore[no-untyped-call]  # the SDK leaves it untyped
        if reply.error and not reply.error.startswith(UNEXPECTED):
            # A RunError was logged already; as an error of the reply the engine would print it once more.
            return language_pb2.RunResponse(bail=True)
        return reply

    def RunPlugin(self, request: Any, context: Any) -> Iterator[Any]:
        """Runs a policy pack and passes on what it prints; its first line is the port that it serves."""
        if request.kind != "analyzer":
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"cannot run a Python plugin of kind {request.kind!r}")
        directory = request.info.program_directory
        environment = dict(entry.split("=", 1) for entry in request.env) | {"PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "pulumi.policy", *request.args, directory],
            cwd=request.pwd or directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        context.add_callback(process.terminate)
        assert process.stdout is not None and process.stderr is not None
        pieces: queue.Queue[Any] = queue.Queue()
        streams = {"stdout": process.stdout, "stderr": process.stderr}
        for field, stream in streams.items():
            threading.Thread(target=_pump, args=(stream, field, pieces), daemon=True).start()
        ended = 0
        while ended < len(streams):
            piece = pieces.get()
            if piece is None:
                ended += 1
            else:
                yield piece
        yield language_pb2.RunPluginResponse(exitcode=process.wait())


def _pump(stream: IO[bytes], field: str, pieces: "queue.Queue[Any]") -> None:
    while piece := os.read(stream.fileno(), 65536):
        output: dict[str, Any] = {field: piece}
        pieces.put(language_pb2.RunPluginResponse(**output))
    pieces.put(None)


def main() -> None:
    # The terminal sends SIGINT to the engine as well, which reports the interruption; a traceback would hide that.
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    follow_parent()
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=8),
        options=[("grpc.max_receive_message_length", MESSAGE_LIMIT), ("grpc.max_send_message_length", MESSAGE_LIMIT)],
    )
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(Host(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
