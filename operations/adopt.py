"""Compares the guests of a document that exist already with the real ones, as Proxmox knows them. Reads only.

What a document states of an adopted guest must be so, or the import is followed by an update of the guest. Leaves out
what the program ignores of such guests (`infra.adopted`), and K3s on them, which `recognise.sh` looks at during an
update. Whatever a guest's config does not hold is not compared.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Interface
from typing import Any

import requests
import yaml
from proxmoxer import ProxmoxAPI
from proxmoxer.core import AuthenticationError, ResourceException

from infra.config import Lxc, Site, Vm
from infra.config.loading import SITE_KEY
from infra.violation import InvariantError, Violation
from operations.access import CALL_TIMEOUT_S, connect

WHOLE_GIB = "grow the disk to whole GiB: the document has no smaller unit"
_UNITS_GIB = {"K": 1 / 1024**2, "M": 1 / 1024, "G": 1, "T": 1024}
_DISK = re.compile(r"(ide|sata|scsi|virtio)(\d+)")
_BUSES = ("ide", "sata", "scsi", "virtio")  # the order in which the provider reads them


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One value that the document and Proxmox give differently."""

    guest: str
    field: str  # key of the guest in the document
    document: Any
    real: Any
    remedy: str = ""  # where no line of the document makes them equal


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every existing guest of a site with what differs."""

    site_id: str
    guests: tuple[str, ...]
    differences: tuple[Difference, ...] = field(default=())

    def lines(self) -> str:
        """What the stack file must say, at its path; empty where no line helps."""
        guests: dict[str, dict[str, Any]] = {}
        for one in self.differences:
            if not one.remedy:
                guests.setdefault(one.guest, {})[one.field] = one.real
        if not guests:
            return ""
        # Leaves on one line, as the stack files are written.
        return yaml.safe_dump(
            {"config": {SITE_KEY: {"guests": guests}}}, sort_keys=False, default_flow_style=None, width=1000
        )


def compare(site_id: str, site: Site, api_token: str) -> Comparison:
    """Raises InvariantError where Proxmox does not answer, or does not have the guests."""
    existing = [guest for guest in site.guests.values() if guest.existing]
    if not existing:
        return Comparison(site_id=site_id, guests=())
    try:
        api = connect(site, api_token)
    except ValueError as error:
        raise InvariantError([_unanswered(site_id, site, error)]) from None
    try:
        listed = api.cluster.resources.get(type="vm")
        faults = [fault for guest in existing for fault in _elsewhere(site_id, guest, listed)]
        if faults:
            raise InvariantError(faults)
        found = tuple(one for guest in existing for one in _compared(guest, _config(api, guest)))
    except (ResourceException, AuthenticationError, requests.RequestException) as error:
        raise InvariantError([_unanswered(site_id, site, error)]) from None
    finally:
        api._store["session"].close()  # the library has no public way, and a server waits for it
    return Comparison(site_id=site_id, guests=tuple(guest.name for guest in existing), differences=found)


def _unanswered(site_id: str, site: Site, error: Exception) -> Violation:
    """What went wrong between here and the API. Never with the token."""
    key, remedy = f"{site_id}.proxmox.endpoint", "check the address, the network, and that pveproxy runs there"
    found = f"no answer of {site.proxmox.endpoint}"
    if isinstance(error, ResourceException):
        found = f"HTTP {error.status_code} {error.status_message}".strip()
        if error.status_code == 401:
            key, remedy = f"{site_id}.fleet:proxmoxApiToken", "set the token again: it is wrong, expired or revoked"
        elif error.status_code == 403:
            key, remedy = f"{site_id}.fleet:proxmoxApiToken", "give the token VM.Audit and Sys.Audit on /"
    elif isinstance(error, AuthenticationError):
        found, key, remedy = "a refused login", f"{site_id}.fleet:proxmoxApiToken", "set the token again"
    elif isinstance(error, requests.exceptions.SSLError):
        found, key = "a certificate that no known authority signed", f"{site_id}.proxmox.verify_tls"
        remedy = "name a file with its authority in SSL_CERT_FILE, or set verify_tls to false"
    elif isinstance(error, requests.exceptions.Timeout):
        found = f"no answer of {site.proxmox.endpoint} within {CALL_TIMEOUT_S} s"
    elif isinstance(error, requests.exceptions.JSONDecodeError):
        found = f"an answer of {site.proxmox.endpoint} that is not Proxmox's"
    elif not isinstance(error, requests.RequestException):
        found, key = "no token", f"{site_id}.fleet:proxmoxApiToken"
        remedy = f"pulumi config set --secret fleet:proxmoxApiToken -s {site_id}: user@realm!name=uuid"
    return Violation(id="PVE-03", path=key, found=found, expected="the API of the site's Proxmox", remedy=remedy)


def _kind(guest: Vm | Lxc) -> str:
    return "qemu" if isinstance(guest, Vm) else "lxc"


def _elsewhere(site_id: str, guest: Vm | Lxc, listed: list[dict[str, Any]]) -> Iterator[Violation]:
    """Why the guest cannot be read where the document says it is."""
    path = f"{site_id}.guests.{guest.name}"
    found = next((one for one in listed if int(one["vmid"]) == guest.vmid), None)
    named = [one for one in listed if one.get("name") == guest.name]
    words = {"qemu": "a VM", "lxc": "a container"}
    if found is None:
        there = ", ".join(f"{one['vmid']} ({words.get(one['type'], one['type'])} on {one['node']})" for one in named)
        yield _fault(
            f"{path}.vmid",
            f"no guest with VMID {guest.vmid}",
            "a guest that exists",
            f"{guest.name} has VMID {there}: write that one" if there else f"no guest is called {guest.name} either",
        )
        return
    if found["type"] != _kind(guest):
        word = words.get(found["type"], found["type"])
        yield _fault(f"{path}.kind", f"{word} with VMID {guest.vmid}", words[_kind(guest)], "correct kind or vmid")
        return
    if found["node"] != guest.host:
        yield _fault(
            f"{path}.host",
            f"VMID {guest.vmid} on {found['node']}",
            guest.host,
            f"write host: {found['node']}, or move the guest back",
        )
    if found.get("name") != guest.name:
        others = ", ".join(str(one["vmid"]) for one in named)
        yield _fault(
            f"{path}.vmid",
            f"{found.get('name', 'no name')}, the name of VMID {guest.vmid}",
            guest.name,
            f"{guest.name} has VMID {others}: write that one" if others else "name it alike in document and Proxmox",
        )


def _fault(path: str, found: str, expected: str, remedy: str) -> Violation:
    return Violation(id="PVE-03", path=path, found=found, expected=expected, remedy=remedy)


def _config(api: ProxmoxAPI, guest: Vm | Lxc) -> dict[str, Any]:
    config: dict[str, Any] = api.nodes(guest.host)(_kind(guest))(guest.vmid).config.get()
    return config


def _compared(guest: Vm | Lxc, config: dict[str, Any]) -> Iterator[Difference]:
    real = vm_facts(config) if isinstance(guest, Vm) else container_facts(config)
    for key, (document, remedy) in _stated(guest).items():
        if key in real and real[key] != document:
            missing = real[key] is None
            odd = key in ("disk", "disks") and not _whole(real[key])
            yield Difference(
                guest=guest.name,
                field=key,
                document=document,
                real=real[key],
                remedy=remedy
                if missing
                else "grow the disk to whole GiB: the document has no smaller unit"
                if odd
                else "",
            )


def _stated(guest: Vm | Lxc) -> dict[str, tuple[Any, str]]:
    """What a document says of a guest, as plain data, and what to do where the real guest has nothing there."""
    tool = "qm" if isinstance(guest, Vm) else "pct"
    stated: dict[str, tuple[Any, str]] = {
        "cores": (guest.cores, f"{tool} set {guest.vmid} --cores {guest.cores}"),
        "memory_mib": (guest.memory_mib, ""),
        "start_order": (guest.start_order, f"{tool} set {guest.vmid} --startup order={guest.start_order}"),
        "address": (str(guest.address), ""),
    }
    if guest.tags:
        stated["tags"] = sorted(guest.tags), ""
    if guest.mac:
        stated["mac"] = guest.mac, ""
    if isinstance(guest, Vm):
        stated["disks"] = [_disk(disk.storage, disk.size_gib) for disk in guest.disks], ""
        if guest.pci_mappings:
            stated["pci_mappings"] = list(guest.pci_mappings), ""
    else:
        stated["disk"] = _disk(guest.disk.storage, guest.disk.size_gib), ""
        stated |= {key: (getattr(guest, key), "") for key in ("privileged", "nesting", "keyctl")}
        stated["devices"] = list(guest.devices), ""
    return stated


def vm_facts(config: dict[str, Any]) -> dict[str, Any]:
    """A VM's config in the terms of a document."""
    drives = sorted((key for key in config if _DISK.fullmatch(key)), key=_place)
    options = [str(config[key]) for key in drives]
    nics = [_parts(str(config[key])) for key in _numbered(config, "net")]
    addresses = [_parts(str(config[key])).get("ip", "") for key in _numbered(config, "ipconfig")]
    devices = [_parts(str(config[key])) for key in _numbered(config, "hostpci")]
    return {
        **_common(config, cores=1),
        "disks": [_drive(text) for text in options if "media=cdrom" not in text and "cloudinit" not in text],
        "pci_mappings": [device.get("mapping", device.get("", "?")) for device in devices],
        **_address(addresses),
        **_mac([next((value for key, value in nic.items() if _is_mac(value)), "") for nic in nics]),
    }


