"""PVE's notation for config values: flags, property strings (`a,b=c`), drives and sizes."""

import re
from collections.abc import Mapping
from typing import Any, Final

SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)")
UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
GIB: Final = UNITS["G"]


def flag(value: object) -> str:
    return "1" if value else "0"


def is_set(value: object) -> bool:
    return str(value) in ("1", "true", "True", "on", "yes")


def joined(values: Mapping[str, Any]) -> str:
    """`{"cores": 2, "type": None}` as `cores=2`: what is absent is left out."""
    return ",".join(f"{key}={value}" for key, value in values.items() if value is not None)


def parted(text: object, default: str = "") -> dict[str, str]:
    """A property string as a mapping; a leading value without a key gets the name `default`."""
    result: dict[str, str] = {}
    for piece in str(text).split(","):
        key, equals, value = piece.partition("=")
        result[key if equals else default] = value if equals else key
    return result


def size_gib(text: str | None) -> int | float | None:
    """`20G`, or bytes, in GiB; whole where it is whole."""
    found = SIZE.fullmatch(text or "")
    if found is None:
        return None
    gib = float(found[1]) * UNITS[found[2]] / GIB
    return int(gib) if gib.is_integer() else gib


def seconds(text: str) -> float:
    """A Go duration such as `15m` or `1h30m`."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", text))
