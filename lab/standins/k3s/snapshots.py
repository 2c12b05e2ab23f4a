"""etcd snapshots on the disk of a server: the work, done by the running server. None is taken by a schedule here."""

import time
import zipfile
from pathlib import Path
from typing import Any

from . import apiserver, log
from .etcd import EtcdClient, private_folder
from .kubeapi import ApiError, Json
from .log import Fatal
from .paths import Paths
from .settings import Settings


async def execute(paths: Paths, settings: Settings, node: str, order: Json) -> list[Json]:
    """One order of `k3s etcd-snapshot`; answers with the snapshots it is about. Raises Fatal, EtcdError, OSError."""
    folder = Path(order.get("dir") or settings.text("etcd-snapshot-dir") or paths.snapshots)
    action = order.get("action")
    if action == "save":
        return [await _save(paths, folder, node, str(order["name"]), bool(order.get("compress")))]
    if action == "ls":
        return _listed(folder)
    if action == "delete":
        return await _delete(paths, folder, [str(name) for name in order["names"]])
    if action == "prune":
        prefix = f"{order['name']}-{node}-"
        found = [s["name"] for s in _listed(folder) if s["name"].startswith(prefix)]
        return await _delete(paths, folder, found[: max(0, len(found) - int(order["retention"]))])
    raise Fatal(f"unknown snapshot action {action}")


async def _save(paths: Paths, folder: Path, node: str, base: str, compress: bool) -> Json:
    private_folder(folder)
    target = folder / f"{base}-{node}-{int(time.time())}"
    log.info(f"Saving etcd snapshot to {target}")
    draft = target.with_name(target.name + ".partial")
    try:
        with draft.open("wb") as file:
            draft.chmod(0o600)
            async with EtcdClient(paths) as client:
                async for part in client.snapshot():
                    file.write(part)
        if compress:
            target = target.with_name(target.name + ".zip")
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
                packed.write(draft, target.stem)
            target.chmod(0o600)
        else:
            draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)
    snapshot = _described(target)
    await _publish(paths, node, snapshot)
    return snapshot


def _described(path: Path) -> dict[str, Any]:
    found = path.stat()
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.st_mtime))
    return {"name": path.name, "location": f"file://{path}", "size": found.st_size, "created": created}


def _listed(folder: Path) -> list[Json]:
    files = [p for p in folder.iterdir() if p.is_file()] if folder.is_dir() else []
    return [_described(p) for p in sorted(files, key=lambda p: p.stat().st_mtime) if p.suffix != ".partial"]


async def _delete(paths: Paths, folder: Path, names: list[str]) -> list[Json]:
    known = {s["name"]: s for s in _listed(folder)}
    for name in names:
        if name in known:
            (folder / name).unlink()
            async with apiserver.admin(paths) as api:
                await api.delete(f"/apis/k3s.cattle.io/v1/etcdsnapshotfiles/local-{name}")
    return [known[name] for name in names if name in known]


async def _publish(paths: Paths, node: str, snapshot: Json) -> None:
    body = {
        "apiVersion": "k3s.cattle.io/v1",
        "kind": "ETCDSnapshotFile",
        "metadata": {"name": f"local-{snapshot['name']}"},
        "spec": {"snapshotName": snapshot["name"], "nodeName": node, "location": snapshot["location"]},
        "status": {"readyToUse": True, "size": str(snapshot["size"]), "creationTime": snapshot["created"]},
    }
    try:
        async with apiserver.admin(paths) as api:
            await api.create("/apis/k3s.cattle.io/v1/etcdsnapshotfiles", body)
    except ApiError as problem:
        log.warning(f"Snapshot is not listed in the API: {problem}")
