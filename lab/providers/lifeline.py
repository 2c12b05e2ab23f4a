"""Ends a plugin process together with the engine that started it, even when the engine is killed.

Left out: PR_SET_PDEATHSIG, which follows the thread that forked; the engine is a Go program and may end that one early.
"""

import os
import threading
import time
from typing import Final

LOOK_EVERY_S: Final = 0.5


def follow_parent() -> None:
    """Starts a thread that ends this process once its parent is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY_S)
        os._exit(0)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
