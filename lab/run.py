"""`fleet lab run -- ARGS...`: the commands for production, tried on the lab: its network, its copies, its secrets.

Left out: a lock. A command that updates takes Pulumi's own, as in production.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence

from lab import PROJECT, LabError, control, toolchain
from lab.documents import load_or_refuse
from lab.engine import Engine
from lab.place import here
from lab.session import refresh

STOP_PATIENCE_S = 90


def run(arguments: Sequence[str]) -> int:
    """Runs `fleet ARGS` inside the lab and returns its exit code. Raises LabError where no lab runs."""
    if not arguments:
        raise LabError("found no command to run; expected one, for example: fleet lab run -- adopt franca")
    place = here()
    if not control.running(place.root):
        raise LabError("no lab runs; start it with: ./fleet lab up")
    engine = Engine(place, toolchain.ensure(lambda _: None))
    refresh(place, load_or_refuse(PROJECT), engine)
    environment = engine.environment() | {"FLEET_PROJECT": str(place.work)}
    command = control.inside(place.root, [sys.executable, "-P", "-m", "cli", *arguments])
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # A terminal interrupts the command as well; what it has begun it may end.
        with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            return process.wait(STOP_PATIENCE_S)
        process.send_signal(signal.SIGKILL)
        process.wait()
        raise
