"""Makes the engine, its Kubernetes provider and a control plane available as binaries of pinned versions.

`ensure` returns one directory that holds them all; `plan` says, without changing anything, where each one is or would
come from. The order is the same for every program: an exact copy that the machine already has, an official download,
a build from the Go module proxy. What is left out: the providers and the Pulumi language host that no registry serves
(`lab/providers` stands in for them), and telling the lab's user about licences or newer versions.
"""

from lab.toolchain.cache import ToolchainError, bin_directory
from lab.toolchain.pins import PROGRAMS, Program
from lab.toolchain.supply import Planned, ensure, plan

__all__ = ["PROGRAMS", "Planned", "Program", "ToolchainError", "bin_directory", "ensure", "plan"]
