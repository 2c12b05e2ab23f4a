"""What the guard stops on, on plans that the real engine printed."""

import json
from typing import Any

import pytest

from operations.guard import RULES, AcceptError, parsed
from tests.guard.samples import FOLDER, found, judged, raw, site_of, step, verdict

CHART = "cilium-cluster-sp-chart"
EXPECTED = {
    "nothing": set(),
    "unprotected": set(),
    "memory": set(),
    "agent_removed": set(),
    "disk_smaller": {("GRD-02", "guest-vm-sp-02-vm")},
    "vmid": {("GRD-03", "guest-vm-sp-02-vm")},
    "vmid_of_a_server": {
        ("GRD-01", "guest-vm-sp-01-vm"),
        ("GRD-03", "guest-vm-sp-01-vm"),
        ("GRD-10", CHART),  # the engine says nothing of the chart, and nobody compared the CA
    },
    "pod_cidr": {("GRD-04", "k3s-cluster-sp-server-vm-sp-01")},
    "cluster_id": {("GRD-09", CHART)},
    "cilium_ca": {("GRD-10", CHART)},
    "container_disk_smaller": {("GRD-01", "guest-gpu-sp-01-ct"), ("GRD-02", "guest-gpu-sp-01-ct")},
    "version_down": {("GRD-07", "k3s-cluster-sp-server-vm-sp-01"), ("GRD-07", "k3s-cluster-sp-agent-vm-sp-02")},
    "agent_renamed": {("GRD-03", "guest-vm-sp-02-vm")},
    "servers_reordered": {("GRD-05", "k3s-cluster-fca-bootstrap-vm-cpps-02"), ("GRD-08", "k3s-cluster-fca-api")},
    "servers_removed": {
        ("GRD-01", "guest-vm-cpps-02-vm"),
        ("GRD-01", "guest-vm-cpps-04-vm"),
        ("GRD-05", "k3s-cluster-fca-server-vm-cpps-02"),
        ("GRD-05", "k3s-cluster-fca-server-vm-cpps-04"),
        ("GRD-06", "cluster-fca"),
        ("GRD-08", "k3s-cluster-fca-api"),
    },
    "server_renamed": {
        ("GRD-01", "guest-vm-cpps-02-vm"),
        ("GRD-03", "guest-vm-cpps-02-vm"),
        ("GRD-05", "k3s-cluster-fca-server-vm-cpps-02"),
        ("GRD-08", "k3s-cluster-fca-api"),
    },
    "cluster_removed": {("GRD-01", "guest-gpu-sp-01-ct"), ("GRD-05", "k3s-gpu-sp")},
}
SAID = {  # rule, field, old value, new value, part of the consequence
    "disk_smaller": ("GRD-02", "scsi0.size in GiB", 100, 50, "lost"),
    "vmid": ("GRD-03", "vmId", 202, 299, "deletes the guest"),
    "vmid_of_a_server": ("GRD-01", "vmId", 201, 298, "0 of 1 etcd members left"),
    "pod_cidr": ("GRD-04", "cluster-cidr", "10.42.0.0/16", "10.60.0.0/16", "lose each other"),
    "cluster_id": ("GRD-09", "values.cluster.id", 2, 9, "identities"),
    "cilium_ca": ("GRD-10", "values.tls.ca.cert, values.tls.ca.key", "[secret]", "[secret]", "trust one CA"),
    "version_down": ("GRD-07", "k3s_version", "v1.32.13+k3s1", "v1.31.9+k3s1", "cannot read"),
    "servers_reordered": ("GRD-05", "first server", "vm-cpps-02", "vm-cpps-03", "installed anew"),
    "servers_removed": ("GRD-06", "etcd members that stop", 0, 2, "1 of 3 etcd members left: the quorum is lost"),
    "server_renamed": ("GRD-05", "servers", "vm-cpps-02", "vm-cpps-05", "2 of 3 etcd members left, none may fail"),
    "container_disk_smaller": ("GRD-01", "disk.size", 200, 100, "the GPU work on it ends"),
    "agent_renamed": ("GRD-03", "name", "vm-sp-02", "vm-sp-09", "VMID 202"),
    "cluster_removed": ("GRD-05", "cluster", "k3s-gpu-sp", None, "the whole cluster"),
}


