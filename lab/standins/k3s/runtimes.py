"""containerd's configuration, as far as somebody looks into it: which container runtimes were found on the PATH."""

import os
import shutil

from . import log
from .paths import Paths, write
from .settings import Settings

_KNOWN = {
    "nvidia": "nvidia-container-runtime",
    "nvidia-cdi": "nvidia-container-runtime.cdi",
    "nvidia-experimental": "nvidia-container-runtime-experimental",
    "crun": "crun",
}


def write_config(paths: Paths, settings: Settings) -> None:
    section = "plugins.'io.containerd.cri.v1.runtime'.containerd"
    default = settings.text("default-runtime") or "runc"
    lines = [
        "version = 3",
        "",
        f"[{section}]",
        f'  default_runtime_name = "{default}"',
        f'  snapshotter = "{settings.text("snapshotter")}"',
        "",
        f"[{section}.runtimes.runc]",
        '  runtime_type = "io.containerd.runc.v2"',
    ]
    for name, program in _KNOWN.items():
        # the PATH of the service counts: a runtime that is installed later is seen at the next start only
        found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/local/nvidia/toolkit")
        if found:
            log.info(f"Found {name} container runtime at {found}")
            lines += [
                "",
                f"[{section}.runtimes.'{name}']",
                '  runtime_type = "io.containerd.runc.v2"',
                f"[{section}.runtimes.'{name}'.options]",
                f'  BinaryName = "{found}"',
                "  SystemdCgroup = true",
            ]
    write(paths.agent / "etc/containerd/config.toml", "\n".join(lines) + "\n")
