"""Addresses of LoadBalancer Services: what Cilium's operator and MetalLB's controller do with their pools.

Their Deployments are in the cluster but their programs are not, so whoever runs the controllers does this for them, as
long as the Deployment is there and ready, and as its settings say. Left out: IPv6, and sharing of an address by several
Services.
Source: Cilium's documentation of LB-IPAM and the conditions that it sets; MetalLB's documentation of its pools.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network

from .kubeapi import Json, KubeApi

REQUESTED = "cilium.io/IPAMRequestSatisfied"
CILIUM_CLASSES = ("io.cilium/bgp-control-plane", "io.cilium/l2-announcer")
CILIUM_KEYS = ("lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips")
METALLB_KEYS = ("metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs")
_OPERATOR = "/apis/apps/v1/namespaces/kube-system/deployments/cilium-operator"
_CONTROLLER = "/apis/apps/v1/namespaces/metallb-system/deployments/metallb-controller"
_SETTINGS = "/api/v1/namespaces/kube-system/configmaps/cilium-config"


@dataclass
class Pool:
    """The addresses of one pool object, and what became of them."""

    name: str
    ranges: list[tuple[IPv4Address, IPv4Address]]
    selector: Json | None = None
    disabled: bool = False  # gives out none, takes none back
    on_request: bool = False  # gives none to who asks for none
    conflict: str = ""  # name of an older pool that has some of its addresses
    used: set[IPv4Address] = field(default_factory=set)

    def __contains__(self, address: IPv4Address) -> bool:
        return any(first <= address <= last for first, last in self.ranges)

    @property
    def size(self) -> int:
        return sum(int(last) - int(first) + 1 for first, last in self.ranges)

    def free(self) -> IPv4Address | None:
        for first, last in self.ranges:
            for number in range(int(first), int(last) + 1):
                if IPv4Address(number) not in self.used:
                    return IPv4Address(number)
        return None


@dataclass(frozen=True)
class Allocator:
    """Who hands out addresses: of which Services, and where they ask for one."""

    classes: tuple[str | None, ...]
    keys: tuple[str, ...]
    pools: list[Pool]
    condition: bool  # says in a condition of the Service what became of its request


async def reconcile(api: KubeApi) -> None:
    """One look at the cluster. Raises ApiError."""
    allocator = await _cilium(api) or await _metallb(api)
    if allocator is None:
        return
    services = await api.items("/api/v1/services")
    for service, status in decide(allocator, services):
        metadata = service["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}/status"
        await api.merge(path, {"status": status})
    if allocator.condition:
        await _count(api, allocator.pools)


async def _cilium(api: KubeApi) -> Allocator | None:
    settings = await api.find(_SETTINGS)
    data = (settings or {}).get("data", {})
    if data.get("enable-lb-ipam") != "true" or not await _ready(api, _OPERATOR):
        return None
    pools = pools_of_cilium(await api.items(await _pools_path(api)))
    default: tuple[str | None, ...] = (None,) if data.get("default-lb-service-ipam") == "lbipam" else ()
    # Without any pool it sleeps, and so hinders no other one.
    return Allocator((*CILIUM_CLASSES, *default), CILIUM_KEYS, pools, condition=True) if pools else None


async def _pools_path(api: KubeApi) -> str:
    for version in ("v2", "v2alpha1"):
        found = await api.find(f"/apis/cilium.io/{version}")
        if found and any(one["name"] == "ciliumloadbalancerippools" for one in found.get("resources", ())):
            return f"/apis/cilium.io/{version}/ciliumloadbalancerippools"
    return "/apis/cilium.io/v2alpha1/ciliumloadbalancerippools"


async def _metallb(api: KubeApi) -> Allocator | None:
    if not await _ready(api, _CONTROLLER):
        return None
    deployment = await api.get(_CONTROLLER)
    arguments = deployment["spec"]["template"]["spec"]["containers"][0].get("args", ())
    named = [one.partition("=")[2] for one in arguments if one.startswith("--lb-class=")]
    items = await api.items("/apis/metallb.io/v1beta1/namespaces/metallb-system/ipaddresspools")
    return Allocator((named[0] if named else None,), METALLB_KEYS, pools_of_metallb(items), condition=False)


async def _ready(api: KubeApi, path: str) -> bool:
    found = await api.find(path)
    return bool(found and found.get("status", {}).get("readyReplicas"))


def pools_of_metallb(items: list[Json]) -> list[Pool]:
    return [
        Pool(
            one["metadata"]["name"],
            [_range(text) for text in one["spec"]["addresses"]],
            on_request=not one["spec"].get("autoAssign", True),
        )
        for one in items
    ]


def pools_of_cilium(items: list[Json]) -> list[Pool]:
    """In the order of their age: of two that overlap, the younger one gives out nothing."""
    pools: list[Pool] = []
    for one in sorted(
        items, key=lambda item: (item["metadata"].get("creationTimestamp", ""), item["metadata"]["name"])
    ):
        spec = one["spec"]
        pool = Pool(
            one["metadata"]["name"],
            [_block(block, spec.get("allowFirstLastIPs")) for block in spec.get("blocks") or ()],
            spec.get("serviceSelector"),
            disabled=bool(spec.get("disabled")),
        )
        pool.conflict = next((older.name for older in pools if not older.conflict and _overlap(older, pool)), "")
        pools.append(pool)
    return pools


def _block(block: Json, first_and_last: str | None) -> tuple[IPv4Address, IPv4Address]:
    if block.get("cidr"):
        network = IPv4Network(block["cidr"])
        reserve = 1 if first_and_last == "No" and network.prefixlen < 31 else 0
        return network[reserve], network[-1 - reserve]
    return IPv4Address(block["start"]), IPv4Address(block.get("stop") or block["start"])


def _range(text: str) -> tuple[IPv4Address, IPv4Address]:
    first, dash, last = text.partition("-")
    if dash:
        return IPv4Address(first.strip()), IPv4Address(last.strip())
    network = IPv4Network(text)
    return network[0], network[-1]


def _overlap(one: Pool, other: Pool) -> bool:
    pairs = itertools.product(one.ranges, other.ranges)
    return any(a[0] <= b[1] and b[0] <= a[1] for a, b in pairs)


def decide(allocator: Allocator, services: Iterable[Json]) -> Iterator[tuple[Json, Json]]:
    """Services whose status has to change, with the part of it that changes. What one has already it keeps."""
    ours: list[Json] = []
    others: list[Json] = []
    for service in sorted(services, key=lambda one: (one["metadata"].get("creationTimestamp", ""), _key(one))):
        (ours if _is_ours(allocator, service) else others).append(service)
    for service in others:
        if allocator.condition and _condition(service):  # it was ours: cleaned up for whoever comes next
            yield service, {"loadBalancer": None, "conditions": _conditions(service, None)}
    kept = {_key(service): _kept(allocator, service) for service in ours}
    for service in ours:
        address, reason, message = kept[_key(service)], "satisfied", ""
        if address is None:
            address, reason, message = _allocated(allocator, service)
        ingress = [{"ip": str(address), "ipMode": "VIP"}] if address else None
        conditions = (
            _conditions(service, (reason, message)) if allocator.condition else service["status"].get("conditions")
        )
        if _ip(service) != address or (allocator.condition and not _says(service, reason, message)):
            yield service, {"loadBalancer": {"ingress": ingress} if ingress else None, "conditions": conditions}


def _is_ours(allocator: Allocator, service: Json) -> bool:
    spec = service["spec"]
    return spec.get("type") == "LoadBalancer" and spec.get("loadBalancerClass") in allocator.classes


def _kept(allocator: Allocator, service: Json) -> IPv4Address | None:
    """The address it has, when it may keep it; taken at once, before anybody gets a new one."""
    address, wanted = _ip(service), _wanted(allocator, service)
    if address is None or (wanted and wanted != address):
        return None
    for pool in allocator.pools:
        if address in pool and not pool.conflict and _selects(pool, service) and address not in pool.used:
            pool.used.add(address)
            return address
    return None


def _allocated(allocator: Allocator, service: Json) -> tuple[IPv4Address | None, str, str]:
    open_pools = [pool for pool in allocator.pools if not pool.disabled and not pool.conflict]
    wanted = _wanted(allocator, service)
    if wanted is None:
        return _any([pool for pool in open_pools if not pool.on_request and _selects(pool, service)])
    holding = [pool for pool in open_pools if wanted in pool]
    if not holding:
        return None, "no_pool", f"No pool exists with a CIDR containing '{wanted}'"
    pool = next((pool for pool in holding if _selects(pool, service)), None)
    if pool is None:
        what = f"The pool with the CIDR containing '{wanted}', doesn't select this service"
        return None, "pool_selector_mismatch", what
    if wanted in pool.used:
        return None, "already_allocated", f"The IP '{wanted}' is already allocated to another service"
    pool.used.add(wanted)
    return wanted, "satisfied", ""


def _any(pools: list[Pool]) -> tuple[IPv4Address | None, str, str]:
    for pool in pools:
        if (address := pool.free()) is not None:
            pool.used.add(address)
            return address, "satisfied", ""
    if pools:
        what = "All enabled CiliumLoadBalancerIPPools that match this service ran out of allocatable IPs"
        return None, "out_of_ips", what
    return None, "no_pool", "There are no enabled CiliumLoadBalancerIPPools that match this service"


def _wanted(allocator: Allocator, service: Json) -> IPv4Address | None:
    annotations = service["metadata"].get("annotations", {})
    texts = [service["spec"].get("loadBalancerIP"), *(annotations.get(key) for key in allocator.keys)]
    for text in filter(None, texts):
        try:
            return IPv4Address(str(text).split(",")[0].strip())
        except ValueError:
            continue  # logged and passed over, as if it had asked for none
    return None


def _ip(service: Json) -> IPv4Address | None:
    ingress = service["status"].get("loadBalancer", {}).get("ingress") or [{}]
    return IPv4Address(ingress[0]["ip"]) if ingress[0].get("ip") else None


def _selects(pool: Pool, service: Json) -> bool:
    metadata, selector = service["metadata"], pool.selector or {}
    named = {"io.kubernetes.service.name": metadata["name"], "io.kubernetes.service.namespace": metadata["namespace"]}
    labels = {**metadata.get("labels", {}), **named}
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for term in selector.get("matchExpressions", ()):
        there, listed = term["key"] in labels, labels.get(term["key"]) in term.get("values", ())
        holds = {"In": there and listed, "NotIn": not listed, "Exists": there, "DoesNotExist": not there}
        if not holds[term["operator"]]:
            return False
    return True


def _key(service: Json) -> tuple[str, str]:
    return service["metadata"]["namespace"], service["metadata"]["name"]


def _condition(service: Json) -> Json:
    conditions = service["status"].get("conditions") or ()
    found: Json = next((one for one in conditions if one["type"] == REQUESTED), {})
    return found


def _says(service: Json, reason: str, message: str) -> bool:
    found = _condition(service)
    return (found.get("reason"), found.get("message", "")) == (reason, message)


def _conditions(service: Json, outcome: tuple[str, str] | None) -> list[Json]:
    others = [one for one in service["status"].get("conditions") or () if one["type"] != REQUESTED]
    if outcome is None:
        return others
    reason, message = outcome
    status = "True" if reason == "satisfied" else "False"
    return [*others, {"type": REQUESTED, "status": status, "reason": reason, "message": message} | _now()]


async def _count(api: KubeApi, pools: list[Pool]) -> None:
    """What `kubectl get ippools` shows."""
    path = await _pools_path(api)
    for pool in pools:
        counts = {"IPsTotal": pool.size, "IPsAvailable": pool.size - len(pool.used), "IPsUsed": len(pool.used)}
        wanted = {f"cilium.io/{name}": ("Unknown", "noreason", str(count)) for name, count in counts.items()}
        conflict = f"Pool conflicts since its ranges overlap with those of '{pool.conflict}'" if pool.conflict else ""
        outcome = ("True", "cidr_overlap", conflict) if conflict else ("False", "resolved", "")
        wanted["cilium.io/PoolConflict"] = outcome
        found = await api.find(f"{path}/{pool.name}")
        conditions = (found or {}).get("status", {}).get("conditions") or []
        there = {one["type"]: (one["status"], one["reason"], one["message"]) for one in conditions}
        if found and there != wanted:
            entries = [
                {"type": kind, "status": status, "reason": reason, "message": message} | _now()
                for kind, (status, reason, message) in wanted.items()
            ]
            await api.merge(f"{path}/{pool.name}/status", {"status": {"conditions": entries}})


def _now() -> Json:
    return {"lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
