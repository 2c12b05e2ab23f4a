"""Stand-ins for the Pulumi plugins that cannot be had as binaries: three providers and the Python language host.

`install` puts their launchers into a directory that the engine then finds on PATH. The providers keep the type tokens,
property names, defaults and replacement rules of the real ones (`STANDS_IN_FOR`) and really act: over SSH and against
the Proxmox VE API. Left out: GetSchema, functions and every resource that the program does not declare; such a
resource is refused by name.
"""

import shlex
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[2]

STANDS_IN_FOR: Final = {"proxmoxve": "8.6.0", "command": "1.2.1", "random": "4.21.4"}
"""Provider name to the version that the stand-in reports, which is the version of the installed SDK."""

LAUNCHERS: Final = {
    "pulumi-language-python": "lab.providers.language",
    "pulumi-resource-proxmoxve": "lab.providers.proxmoxve",
    "pulumi-resource-command": "lab.providers.command",
    "pulumi-resource-random": "lab.providers.randomness",
}


def install(directory: Path, interpreter: Path) -> None:
    """Writes the launchers; `interpreter` is a Python that has the project's development dependencies.

    Paths are absolute, so that the directory works from anywhere; `-P` keeps the caller's folder off the module path.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, module in LAUNCHERS.items():
        launcher = directory / name
        launcher.write_text(
            "#!/bin/sh\n"
            f"PYTHONPATH={shlex.quote(str(PROJECT))} "
            f'exec {shlex.quote(str(interpreter.absolute()))} -P -m {module} "$@"\n'
        )
        launcher.chmod(0o755)
