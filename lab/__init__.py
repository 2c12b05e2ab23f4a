"""The lab: both sites on one machine, real where it can be, unable to reach anything outside.

Nothing of it runs in an update of production; it may import `infra.config`, never the other way round.
"""

from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


class LabError(Exception):
    """What went wrong in the lab, in one line for the person at the keyboard."""
