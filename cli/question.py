"""The one question before something is changed."""

import sys

from cli.faults import Stop
from cli.screen import say


def agreed(site_id: str, question: str) -> bool:
    """Whether a person at the terminal types the site's name; an end of input is a no. Raises Stop where none is."""
    if not sys.stdin.isatty():
        raise Stop("found no terminal to ask at; expected --yes where nobody can answer")
    try:
        return input(f"{question} Type the site's name: ").strip() == site_id
    except EOFError:
        say()
        return False
