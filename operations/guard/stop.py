"""What the guard says: stops, notes, and the keys with which a person takes a stop upon themselves for one run."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from infra.violation import shown
from operations.guard.plan import SECRET, UNKNOWN

# Rules of the guard, on top of those of `fleet rules`: they see what only plan and state together show.
RULES = {
    "GRD-01": "A protected, adopted, etcd or GPU guest is never replaced or deleted unasked.",
    "GRD-02": "A disk never shrinks and never goes.",
    "GRD-03": "VMID, host and node name of a node stay.",
    "GRD-04": "What is fixed for a cluster's life (ranges, CNI, datastore, node addresses) stays.",
    "GRD-05": "The first server of a cluster stays, and no server leaves unasked.",
    "GRD-06": "One run stops no more than one etcd member of a cluster.",
    "GRD-07": "K3s moves up, one minor at a time, servers before agents.",
    "GRD-08": "The Kubernetes provider of a living cluster is never replaced or removed unasked.",
    "GRD-09": "Name and id of a cluster in Cilium stay, and so does Cilium itself.",
    "GRD-10": "The CA of Cilium is never changed unasked.",
    "GRD-11": "An import takes a guest as it is.",
    "GRD-12": "The join token of a living cluster stays.",
    "GRD-13": "A step that the guard cannot judge is a stop.",
    "GRD-14": "A guest whose creation was cut off is looked at first.",
    "GRD-15": "A cluster that the document keeps in the ClusterMesh keeps its address and certificates.",
    "BKP-01": "A guest that holds state is changed with a fresh backup.",
}


@dataclass(frozen=True, kw_only=True)
class Stop:
    """One thing that the plan must not do unasked."""

    rule: str
    urn: str
    name: str  # of the resource, as previews show it
    field: str
    old: Any
    new: Any
    consequence: str
    instead: str  # the safe way to what the person wants
    acceptable: bool  # whether a person may take it upon themselves
    bind: str = ""  # tells changes apart whose values are masked

    @property
    def key(self) -> str:
        """Bound to resource and change: another change needs another key. Empty where none is taken."""
        if not self.acceptable:
            return ""
        change = json.dumps([self.urn, self.field, self.old, self.new, self.bind], sort_keys=True, default=str)
        return f"{self.rule}-{hashlib.sha256(change.encode()).hexdigest()[:8]}"

    @property
    def change(self) -> str:
        return f"{self.field}: {said(self.old)} -> {said(self.new)}"

    def as_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "resource": self.urn,
            "field": self.field,
            "old": said(self.old),
            "new": said(self.new),
            "consequence": self.consequence,
            "instead": self.instead,
            "key": self.key or None,
        }


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A stop that a person took upon themselves, with the reason."""

    stop: Stop
    reason: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the guard thinks of a plan."""

    stops: tuple[Stop, ...] = ()  # that nobody accepted
    accepted: tuple[Accepted, ...] = ()
    notes: tuple[str, ...] = ()  # what will happen and is allowed, but worth knowing


def said(value: Any) -> str:
    """A value in a message."""
    if value is None:
        return "nothing"
    if value in (SECRET, UNKNOWN):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return shown(text, 120)


class AcceptError(Exception):
    """An `--accept` that is no use; the text says which and why."""


def parsed(given: tuple[str, ...]) -> dict[str, str]:
    """Keys and reasons of `--accept KEY=reason`. Raises AcceptError for what is neither."""
    found: dict[str, str] = {}
    for text in given:
        key, separator, reason = text.partition("=")
        key, reason = key.strip(), " ".join(reason.split())
        if not separator or not reason or not reason.isprintable():
            raise AcceptError(f"--accept {shown(text, 80)}: expected 'KEY=reason' with a key that a stop printed")
        if key in found:
            raise AcceptError(f"--accept {key}: given twice; give one reason")
        found[key] = reason
    return found


def weighed(stops: tuple[Stop, ...], notes: tuple[str, ...], given: dict[str, str]) -> Verdict:
    """Stops without those that were accepted. Raises AcceptError for a key that no stop of this plan has."""
    keys = {stop.key for stop in stops if stop.key}
    unknown = [key for key in given if key not in keys]
    if unknown:
        expected = ", ".join(sorted(keys)) or "none: no stop of this plan takes one"
        raise AcceptError(
            f"--accept {', '.join(shown(key, 40) for key in unknown)}: no stop of this plan has that key; "
            f"expected {expected}. A key is bound to one resource and one change"
        )
    accepted = tuple(Accepted(stop=stop, reason=given[stop.key]) for stop in stops if stop.key in given)
    return Verdict(stops=tuple(stop for stop in stops if stop.key not in given), accepted=accepted, notes=notes)
