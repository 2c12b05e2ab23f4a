"""Static Pods: a mirror Pod for each file in agent/pod-manifests; one that is kube-vip is acted out as well."""

import asyncio
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from . import kubevip, log
from .kubeapi import ApiError, Json, KubeApi, selector

_PERIOD_S = 3


@dataclass
class _Pod:
    digest: str
    body: Json
    actor: asyncio.Task[None] | None = None


class StaticPods:
    def __init__(self, api: KubeApi, folder: Path, node: str, kubeconfig: Path) -> None:
        self._api, self._folder, self._node, self._kubeconfig = api, folder, node, kubeconfig
        self._pods: dict[Path, _Pod] = {}
        self._bad: dict[Path, str] = {}  # file -> digest that was complained about

    async def run(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            while True:
                try:
                    await self._sync()
                except ApiError as problem:
                    log.error(f"Failed to sync static pods: {problem}")
                await asyncio.sleep(_PERIOD_S)
        finally:
            actors = [pod.actor for pod in self._pods.values() if pod.actor]
            for actor in actors:
                actor.cancel()
            await asyncio.gather(*actors, return_exceptions=True)

    async def _sync(self) -> None:
        files = [p for p in sorted(self._folder.iterdir()) if p.suffix in (".yaml", ".yml", ".json", ".manifest")]
        for gone in [path for path in self._pods if path not in files]:
            await self._end(self._pods.pop(gone))
        for path in files:
            text = path.read_text()
            digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
            running = self._pods.get(path)
            if running and running.digest != digest:
                await self._end(self._pods.pop(path))
                running = None
            if not running and self._bad.get(path) != digest:
                self._begin(path, text, digest)
        if self._pods:
            # one by one a kubelet may read only Pods that are there already; all of its node it may always list
            own = await self._api.items(f"/api/v1/pods?fieldSelector={selector(f'spec.nodeName={self._node}')}")
            present = {(p["metadata"]["namespace"], p["metadata"]["name"]): p for p in own}
            for pod in self._pods.values():
                metadata = pod.body["metadata"]
                await self._mirror(pod, present.get((metadata["namespace"], metadata["name"])))

    def _begin(self, path: Path, text: str, digest: str) -> None:
        try:
            body = yaml.safe_load(text)
            name = f"{body['metadata']['name']}-{self._node}"
            if body["kind"] != "Pod":
                raise kubevip.BadManifest(f"kind: found {body['kind']}, expected Pod")
            image = str(body["spec"]["containers"][0]["image"])
            vip = None
            if image.startswith(kubevip.IMAGE):
                vip = kubevip.VipSettings.of(body, self._node, self._kubeconfig)
        except (yaml.YAMLError, KeyError, TypeError, IndexError, ValueError, kubevip.BadManifest) as problem:
            log.error(f"Could not process manifest file {path}: {problem}")
            self._bad[path] = digest
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        annotations = dict(body["metadata"].get("annotations") or {}) | {
            "kubernetes.io/config.hash": digest,
            "kubernetes.io/config.mirror": digest,
            "kubernetes.io/config.source": "file",
            "kubernetes.io/config.seen": now,
        }
        namespace = body["metadata"].get("namespace") or "default"
        body["metadata"] = {**body["metadata"], "name": name, "namespace": namespace, "annotations": annotations}
        body["spec"]["nodeName"] = self._node
        tolerations = body["spec"].setdefault("tolerations", [])
        tolerations.append({"effect": "NoExecute", "operator": "Exists"})
        pod = self._pods[path] = _Pod(digest, body)
        if vip:
            pod.actor = asyncio.create_task(_acted(vip))

    async def _mirror(self, pod: _Pod, found: Json | None) -> None:
        metadata = pod.body["metadata"]
        pods = f"/api/v1/namespaces/{metadata['namespace']}/pods"
        if found:
            if found["metadata"].get("annotations", {}).get("kubernetes.io/config.mirror") == pod.digest:
                return
            await self._delete(pod)
        node = await self._api.find(f"/api/v1/nodes/{self._node}")
        if node is None:  # registered in a moment; what the Pod does has begun all the same
            return
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node["metadata"]["uid"]}
        metadata["ownerReferences"] = [{**owner, "controller": True}]
        await self._api.create(pods, pod.body)

    async def _end(self, pod: _Pod) -> None:
        if pod.actor:
            pod.actor.cancel()
            await asyncio.gather(pod.actor, return_exceptions=True)
        await self._delete(pod)

    async def _delete(self, pod: _Pod) -> None:
        metadata = pod.body["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        await self._api.delete(path, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})


async def _acted(settings: kubevip.VipSettings) -> None:
    """Starts again whatever happens, as a kubelet does with a container."""
    while True:
        try:
            await kubevip.act(settings)
        except Exception as problem:  # a crash of the container must not be one of the kubelet
            log.error(f"kube-vip ended: {type(problem).__name__}: {problem}; starting it again")
        await asyncio.sleep(2)
