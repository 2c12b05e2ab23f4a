"""download.File, download.FileLegacy and FileLegacy: images and templates by URL, snippets over SSH.

Acted out: with `overwrite` a file whose size is no longer that of its URL, or of its download, is replaced; a replaced
snippet of the same name is deleted after its successor was written, unless the program deletes it first. Left out:
FileLegacy for anything but `sourceRaw` snippets (those files would go through the API), and a missing `fileName` of a
download, at which the real plugin crashes.
"""

import posixpath
from collections.abc import Iterable, Iterator
from typing import Final

import asyncssh
import pulumi_proxmoxve as sdk
from pulumi.provider.experimental.provider import CheckFailure

from lab.providers.difference import Change
from lab.providers.difference import Kind as Happening
from lab.providers.proxmoxve import tables
from lab.providers.proxmoxve.api import Api
from lab.providers.serving import Refused
from lab.providers.ssh import DEFAULTS, connected
from lab.providers.stand_in import Kind
from lab.providers.values import Properties

SUFFIX: Final = "\nhelp: a snippet goes over SSH; set `ssh` of the provider, with `ssh.nodes` for the node's address"


class Download(Kind):
    """A file that the node fetches itself."""

    computed = frozenset({"size"})
    replaces = tables.DOWNLOAD_REPLACES | {"size"}

    def __init__(self, api: Api) -> None:
        self.api = api

    def normal(self, inputs: Properties) -> Properties:
        return tables.DOWNLOAD_DEFAULTS | inputs

    def invalid(self, inputs: Properties) -> Iterator[CheckFailure]:
        if "fileName" not in inputs:
            yield CheckFailure("fileName", "give the name: without one the real plugin crashes on a URL that has none")
        if ("checksum" in inputs) is not ("checksumAlgorithm" in inputs):
            yield CheckFailure("checksum", "checksum and checksumAlgorithm must be given together")

    def also_changed(self, state: Properties, inputs: Properties, ignored: Iterable[str]) -> Iterator[Change]:
        now, expected = state.get("size"), (state.get("__downloaded"), state.get("__offered"))
        if inputs["overwrite"] and any(size not in (None, now) for size in expected):
            yield Change("size", Happening.UPDATE)

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        node, store = inputs["nodeName"], inputs["datastoreId"]
        file_id = f"{store}:{inputs['contentType']}/{inputs['fileName']}"
        if await self._size(node, store, file_id) is not None:
            if not inputs["overwriteUnmanaged"]:
                raise Refused(
                    f"refusing to override existing file '{file_id}': it was made outside of this program; "
                    "delete it, or set overwrite_unmanaged"
                )
            await self.api.task("DELETE", f"nodes/{node}/storage/{store}/content/{file_id}", "File delete")
        body = {
            "content": inputs["contentType"],
            "filename": inputs["fileName"],
            "url": inputs["url"],
            "verify-certificates": "1" if inputs["verify"] else "0",
            "checksum": inputs.get("checksum"),
            "checksum-algorithm": inputs.get("checksumAlgorithm"),
            "compression": inputs.get("decompressionAlgorithm"),
        }
        given = {key: value for key, value in body.items() if value is not None}
        await self.api.task("POST", f"nodes/{node}/storage/{store}/download-url", "File download", **given)
        size = await self._size(node, store, file_id)
        if size is None:
            raise Refused(f"the download of {file_id} ended, but the file is not on the node")
        return file_id, {"size": size, "__downloaded": size}

    async def read(self, resource_id: str, state: Properties) -> tuple[str, Properties, Properties] | None:
        if not state:
            raise Refused(f"import of {resource_id!r}: not acted out by the stand-in provider")
        size = await self._size(state["nodeName"], state["datastoreId"], resource_id)
        if size is None:
            return None
        outputs: Properties = {"size": size, "__downloaded": state.get("__downloaded", size)}
        if state["overwrite"]:
            query = {"url": state["url"], "verify-certificates": "1" if state["verify"] else "0"}
            offered = await self.api.get(f"nodes/{state['nodeName']}/query-url-metadata", **query)
            outputs["__offered"] = (offered or {}).get("size")
        return resource_id, {}, outputs

    async def update(
        self, resource_id: str, state: Properties, inputs: Properties, changed: list[Change]
    ) -> Properties:
        return {name: state[name] for name in ("size", "__downloaded", "__offered") if name in state}

    async def delete(self, resource_id: str, state: Properties) -> None:
        node, store = state["nodeName"], state["datastoreId"]
        if await self._size(node, store, resource_id) is not None:
            await self.api.task("DELETE", f"nodes/{node}/storage/{store}/content/{resource_id}", "File delete")

    async def _size(self, node: str, store: str, file_id: str) -> int | None:
        content = await self.api.get(f"nodes/{node}/storage/{store}/content")
        return next((int(item["size"]) for item in content if item["volid"] == file_id), None)


