"""The real program, and a record of what it registers, one JSON line each, for `bare_program.py` to register again.

Runs under the engine, in a preview that changes nothing, so that no input is unknown. The record holds what the lab
made up as secrets; it lies in the lab's folder and goes with it.
"""

import json
import os
import runpy
from typing import Any

from google.protobuf.json_format import MessageToDict
from pulumi.runtime.settings import get_monitor

monitor: Any = get_monitor()
register = monitor.RegisterResource
record = os.open(os.environ["FLEET_BENCH_RECORD"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


def registered(request: Any, *more: Any, **options: Any) -> Any:
    reply = register(request, *more, **options)
    line = json.dumps({"urn": reply.urn, "request": MessageToDict(request)})
    os.write(record, line.encode() + b"\n")
    return reply


monitor.RegisterResource = registered
runpy.run_path(os.environ["FLEET_BENCH_PROGRAM"], run_name="__main__")
