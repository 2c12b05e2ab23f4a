"""What is wrong with a document, and the one error that stops the program for it.

Leaves out how faults are found: the reader and the models (`infra.config`) find those of shape, `infra.rules` those of
sense.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import pulumi


class Level(StrEnum):
    """What a violation does to a run (INVARIANTS section 0.2)."""

    ERROR = "error"  # stops it
    ACK = "ack"  # stops it unless the document acknowledges the id under `accept:`
    WARN = "warn"  # is printed


def shown(text: str, limit: int) -> str:
    """Text of a document as a message may hold it: on one line, without control characters, not endless."""
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One fault of one value. The text never holds a secret: documents carry none."""

    id: str  # rule id, e.g. NET-09
    path: str  # dotted, from the site id or `common`, e.g. sp.clusters.gpu-sp.servers.0: entries count from 0
    found: str
    expected: str
    remedy: str
    source: str = ""  # name of the decision, e.g. CPPS-ADR-009
    level: Level = Level.ERROR

    def __str__(self) -> str:
        see = f"; see {self.source}" if self.source else ""
        found, expected = shown(self.found, 400), shown(self.expected, 1000)
        return f"[{self.id}] {shown(self.path, 300)}: found {found}; expected {expected}; {self.remedy}{see}"

    @property
    def site(self) -> str:
        """The document the violation belongs to: a site id, or `common`."""
        return self.path.split(".", 1)[0]


class InvariantError(pulumi.RunError):
    """Every violation of a run, one line each. Pulumi prints the text of a RunError alone, without a traceback."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__("\n".join(str(v) for v in self.violations))


def assumed_value(root: str, path: str, more: str = "") -> Violation:
    """What stands under `assumed` of a document where only a confirmed value will do; `more` says for what."""
    return Violation(
        id="GEN-07",
        path=f"{root}.{path}",
        found=f"an assumed value{more}",
        expected="a value that a person confirmed",
        remedy=f"check it, then delete its line under {root}.assumed",
    )
