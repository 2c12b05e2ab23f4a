"""The kubelet's part towards the API: the Node, its status and its Lease. No Pod ever runs; kwok says they do.

Labels, taints and addresses come from the configuration at the first registration only, as in K3s. A node is Ready when
flannel is on, or while the cilium Pod of this node is ready.
"""

import asyncio
import json
import platform
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import VERSION, log
from .kubeapi import ApiError, Json, KubeApi, selector
from .log import Fatal
from .network import node_address
from .settings import Settings

KWOK_ANNOTATION = ("fleet.lab/pods", "kwok")
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_PERIOD_S, _STATUS_PERIOD_S, _CNI_PERIOD_S = 10, 60, 2
_ALLOWED_LABELS = {
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
}
_ALLOWED_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")
_CAPACITY_FILE = Path("/run/fleet-lab/capacity.json")  # {"cpu": 8, "memory_mib": 16384}; the guest's size, if known
_TAINT = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^:]*))?:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute)")


class Kubelet:
    """Making one raises Fatal where a kubelet would not start."""

    def __init__(self, api: KubeApi, settings: Settings, node: str, cluster: Json, args: list[str]) -> None:
        self._api, self._settings, self._node, self._args = api, settings, node, args
        self._flannel = cluster["flannel-backend"] != "none"
        self._address = node_address(settings)
        self._since: dict[str, tuple[str, str]] = {}  # condition -> (status, time of its last change)
        self._labels = _labels(settings)
        self._taints = _taints(settings)
        if not Path("/dev/kmsg").exists():
            raise Fatal("failed to create kubelet: open /dev/kmsg: no such file or directory")

    async def run(self) -> None:
        """Never returns."""
        await self._register()
        ticks = 0
        known: Json = {}
        while True:
            try:
                status = await self._status()
                changed = _without_times(status) != known
                if changed or ticks % (_STATUS_PERIOD_S // _CNI_PERIOD_S) == 0:
                    await self._api.strategic(f"/api/v1/nodes/{self._node}/status", {"status": status})
                    known = _without_times(status)
                if ticks % (_LEASE_PERIOD_S // _CNI_PERIOD_S) == 0:
                    await self._renew_lease()
                    await self._vouch_for_pods()
            except ApiError as problem:
                known = {}
                if ticks % (_LEASE_PERIOD_S // _CNI_PERIOD_S) == 0:
                    log.error(f'Error updating node status: error getting node "{self._node}": {problem}')
            ticks += 1
            await asyncio.sleep(_CNI_PERIOD_S)

    async def _register(self) -> None:
        body: Json = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._node, "labels": self._labels, "annotations": self._annotations()},
            "spec": {"providerID": f"k3s://{self._node}"} | ({"taints": self._taints} if self._taints else {}),
            "status": {"addresses": self._addresses()},
        }
        while True:
            try:
                if await self._api.find(f"/api/v1/nodes/{self._node}") is None:
                    await self._api.create("/api/v1/nodes", body)
                    log.info(f"Successfully registered node {self._node}")
                else:
                    metadata = {"annotations": self._annotations()}
                    await self._api.merge(f"/api/v1/nodes/{self._node}", {"metadata": metadata})
                return
            except ApiError as problem:
                log.info(f"Unable to register node with API server: {problem}")
                await asyncio.sleep(2)

    def _annotations(self) -> dict[str, str]:
        return {
            KWOK_ANNOTATION[0]: KWOK_ANNOTATION[1],
            "k3s.io/hostname": self._node,
            "k3s.io/internal-ip": self._address,
            "k3s.io/node-args": json.dumps(self._args),
            "alpha.kubernetes.io/provided-node-ip": self._address,
        }

    def _addresses(self) -> list[dict[str, str]]:
        external = [{"type": "ExternalIP", "address": a} for a in self._settings.items("node-external-ip")]
        return [
            {"type": "InternalIP", "address": self._address},
            *external,
            {"type": "Hostname", "address": self._node},
        ]

    async def _status(self) -> Json:
        ready, why = True, "kubelet is posting ready status"
        if not self._flannel and not await self._cilium_ready():
            ready = False
            why = (
                "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
                "message:Network plugin returns error: cni plugin not initialized"
            )
        conditions = [
            self._condition("MemoryPressure", False, "KubeletHasSufficientMemory", "kubelet has sufficient memory"),
            self._condition("DiskPressure", False, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            self._condition("PIDPressure", False, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            self._condition("Ready", ready, "KubeletReady" if ready else "KubeletNotReady", why),
        ]
        capacity = _capacity()
        return {
            "addresses": self._addresses(),
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": conditions,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": _node_info(),
        }

    def _condition(self, kind: str, status: bool, reason: str, message: str) -> dict[str, str]:
        value, now = str(status), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self._since.get(kind, ("",))[0] != value:
            self._since[kind] = (value, now)
        return {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": self._since[kind][1],
        }

    async def _cilium_ready(self) -> bool:
        where = f"fieldSelector={selector(f'spec.nodeName={self._node}')}&labelSelector={selector('k8s-app=cilium')}"
        for pod in await self._api.items(f"/api/v1/pods?{where}"):
            status = pod.get("status") or {}
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])
            if status.get("phase") == "Running" and ready and not pod["metadata"].get("deletionTimestamp"):
                return True
        return False

    async def _vouch_for_pods(self) -> None:
        """Pods were marked unready while this node was away; kwok says once that a Pod runs, and never again."""
        where = f"fieldSelector={selector(f'spec.nodeName={self._node}')}"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for pod in await self._api.items(f"/api/v1/pods?{where}"):
            metadata, status = pod["metadata"], pod.get("status") or {}
            stale = [
                {"type": c["type"], "status": "True", "lastTransitionTime": now}
                for c in status.get("conditions") or []
                if c["type"] in ("Ready", "ContainersReady") and c["status"] != "True"
            ]
            if stale and status.get("phase") == "Running" and not metadata.get("deletionTimestamp"):
                path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
                await self._api.strategic(path, {"status": {"conditions": stale}})

    async def _renew_lease(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._node, "leaseDurationSeconds": 40, "renewTime": now}
        try:
            await self._api.merge(f"{_LEASES}/{self._node}", {"spec": spec})
        except ApiError as problem:
            if problem.status != 404:
                raise
            node = await self._api.get(f"/api/v1/nodes/{self._node}")
            owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node["metadata"]["uid"]}
            metadata = {"name": self._node, "namespace": "kube-node-lease", "ownerReferences": [owner]}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
            await self._api.create(_LEASES, body)


