"""Values of a document by dotted path, as `assumed` and the seed values name them.

Keys of a map may hold dots themselves (`k3s_checksums.v1.32.13+k3s1`), so a path is matched against the document, not
split by rule.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import BaseModel

MISSING: Final = object()
LONGEST = 64  # parts of a path; documents are not nested deeper, and longer ones are not worth the search


def value_at(document: BaseModel, path: str, *, stated: bool = False) -> object:
    """The value at a path, or MISSING. With `stated`, defaults that the document does not write down are missing."""
    parts = path.split(".")
    return _walk(document, parts, stated) if len(parts) <= LONGEST else MISSING


def is_covered(path: str, listed: Iterable[str]) -> bool:
    """Whether a path or a parent of it is listed."""
    return any(path == entry or path.startswith(f"{entry}.") for entry in listed)


def _walk(value: object, parts: list[str], stated: bool) -> object:
    if not parts:
        return value
    first, rest = parts[0], parts[1:]
    if isinstance(value, BaseModel):
        known = value.model_fields_set if stated else type(value).model_fields
        return _walk(getattr(value, first), rest, stated) if first in known else MISSING
    if isinstance(value, Mapping):
        for length in range(1, len(parts) + 1):
            key = ".".join(parts[:length])
            if key in value and (found := _walk(value[key], parts[length:], stated)) is not MISSING:
                return found
    if isinstance(value, tuple) and first.isdecimal() and len(first) < 6 and int(first) < len(value):
        return _walk(value[int(first)], rest, stated)
    return MISSING
