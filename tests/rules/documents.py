"""The documents that tests start from, and the small patches that break them.

A patch names values by the dotted paths that violations use: `set` gives a value, `delete` removes one, `rename` gives
an entry another key. Keys that hold dots are found in the document; a new one gets its dots by renaming.
"""

import copy
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infra.config.fleet import Common, Fleet, Site
from infra.config.loading import common_value, parse, site_value
from infra.rules import judge
from infra.violation import Violation

ROOT = Path(__file__).resolve().parents[2]
INVALID = ROOT / "tests" / "invalid"
THIRD = ROOT / "tests" / "sites" / "Pulumi.norte.yaml"
Documents = dict[str, dict[str, Any]]  # `common` and each site, as plain data


def shipped() -> Documents:
    """The documents of the repository."""
    return copy.deepcopy(_read_once())


@functools.cache
def _read_once() -> Documents:
    return {
        "common": common_value(ROOT / "Pulumi.yaml"),
        "franca": site_value(ROOT / "Pulumi.franca.yaml"),
        "sp": site_value(ROOT / "Pulumi.sp.yaml"),
    }


def with_third_site() -> Documents:
    """The shipped documents and those of an invented third site, joined to each of them by a tunnel of its own."""
    documents = shipped()
    documents["norte"] = site_value(THIRD)
    documents["common"]["tunnels"] += [
        {"interface": "wg7", "cidr": "10.254.7.0/30", "ends": {"franca": "10.254.7.1", "norte": "10.254.7.2"}},
        {"interface": "wg8", "cidr": "10.254.8.0/30", "ends": {"sp": "10.254.8.1", "norte": "10.254.8.2"}},
    ]
    return documents


def patched(
    documents: Documents,
    set: Mapping[str, Any] | None = None,
    delete: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
) -> Documents:
    """A copy with values removed, set and renamed, in this order."""
    result = copy.deepcopy(documents)
    for path in delete:
        holder, key = _holder(result, path.split("."))
        assert key in holder, f"nothing to delete at {path}"
        del holder[key]
    for path, value in (set or {}).items():
        holder, key = _holder(result, path.split("."))
        if isinstance(holder, list) and key == len(holder):
            holder.append(value)
        else:
            holder[key] = value
    for path, name in (rename or {}).items():
        holder, key = _holder(result, path.split("."))
        holder[name] = holder.pop(key)
    return result


def fleet_of(documents: Documents) -> tuple[Fleet | None, list[Violation]]:
    """The documents through the same parsing as the files."""
    common, faults = parse(Common, "common", documents["common"])
    sites: dict[str, Site] = {}
    for site_id, value in documents.items():
        if site_id != "common":
            site, found = parse(Site, site_id, value)
            faults += found
            if site is not None:
                sites[site_id] = site
    return (Fleet(common, sites) if common is not None and not faults else None), faults


def faults_of(documents: Documents) -> list[Violation]:
    """Everything that is wrong: faults of shape, or what the rules stop and warn about."""
    fleet, faults = fleet_of(documents)
    if fleet is None:
        return faults
    verdict = judge(fleet)
    return [*verdict.stops, *verdict.warnings]


@functools.cache
def known_warnings() -> set[tuple[str, str]]:
    """Id and path of what the shipped documents are warned about."""
    return {(fault.id, fault.path) for fault in faults_of(shipped())}


def _holder(node: Any, parts: list[str]) -> tuple[Any, Any]:
    """The container of the value at a path, and its key there; missing mappings on the way are made."""
    if isinstance(node, list):
        index = int(parts[0])
        return (node, index) if len(parts) == 1 else _holder(node[index], parts[1:])
    for length in range(1, len(parts) + 1):
        key = ".".join(parts[:length])
        if key in node:
            return (node, key) if length == len(parts) else _holder(node[key], parts[length:])
    if len(parts) == 1:
        return node, parts[0]
    return _holder(node.setdefault(parts[0], {}), parts[1:])
