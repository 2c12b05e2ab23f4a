"""Inputs of a resource as plain data.

The engine hands a policy its secrets in plain text, and a value that only the update will know as a mark. A policy that
touches such a mark would be skipped as a whole; here it is a value that no check finds fault with.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from pulumi_policy.proxy import UnknownValueError


class _Later(Enum):
    VALUE = "known after the update"


UNKNOWN: Final = _Later.VALUE
Path = tuple[str | int, ...]


def plain(value: Any) -> Any:
    """Dicts, lists, texts, numbers and booleans; UNKNOWN for what is not known yet, and for files."""
    if isinstance(value, Mapping):
        return {str(key): _entry(value, key) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_entry(value, index) for index in range(len(value))]
    return value if value is None or isinstance(value, str | int | float) else UNKNOWN


def _entry(holder: Any, key: Any) -> Any:
    try:
        return plain(holder[key])
    except UnknownValueError:
        return UNKNOWN


def at(value: Any, *path: str) -> Any:
    """The value below a path of keys; None where there is none."""
    for key in path:
        if value is UNKNOWN:
            return UNKNOWN
        value = value.get(key) if isinstance(value, dict) else None
    return value


def entries(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """The mappings of a list, with their places."""
    if isinstance(value, list):
        yield from ((index, entry) for index, entry in enumerate(value) if isinstance(entry, dict))


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value that is neither mapping nor list, with its path."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield path, value
        return
    for key, entry in inner:
        yield from leaves(entry, (*path, key))


def keys(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of every key of a mapping, however deep."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inner:
        if isinstance(key, str):
            yield (*path, key)
        yield from keys(entry, (*path, key))


def dotted(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def is_on(value: Any) -> bool:
    """True, spelt as a boolean or as text; what is not known yet may be."""
    return value is UNKNOWN or value is True or value == "true"


def is_off(value: Any) -> bool:
    return value is UNKNOWN or value is False or value == "false"


def text(value: Any) -> str:
    """The text of a value; empty for all else."""
    return value if isinstance(value, str) else ""
