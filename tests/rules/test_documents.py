"""The shipped documents pass, with or without a third site, and the rules treat any document that parses."""

import copy
import itertools
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.rules import RULES, judge
from infra.rules.ranges import all_ranges, overlaps
from infra.rules.seeds import SEEDS
from tests.rules.documents import (
    Documents,
    faults_of,
    fleet_of,
    patched,
    shipped,
    with_third_site,
)

WARNED = {
    ("BGP-12", "franca.lb.pool"),
    ("BGP-12", "sp.lb.pool"),
    ("BKP-07", "sp.velero.enabled"),
    ("GPU-17", "sp.apps.vllm.reviewed"),
}
WARNED_IDS = {id for id, _ in WARNED}


def test_the_shipped_documents_pass_with_no_more_than_the_known_warnings() -> None:
    fleet, faults = fleet_of(shipped())
    assert fleet is not None, faults
    verdict = judge(fleet)
    assert verdict.stops == ()
    assert {(w.id, w.path) for w in verdict.warnings} == WARNED
    assert {violation.id for violation, _ in verdict.accepted} == {"K3S-05", "STO-05", "TIER-09"}


@pytest.mark.parametrize("gone", ["franca", "sp"])
def test_gen_02_a_site_passes_while_the_other_has_no_document(gone: str) -> None:
    documents = shipped()
    del documents[gone]
    found = {(fault.id, fault.path) for fault in faults_of(documents)}
    said = {("DOC-06", f"common.tunnels.0.ends.{gone}")}
    assert found == said | {(id, path) for id, path in WARNED if not path.startswith(gone)}


def test_a_tunnel_that_ends_at_a_misspelt_site_leaves_two_members_apart() -> None:
    documents = patched(shipped(), {"common.tunnels.0.ends": {"franca": "10.255.0.1", "spp": "10.255.0.2"}})
    fleet, _ = fleet_of(documents)
    assert fleet is not None
    assert "MSH-02" in {stop.id for stop in judge(fleet).stops}


def test_a_third_site_passes_beside_them() -> None:
    assert {(fault.id, fault.path) for fault in faults_of(with_third_site())} == WARNED


def test_the_third_site_repeats_no_address_of_the_shipped_ones() -> None:
    fleet, _ = fleet_of(with_third_site())
    assert fleet is not None
    theirs = {entry.text for entry in all_ranges(fleet) if entry.owner.site_id in ("franca", "sp")}
    assert not theirs & {entry.text for entry in all_ranges(fleet) if entry.owner.site_id == "norte"}


def test_no_value_is_fixed_for_a_site_that_no_decision_names() -> None:
    assert {place for seed in SEEDS.values() for place in seed.values} == {"common", "franca", "sp", "franca sp"}


def test_the_third_site_alone_passes_and_its_own_faults_are_found() -> None:
    documents = with_third_site()
    alone: Documents = {"common": documents["common"], "norte": documents["norte"]}
    alone["common"] = copy.deepcopy(alone["common"]) | {"tunnels": [], "multikueue": {"manager": "norte"}}
    assert faults_of(alone) == []
    broken = patched(alone, {"norte.guests.north-b.vmid": 9001, "norte.vyos.lan_address": "172.22.0.1"})
    assert {(f.id, f.path) for f in faults_of(broken)} == {
        ("PVE-08", "norte.guests.north-b.vmid"),
        ("BGP-02", "norte.vyos.lan_address"),
    }


def test_a_site_under_another_name_is_not_held_to_the_decided_values() -> None:
    """The id decides which values are compared, so the same document under a new id is free of them."""
    documents = shipped()
    renamed: Documents = {"common": documents["common"], "rio": documents["franca"]}
    renamed["common"] |= {"tunnels": [], "multikueue": {"manager": "rio"}}
    moved = patched(renamed, {"rio.bgp.site_asn": 64999, "rio.bgp.vyos_asn": 64999, "rio.bgp.cilium_asn": 64999})
    assert {fault.id for fault in faults_of(moved)} == {"BGP-12"}


def test_several_faults_are_reported_together() -> None:
    broken = patched(
        shipped(),
        {
            "sp.guests.vm-sp-02.vmid": 201,
            "sp.clusters.cluster-sp.pod_cidr": "10.41.0.0/16",
            "franca.vyos.lan_address": "192.168.4.1",
            "franca.wireguard.route_lans": False,
        },
    )
    assert {fault.id for fault in faults_of(broken)} - WARNED_IDS == {"PVE-08", "NET-07", "NET-09", "BGP-02", "NET-11"}


