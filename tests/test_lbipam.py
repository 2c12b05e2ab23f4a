"""The lab's allocator of LoadBalancer addresses: who gets which, and what it says of those that get none."""

from typing import Any

import pytest

from infra.addresses import FIXED_LABELS, metallb_pool_specs, pool_specs
from lab.standins.k3s.lbipam import (
    CILIUM_CLASSES,
    CILIUM_KEYS,
    METALLB_KEYS,
    REQUESTED,
    Allocator,
    Pool,
    decide,
    pools_of_cilium,
    pools_of_metallb,
)
from tests.sites import three_sites

BGP = "io.cilium/bgp-control-plane"
Json = dict[str, Any]


def service(name: str, **more: Any) -> Json:
    """A LoadBalancer Service of Cilium's class; `ip` is the address that it has already."""
    has, wants = more.get("ip"), more.get("wants")
    status: Json = {"loadBalancer": {"ingress": [{"ip": has}]} if has else {}}
    return {
        "metadata": {
            "name": name,
            "namespace": "apps",
            "labels": more.get("labels", {}),
            "annotations": {more.get("key", CILIUM_KEYS[0]): wants} if wants else {},
            "creationTimestamp": f"2026-01-01T00:00:{more.get('age', 0):02d}Z",
        },
        "spec": {"type": more.get("kind", "LoadBalancer"), "loadBalancerClass": more.get("of", BGP)},
        "status": status,
    }


def pool(name: str = "site", created: int = 0, **spec: Any) -> Json:
    blocks = [{"start": "192.0.2.10", "stop": "192.0.2.12"}]
    metadata = {"name": name, "creationTimestamp": f"2026-01-01T00:00:{created:02d}Z"}
    return {"metadata": metadata, "spec": {"blocks": blocks, **spec}}


def cilium(*pools: Json, default: bool = False) -> Allocator:
    classes = (*CILIUM_CLASSES, *((None,) if default else ()))
    return Allocator(classes, CILIUM_KEYS, pools_of_cilium(list(pools) or [pool()]), condition=True)


def outcome(allocator: Allocator, *services: Json) -> dict[str, tuple[str | None, str]]:
    """By Service that changes: its address and the reason that its condition gives."""
    found = {}
    for one, status in decide(allocator, services):
        ingress = (status["loadBalancer"] or {}).get("ingress") or [{}]
        reason = next((entry["reason"] for entry in status["conditions"] or () if entry["type"] == REQUESTED), "")
        found[one["metadata"]["name"]] = (ingress[0].get("ip"), reason)
    return found


def test_the_oldest_gets_the_first_free_address_and_each_another() -> None:
    found = outcome(cilium(), service("b", age=2), service("a", age=1))
    assert found == {"a": ("192.0.2.10", "satisfied"), "b": ("192.0.2.11", "satisfied")}


def test_a_fixed_address_is_given_to_the_one_who_asks_for_it() -> None:
    found = outcome(cilium(), service("mesh", wants="192.0.2.12", age=9), service("other", age=1))
    assert found == {"mesh": ("192.0.2.12", "satisfied"), "other": ("192.0.2.10", "satisfied")}


@pytest.mark.parametrize(
    ("wants", "reason"), [("192.0.2.13", "no_pool"), ("192.0.2.9", "no_pool"), ("192.0.2.11", "already_allocated")]
)
def test_an_address_outside_the_pool_or_taken_is_refused(wants: str, reason: str) -> None:
    found = outcome(cilium(), service("late", wants=wants, age=9), service("early", ip="192.0.2.11", age=1))
    assert found["late"] == (None, reason)


def test_whoever_has_an_address_keeps_it_before_any_new_one_is_given() -> None:
    found = outcome(cilium(), service("new", age=1), service("old", ip="192.0.2.10", age=9))
    assert found["new"] == ("192.0.2.11", "satisfied")
    assert found["old"][0] == "192.0.2.10"


def test_an_address_that_left_the_pool_is_taken_away() -> None:
    found = outcome(cilium(), service("moved", ip="198.51.100.7"))
    assert found["moved"] == ("192.0.2.10", "satisfied")


def test_a_pool_that_is_full_says_so() -> None:
    found = outcome(cilium(), *(service(f"s{number}", age=number) for number in range(4)))
    assert found["s3"] == (None, "out_of_ips")
    assert {found[f"s{number}"][0] for number in range(3)} == {"192.0.2.10", "192.0.2.11", "192.0.2.12"}


