"""Checks the inputs of a resource against the argument class of the installed SDK.

The SDK classes are generated from the real provider's schema, so they are the only list of properties here: an unknown
property, a missing one or a wrong type is refused as the real provider's schema would refuse it.
"""

import collections.abc
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pulumi import _types as sdk_types  # the SDK has no public way to ask a class for its wire names
from pulumi.provider.experimental.provider import CheckFailure

from lab.providers.values import UNKNOWN

WORDS: typing.Final = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


def properties(arguments: type) -> dict[str, Any]:
    """Wire name to type, of one level."""
    return dict(sdk_types._types_from_py_properties(arguments))


def failures(arguments: type, inputs: Mapping[str, Any], path: str = "") -> Iterator[CheckFailure]:
    """Everything that is wrong with `inputs`. Values are never quoted: they may be secret."""
    known = properties(arguments)
    for name in sorted(sdk_types._required_property_names(arguments)):
        if name not in inputs:
            yield CheckFailure(path + name, f"missing required property '{name}'")
    for name, value in inputs.items():
        if name.startswith("__"):
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)
            yield CheckFailure(path + name, f"unknown property '{name}'; near ones are: {', '.join(near)}")
        else:
            yield from _mismatches(known[name], value, path + name)


def _mismatches(wanted: Any, value: Any, path: str) -> Iterator[CheckFailure]:
    if value is UNKNOWN or value is None:
        return
    wanted = _settled(wanted)
    if isinstance(wanted, type) and sdk_types.is_input_type(wanted):
        if isinstance(value, Mapping):
            yield from failures(wanted, value, f"{path}.")
        else:
            yield CheckFailure(path, f"expected an object, found {_word(value)}")
        return
    origin = typing.get_origin(wanted)
    if origin is collections.abc.Sequence:
        if not isinstance(value, list):
            yield CheckFailure(path, f"expected a list, found {_word(value)}")
            return
        for at, item in enumerate(value):
            yield from _mismatches(typing.get_args(wanted)[0], item, f"{path}[{at}]")
    elif origin is collections.abc.Mapping:
        if not isinstance(value, Mapping):
            yield CheckFailure(path, f"expected an object, found {_word(value)}")
            return
        for key, item in value.items():
            yield from _mismatches(typing.get_args(wanted)[1], item, f"{path}.{key}")
    elif wanted in WORDS and not _fits(wanted, value):
        yield CheckFailure(path, f"expected {WORDS[wanted]}, found {_word(value)}")


def _settled(wanted: Any) -> Any:
    """The type inside `Input[...]` and `Optional[...]`: the first member that is no promise of a value."""
    while typing.get_origin(wanted) in (typing.Union, types.UnionType):
        wanted = typing.get_args(wanted)[0]
    return wanted


def _fits(wanted: type, value: Any) -> bool:
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return WORDS.get(type(value), type(value).__name__)