def test_a_datacenter_site_is_not_judged_by_the_rules_about_tiers_and_containers() -> None:
    accept = {"K3S-05": "one server", "STO-05": "one node"}
    broken = patched(shipped(), {"sp.profile": "datacenter", "sp.accept": accept})
    refused_there = {"DCP-01", "DCP-07", "DCP-09", "DCP-11", "DCP-13"}  # what the other profile has, and no region
    assert {fault.id for fault in faults_of(broken)} - WARNED_IDS == refused_there


def test_tier_03_a_gpu_of_a_tier_2a_host_may_be_passed_into_a_vm() -> None:
    document = {
        "franca.proxmox.hosts.pve-labri-33.gpus.0.owner": "vfio",
        "franca.guests.gpu-vm": shipped()["franca"]["guests"]["vm-cpps-04"]
        | {"vmid": 140, "address": "192.168.0.40", "pci_mappings": ["a5500"]},
        "franca.accept.TIER-09": "a trial on a LINSTOR host",
    }
    assert {fault.id for fault in faults_of(patched(shipped(), document))} - WARNED_IDS == {"DOC-08"}


def test_tier_10_sites_may_run_their_gpu_clusters_differently() -> None:
    """One site has its GPU cluster in VMs on Tier 2A, the other in containers: nobody makes them alike."""
    documents = with_third_site()
    vm = {key: value for key, value in documents["norte"]["guests"]["north-c"].items() if key != "mac"}
    changes = {
        "norte.guests.north-gpu": vm
        | {"vmid": 9100, "address": "172.22.64.40", "host": "marble", "pci_mappings": ["a5500"]},
        "norte.proxmox.hosts.marble.gpus": [{"model": "a5500", "memory_gib": 24, "owner": "vfio"}],
        "norte.clusters.north-gpu.gpu.runtime": "vm",
        "norte.accept.GPU-15": {"case": "l7-audit", "reason": "proven in a trial"},
    }
    assert {fault.id for fault in faults_of(patched(documents, changes))} - WARNED_IDS <= {"KUE-03"}


def test_a_move_from_flannel_that_is_prepared_passes() -> None:
    window = {
        "window": "Saturday 2 to 6 h",
        "snapshots": dict.fromkeys(("vm-cpps-02", "vm-cpps-03", "vm-cpps-04"), "before"),
    }
    prepared = {f"franca.migration.{key}": value for key, value in window.items()}
    assert {(fault.id, fault.path) for fault in faults_of(patched(shipped(), prepared))} == WARNED


def test_a_prepared_change_of_driver_and_host_passes() -> None:
    prepared = {
        "sp.proxmox.hosts.pve-ippri-31.upgrade": True,
        "sp.proxmox.hosts.pve-ippri-31.planned_nvidia_driver": "580.65.06",
        "sp.maintenance": {
            "window": "Saturday",
            "rollback_doc": "docs/driver.md",
            "snapshot_id": "s1",
            "backup_ref": "b1",
        },
        "sp.guests.gpu-sp-01.backup.evidence": "job 9, verified",
    }
    assert {(fault.id, fault.path) for fault in faults_of(patched(shipped(), prepared))} == WARNED


def test_no_guest_of_a_datacenter_site_escapes_the_rules() -> None:
    """The rules about guests see cpps sites alone, so that another profile must have no guest at all."""
    for site in ("franca", "sp"):
        moved = patched(shipped(), {f"{site}.profile": "datacenter"})
        assert ("DCP-11", f"{site}.guests") in {(fault.id, fault.path) for fault in faults_of(moved)}
    assert {entry.profile for entry in RULES.values()} == {None, "cpps", "datacenter"}


def many_sites(count: int) -> Documents:
    """A fleet of that many sites, each with addresses of its own."""
    first = with_third_site()
    documents: Documents = {"common": copy.deepcopy(first["common"]) | {"tunnels": [], "multikueue": {"manager": "s0"}}}
    for number in range(count):
        text = repr(first["norte"])
        for shipped_text, own in (
            ("172.22.", f"172.{100 + number}."),
            ("172.23.", f"173.{100 + number}."),
            ("10.43.", f"20.{number}."),
            ("10.143.", f"21.{number}."),
            ("10.53.", f"22.{number}."),
            ("10.153.", f"23.{number}."),
            ("'cluster_id': 3", f"'cluster_id': {number + 1}"),
            ("65003", str(64512 + number)),
            ("65103", str(64512 + number)),
            ("'north", f"'n{number}"),
            ("ArgoCD-norte", f"ArgoCD-s{number}"),
            ("argocd.example.org", f"argocd{number}.example.org"),
        ):
            text = text.replace(shipped_text, own)
        documents[f"s{number}"] = eval(text, {"__builtins__": {}})  # a literal that this function has just printed
    documents["common"]["tunnels"] = full_mesh(count)
    return documents