class DownloadFile(Download):
    token = "proxmoxve:download/file:File"
    arguments = sdk.download.FileArgs


class DownloadFileLegacy(Download):
    token = "proxmoxve:download/fileLegacy:FileLegacy"
    arguments = sdk.download.FileLegacyArgs


class Snippet(Kind):
    token = "proxmoxve:index/fileLegacy:FileLegacy"
    arguments = sdk.FileLegacyArgs
    computed = frozenset({"fileName"})
    replaces = tables.FILE_REPLACES

    def __init__(self, api: Api) -> None:
        self.api = api

    def normal(self, inputs: Properties) -> Properties:
        return tables.FILE_DEFAULTS | inputs

    def invalid(self, inputs: Properties) -> Iterator[CheckFailure]:
        if inputs.get("contentType") != "snippets" or "sourceRaw" not in inputs:
            yield CheckFailure("contentType", "the stand-in provider takes snippets with sourceRaw only")

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        raw = inputs["sourceRaw"]
        path = await self._path(inputs, raw["fileName"])
        async with connected(self._connection(inputs["nodeName"])) as client:
            try:
                async with client.start_sftp_client() as sftp:
                    await sftp.makedirs(posixpath.dirname(path), exist_ok=True)
                    async with sftp.open(path, "wb") as file:
                        await file.write(raw["data"].encode())
            except asyncssh.SFTPError as error:
                raise Refused(f"failed to write {path} on {inputs['nodeName']}: {error}") from error
        return f"{inputs['datastoreId']}:snippets/{raw['fileName']}", {"fileName": raw["fileName"]}

    async def read(self, resource_id: str, state: Properties) -> tuple[str, Properties, Properties] | None:
        if not state:
            raise Refused(f"import of {resource_id!r}: not acted out by the stand-in provider")
        content = await self.api.get(f"nodes/{state['nodeName']}/storage/{state['datastoreId']}/content")
        if all(item["volid"] != resource_id for item in content):
            return None
        return resource_id, {}, {"fileName": state["fileName"]}

    async def update(
        self, resource_id: str, state: Properties, inputs: Properties, changed: list[Change]
    ) -> Properties:
        return {"fileName": state["fileName"]}

    async def delete(self, resource_id: str, state: Properties) -> None:
        node, store = state["nodeName"], state["datastoreId"]
        await self.api.task("DELETE", f"nodes/{node}/storage/{store}/content/{resource_id}", "File delete")

    async def _path(self, inputs: Properties, name: str) -> str:
        store = await self.api.get(f"storage/{inputs['datastoreId']}")
        if "path" not in store:
            raise Refused(f"datastore {inputs['datastoreId']} has no folder for snippets")
        return posixpath.join(store["path"], "snippets", name)

    def _connection(self, node: str) -> Properties:
        ssh = self.api.config.get("ssh", {})
        where = next((one for one in ssh.get("nodes", []) if one["name"] == node), None)
        if where is None:
            raise Refused(f"failed to open SSH client: no address of node {node}{SUFFIX}")
        user = ssh.get("username", self.api.config.get("username", "root@pam").partition("@")[0])
        connection = DEFAULTS | {"user": user, "host": where["address"], "port": where.get("port", 22)}
        password = ssh.get("password", self.api.config.get("password"))
        return connection | {
            name: value
            for name, value in {"password": password, "privateKey": ssh.get("privateKey")}.items()
            if value is not None
        }
