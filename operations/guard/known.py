"""What plan and state say of machines: guests as Proxmox has them, K3s nodes as their commands were told.

Nothing is read from a resource's name. A guest is what its type and inputs say; a node is what stands in the data of
its command (`infra.remote.assemble`), and it is on the guest that has its address.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import yaml

from infra.config import Site
from infra.remote import END
from operations.guard.plan import Resource, at

VM = "proxmoxve:index/vmLegacy:VmLegacy"
CONTAINER = "proxmoxve:index/containerLegacy:ContainerLegacy"
COMMAND = "command:remote:Command"
K3S = "fleet:k3s:K3s"
GPU_DEVICES = ("/dev/nvidia", "/dev/dri")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS_GIB = {"K": 1 / 1024**2, "M": 1 / 1024, "": 1, "G": 1, "T": 1024}


@dataclass(frozen=True, kw_only=True)
class Guest:
    """One VM or container."""

    resource: Resource
    vmid: int | None
    host: str | None
    name: str | None
    addresses: frozenset[str]
    disks: Mapping[str, Any]  # size in GiB by interface or path, as the inputs say
    real_disks: Mapping[str, Any]  # and as Proxmox said last
    gpu: bool
    adopted: bool


@dataclass(frozen=True, kw_only=True)
class Node:
    """One K3s node, from the data of the command that sets it up."""

    urn: str
    cluster: str  # URN of the component that it belongs to
    name: str
    address: str
    server: bool
    first: bool  # the command that made the cluster
    version: str
    config: Mapping[str, Any]
    frozen: tuple[str, ...]  # keys of the config that stay for the cluster's life


def is_guest(resource_type: str) -> bool:
    return resource_type in (VM, CONTAINER)


def guest(resource: Resource, site: Site) -> Guest | None:
    """The guest that a resource is; None for other resources."""
    if not is_guest(resource.type):
        return None
    inputs = resource.inputs
    # The provider's read of a container leaves the property unset; its id is the VMID.
    last = resource.id.rpartition("/")[2]  # of an import id, the host stands before it
    known_by = int(last) if last.isdecimal() else None
    vmid = _number(inputs.get("vmId")) or known_by or _number(resource.outputs.get("vmId"))
    written = next((one for one in site.guests.values() if one.vmid == vmid), None)
    configured = at(inputs, "initialization.ipConfigs") or ()
    addresses = {str(at(one, "ipv4.address")).partition("/")[0] for one in configured if at(one, "ipv4.address")}
    if written is not None and not addresses:
        addresses = {str(written.address)}
    devices = [str(at(one, "path")) for one in inputs.get("devicePassthroughs") or ()]
    gpu_nodes = {name for one in site.clusters.values() if one.role == "gpu" for name in (*one.servers, *one.agents)}
    return Guest(
        resource=resource,
        vmid=vmid,
        host=inputs.get("nodeName"),
        name=inputs.get("name") or at(inputs, "initialization.hostname") or (written.name if written else None),
        addresses=frozenset(addresses),
        disks=_disks(inputs),
        real_disks=_disks(resource.outputs),
        gpu=bool(inputs.get("hostpcis"))
        or any(device.startswith(GPU_DEVICES) for device in devices)
        or (written is not None and written.name in gpu_nodes),
        adopted=resource.imported or (written is not None and written.existing),
    )


def _disks(properties: Mapping[str, Any]) -> dict[str, Any]:
    found = {str(at(one, "interface")): gib(at(one, "size")) for one in properties.get("disks") or ()}
    if at(properties, "disk") is not None:
        found["disk"] = gib(at(properties, "disk.size"))
    found |= {str(at(one, "path")): gib(at(one, "size")) for one in properties.get("mountPoints") or ()}
    return found


def gib(size: Any) -> Any:
    """A size as a number: disks have one, mount points a text with a unit. What is neither stays as it is."""
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    return float(found[1]) * _UNITS_GIB[found[2].upper()] if found else size


def node(resource: Resource) -> Node | None:
    """The node that a command sets up; None for other resources, and for data that cannot be read."""
    if resource.type != COMMAND:
        return None
    found = sections(resource.inputs.get("stdin"))
    if "config.yaml" not in found or "node" not in found:
        return None
    try:
        config = yaml.safe_load(found["config.yaml"])
    except yaml.YAMLError:
        return None
    settings = pairs(found["node"])
    if not isinstance(config, dict) or "node-name" not in config:
        return None
    base = pairs(found.get("artifacts", "")).get("base", "")
    return Node(
        urn=resource.urn,
        cluster=resource.parent,
        name=str(config["node-name"]),
        address=str(config.get("node-ip", "")),
        server="mode" in settings,
        first=settings.get("mode") == "bootstrap",
        version=unquote(base.rsplit("/", 1)[-1]),
        config=config,
        frozen=tuple(found.get("frozen", "").split()),
    )


def sections(stdin: object) -> dict[str, str]:
    """The data of a command by section; empty where it has none or nobody may read it."""
    return dict(_sections(stdin)) if isinstance(stdin, str) else {}


@lru_cache(maxsize=256)
def _sections(stdin: str) -> tuple[tuple[str, str], ...]:
    _, mark, data = stdin.partition(f"3<<'{END}' </dev/null\n")
    if not mark:
        return ()
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in data.splitlines():
        if line == END:
            break
        if line.startswith("=== "):
            current = found.setdefault(line[4:], [])
        elif current is not None:
            current.append(line)
    return tuple((name, "\n".join(lines)) for name, lines in found.items())


def pairs(text: str) -> dict[str, str]:
    """`key=value` lines."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def on(node: Node, guests: Iterable[Guest]) -> Guest | None:
    """The guest that a node runs on: the one with its address, else the one that is called like it."""
    known = list(guests)
    return next((one for one in known if node.address in one.addresses), None) or next(
        (one for one in known if one.name == node.name), None
    )


def quorum(members: int, lost: int) -> str:
    """What is left of etcd in words."""
    left, needed = members - lost, members // 2 + 1
    if left <= 0:
        return f"0 of {members} etcd members left: the cluster's data is gone, only a snapshot brings it back"
    if left < needed:
        return f"{left} of {members} etcd members left: the quorum is lost"
    spare = left - needed
    return f"{left} of {members} etcd members left, {'none' if spare == 0 else spare} may fail"


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