def test_a_selector_keeps_services_out() -> None:
    only = pool(serviceSelector={"matchLabels": {"io.kubernetes.service.namespace": "apps", "tier": "x"}})
    found = outcome(
        cilium(only), service("in", labels={"tier": "x"}), service("out"), service("asks", wants="192.0.2.12")
    )
    assert found == {
        "in": ("192.0.2.10", "satisfied"),
        "out": (None, "no_pool"),
        "asks": (None, "pool_selector_mismatch"),
    }


def test_of_two_overlapping_pools_the_younger_gives_nothing() -> None:
    younger = pool("late", 9, blocks=[{"cidr": "192.0.2.12/30"}])
    older = pool("early", 1)
    found = outcome(cilium(younger, older), service("a", wants="192.0.2.13"), service("b", wants="192.0.2.12"))
    assert found == {"a": (None, "no_pool"), "b": ("192.0.2.12", "satisfied")}


@pytest.mark.parametrize("default", [False, True])
def test_a_service_without_a_class_is_taken_in_default_binding_alone(default: bool) -> None:
    found = outcome(cilium(default=default), service("plain", of=None), service("foreign", of="other/class"))
    assert found == ({"plain": ("192.0.2.10", "satisfied")} if default else {})


def test_a_service_that_is_none_of_ours_any_more_loses_address_and_condition() -> None:
    gone = service("gone", ip="192.0.2.10", kind="ClusterIP")
    gone["status"]["conditions"] = [{"type": REQUESTED, "status": "True", "reason": "satisfied", "message": ""}]
    assert outcome(cilium(), gone) == {"gone": (None, "")}


def test_nothing_changes_twice() -> None:
    allocator, one = cilium(), service("a")
    ((_, status),) = decide(allocator, [one])
    assert list(decide(cilium(), [one | {"status": status}])) == []


def test_metallb_reads_its_own_annotation_and_sets_no_condition() -> None:
    pools = [Pool("site", pools_of_cilium([pool()])[0].ranges)]
    allocator = Allocator((BGP,), METALLB_KEYS, pools, condition=False)
    found = outcome(
        allocator, service("mesh", wants="192.0.2.12", key=METALLB_KEYS[0]), service("c", wants="192.0.2.12")
    )
    assert found == {"mesh": ("192.0.2.12", ""), "c": ("192.0.2.10", "")}


# What the program's own pools mean


def site_pools(mode: str) -> Allocator:
    lb = three_sites().sites["franca"].lb
    if mode == "cilium":
        specs = pool_specs(lb).items()
        return cilium(*({**pool(name, age), "spec": spec} for age, (name, spec) in enumerate(specs)))
    return Allocator((BGP,), METALLB_KEYS, pools_of_metallb(items_of(metallb_pool_specs(lb))), condition=False)


def items_of(specs: dict[str, Json]) -> list[Json]:
    return [{"metadata": {"name": name}, "spec": spec} for name, spec in specs.items()]


@pytest.mark.parametrize("mode", ["cilium", "metallb"])
def test_met_08_nobody_gets_a_fixed_address_by_chance_and_its_service_gets_it(mode: str) -> None:
    key = CILIUM_KEYS[0] if mode == "cilium" else METALLB_KEYS[0]
    early = [service(f"s{number}", age=number) for number in range(10)]  # more than the pool has for them
    mesh = service("mesh", wants="192.168.0.241", key=key, labels=FIXED_LABELS, age=50)
    found = outcome(site_pools(mode), *early, mesh)
    assert found.pop("mesh")[0] == "192.168.0.241"
    given = {ip for ip, _ in found.values() if ip}
    assert given == {f"192.168.0.{number}" for number in range(243, 251)}


def test_met_08_with_cilium_whoever_asks_without_the_label_is_refused() -> None:
    found = outcome(site_pools("cilium"), service("thief", wants="192.168.0.241"))
    assert found == {"thief": (None, "pool_selector_mismatch")}


def test_met_08_the_label_opens_no_address_beyond_the_documents_pool() -> None:
    found = outcome(site_pools("cilium"), service("mesh", wants="192.168.0.251", labels=FIXED_LABELS))
    assert found == {"mesh": (None, "no_pool")}
