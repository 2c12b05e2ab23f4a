"""A plan as a tree of Rich: type, name and the few inputs that tell resources apart."""

from collections import Counter
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from cli.plan import STACK, Declared
from cli.screen import say

# Inputs worth a place on the line, by the last part of the type: what they are called here, and where they stand.
_GUEST = {"host": "nodeName", "vmid": "vmId", "cores": "cpu.cores", "memory_mib": "memory.dedicated"}
_TELLING: dict[str, dict[str, str]] = {
    "proxmoxve": {"endpoint": "endpoint", "login": "username"},
    "VmLegacy": _GUEST,
    "ContainerLegacy": _GUEST,
    "FileLegacy": {"host": "nodeName", "file": "fileName"},
    "Release": {"chart": "chart", "version": "version", "namespace": "namespace"},
    "CiliumLoadBalancerIPPool": {"blocks": "spec.blocks"},
    "CiliumBGPClusterConfig": {
        "asn": "spec.bgpInstances.0.localASN",
        "peer": "spec.bgpInstances.0.peers.0.peerAddress",
        "peer_asn": "spec.bgpInstances.0.peers.0.peerASN",
    },
}


def ordered(declared: dict[tuple[str, str], Declared]) -> list[Declared]:
    """What a resource needs comes before it, then by name: the same list whatever the program ran in parallel."""
    depths = _depths(declared)
    return sorted(declared.values(), key=lambda one: (depths[one.name], one.name, one.type))


def show(console: Console, declared: dict[tuple[str, str], Declared]) -> None:
    resources = ordered(declared)
    children: dict[str, list[Declared]] = {}
    for one in resources:
        children.setdefault(one.parent, []).append(one)
    depths = _depths(declared)

    def last(one: Declared) -> int:
        """When the whole branch is there; a site then reads in the order in which it is made."""
        return max([depths[one.name], *(last(child) for child in children.get(one.name, []))])

    def grow(tree: Tree, name: str) -> None:
        for child in sorted(children.get(name, []), key=lambda one: (last(one), one.name)):
            grow(tree.add(Text(_line(child), overflow="fold")), child.name)

    for stack in children[""]:
        root = Tree(Text(stack.name), guide_style="")
        grow(root, stack.name)
        console.print(root)
    kinds = Counter(_kind(one.type) for one in resources if one.type != STACK)
    say()
    say(f"{sum(kinds.values())} resources: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))


def _depths(declared: dict[tuple[str, str], Declared]) -> dict[str, int]:
    """Length of the longest chain of parents, providers and dependencies that ends in a resource, by name."""
    needs = {one.name: {one.parent, one.provider, *one.after} - {"", one.name} for one in declared.values()}
    depths = dict.fromkeys(needs, 0)
    for _ in needs:  # longer than any chain; a circle, which the engine would refuse, cannot hold it
        deeper = {
            name: 1 + max((depths.get(other, 0) for other in needed), default=-1) for name, needed in needs.items()
        }
        if deeper == depths:
            break
        depths = deeper
    return depths


def _line(one: Declared) -> str:
    found = {label: _text(_at(one.shown, path)) for label, path in _TELLING.get(_kind(one.type), {}).items()}
    telling = [f"{label}={value}" for label, value in found.items() if value not in (None, "")]
    return " ".join([_kind(one.type), one.name, *telling, *(["protected"] if one.protect else [])])


def _text(value: Any) -> Any:
    """A value on the line; blocks of addresses one after the other."""
    if isinstance(value, list):
        return ",".join("-".join(dict.fromkeys((block["start"], block["stop"]))) for block in value)
    return value


def _kind(token: str) -> str:
    return token.rsplit(":", 1)[-1]


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(value, list):
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value
