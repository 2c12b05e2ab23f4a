"""What the lab is made of: sites, hosts, tunnels, mirror. Read once from `topology.json`; guests come later, by events.

Secrets are not here but in `secrets.json`, which only its owner can read.
"""

import json
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from lab import LabError


class Model(BaseModel):
    """Frozen; a key that nobody reads is an error, not a surprise."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Router(Model):
    """The site's VyOS, as far as the lab needs one: it forwards."""

    lan_address: IPv4Address
    public_address: IPv4Address | None = None


class Host(Model):
    """A Proxmox host: an address on the LAN that its API fake can listen on."""

    name: str
    address: IPv4Address


class Pve(Model):
    """Where the Proxmox API of the site answers."""

    endpoint: str
    ssh_port: int = 22
    storages: tuple[dict[str, str], ...] = ()
    """name, type and content of each storage."""


class DeclaredGuest(Model):
    """A guest that is there from the start, for a lab without a Proxmox fake."""

    name: str
    vmid: int
    kind: str = "vm"
    host: str
    address: IPv4Interface
    gateway: IPv4Address | None = None
    dns: tuple[str, ...] = ()
    user: str = "root"
    ssh_keys: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


class HandMadeK3s(Model):
    """A K3s that people installed (lab/existing.py)."""

    role: str
    version: str
    flags: tuple[str, ...]
    joins: str | None
    """Guest whose server it joined; none for the first of its cluster."""
    layout: str
    """Where its flags stand: in the `unit`, or in K3s' own `file`."""


class ExistingGuest(Model):
    """A guest that the Proxmox fake has from the start, as people made it."""

    name: str
    vmid: int
    kind: str
    host: str
    address: IPv4Interface
    gateway: IPv4Address
    dns: tuple[str, ...] = ()
    user: str
    devices: tuple[str, ...] = ()
    config: dict[str, str | int]
    """Its whole config in Proxmox."""
    k3s: HandMadeK3s | None = None


class SiteTopology(Model):
    """One site: a LAN, its router, its hosts."""

    lan: IPv4Network
    router: Router
    hosts: tuple[Host, ...] = ()
    pve: Pve | None = None
    guests: tuple[DeclaredGuest, ...] = ()
    existing: tuple[ExistingGuest, ...] = ()


class Tunnel(Model):
    """A link between the routers of two sites, called by its interface name."""

    interface: str
    ends: dict[str, IPv4Interface]


class Mirror(Model):
    """The artifact mirror: plain HTTP, port 80, static files."""

    address: IPv4Address
    directory: Path


class Topology(Model):
    """The whole lab."""

    sites: dict[str, SiteTopology]
    tunnels: tuple[Tunnel, ...] = ()
    mirror: Mirror
    toolchain: Path
    """Directory of the built programs; nodes see it as /opt/fleet-lab/bin."""


def read_topology(labdir: Path) -> Topology:
    """Reads LABDIR/topology.json. Raises LabError when it is absent or wrong."""
    path = labdir / "topology.json"
    try:
        topology = Topology.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise LabError(f"{path} is missing; expected the lab's topology there") from error
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise LabError(f"{path}: {faults}") from error
    for tunnel in topology.tunnels:
        if len(tunnel.ends) != 2 or not set(tunnel.ends) <= set(topology.sites):
            raise LabError(f"{path}: tunnel {tunnel.interface} joins {sorted(tunnel.ends)}; expected two known sites")
    if not topology.mirror.directory.is_dir():
        raise LabError(f"{path}: mirror.directory {topology.mirror.directory} is not a directory")
    if not topology.toolchain.is_dir():
        raise LabError(f"{path}: toolchain {topology.toolchain} is not a directory")
    return topology


def read_secrets(labdir: Path) -> dict[str, Any]:
    """Reads LABDIR/secrets.json, made-up secrets of the fakes by site; empty where there is none."""
    try:
        secrets: dict[str, Any] = json.loads((labdir / "secrets.json").read_text())
    except FileNotFoundError:
        return {}
    return secrets
