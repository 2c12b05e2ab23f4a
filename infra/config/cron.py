"""Cron expressions as K3s and Velero read them: five fields, Sunday is 0, and names of months and days may be short.

Leaves out what only one of the two takes: seconds, `@daily` and its like, and time zones.
"""

from typing import NamedTuple


class _Field(NamedTuple):
    """One place of an expression."""

    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()  # of its numbers, from `first` on


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 6, _DAYS),
)


def checked(expression: str) -> str:
    """The expression itself. Raises ValueError that names what a field may hold."""
    parts = expression.split()
    if len(parts) != len(_FIELDS):
        raise ValueError(f"five fields: {', '.join(field.name for field in _FIELDS)}")
    for field, part in zip(_FIELDS, parts, strict=True):
        if not all(_holds(field, entry) for entry in part.split(",")):
            raise ValueError(f"{field.first} to {field.last} as {field.name}, as a number, a-b, * or any of them/step")
    return expression


def _holds(field: _Field, entry: str) -> bool:
    span, slash, step = entry.partition("/")
    first, dash, last = span.partition("-")
    start, stop = _number(field, first), _number(field, last)
    if slash and not (step.isdecimal() and len(step) < 4 and int(step) > 0):
        return False
    if span in ("*", "?"):
        return True
    return start is not None and (not dash or (stop is not None and start <= stop))


def _number(field: _Field, text: str) -> int | None:
    """A number or a name that the field may hold."""
    if text.lower() in field.names:
        return field.first + field.names.index(text.lower())
    number = int(text) if text.isdecimal() and len(text) < 3 else -1
    return number if field.first <= number <= field.last else None