def test_every_recorded_plan_is_expected_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.json") if not path.stem.startswith("state-")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_plan_has_its_stops_and_no_other(name: str) -> None:
    assert found(judged(name)) == EXPECTED[name]


@pytest.mark.parametrize("name", SAID)
def test_a_stop_names_field_both_values_consequence_and_a_way(name: str) -> None:
    rule, field, old, new, consequence = SAID[name]
    stop = next(one for one in judged(name).stops if one.rule == rule and one.field == field)
    assert (stop.old, stop.new) == (old, new)
    assert consequence in stop.consequence
    assert stop.instead
    assert stop.rule in RULES


def test_what_ends_without_a_stop_is_noted() -> None:
    assert any("vm-sp-02" in note and "deleted" in note for note in judged("agent_removed").notes)
    assert any("vm-cpps-03" in note and "protection" in note for note in judged("unprotected").notes)
    assert any("gpu-sp-01 may restart" in note for note in judged("memory").notes)


def test_a_protected_guest_takes_two_runs_and_no_key() -> None:
    stop = next(one for one in judged("vmid_of_a_server").stops if one.rule == "GRD-01")
    assert stop.key == ""
    assert "stateful: false" in stop.instead


def test_an_accepted_stop_lets_its_plan_pass() -> None:
    (stop,) = judged("vmid").stops
    accepted = judged("vmid", {stop.key: "an agent without data"})
    assert not accepted.stops
    assert [(one.stop.key, one.reason) for one in accepted.accepted] == [(stop.key, "an agent without data")]


def test_a_key_fits_one_change_of_one_resource() -> None:
    def to(vmid: int) -> str:
        def change(inputs: dict[str, Any]) -> None:
            inputs["vmId"] = vmid

        (stop,) = verdict("sp", step("sp", "guest-vm-sp-02-vm", "replace", change, replaceReasons=["vmId"])).stops
        return stop.key

    assert to(299) == to(299)
    assert to(299) != to(300)
    with pytest.raises(AcceptError, match="no stop of this plan has that key"):
        judged("vmid", {to(300): "another change"})


def test_a_key_without_a_stop_is_an_error() -> None:
    with pytest.raises(AcceptError, match="GRD-03-00000000"):
        judged("nothing", {"GRD-03-00000000": "left over"})


def test_a_stop_that_nobody_may_take_on_has_no_key() -> None:
    (stop,) = judged("disk_smaller").stops
    assert stop.key == ""
    with pytest.raises(AcceptError, match="none"):
        judged("disk_smaller", {"GRD-02": "please"})


@pytest.mark.parametrize("text", ["", "GRD-03-1", "GRD-03-1=", "GRD-03-1=  ", "=why"])
def test_an_acceptance_has_key_and_reason(text: str) -> None:
    with pytest.raises(AcceptError):
        parsed((text,)) and judged("nothing", parsed((text,)))


def test_an_acceptance_is_given_once() -> None:
    assert parsed(("A=one  two ", "B=x=y")) == {"A": "one two", "B": "x=y"}
    with pytest.raises(AcceptError, match="twice"):
        parsed(("A=one", "A=two"))


def test_another_ca_needs_another_key() -> None:
    first, second = (judged("cilium_ca", secret_binding=binding).stops[0] for binding in ("one", "two"))
    assert first.key != second.key


def test_a_chart_of_which_the_engine_says_nothing_is_compared_by_its_ca() -> None:
    assert ("GRD-10", CHART) not in found(judged("vmid_of_a_server", same_ca=lambda: True))
    assert ("GRD-10", CHART) in found(judged("vmid_of_a_server", same_ca=lambda: False))


@pytest.mark.parametrize("name", EXPECTED)
def test_samples_hold_no_secret_and_no_path_of_a_person(name: str) -> None:
    text = json.dumps([raw(name), raw(f"state-{site_of(name)}")])
    assert "PRIVATE KEY" not in text
    assert "/root/" not in text
    assert "/home/" not in text
