"""Runs the stand-in as `python -m lab.standins.k3s`; the bundle has a starter of its own."""

import sys

from .cli import main

sys.exit(main(sys.argv))