def container_facts(config: dict[str, Any]) -> dict[str, Any]:
    """A container's config in the terms of a document."""
    features = _parts(str(config.get("features", "")))
    nics = [_parts(str(config[key])) for key in _numbered(config, "net")]
    devices = [_parts(str(config[key])) for key in _numbered(config, "dev")]
    return {
        **_common(config, cores=None),  # none: all of the host's
        "disk": _drive(str(config.get("rootfs", ""))),
        "privileged": str(config.get("unprivileged", 0)) != "1",
        "nesting": features.get("nesting") == "1",
        "keyctl": features.get("keyctl") == "1",
        "devices": [device.get("path", device.get("", "")) for device in devices],
        **_address([nic.get("ip", "") for nic in nics]),
        **_mac([nic.get("hwaddr", "") for nic in nics]),
    }


def _common(config: dict[str, Any], cores: int | None) -> dict[str, Any]:
    startup, memory = _parts(str(config.get("startup", ""))), _parts(str(config.get("memory", 512)))
    order = startup.get("order", startup.get("", ""))
    tags = [tag for tag in re.split(r"[;, ]+", str(config.get("tags", ""))) if tag]
    return {
        "cores": int(config["cores"]) if "cores" in config else cores,
        "memory_mib": int(memory.get("current", memory.get("", 512))),
        "start_order": int(order) if order.isdecimal() else None,
        "tags": sorted(tags),
    }


