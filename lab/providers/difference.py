"""Compares old and new inputs leaf by leaf, in the paths and kinds of a detailed diff."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import pulumi
from pulumi.provider.experimental.provider import PropertyDiff, PropertyDiffKind

PLAIN_KEY: Final = re.compile(r"[A-Za-z_$][\w$]*")
INDEX: Final = re.compile(r"\[\d+\]")


class Kind(Enum):
    """The three things that can happen to a property, each with its kinds without and with replacement."""

    ADD = (PropertyDiffKind.ADD, PropertyDiffKind.ADD_REPLACE)
    DELETE = (PropertyDiffKind.DELETE, PropertyDiffKind.DELETE_REPLACE)
    UPDATE = (PropertyDiffKind.UPDATE, PropertyDiffKind.UPDATE_REPLACE)


@dataclass(frozen=True)
class Change:
    """One changed leaf, for example `disks[0].size`."""

    path: str
    kind: Kind

    @property
    def top(self) -> str:
        """The name of the resource's property that holds the leaf."""
        return re.split(r"[.\[]", self.path, maxsplit=1)[0]

    def within(self, patterns: Iterable[str]) -> bool:
        """Whether the leaf lies at or below one of `patterns`, which have no indices (`disks.fileId`)."""
        bare = INDEX.sub("", self.path)
        return any(bare == pattern or bare.startswith((f"{pattern}.", f"{pattern}[")) for pattern in patterns)

    def detailed(self, replaces: bool) -> PropertyDiff:
        return PropertyDiff(self.kind.value[1 if replaces else 0], input_diff=True)


def changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[Change]:
    """The changed leaves, in the order of the names. Keys that start with two underscores are the engine's own."""
    for key in sorted({*old, *new}):
        if not key.startswith("__"):
            yield from _changes(old.get(key), new.get(key), prefix + _step(key, first=not prefix))


def _changes(old: Any, new: Any, path: str) -> Iterator[Change]:
    if old is None and new is None:
        return
    if old is None:
        yield Change(path, Kind.ADD)
    elif new is None:
        yield Change(path, Kind.DELETE)
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from changes(old, new, path)
    elif isinstance(old, list) and isinstance(new, list):
        for at in range(max(len(old), len(new))):
            yield from _changes(old[at] if at < len(old) else None, new[at] if at < len(new) else None, f"{path}[{at}]")
    elif not _same(old, new):
        yield Change(path, Kind.UPDATE)


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, bool) is not isinstance(new, bool):  # in Python True equals 1
        return False
    if isinstance(old, pulumi.Asset | pulumi.Archive) and type(old) is type(new):
        return vars(old) == vars(new)
    return bool(old == new)


def _step(key: str, first: bool) -> str:
    if PLAIN_KEY.fullmatch(key):
        return key if first else f".{key}"
    return f'["{key}"]'
