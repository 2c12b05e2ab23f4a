"""Leader election on a Lease, as Kubernetes' own clients do it: expiry is judged by one's own clock only."""

import asyncio
import time
from datetime import UTC, datetime

from .kubeapi import ApiError, Json, KubeApi


class Election:
    """Call `held` once per retry period; it says whether the lease is ours now."""

    def __init__(
        self, api: KubeApi, namespace: str, name: str, identity: str, *, duration_s: float, renew_deadline_s: float
    ) -> None:
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace, self._name, self._identity = namespace, name, identity
        self._duration_s, self._renew_deadline_s = duration_s, renew_deadline_s
        self._seen: tuple[str, str] = ("", "")  # holder and renew time last read
        self._seen_at = 0.0
        self._renewed_at: float | None = None

    async def held(self) -> bool:
        now = time.monotonic()
        try:
            if await asyncio.wait_for(self._acquire_or_renew(), self._renew_deadline_s):
                self._renewed_at = now
                return True
            self._renewed_at = None
            return False
        except (ApiError, TimeoutError):
            # no answer, or somebody was faster: ours until the deadline, as long as nobody is known to hold it
            if self._renewed_at is not None and now - self._renewed_at < self._renew_deadline_s:
                return True
            self._renewed_at = None
            return False

    async def release(self) -> None:
        if self._renewed_at is None:
            return
        self._renewed_at = None
        try:
            lease = await self._api.get(f"{self._path}/{self._name}")
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.text("PUT", f"{self._path}/{self._name}", lease, timeout_s=2)
        except ApiError:
            pass  # it runs out by itself

    async def _acquire_or_renew(self) -> bool:
        lease = await self._api.find(f"{self._path}/{self._name}")
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: Json = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, int(self._duration_s)),
            "acquireTime": stamp,
            "renewTime": stamp,
            "leaseTransitions": 0,
        }
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
            await self._api.create(self._path, body)
            return True
        old = lease.get("spec") or {}
        holder = old.get("holderIdentity") or ""
        seen = (holder, str(old.get("renewTime")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, time.monotonic()
        if holder == self._identity:
            spec["acquireTime"] = old.get("acquireTime") or stamp
            spec["leaseTransitions"] = old.get("leaseTransitions") or 0
        elif holder and time.monotonic() - self._seen_at < float(old.get("leaseDurationSeconds") or 1):
            return False
        else:
            spec["leaseTransitions"] = int(old.get("leaseTransitions") or 0) + 1
        lease["spec"] = spec
        await self._api.replace(f"{self._path}/{self._name}", lease)
        return True