def _address(texts: list[str]) -> dict[str, Any]:
    """The address of the first interface that has one of its own; nothing where the config knows none."""
    for text in texts:
        try:
            return {"address": str(IPv4Interface(text).ip)}
        except ValueError:
            continue
    return {}


def _mac(texts: list[str]) -> dict[str, Any]:
    """Known only where there is one interface: of several nobody can tell which one the document means."""
    return {"mac": texts[0].upper()} if len(texts) == 1 and texts[0] else {}


def _is_mac(text: str) -> bool:
    return re.fullmatch(r"([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}", text) is not None


def _drive(text: str) -> dict[str, Any]:
    parts = _parts(text)
    volume = parts.get("", parts.get("file", parts.get("volume", "")))
    return _disk(volume.partition(":")[0], _gib(parts.get("size", "")))


def _disk(storage: str, size_gib: float | int | None) -> dict[str, Any]:
    return {"storage": storage, "size_gib": size_gib}


def _gib(text: str) -> float | int | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT])", text)
    if match is None:
        return round(int(text) / 1024**3, 3) if text.isdecimal() else None
    size = float(match[1]) * _UNITS_GIB[match[2]]
    return int(size) if size.is_integer() else round(size, 3)


def _whole(value: Any) -> bool:
    disks = value if isinstance(value, list) else [value]
    return all(isinstance(disk["size_gib"], int) for disk in disks)


def _place(key: str) -> tuple[int, int]:
    match = _DISK.fullmatch(key)
    assert match is not None
    return _BUSES.index(match[1]), int(match[2])


def _numbered(config: dict[str, Any], name: str) -> list[str]:
    return sorted(
        (key for key in config if re.fullmatch(rf"{name}\d+", key)), key=lambda key: int(key.removeprefix(name))
    )


def _parts(text: str) -> dict[str, str]:
    """`a,b=c` as Proxmox writes it; what stands without a key has the empty one."""
    found: dict[str, str] = {}
    for piece in text.split(","):
        key, equals, value = piece.partition("=")
        found.setdefault(key if equals else "", value if equals else key)
    return found
