"""Start and end of the process: readiness for systemd, signals, tasks that must not end."""

import asyncio
import os
import signal
import socket
from collections.abc import Coroutine
from typing import Any


def notify_ready() -> None:
    """READY=1 to systemd, once."""
    target = os.environ.pop("NOTIFY_SOCKET", "")
    if not target:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect("\0" + target[1:] if target.startswith("@") else target)
        sender.send(b"READY=1\n")


def stop_signal() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    return event


class Tasks:
    """Tasks that run as long as the process; the first one that fails ends it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, work: Coroutine[Any, Any, Any]) -> None:
        self._tasks.add(asyncio.create_task(work))

    async def until(self, work: Coroutine[Any, Any, Any]) -> None:
        """Runs `work` beside the tasks; raises what a task raised meanwhile."""
        own = asyncio.create_task(work)
        try:
            while True:
                done, _ = await asyncio.wait({own, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {own}:
                    self._tasks.discard(task)
                    task.result()
                if own in done:
                    own.result()
                    return
        finally:
            own.cancel()
            await asyncio.gather(own, return_exceptions=True)

    async def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
