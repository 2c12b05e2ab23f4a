"""ContainerLegacy: makes, reads, changes and removes LXC containers, with the real provider's habits.

Acted out: a removed device passthrough is not removed on the node, so it shows on each `up`; every change of the list
of devices, of memory, names and addresses reboots the container; user accounts replace it; an import leaves unset what
`CT_UNREAD` lists. Left out: what `CT_NOT_ACTED_OUT` lists.
"""

from collections.abc import Iterable, Iterator

import pulumi_proxmoxve as sdk
from pulumi.provider.experimental.provider import CheckFailure

from lab.providers.difference import Change
from lab.providers.difference import Kind as Happening
from lab.providers.proxmoxve import tables
from lab.providers.proxmoxve.container_config import BLOCKS, observed, parameters
from lab.providers.proxmoxve.guest import Guest, filled, sorted_tags
from lab.providers.proxmoxve.vm import pruned
from lab.providers.serving import Refused
from lab.providers.stand_in import Incomplete
from lab.providers.values import UNKNOWN, Properties

IMPORTED = "__imported"  # of a state that the provider read and never wrote
START_TIMEOUT_S = 1800
REBOOT_TIMEOUT_S = 300
KILL_MARGIN_S = 5  # PVE must kill the container before the provider stops waiting


class Container(Guest):
    token = "proxmoxve:index/containerLegacy:ContainerLegacy"
    arguments = sdk.ContainerLegacyArgs
    path = "lxc"
    word = "Container"
    computed = frozenset({"ipv4", "ipv6", "vmId"})
    replaces = tables.CT_REPLACES
    kept_when_absent = frozenset({"networkInterfaces.macAddress", "vmId"})

    def normal(self, inputs: Properties) -> Properties:
        result = sorted_tags(filled(inputs, tables.CT_DEFAULTS, tables.CT_ITEM_DEFAULTS))
        if isinstance(inputs.get("features"), dict):
            result["features"] = tables.CT_FEATURE_DEFAULTS | inputs["features"]
        if isinstance(inputs.get("startup"), dict):
            result["startup"] = tables.STARTUP_DEFAULTS | inputs["startup"]
        return result

    def invalid(self, inputs: Properties) -> Iterator[CheckFailure]:
        for name in sorted(tables.CT_NOT_ACTED_OUT & inputs.keys()):
            yield CheckFailure(name, f"'{name}' is known to the real provider but not acted out by the stand-in")
        if "operatingSystem" not in inputs:
            yield CheckFailure("operatingSystem", '"operating_system": required field is not set')

    def also_changed(self, state: Properties, inputs: Properties, ignored: Iterable[str]) -> Iterator[Change]:
        if state.get(IMPORTED):
            for name in tables.CT_UNREAD:
                if name not in ignored:
                    yield Change(name, Happening.ADD)
        wanted = inputs.get("devicePassthroughs", [])
        if isinstance(wanted, list) and "devicePassthroughs" not in ignored:
            for at in range(len(wanted), len(state.get("devicePassthroughs", []))):
                yield Change(f"devicePassthroughs[{at}]", Happening.DELETE)

    def must_replace(self, change: Change, old: Properties, new: Properties) -> bool:
        if change.path == "disk.size" and UNKNOWN not in (new["disk"], new["disk"]["size"]):
            return bool(new["disk"]["size"] < old["disk"]["size"])
        return super().must_replace(change, old, new)

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        node = inputs["nodeName"]
        async with self.vmid(inputs) as vmid:
            body = parameters(inputs)
            try:
                await self.api.task("POST", f"nodes/{node}/lxc", "Container create", vmid=vmid, **body)
            except Refused as error:
                raise Refused(f"Container create: All attempts fail:\n#1: error creating container: {error}") from error
        try:
            return str(vmid), await self._outputs(self.url(node, vmid), vmid)
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
        if not state:
            return str(vmid), pruned(seen), await self._outputs(url, vmid) | {IMPORTED: True}
        if state.get(IMPORTED):
            return str(vmid), seen, await self._outputs(url, vmid) | {IMPORTED: True}
        if "type" not in state.get("operatingSystem", {}):
            # PVE finds the type out from the template.
            del seen["operatingSystem"]
        return str(vmid), seen, await self._outputs(url, vmid)

    async def update(
        self, resource_id: str, state: Properties, inputs: Properties, changed: list[Change]
    ) -> Properties:
        vmid = int(resource_id)
        url = self.url(inputs["nodeName"], vmid)
        tops = {change.top for change in changed}
        if len(state.get("devicePassthroughs", [])) > len(inputs.get("devicePassthroughs", [])):
            tops.add("devicePassthroughs")
        reboot = bool(tops & tables.CT_REBOOTS)
        old = self.normal(state)
        body: dict[str, str] = {}
        removed: set[str] = set()
        for top in sorted(tops & BLOCKS.keys()):
            before, after = BLOCKS[top](old), BLOCKS[top](inputs)
            body |= after
            # The provider never deletes a device: the last ones stay on the node.
            removed |= set() if top == "devicePassthroughs" else before.keys() - after.keys()
        if inputs["disk"]["size"] > old["disk"]["size"]:
            size = f"{inputs['disk']['size']}G"
            await self.api.task("PUT", f"{url}/resize", "Container disk resize", disk="rootfs", size=size)
        if removed:
            body["delete"] = ",".join(sorted(removed))
        if body:
            await self.api.put(f"{url}/config", **body)
        await self._power(url, inputs, reboot)
        return await self._outputs(url, vmid)

    async def delete(self, resource_id: str, state: Properties) -> None:
        url = self.url(state["nodeName"], resource_id)
        if await self.status(url) != "stopped":
            await self._shut_down(url, state)
        await self.api.task("DELETE", url, "Container delete")

    def preview_outputs(self, state: Properties, changed: list[Change]) -> Properties:
        return dict.fromkeys(self.computed, UNKNOWN) | ({"vmId": state["vmId"]} if "vmId" in state else {})

    async def _power(self, url: str, inputs: Properties, reboot: bool) -> None:
        running = await self.status(url) == "running"
        if inputs["started"] and not running:
            await self.power(url, "start", "running", START_TIMEOUT_S)
        elif not inputs["started"] and running:
            await self._shut_down(url, inputs)
        elif running and reboot:
            await self.power(url, "reboot", "running", REBOOT_TIMEOUT_S, timeout=str(REBOOT_TIMEOUT_S))

    async def _shut_down(self, url: str, inputs: Properties) -> None:
        timeout_s = max(1, inputs["timeoutDelete"] - KILL_MARGIN_S)
        await self.power(url, "shutdown", "stopped", inputs["timeoutDelete"], forceStop="1", timeout=str(timeout_s))

    async def _outputs(self, url: str, vmid: int) -> Properties:
        config = await self.api.get(f"{url}/config")
        interfaces = await self.api.get(f"{url}/interfaces") or []
        outputs: Properties = {"vmId": vmid}
        for family, output in (("inet", "ipv4"), ("inet6", "ipv6")):
            outputs[output] = {one["name"]: one[family].partition("/")[0] for one in interfaces if one.get(family)}
        left = observed(config)["devicePassthroughs"]
        return outputs | ({"devicePassthroughs": left} if left else {})