def _labels(settings: Settings) -> dict[str, str]:
    """Raises Fatal for labels that the kubelet may not set on itself."""
    arch = _arch()
    labels = {
        "kubernetes.io/os": "linux",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": arch,
        "beta.kubernetes.io/arch": arch,
        "kubernetes.io/hostname": settings.text("node-name"),
        "node.kubernetes.io/instance-type": "k3s",
        "beta.kubernetes.io/instance-type": "k3s",
    }
    refused = []
    for text in settings.items("node-label"):
        key, _, value = text.partition("=")
        domain = key.partition("/")[0] if "/" in key else ""
        reserved = any(domain == d or domain.endswith("." + d) for d in ("kubernetes.io", "k8s.io"))
        allowed = any(domain == d or domain.endswith("." + d) for d in _ALLOWED_DOMAINS)
        if reserved and not allowed and key not in _ALLOWED_LABELS:
            refused.append(key)
        labels[key] = value
    if refused:
        raise Fatal(
            f"kubelet exited: failed to validate kubelet flags: unknown 'kubernetes.io' or 'k8s.io' labels specified "
            f"with --node-labels: [{' '.join(refused)}]"
        )
    return labels


def _taints(settings: Settings) -> list[dict[str, str]]:
    taints = []
    for text in settings.items("node-taint"):
        found = _TAINT.fullmatch(text)
        if not found:
            raise Fatal(f"kubelet exited: invalid taint spec: {text}")
        taint = {"key": found["key"], "effect": found["effect"]}
        taints.append(taint | ({"value": found["value"]} if found["value"] else {}))
    return taints


def _capacity() -> dict[str, str]:
    size: dict[str, Any] = {}
    if _CAPACITY_FILE.exists():
        size = json.loads(_CAPACITY_FILE.read_text())
    return {
        "cpu": str(size.get("cpu", 8)),
        "memory": f"{size.get('memory_mib', 16384)}Mi",
        "pods": "110",
        "ephemeral-storage": "100Gi",
    }


def _node_info() -> dict[str, str]:
    machine = Path("/etc/machine-id")
    return {
        "kubeletVersion": VERSION,
        "kubeProxyVersion": VERSION,
        "containerRuntimeVersion": "containerd://2.1.5-k3s1.32",
        "operatingSystem": "linux",
        "architecture": _arch(),
        "kernelVersion": platform.release(),
        "osImage": _os_image(),
        "machineID": machine.read_text().strip() if machine.exists() else "",
        "systemUUID": "",
        "bootID": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }


def _arch() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _os_image() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _without_times(status: Json) -> Json:
    conditions = [{k: v for k, v in c.items() if k != "lastHeartbeatTime"} for c in status["conditions"]]
    return {**status, "conditions": conditions}