def full_mesh(count: int) -> list[dict[str, Any]]:
    """A tunnel for each pair of that many sites, the interface used once at either end."""
    first, pairs = IPv4Address("10.254.0.0"), itertools.combinations(range(count), 2)
    return [
        {
            "interface": f"wg{(one + other) % count}",
            "cidr": f"{first + 4 * index}/30",
            "ends": {f"s{one}": str(first + 4 * index + 1), f"s{other}": str(first + 4 * index + 2)},
        }
        for index, (one, other) in enumerate(pairs)
    ]


def test_many_sites_pass_and_a_clash_between_two_of_them_is_found() -> None:
    documents = many_sites(50)
    assert faults_of(documents) == []
    clash = patched(documents, {"s41.network.lan_cidr": "172.107.64.0/22"})
    assert ("NET-09", "s41.network.lan_cidr") in {(fault.id, fault.path) for fault in faults_of(clash)}


CIDRS = st.builds(
    lambda number, length: IPv4Network(((10 << 24) | (number << 16) & 0xFFFFFF, length), strict=False),
    st.integers(0, 15),
    st.integers(12, 20),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CIDRS, min_size=4, max_size=4))
def test_the_sweep_finds_exactly_the_overlapping_pairs(cidrs: list[IPv4Network]) -> None:
    names = ("franca.network.lan_cidr", "sp.network.lan_cidr")
    clusters = ("franca.clusters.cluster-fca.pod_cidr", "sp.clusters.gpu-sp.pod_cidr")
    paths = (*names, *clusters)
    fleet, _ = fleet_of(patched(shipped(), dict(zip(paths, map(str, cidrs), strict=True))))
    assert fleet is not None
    found = {frozenset((a.path, b.path)) for a, b in overlaps(fleet)} & {
        frozenset((a, b)) for a in paths for b in paths if a != b
    }
    assert found == {
        frozenset((a, b))
        for a, mine in zip(paths, cidrs, strict=True)
        for b, other in zip(paths, cidrs, strict=True)
        if a != b and mine.overlaps(other)
    }


NAMES = ("nowhere", "vm-sp-01", "gpu-sp-01", "vm-cpps-02", "pve-ippri-31", "debian-proxy", "local", "cluster-fca")
REFERENCES = (
    "sp.clusters.cluster-sp.servers.0",
    "sp.clusters.cluster-sp.agents.0",
    "sp.clusters.gpu-sp.servers.0",
    "franca.clusters.cluster-fca.servers.2",
    "sp.guests.vm-sp-01.host",
    "sp.guests.gpu-sp-01.host",
    "sp.guests.gpu-sp-01.disk.storage",
    "franca.traefik.legacy_proxy",
    "common.multikueue.manager",
    "sp.clusters.gpu-sp.joins",
    "sp.assumed.0",
)
MAPS = (
    "sp.guests",
    "sp.clusters",
    "sp.proxmox.hosts",
    "sp.proxmox.storages",
    "franca.guests",
    "franca.clusters",
    "franca.unmanaged_guests",
    "franca.proxmox.hosts",
    "common.k3s_checksums",
)


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(st.sampled_from(REFERENCES), st.sampled_from(NAMES), max_size=6),
    st.lists(st.sampled_from(MAPS), max_size=3, unique=True),
    st.sampled_from(["flannel", "cilium"]),
    st.sampled_from(["main", "gpu"]),
)
def test_no_document_that_parses_makes_a_rule_raise(
    references: dict[str, str], emptied: list[str], cni: str, role: str
) -> None:
    changes = {"sp.clusters.gpu-sp.cni": cni, "sp.clusters.cluster-sp.role": role, **references}
    documents = patched(patched(shipped(), changes), {path: {} for path in emptied})
    fleet, faults = fleet_of(documents)
    assert fleet is not None, faults
    judge(fleet)


@pytest.mark.parametrize("path", ["a" * 5000, ".".join("a" * 5000), "..", "0", "clusters.cluster-sp.servers.99999999"])
def test_a_strange_assumed_path_is_a_fault_and_nothing_worse(path: str) -> None:
    faults = faults_of(patched(shipped(), {"sp.assumed.0": path}))
    assert ("DOC-04", "sp.assumed") in {(fault.id, fault.path) for fault in faults}
