"""What VMs and containers have in common: ids, imports, power and the waits around them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final

from lab.providers.proxmoxve.api import Api
from lab.providers.serving import Refused
from lab.providers.stand_in import Kind
from lab.providers.values import Properties

POLL_S: Final = 0.2


class Guest(Kind):
    """A guest on one node of the cluster, reached at `nodes/NODE/<path>/VMID`."""

    path: ClassVar[str]  # "qemu" or "lxc", as the API and /cluster/resources call them
    word: ClassVar[str]  # "VM" or "Container", as error texts call them

    def __init__(self, api: Api) -> None:
        self.api = api

    def url(self, node: str, vmid: object) -> str:
        return f"nodes/{node}/{self.path}/{vmid}"

    @asynccontextmanager
    async def vmid(self, inputs: Properties) -> AsyncIterator[int]:
        """The wanted id, or the API's next free one, held until the guest has taken it."""
        if "vmId" in inputs:
            yield inputs["vmId"]
            return
        async with self.api.next_id:
            yield int(await self.api.get("cluster/nextid"))

    async def find(self, resource_id: str, state: Properties) -> tuple[str, int] | None:
        """Node and id of a guest; for an import, `resource_id` is NODE/VMID."""
        given, slash, vmid = resource_id.rpartition("/")
        if not vmid.isdigit() or (not state and not slash):
            raise Refused(f"unexpected format of ID ({resource_id}), expected node/id")
        for resource in await self.api.get("cluster/resources", type="vm"):
            if resource["vmid"] == int(vmid) and resource["type"] == self.path:
                if not state and self.path == "lxc" and resource["node"] != given:
                    return None  # a VM is looked for on the whole cluster, a container on the given node alone
                return resource["node"], int(vmid)
        return None  # the engine says that there is nothing to import

    async def status(self, url: str) -> str:
        return str((await self.api.get(f"{url}/status/current"))["status"])

    async def power(self, url: str, action: str, wanted: str, timeout_s: float, **options: Any) -> None:
        """Runs a power action and waits until the guest is in the `wanted` state."""
        await self.api.task("POST", f"{url}/status/{action}", f"{self.word} {action}", **options)
        for _ in range(int(timeout_s / POLL_S) + 1):
            if await self.status(url) == wanted:
                return
            await asyncio.sleep(POLL_S)
        raise Refused(f"timeout while waiting for {self.word} at {url} to be {wanted} ({timeout_s:g} s)")


def sorted_tags(inputs: Properties) -> Properties:
    """The provider sends tags sorted and without blanks; their order is no difference."""
    if isinstance(inputs.get("tags"), list):
        return inputs | {"tags": sorted(tag.strip() for tag in inputs["tags"] if isinstance(tag, str) and tag.strip())}
    return inputs


def without_empty(value: Any) -> Any:
    """Without empty texts: to the real provider's framework an empty text and none are the same."""
    if isinstance(value, dict):
        return {name: without_empty(item) for name, item in value.items() if item != ""}
    return [without_empty(item) for item in value] if isinstance(value, list) else value


def filled(inputs: Properties, defaults: dict[str, Any], items: dict[str, dict[str, Any]]) -> Properties:
    """`inputs` with `defaults`, one level deep, and the items of its lists with theirs."""
    inputs = without_empty(inputs)
    result = dict(inputs)
    for name, default in defaults.items():
        given = inputs.get(name)
        if isinstance(default, dict) and isinstance(given, dict):
            result[name] = default | given
        elif given is None:
            result[name] = default
    for name, default in items.items():
        if isinstance(inputs.get(name), list):
            result[name] = [default | item if isinstance(item, dict) else item for item in inputs[name]]
    return result
