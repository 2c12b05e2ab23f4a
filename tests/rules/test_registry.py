"""Acknowledgements: what they cover, and what is wrong with them."""

from collections.abc import Iterator, Mapping

import pytest

from infra.config.fleet import Fleet
from infra.rules import FAMILIES, RULES, Verdict, judge
from infra.rules.decided import VALUES_ALONE
from infra.rules.registry import Finding, rule
from infra.rules.seeds import SEEDS
from infra.violation import InvariantError, Level
from tests.rules.documents import fleet_of, patched, shipped

MESH_CASE = {"case": "l7-audit", "reason": "the audit asks for it"}


def verdict_of(changes: Mapping[str, object]) -> Verdict:
    fleet, faults = fleet_of(patched(shipped(), changes))
    assert fleet is not None, faults
    return judge(fleet)


def stops(verdict: Verdict) -> set[tuple[str, str]]:
    return {(fault.id, fault.path) for fault in verdict.stops}


def accepted(verdict: Verdict) -> set[str]:
    return {fault.id for fault, _ in verdict.accepted}


def test_an_acknowledged_fault_is_listed_with_its_reason() -> None:
    verdict = verdict_of({"franca.bgp.export_vips": True, "franca.accept.BGP-06": "the drill of spring"})
    assert verdict.stops == ()
    assert ("BGP-06", "the drill of spring") in {(fault.id, reason) for fault, reason in verdict.accepted}


def test_an_acknowledgement_covers_its_own_site_alone() -> None:
    both = {"franca.bgp.export_vips": True, "sp.bgp.export_vips": True, "franca.accept.BGP-06": "the drill"}
    assert stops(verdict_of(both)) == {("BGP-06", "sp.bgp.export_vips")}


def test_a_decided_value_changes_under_its_acknowledgement_only() -> None:
    moved = {"franca.lb.pool.stop": "192.168.0.252"}
    assert stops(verdict_of(moved)) == {("MET-05", "franca.lb.pool.stop")}
    assert verdict_of(moved | {"franca.accept.MET-05": "two more addresses"}).stops == ()


def test_a_value_of_two_sites_is_accepted_by_either() -> None:
    for site in ("franca", "sp"):
        reason = {"NET-02": "another interface"}
        verdict = verdict_of({"common.tunnels.0.interface": "wg5", f"{site}.accept.NET-02": reason["NET-02"]})
        assert verdict.stops == ()
        assert "NET-02" in accepted(verdict)


def test_a_broken_tunnel_cannot_be_accepted() -> None:
    ends = {"franca": "10.255.0.1", "sp": "10.255.0.1"}
    verdict = verdict_of({"common.tunnels.0.ends": ends, "sp.accept.NET-01": "never mind"})
    assert stops(verdict) == {("NET-01", "common.tunnels.0.ends")}


def test_a_listed_case_opens_what_a_bare_reason_does_not() -> None:
    cilium = {"sp.clusters.gpu-sp.cni": "cilium", "sp.accept.CIL-10": "accepted with its trade-offs"}
    assert verdict_of(cilium | {"sp.accept.CIL-08": MESH_CASE}).stops == ()
    assert stops(verdict_of(cilium | {"sp.accept.CIL-08": "we like it"})) == {
        ("CIL-08", "sp.clusters.gpu-sp.cni"),
        ("OPS-03", "sp.accept.CIL-08"),
    }


def test_a_review_trigger_moves_a_gpu_into_a_vm() -> None:
    moved = {
        "sp.guests.vm-sp-02.host": "pve-ippri-33",
        "sp.guests.vm-sp-02.pci_mappings": ["a5000"],
        "sp.proxmox.hosts.pve-ippri-33.gpus.0.owner": "vfio",
        "sp.clusters.cluster-sp.agents": [],
    }
    assert stops(verdict_of(moved)) == {("TIER-02", "sp.guests.vm-sp-02.pci_mappings")}
    verdict = verdict_of(moved | {"sp.accept.GPU-16": {"case": "kernel-isolation", "reason": "asked for by the users"}})
    assert verdict.stops == ()
    assert "GPU-16" in accepted(verdict)


@pytest.mark.parametrize("id", ["NET-99", "NET-09", "ABC-01"])
def test_only_rules_that_can_be_accepted_may_be_named(id: str) -> None:
    assert stops(verdict_of({f"sp.accept.{id}": "because"})) == {("OPS-03", f"sp.accept.{id}")}


def test_an_idle_acknowledgement_is_a_warning() -> None:
    verdict = verdict_of({"franca.accept.BGP-06": "the drill of last year"})
    assert verdict.stops == ()
    assert ("OPS-03", "franca.accept.BGP-06") in {(fault.id, fault.path) for fault in verdict.warnings}


def test_a_warning_can_be_acknowledged_too() -> None:
    verdict = verdict_of({"franca.accept.BGP-12": "hosts of the LAN use the router"})
    assert [fault.path for fault in verdict.warnings if fault.id == "BGP-12"] == ["sp.lb.pool"]


def test_every_violation_stands_in_the_one_error() -> None:
    verdict = verdict_of({"sp.guests.vm-sp-02.vmid": 201, "franca.vyos.lan_address": "192.168.4.1"})
    lines = str(InvariantError(verdict.stops)).splitlines()
    assert sorted(line.split()[0] for line in lines) == ["[BGP-02]", "[PVE-08]"]


def test_an_id_has_one_check() -> None:
    with pytest.raises(AssertionError):
        rule("NET-09", source="")(lambda _: iter(()))


def test_each_family_module_holds_the_rules_of_its_name() -> None:
    own = {module.__name__.rsplit(".", 1)[1].upper() for module in FAMILIES} - {"DECIDED"}
    assert {entry.family for entry in RULES.values()} == own
    for entry in RULES.values():
        module = entry.check.__module__.rsplit(".", 1)[1]
        assert module == ("decided" if entry.id in VALUES_ALONE else entry.family.lower())


def test_every_rule_states_itself_in_one_sentence() -> None:
    for entry in RULES.values():
        assert entry.statement.endswith("."), entry.id
        assert len(entry.statement) <= 115, entry.id
        assert entry.source or entry.family == "DOC", entry.id


def test_decided_values_can_be_overridden_by_their_id() -> None:
    assert set(SEEDS) <= set(RULES)
    assert {RULES[id].level for id in SEEDS} == {Level.ACK}
    assert all(RULES[id].source == seed.source for id, seed in SEEDS.items())


def test_a_check_says_nothing_of_the_shipped_documents_twice() -> None:
    fleet, _ = fleet_of(shipped())
    assert fleet is not None
    for entry in RULES.values():
        found: Iterator[Finding] = entry.check(Fleet(fleet.common, fleet.sites))
        paths = [finding.path for finding in found]
        assert len(set(paths)) == len(paths), entry.id
