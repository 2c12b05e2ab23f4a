"""VmLegacy: makes, reads, changes and removes VMs, with the real provider's habits.

Acted out: disks without a non-zero `speed` change on each `up` unless `ignore_changes` names each one; a change that
needs a restart stops and starts the VM, unless `reboot_after_update` is off; the wait for the guest agent. Left out:
moving disks between datastores, migration, and what `VM_NOT_ACTED_OUT` lists.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pulumi_proxmoxve as sdk
from pulumi.provider.experimental.provider import CheckFailure
from pulumi.runtime.proto import engine_pb2

from lab.providers.difference import Change
from lab.providers.difference import Kind as Happening
from lab.providers.proxmoxve import tables
from lab.providers.proxmoxve.guest import POLL_S, Guest, filled, sorted_tags
from lab.providers.proxmoxve.notation import flag, is_set, joined, parted, seconds, size_gib
from lab.providers.proxmoxve.vm_config import BLOCKS, disk_options, new_disk, observed, parameters
from lab.providers.serving import Refused, log
from lab.providers.stand_in import Incomplete
from lab.providers.values import UNKNOWN, Properties

RESTARTLESS_DISK_FIELDS: Final = frozenset({"size", "speed"})
LOOPBACK: Final = ("127.", "::1")


class Vm(Guest):
    token = "proxmoxve:index/vmLegacy:VmLegacy"
    arguments = sdk.VmLegacyArgs
    path = "qemu"
    word = "VM"
    computed = frozenset({"ipv4Addresses", "ipv6Addresses", "macAddresses", "networkInterfaceNames", "vmId"})
    replaces = tables.VM_REPLACES
    kept_when_absent = frozenset(
        {"bootOrders", "cdrom", "disks.fileFormat", "disks.pathInDatastore", "initialization.upgrade", "name",
         "networkDevices.macAddress", "vga", "vmId"}
    )  # fmt: skip

    def normal(self, inputs: Properties) -> Properties:
        result = sorted_tags(filled({"disks": []} | inputs, tables.VM_DEFAULTS, tables.VM_ITEM_DEFAULTS))
        if isinstance(inputs.get("initialization"), dict):
            result["initialization"] = tables.VM_INITIALIZATION_DEFAULTS | inputs["initialization"]
        if isinstance(inputs.get("startup"), dict):
            result["startup"] = tables.STARTUP_DEFAULTS | inputs["startup"]
        return result

    def invalid(self, inputs: Properties) -> Iterator[CheckFailure]:
        for name in sorted(tables.VM_NOT_ACTED_OUT & inputs.keys()):
            yield CheckFailure(name, f"'{name}' is known to the real provider but not acted out by the stand-in")
        init = inputs.get("initialization")
        if isinstance(init, dict) and "userAccount" in init and "userDataFileId" in init:
            yield CheckFailure("initialization.userAccount", "conflicts with initialization.userDataFileId")
        for at, disk in enumerate(_dicts(inputs.get("disks"))):
            if "fileId" in disk:
                yield CheckFailure(f"disks[{at}].fileId", "needs a shell on the node (SSH); use importFrom")

    def also_changed(self, state: Properties, inputs: Properties, ignored: Iterable[str]) -> Iterator[Change]:
        for at, disk in enumerate(_dicts(inputs["disks"])):
            path = f"disks[{at}].speed"
            # pulumi-proxmoxve issue 664. The path must be written out: "disks[*].speed" matches nothing.
            covered = {path, f"disks[{at}]", "disks"} & set(ignored)
            if not covered and not any(disk.get("speed", {}).values()):
                yield Change(path, Happening.ADD)

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        self._check_root(inputs)
        node = inputs["nodeName"]
        async with self.vmid(inputs) as vmid:
            body = parameters(inputs) | ({"pool": inputs["poolId"]} if inputs.get("poolId") else {})
            await self.api.task("POST", f"nodes/{node}/qemu", "VM create", vmid=vmid, **body)
        url = self.url(node, vmid)
        try:
            for disk in inputs["disks"]:
                if disk.get("importFrom"):
                    await self._resize(url, disk)
            if inputs["template"]:
                await self.api.task("POST", f"{url}/template", "VM convert to template")
            elif inputs["started"]:
                await self.power(url, "start", "running", inputs["timeoutStartVm"])
            return str(vmid), await self._outputs(url, vmid, inputs)
        except Refused as error:
            raise Incomplete(str(vmid), {"vmId": vmid}, str(error)) from error

    async def read(self, resource_id: str, state: Properties) -> tuple[str, Properties, Properties] | None:
        place = await self.find(resource_id, state)
        if place is None:
            return None
        node, vmid = place
        url = self.url(node, vmid)
        config = await self.api.get(f"{url}/config")
        seen = observed(config) | {"nodeName": node, "vmId": vmid, "started": await self.status(url) == "running"}
        order = [disk.get("interface") for disk in _dicts(state.get("disks"))]
        seen["disks"].sort(
            key=lambda disk: order.index(disk["interface"]) if disk["interface"] in order else len(order)
        )
        if not state:
            seen = pruned(seen)
        return str(vmid), seen, await self._outputs(url, vmid, self.normal({**state, **seen}))

    async def update(
        self, resource_id: str, state: Properties, inputs: Properties, changed: list[Change]
    ) -> Properties:
        vmid = int(resource_id)
        url = self.url(inputs["nodeName"], vmid)
        tops = {change.top for change in changed}
        if "cpu" in tops:
            self._check_root(inputs)
        restart = bool(tops & tables.VM_RESTARTS)
        old = self.normal(state)
        body: dict[str, str] = {}
        removed: set[str] = set()
        for top in sorted(tops & BLOCKS.keys()):
            before, after = BLOCKS[top](old), BLOCKS[top](inputs)
            body |= after
            removed |= before.keys() - after.keys()
        grown, disks_restart = await self._disks(url, old, inputs, body, removed)
        if removed:
            body["delete"] = ",".join(sorted(removed))
        if body:
            await self.api.put(f"{url}/config", **body)
        if "initialization" in tops and not inputs["template"]:
            await self.api.put(f"{url}/cloudinit")
        await self._power_cycle(url, inputs, restart or disks_restart, grown)
        return await self._outputs(url, vmid, inputs)

    async def delete(self, resource_id: str, state: Properties) -> None:
        url = self.url(state["nodeName"], resource_id)
        if await self.status(url) != "stopped":
            if state["stopOnDestroy"]:
                await self.power(url, "stop", "stopped", state["timeoutStopVm"])
            else:
                await self._stop(url, state)
        await self.api.task(
            "DELETE",
            url,
            "VM delete",
            **{
                "purge": flag(state["purgeOnDestroy"]),
                "destroy-unreferenced-disks": flag(state["deleteUnreferencedDisksOnDestroy"]),
            },
        )

    def preview_outputs(self, state: Properties, changed: list[Change]) -> Properties:
        stable = {name: state[name] for name in ("vmId", "macAddresses") if name in state}
        return dict.fromkeys(self.computed, UNKNOWN) | stable

    async def _disks(
        self, url: str, old: Properties, new: Properties, body: dict[str, str], removed: set[str]
    ) -> tuple[list[Properties], bool]:
        """Adds what the disks need to `body` and `removed`; returns the disks to grow, and whether to restart."""
        before = {disk["interface"]: disk for disk in old["disks"]}
        grown: list[Properties] = []
        restart = False
        config = await self.api.get(f"{url}/config")
        for disk in new["disks"]:
            key = disk["interface"]
            was = before.pop(key, None)
            if was is None or key not in config:
                body[key] = new_disk(disk)
                continue
            if was == disk:
                continue
            if was["datastoreId"] != disk["datastoreId"]:
                raise Refused(f"disk {key}: moving to another datastore is not acted out by the stand-in provider")
            drive = parted(config[key], "file")
            size = size_gib(drive.get("size"))
            if size is not None and disk["size"] < size:
                raise Refused(
                    f"disk resize failure: requested size ({disk['size']}G) is lower than current size ({size}G)"
                )
            if size != disk["size"]:
                grown.append(disk)
            body[key] = joined({"file": drive["file"], "size": drive.get("size"), **disk_options(disk)})
            different = {name for name in {*was, *disk} if was.get(name) != disk.get(name)}
            restart = restart or bool(different - RESTARTLESS_DISK_FIELDS)
        removed |= before.keys() & config.keys()
        return grown, restart

    async def _resize(self, url: str, disk: Properties) -> None:
        # The provider sends bytes-exact sizes; PVE answers with a task.
        await self.api.task(
            "PUT", f"{url}/resize", "VM disk resize", disk=disk["interface"], size=str(disk["size"] * 1024**3)
        )

    async def _power_cycle(self, url: str, inputs: Properties, restart: bool, grown: list[Properties]) -> None:
        """Brings pending changes into effect and the VM into the wanted power state."""
        if inputs["template"]:
            return
        running = await self.status(url) == "running"
        if restart and running and not inputs["rebootAfterUpdate"]:
            if grown:
                raise Refused("reboot_after_update is off: the disks cannot be resized, as that needs a restart")
            await log("a reboot is required to apply the changes, and reboot_after_update is off",
                      severity=engine_pb2.WARNING)  # fmt: skip
            restart = False
        if restart and running:
            await self._stop(url, inputs)
            running = False
        for disk in grown:
            await self._resize(url, disk)
        if inputs["started"] and not running:
            await self.power(url, "start", "running", inputs["timeoutStartVm"])
        elif not inputs["started"] and running:
            await self._stop(url, inputs)

    async def _stop(self, url: str, inputs: Properties) -> None:
        """An orderly shutdown where the agent is enabled, a hard stop otherwise."""
        agent = parted((await self.api.get(f"{url}/config")).get("agent", "0"), "enabled")
        if is_set(agent.get("enabled")):
            timeout_s = inputs["timeoutShutdownVm"]
            await self.power(url, "shutdown", "stopped", timeout_s, forceStop="1", timeout=str(timeout_s))
        else:
            await self.power(url, "stop", "stopped", inputs["timeoutStopVm"])

    async def _outputs(self, url: str, vmid: int, inputs: Properties) -> Properties:
        config = await self.api.get(f"{url}/config")
        interfaces = await self._interfaces(url, inputs)
        return {
            "vmId": vmid,
            "macAddresses": [nic["macAddress"] for nic in observed(config)["networkDevices"]],
            "networkInterfaceNames": [interface["name"] for interface in interfaces],
            "ipv4Addresses": [_addresses(interface, "ipv4") for interface in interfaces],
            "ipv6Addresses": [_addresses(interface, "ipv6") for interface in interfaces],
        }

    async def _interfaces(self, url: str, inputs: Properties) -> list[dict[str, Any]]:
        """What the agent knows, once one address is not a loopback; nothing after the agent's timeout."""
        if not (inputs["agent"]["enabled"] and inputs["started"]) or inputs["template"]:
            return []
        try:
            async with asyncio.timeout(seconds(inputs["agent"]["timeout"])):
                while True:
                    try:
                        answer = await self.api.get(f"{url}/agent/network-get-interfaces")
                    except Refused as error:
                        if "HTTP 403" in str(error):  # a login without VM.GuestAgent.Audit: no reason to wait
                            await log(f"error waiting for network interfaces from QEMU agent: {error}",
                                      severity=engine_pb2.WARNING)  # fmt: skip
                            return []
                        answer = {}  # the agent does not run yet
                    interfaces: list[dict[str, Any]] = answer.get("result", [])
                    if any(not one.startswith(LOOPBACK) for each in interfaces for one in _addresses(each, "ipv4")):
                        return interfaces
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            await log("timeout while waiting for the QEMU agent on the VM to publish the network interfaces",
                      severity=engine_pb2.WARNING)  # fmt: skip
            return []

    def _check_root(self, inputs: Properties) -> None:
        if inputs["cpu"].get("architecture") and not self.api.is_root_ticket:
            raise Refused(
                "the `cpu.architecture` can only be set by the root account. Please switch to the root account or "
                "remove the `cpu.architecture` from the VM configuration"
            )


def _addresses(interface: dict[str, Any], kind: str) -> list[str]:
    return [one["ip-address"] for one in interface.get("ip-addresses", []) if one["ip-address-type"] == kind]


def _dicts(value: Any) -> list[Properties]:
    """The known items of a list that a preview may not know."""
    return [item if isinstance(item, dict) else {} for item in value] if isinstance(value, list) else []


def pruned(value: Any) -> Any:
    """For an import: without what says nothing, so that inputs that leave it out match."""
    if isinstance(value, dict):
        kept = {name: pruned(item) for name, item in value.items()}
        return {name: item for name, item in kept.items() if isinstance(item, bool) or item}
    return [pruned(item) for item in value] if isinstance(value, list) else value
