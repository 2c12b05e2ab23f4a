"""Serves the pack to the engine: `pulumi preview --policy-pack policy`."""

import sys
from pathlib import Path

from pulumi_policy import PolicyPack

# The engine starts this folder as a program of its own; `policy` and `infra` lie beside each other above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from policy.pack import NAME, POLICIES  # found only now

PolicyPack(NAME, POLICIES)
