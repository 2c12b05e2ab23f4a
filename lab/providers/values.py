"""Property values as plain Python and back, with the secret marks of the inputs put back on equal places.

Resource code reads and writes plain values; only this module and `stand_in` know about marks. Left out: dependencies
of values, which the engine tracks by itself, and resource references, which none of our resources takes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pulumi
from pulumi.provider.experimental.property_value import PropertyValue, PropertyValueType

Properties = dict[str, Any]


class Unknown:
    """A value that a preview does not know yet. Equal to nothing, so that it always shows as a change."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = Unknown()


def plain(value: PropertyValue) -> Any:
    """Numbers become `int` where they are whole: the wire has floating point only."""
    match value.type:
        case PropertyValueType.COMPUTED:
            return UNKNOWN
        case PropertyValueType.STRING if value.value == pulumi.runtime.rpc.UNKNOWN:
            return UNKNOWN
        case PropertyValueType.NUMBER:
            assert isinstance(value.value, float)
            return int(value.value) if value.value.is_integer() else value.value
        case PropertyValueType.ARRAY:
            assert isinstance(value.value, Sequence)
            return [plain(item) for item in value.value if isinstance(item, PropertyValue)]
        case PropertyValueType.MAP:
            assert isinstance(value.value, Mapping)
            return {key: plain(item) for key, item in value.value.items()}
        case _:
            return value.value


def plain_map(values: Mapping[str, PropertyValue]) -> Properties:
    """Leaves out properties that are null: to a provider they are absent."""
    return {key: plain(value) for key, value in values.items() if value.value is not None}


def marked(value: Any, like: PropertyValue | None = None) -> PropertyValue:
    """`value` for the wire, secret wherever `like` is secret in the same place.

    Where a list has another length than its model, one secret item makes the whole list secret: places have moved.
    """
    secret = like is not None and like.is_secret
    inner = like.value if like is not None else None
    if isinstance(value, Unknown):
        # The unknown of the wire is a text: the SDK's own marshalling has none for it.
        return PropertyValue(pulumi.runtime.rpc.UNKNOWN)
    if isinstance(value, Mapping):
        models = inner if isinstance(inner, Mapping) else {}
        return PropertyValue({key: marked(item, models.get(key)) for key, item in value.items()}, is_secret=secret)
    if isinstance(value, list | tuple):
        items = inner if isinstance(inner, Sequence) and not isinstance(inner, str) else ()
        aligned = len(items) == len(value)
        secret = secret or (not aligned and like is not None and like.contains_secret())
        return PropertyValue(
            [marked(item, _item(items, at) if aligned else None) for at, item in enumerate(value)], is_secret=secret
        )
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    return PropertyValue(value, is_secret=secret)


def marked_map(
    values: Properties,
    like: Mapping[str, PropertyValue],
    secret: frozenset[str] = frozenset(),
) -> dict[str, PropertyValue]:
    """All of `values` for the wire; the properties named in `secret` are secret whatever the inputs were."""
    result = {key: marked(value, like.get(key)) for key, value in values.items()}
    return {
        key: value.with_secret(True) if key in secret and values[key] is not UNKNOWN else value
        for key, value in result.items()
    }


def _item(items: Sequence[object], at: int) -> PropertyValue | None:
    item = items[at]
    return item if isinstance(item, PropertyValue) else None
