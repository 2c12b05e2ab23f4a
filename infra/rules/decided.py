"""Compares documents with the values that decisions fix for the sites they name (`infra.rules.seeds`).

Rules that hold nothing but such values are registered here; a rule that checks more takes `deviations` into its own
check.
"""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network

from pydantic import BaseModel

from infra.config.fleet import Fleet
from infra.rules.paths import MISSING, value_at
from infra.rules.registry import Check, Finding, rule
from infra.rules.seeds import SEEDS, Count, OneOf, Prefix, Value
from infra.violation import Level

VALUES_ALONE = tuple(id for id, seed in SEEDS.items() if seed.statement)


def deviations(fleet: Fleet, id: str) -> Iterator[Finding]:
    """Values of a rule that differ in the documents of the sites it names."""
    for place, values in SEEDS[id].values.items():
        for root, document, sites in _documents(fleet, place):
            for path, expected in values.items():
                found = value_at(document, path)
                if not _agrees(found, expected):
                    yield Finding(
                        f"{root}.{path}",
                        _shown(found),
                        _text(expected),
                        f"restore it, or say why under accept.{id}",
                        sites=sites,
                    )


def _documents(fleet: Fleet, place: str) -> Iterator[tuple[str, BaseModel, tuple[str, ...]]]:
    """What a place of the table means: a site, the facts of the fleet, or the tunnel between two sites."""
    if place == "common":
        yield "common", fleet.common, tuple(fleet.sites)
    elif place in fleet.sites:
        yield place, fleet.sites[place], (place,)
    else:
        for index, tunnel in enumerate(fleet.common.tunnels):
            if sorted(tunnel.ends) == place.split():
                yield f"common.tunnels.{index}", tunnel, tuple(tunnel.ends)


def _agrees(found: object, expected: Value) -> bool:
    if isinstance(expected, Count):
        return isinstance(found, tuple) and len(found) == expected.entries
    if isinstance(expected, OneOf):
        return found in expected.texts
    if isinstance(expected, Prefix):
        return isinstance(found, str) and found.startswith(expected.text)
    if isinstance(expected, frozenset):
        return isinstance(found, tuple) and frozenset(found) == expected
    return (str(found) if isinstance(found, IPv4Address | IPv4Network) else found) == expected


def _text(expected: Value) -> str:
    if isinstance(expected, Count):
        return f"{expected.entries} entries"
    if isinstance(expected, OneOf):
        return " or ".join(expected.texts)
    if isinstance(expected, Prefix):
        return f"{expected.text}x"
    return ", ".join(sorted(expected)) if isinstance(expected, frozenset) else _shown(expected)


def _shown(found: object) -> str:
    if found is MISSING or found is None:
        return "nothing"
    if isinstance(found, bool):
        return str(found).lower()
    return ", ".join(str(entry) for entry in found) if isinstance(found, tuple) else str(found)


def _register(id: str) -> None:
    def check(fleet: Fleet) -> Iterator[Finding]:
        return deviations(fleet, id)

    check.__doc__ = SEEDS[id].statement
    decided: Check = check
    rule(id, level=Level.ACK, source=SEEDS[id].source)(decided)


for _id in VALUES_ALONE:
    _register(_id)
