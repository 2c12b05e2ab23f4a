"""fakepve 0.5 with what the real provider needs beyond it, and a place to follow every change of power.

Each override names the lack it cures. fakepve is AGPL and a development dependency only: nothing of it is copied here,
and nothing outside the lab imports it.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

import fakepve.lxc
import fakepve.qemu
from aiohttp import web
from fakepve import FakePve
from fakepve.model import TaskError
from fakepve.qemu import DRIVE_KEY, NEW_DISK, format_size, join_drive, split_drive
from fakepve.routing import die
from fakepve.storage import BLOCK_NAME, TYPES

MIB: Final = 1024**2
DOWNLOAD_SIZE: Final = MIB
"""What every download of fakepve holds: it fetches no URL."""

IMAGE_VIRTUAL_SIZE: Final = 2 * 1024**3
"""What a cloud image unpacks to; a disk made from it starts with this."""

SIZE: Final = re.compile(r"(\+?)(\d+(?:\.\d+)?)([KMGT]?)")
UNITS: Final = {"": 1, "K": 1024, "M": MIB, "G": 1024**3, "T": 1024**4}

ROOT_ONLY_VM_KEYS: Final = ("args", "affinity")
"""Kept to root@pam by PVE (qemu-server, check_vm_modify_config_perm), open to all in fakepve."""

READS: Final = ("GET", "HEAD")

NODE_OF_PATH: Final = re.compile(r"/api2/json/nodes/([^/]+)/")
NODE: ContextVar[str | None] = ContextVar("node", default=None)
"""The host that the request at hand is about; its tasks inherit it."""

# LINSTOR's plugin is not part of PVE, so fakepve takes its storages for folders; they hold block volumes.
TYPES.setdefault("drbd", TYPES["lvmthin"] | {"name": "drbd"})
BLOCK_NAME.setdefault("drbd", BLOCK_NAME["lvmthin"])
# It takes snapshots, as the plugin says of itself.
fakepve.lxc.SNAPSHOT_STORAGE = fakepve.qemu.SNAPSHOT_STORAGE = (*fakepve.lxc.SNAPSHOT_STORAGE, "drbd")


class Fake(FakePve):  # type: ignore[misc]  # fakepve has no types
    """One cluster. `follow` is awaited at the end of every task of a guest, `written` called after each write."""

    def __init__(self, password: str, follow: Callable[[int], Awaitable[None]], written: Callable[[], None]) -> None:
        super().__init__(user="root@pam", password=password)
        self.container_keys: dict[int, list[str]] = {}
        """Container id to the authorised keys of its root."""
        self.slow_s = 0.0
        """PVE seconds that every task takes on top."""
        self._follow = follow
        self._written = written

    def _build_app(self) -> web.Application:
        """A path with a trailing slash, as in the provider's DELETE, would reach the catch-all, which only says OK."""
        app: web.Application = super()._build_app()
        inner = app._handle

        async def handle(request: web.Request) -> web.StreamResponse:
            if request.path.endswith("/") and request.path != "/":
                trimmed = request.rel_url.with_path(request.path.rstrip("/")).with_query(request.rel_url.query)
                request = request.clone(rel_url=trimmed)
            asked = NODE_OF_PATH.match(request.path)
            NODE.set(asked[1] if asked else None)
            response: web.StreamResponse = await inner(request)
            if request.method not in READS:
                self._written()
            return response

        app._handle = handle  # type: ignore[method-assign]  # a middleware runs after the route is chosen
        return app

    async def task(
        self, node: str, ttype: str, tid: object, user: str, body: Callable[[], Awaitable[Any]], **options: Any
    ) -> str:
        """Every change of power is a task: its task ends when the lab has followed, and fails when it could not."""

        async def followed() -> Any:
            await self.pause(self.slow_s)
            note = await body()
            if str(tid).isdigit():
                try:
                    await self._follow(int(str(tid)))
                except Exception as error:  # whatever went wrong in the lab is what the task reports
                    if ttype == "vzcreate":
                        # Its creation starts it: left behind, it would be in the way of the next try.
                        self._drop(self.ct(int(str(tid))))
                    raise TaskError(f"lab: {error}") from error
            return note

        return str(await super().task(node, ttype, tid, user, followed, **options))

    def store_file(self, storage: str, name: str, size: int, content: str = "iso") -> None:
        """Notes which host got the file: fakepve shows a folder of one host on all of them."""
        volume, volumes = f"{content}/{name}", self.storages[storage].setdefault("volumes", {})
        holders = set(volumes.get(volume, {}).get("nodes", ()))
        super().store_file(storage, name, size, content)
        node = NODE.get()
        if node is not None and not self.storages[storage].get("shared"):
            volumes[volume]["nodes"] = sorted(holders | {node})

    def _volumes(self, name: str) -> dict[str, Any]:
        """What the host at hand has of a storage."""
        node = NODE.get()
        found: dict[str, Any] = super()._volumes(name)
        return {key: volume for key, volume in found.items() if node is None or node in volume.get("nodes", (node,))}

    async def _content_delete(self, v: dict[str, Any], user: str) -> Any:
        """The other hosts keep theirs."""
        storage, volume = self._volume_target(v)[:2]
        entry = self.storages[storage].get("volumes", {}).get(volume, {})
        others = set(entry.get("nodes", ())) - {v["node"]}
        if not others:
            return await super()._content_delete(v, user)
        self.require(user, f"/storage/{storage}", "Datastore.Allocate")

        async def body() -> str:
            entry["nodes"] = sorted(others)
            return f"Removed volume '{storage}:{volume}'"

        return await self.task(v["node"], "imgdel", storage, user, body, lock=False)

    def _qm_new_drive(self, vmid: int, key: str, value: str, default: str | None) -> tuple[str, list[str]]:
        """Names the cloud-init drive as PVE does, and makes a disk out of an image (`import-from`)."""
        volume, options = split_drive(value)
        if volume.endswith(":cloudinit"):
            store = volume.partition(":")[0] or default
            name = f"vm-{vmid}-cloudinit"
            size = 4 * MIB
            volumes = self.storages[store].setdefault("volumes", {})
            volumes[name] = {"content": "images", "format": "raw", "size": size, "vmid": vmid, "ctime": 0}
            options.pop("format", None)
            volid = f"{store}:{name}"
            return join_drive(volid, {**options, "media": "cdrom", "size": format_size(size)}), [volid]
        image = options.pop("import-from", None)
        if image is not None:
            source = self._qm_volume(image)
            if source is None:
                raise die(f"volume {image} does not exist")
            if source.get("content") not in ("import", "images"):
                raise die(f"cannot import from '{image}' - content type needs to be 'import' or 'images'")
            size = int(source.get("virtual", IMAGE_VIRTUAL_SIZE))
            store = volume.partition(":")[0] or default
            options.pop("size", None)
            volid, _ = self._qm_alloc(store, vmid, options.pop("format", None), size)
            return join_drive(volid, {**options, "size": format_size(size)}), [volid]
        made: tuple[str, list[str]] = super()._qm_new_drive(vmid, key, value, default)
        return made

    async def _apply_config(self, vm: Any, user: str, p: Mapping[str, Any]) -> None:
        """Makes the drives that a config update adds; fakepve keeps their text as it is."""
        values = dict(p)
        for key in values:
            if DRIVE_KEY.match(key):
                volume = split_drive(values[key])[0]
                if volume.endswith(":cloudinit") or NEW_DISK.match(volume):
                    values[key] = self._qm_new_drive(vm.vmid, key, values[key], None)[0]
        await super()._apply_config(vm, user, values)

    async def _config_get(self, request: web.Request) -> web.Response:
        """PVE shows a VM's config with its pending changes, unless asked for the `current` one."""
        vm = self._vm(request, "VM.Audit")
        config = dict(vm.config)
        if request.query.get("current") not in ("1", "true"):
            config |= vm.pending
        shown = {key: value for key, value in config.items() if value is not None}
        if "memory" in shown:
            shown["memory"] = str(shown["memory"])
        return web.json_response({"data": shown | {"digest": vm.digest()}})

    def _config_priv(self, key: str) -> str:
        return "root" if key in ROOT_ONLY_VM_KEYS else str(super()._config_priv(key))

    async def synthesise(self, match: Any, method: str, info: Any, user: str, values: dict[str, Any]) -> Any:
        """Two calls that fakepve answers without doing anything: disk resize and the look at a URL."""
        if (method, match.template) == ("PUT", "/nodes/{node}/qemu/{vmid}/resize"):
            return await self._resize(user, values)
        if (method, match.template) == ("GET", "/nodes/{node}/query-url-metadata"):
            name = values["url"].partition("?")[0].rpartition("/")[2]
            return {"size": DOWNLOAD_SIZE, "filename": name, "mimetype": "application/octet-stream"}
        return await super().synthesise(match, method, info, user, values)

    async def _resize(self, user: str, values: dict[str, Any]) -> str:
        vm, key = self.find(values["node"], int(values["vmid"])), values["disk"]
        if key not in vm.config:
            raise die(f"disk '{key}' does not exist")
        volume = self._qm_volume(split_drive(vm.config[key])[0])
        found = SIZE.fullmatch(values["size"])
        if found is None or volume is None:
            raise die(f"cannot resize disk '{key}' to '{values['size']}'")
        size = int(float(found[2]) * UNITS[found[3]]) + (int(volume["size"]) if found[1] else 0)
        if size < int(volume["size"]):
            raise die("shrinking disks is not supported")
        self.need_quorum()
        store = split_drive(vm.config[key])[0].partition(":")[0]
        more = size - int(volume["size"])

        async def body() -> None:
            if more > self.storages[store].get("avail", more):
                raise TaskError(f"unable to resize volume on storage '{store}': No space left on device")
            volume["size"] = size
            for config in (vm.config, vm.pending):
                if config.get(key):
                    name, options = split_drive(config[key])
                    config[key] = join_drive(name, {**options, "size": format_size(size)})

        return await self.task(vm.node, "resize", vm.vmid, user, body, vm=vm)

    async def _lxc_create(self, user: str, v: dict[str, Any]) -> Any:
        """Keeps the SSH keys for the boot: PVE writes them into the container's file system, not into its config."""
        self.container_keys[int(v["vmid"])] = str(v.get("ssh-public-keys") or "").splitlines()
        return await super()._lxc_create(user, v)
