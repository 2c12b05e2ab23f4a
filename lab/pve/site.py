"""The Proxmox cluster of one site, as the lab's daemon uses it.

Serves the API on the address of every host, keeps its state in a file, and tells the daemon what boots and ends. Left
out: HA, migration and backups, which fakepve has and no guest of the lab follows.
"""

import json
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict
from urllib.parse import unquote

from aiohttp import web
from fakepve.certs import make_cert
from fakepve.lxc import FakeCt
from fakepve.model import FakeVm

from lab import LabError
from lab.node import Guest, GuestEvents
from lab.providers.proxmoxve.notation import GIB, parted, size_gib
from lab.providers.proxmoxve.vm_config import numbered
from lab.pve.fake import Fake
from lab.pve.faults import Faults
from lab.topology import ExistingGuest

PORT: Final = 8006
LOG: Final = logging.getLogger(__name__)

PRIVILEGES: Final = (
    "Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit",
    "SDN.Use", "Sys.Audit", "Sys.Modify", "VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.CPU",
    "VM.Config.Cloudinit", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network",
    "VM.Config.Options", "VM.PowerMgmt", "VM.Snapshot",
)  # fmt: skip
"""What a token needs for images, VMs and containers without features: all that the lab's token gets."""

CONTENT: Final = {
    "dir": "iso,vztmpl,backup,snippets,import,images,rootdir",
    "lvmthin": "images,rootdir",
    "drbd": "images,rootdir",
    "zfspool": "images,rootdir",
}

KEPT: Final = ("config", "pending", "snapshots", "status", "node", "pool")
"""What of a guest is written to the state file."""


class Host(TypedDict):
    name: str
    address: str


class Storage(TypedDict):
    """One storage of the cluster, as in storage.cfg."""

    name: str
    type: str
    content: NotRequired[str]  # comma-separated; by default what the type can hold
    shared: NotRequired[bool]


class Secrets(TypedDict):
    root_password: str
    api_token_id: str  # USER@REALM!NAME
    api_token_secret: str
    ssh_authorized_key: NotRequired[str]


class SitePve:
    """One Proxmox cluster with all hosts of a site as its nodes. `pve` is fakepve itself, with its fault injection."""

    def __init__(
        self,
        site: str,
        hosts: Sequence[Host],
        secrets: Secrets,
        directory: Path,
        events: GuestEvents,
        storages: Sequence[Storage] = (),
        existing: Sequence[ExistingGuest] = (),
    ) -> None:
        if not hosts:
            raise ValueError(f"site {site}: a Proxmox cluster needs at least one host")
        self.site = site
        self._hosts, self._directory, self._events = hosts, directory, events
        self._existing = {guest.vmid: guest for guest in existing}
        self._authorised_key = secrets.get("ssh_authorized_key", "")
        self._runner: web.AppRunner | None = None
        self._running: dict[int, tuple[float | None, Guest | None]] = {}
        self._known: dict[int, Guest | None] = {}
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.pve = Fake(secrets["root_password"], self._follow, self._save)
        self.pve.host = hosts[0]["address"]
        self.pve.cluster_name = site
        self.pve.nodes = {host["name"]: {"online": True} for host in hosts}
        self.faults = Faults(self.pve)
        self._authorise(secrets)
        self._add_storages(storages)
        if self._file.exists():
            self._load()
        else:
            self._place_existing()

    def _authorise(self, secrets: Secrets) -> None:
        """A user with a token beside root@pam; the first grant turns permission checks on."""
        user = secrets["api_token_id"].partition("!")[0]
        if not user or "!" not in secrets["api_token_id"]:
            raise ValueError(f"site {self.site}: api_token_id: expected USER@REALM!NAME")
        self.pve.apitokens[secrets["api_token_id"]] = secrets["api_token_secret"]
        self.pve.grant("auditor@pve", "/", "VM.Audit")
        if user != "root@pam":
            self.pve.grant(user, "/", *PRIVILEGES)

    def _add_storages(self, storages: Sequence[Storage]) -> None:
        self.pve.storages["local"]["content"] = CONTENT["dir"]
        # A fake's disks cost nothing, so no storage fills up by itself.
        self.pve.storages["local"].pop("avail", None)
        for storage in storages:
            store = self.pve.storages.setdefault(storage["name"], {"active": 1, "files": set()})
            store["type"] = storage["type"]
            store["content"] = storage.get("content", CONTENT.get(storage["type"], "images,rootdir"))
            if storage.get("shared"):
                store["shared"] = 1

    def _place_existing(self) -> None:
        """What people made, through fakepve's own model: nothing of it goes through the API or the program."""
        for guest in self._existing.values():
            config = dict(guest.config)
            if guest.kind == "vm":
                vm = FakeVm(guest.vmid, guest.name, node=guest.host, status="running", config=config)
                vm.started_at = 0.0
                self.pve.vms.append(vm)
            else:
                ct = FakeCt(guest.vmid, node=guest.host, status="running", config=config, defaults=False)
                ct.started_at = 0.0
                self.pve.cts.append(ct)
            for text in config.values():
                drive = parted(text, "file")
                store, _, volume = drive.get("file", "").partition(":")
                if f"vm-{guest.vmid}-disk" in volume and store in self.pve.storages:
                    content = "images" if guest.kind == "vm" else "rootdir"
                    size = int((size_gib(drive.get("size")) or 0) * GIB)
                    self.pve.storages[store].setdefault("volumes", {})[volume] = {
                        "content": content, "format": "raw", "size": size, "vmid": guest.vmid, "ctime": 0,
                    }  # fmt: skip

    async def start(self, listen: Callable[[str, int], socket.socket]) -> None:
        """Serves on every host's address; guests that ran when the state was written are started again."""
        addresses = [host["address"] for host in self._hosts]
        certificate, key, _ = make_cert(str(self._directory), name=f"pve-{self.site}", hosts=addresses)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        self._runner = web.AppRunner(self.pve._build_app(), access_log=None)
        await self._runner.setup()
        for address in addresses:
            await web.SockSite(self._runner, listen(address, PORT), ssl_context=context).start()
        await self._boot_again()

    async def stop(self) -> None:
        """Stops serving and keeps the state; the guests are the daemon's to end."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._save()

    def guests(self) -> list[Guest]:
        """Every guest that has an address, running or not."""
        found = (self._guest(raw) for raw in self._all())
        return [guest for guest in found if guest is not None]

    def config(self, name: str) -> dict[str, Any]:
        """All that Proxmox has of a guest: its config, what waits for a restart, and where and how it runs."""
        raw = self._named(name)
        return {**raw.config, "pending": dict(raw.pending), "node": raw.node, "status": raw.status}

    def set_config(self, name: str, values: Mapping[str, str | int | None]) -> None:
        """What a person changes by hand; None takes an option away."""
        raw = self._named(name)
        for key, value in values.items():
            if value is None:
                raw.config.pop(key, None)
            else:
                raw.config[key] = value
        self._save()

    def _named(self, name: str) -> Any:
        raw = next((one for one in self._all() if one.name == name), None)
        if raw is None:
            raise LabError(f"no guest {name} on the Proxmox of {self.site}")
        return raw

    async def discard(self, vmid: int) -> None:
        """Removes a guest with its disks, as an operator does with one that was left half made."""
        raw = next((one for one in self._all() if one.vmid == vmid), None)
        if raw is None:
            return
        (self.pve.cts if isinstance(raw, FakeCt) else self.pve.vms).remove(raw)
        for store in self.pve.storages.values():
            volumes = store.get("volumes", {})
            for name in [name for name, volume in volumes.items() if volume.get("vmid") == vmid]:
                del volumes[name]
        await self._follow(vmid)
        self._save()

    def _all(self) -> list[Any]:
        return [*self.pve.vms, *self.pve.cts]

    async def _boot_again(self) -> None:
        for raw in self._all():
            if raw.status == "running":
                try:
                    await self._follow_one(raw)
                except Exception as error:  # one guest that does not come up must not keep the API down
                    LOG.error("%s: guest %s did not start again: %s", self.site, raw.vmid, error)
                    raw.status = "stopped"

    async def _follow(self, vmid: int) -> None:
        """Brings the daemon to what the API shows of a guest. Runs inside the task that made the change."""
        raw = next((one for one in self._all() if one.vmid == vmid), None)
        if raw is not None:
            await self._follow_one(raw)
            return
        self._running.pop(vmid, None)
        self._existing.pop(vmid, None)
        gone = self._known.pop(vmid, None)
        self.pve.container_keys.pop(vmid, None)
        if gone is not None:
            await self._events.deleted(gone)

    async def _follow_one(self, raw: Any) -> None:
        guest = self._guest(raw)
        self._known[raw.vmid] = guest or self._known.get(raw.vmid)
        started_at, before = self._running.get(raw.vmid, (None, None))
        was_running = raw.vmid in self._running
        # A reboot shows only in the time of the start.
        if was_running and (raw.status != "running" or raw.started_at != started_at):
            del self._running[raw.vmid]
            if before is not None:
                await self._events.stopped(before)
        if raw.status == "running" and raw.vmid not in self._running:
            try:
                if guest is None:
                    LOG.warning("%s: guest %s runs without an address; the lab makes no node", self.site, raw.vmid)
                else:
                    await self._events.started(guest)
            except Exception:
                # The guest did not come up: the API must not show it as running.
                raw.status = "stopped"
                if hasattr(raw, "qmpstatus"):
                    raw.qmpstatus = "stopped"
                raise
            if isinstance(raw, FakeVm):
                raw.agent = agent_answers(guest)
            self._running[raw.vmid] = (raw.started_at, guest)

    def _guest(self, raw: Any) -> Guest | None:
        """What a boot reads: cloud-init of a VM, the config of a container. None without a static address."""
        if (made := self._existing.get(raw.vmid)) is not None:
            # Its system was installed by hand and knows its address by itself; so is the key that people let in.
            return Guest(
                site=self.site, name=made.name, vmid=made.vmid, kind=made.kind, host=raw.node, address=made.address,
                gateway=made.gateway, dns=made.dns, user=made.user, ssh_keys=(self._authorised_key.strip(),),
                devices=made.devices,
            )  # fmt: skip
        config: Mapping[str, Any] = raw.config
        if isinstance(raw, FakeCt):
            net = parted(config.get("net0", ""))
            user, keys = "root", self.pve.container_keys.get(raw.vmid, [])
            devices: tuple[str, ...] = tuple(
                parted(config[key], "path")["path"] for key in numbered(dict(config), "dev")
            )
        else:
            net = parted(config.get("ipconfig0", ""))
            user = str(config.get("ciuser", "root"))
            keys = unquote(str(config.get("sshkeys", ""))).splitlines()
            devices = ()
        if "/" not in net.get("ip", ""):
            return None
        gateway = net.get("gw")
        return Guest(
            site=self.site,
            name=raw.name,
            vmid=raw.vmid,
            kind="lxc" if isinstance(raw, FakeCt) else "vm",
            host=raw.node,
            address=IPv4Interface(net["ip"]),
            gateway=IPv4Address(gateway) if gateway else None,
            dns=tuple(str(config.get("nameserver", "")).split()),
            user=user,
            ssh_keys=tuple(key for key in keys if key.strip()),
            devices=devices,
        )

    @property
    def _file(self) -> Path:
        return self._directory / "pve.json"

    def _save(self) -> None:
        """Whole and at once, so that a killed daemon finds either the old state or the new."""
        state = {
            "vms": [{"vmid": vm.vmid, "name": vm.name, "template": vm.template, **_kept(vm)} for vm in self.pve.vms],
            "cts": [{"vmid": ct.vmid, **_kept(ct)} for ct in self.pve.cts],
            "container_keys": {str(vmid): keys for vmid, keys in self.pve.container_keys.items()},
            "volumes": {name: store.get("volumes", {}) for name, store in self.pve.storages.items()},
        }
        fresh = self._file.with_suffix(".new")
        # Configs hold the guests' passwords.
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(state, file, indent=1)
        fresh.replace(self._file)

    def _load(self) -> None:
        try:
            state = json.loads(self._file.read_text())
        except ValueError as error:
            raise ValueError(
                f"{self._file}: found no readable state ({error}); remove the lab and make it anew"
            ) from error
        for entry in state["vms"]:
            vm = FakeVm(entry["vmid"], entry["name"], template=entry["template"])
            _restore(vm, entry)
            self.pve.vms.append(vm)
        for entry in state["cts"]:
            ct = FakeCt(entry["vmid"], defaults=False)
            _restore(ct, entry)
            self.pve.cts.append(ct)
        self.pve.container_keys.update({int(vmid): keys for vmid, keys in state["container_keys"].items()})
        for name, volumes in state["volumes"].items():
            if name in self.pve.storages:
                self.pve.storages[name]["volumes"] = volumes
        self._known = {raw.vmid: self._guest(raw) for raw in self._all()}


def _kept(raw: Any) -> dict[str, Any]:
    return {name: getattr(raw, name) for name in KEPT}


def _restore(raw: Any, entry: Mapping[str, Any]) -> None:
    for name in KEPT:
        setattr(raw, name, entry[name])
    if raw.lock:  # its task died with the daemon
        raw.lock = None
        raw.config.pop("lock", None)
    if raw.status == "running":
        raw.started_at = 0.0
    if isinstance(raw, FakeVm):
        raw.qmpstatus = raw.status


def agent_answers(guest: Guest | None) -> dict[str, Any]:
    """What the guest agent of a booted VM says about its interfaces."""

    def interface(name: str, address: str, prefix: int) -> dict[str, Any]:
        return {
            "name": name,
            "hardware-address": "00:00:00:00:00:00",
            "ip-addresses": [{"ip-address": address, "ip-address-type": "ipv4", "prefix": prefix}],
        }

    interfaces = [interface("lo", "127.0.0.1", 8)]
    if guest is not None:
        interfaces.append(interface("eth0", str(guest.address.ip), guest.address.network.prefixlen))
    return {"interfaces": interfaces}
