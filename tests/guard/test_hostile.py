"""Plans that would do harm and look harmless: odd JSON of the engine, changes that cost a quorum together."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.acknowledged import FIELDS, OUTPUT, given
from infra.violation import InvariantError, Violation
from operations.engine import EngineError
from operations.guard import judge, read
from operations.update import STACK, recorded
from tests.guard.samples import Raw, fleet, found, plan, raw, resource, step, verdict
from tests.guard.test_steps import MEMORY, renamed, restarted, setting, stdin, to_version
from tests.guard.test_update import Played
from tests.rules.documents import fleet_of, patched, shipped

AGENT, SERVER, GPU = "guest-vm-sp-02-vm", "guest-vm-sp-01-vm", "guest-gpu-sp-01-ct"
FCA = tuple(f"k3s-cluster-fca-server-vm-cpps-0{number}" for number in (2, 3, 4))


def without(made: Raw, *sides: str) -> Raw:
    return {name: value for name, value in made.items() if name not in sides}


def moved(vmid: int, *, retained: bool = True, vm: bool = True) -> list[Raw]:
    """What the engine tells of an adopted guest whose document names another host: three halves."""
    name = SERVER if vm else GPU
    made = step("sp", name, "import-replacement", setting("nodeName", "pve-ippri-12"), replaceReasons=["nodeName"])
    old, new = made["oldState"], made["newState"]
    known = old["inputs"]["vmId"]
    old |= {"id": str(known), "importID": f"a/{known}", "retainOnDelete": retained}
    new |= {"id": f"pve-ippri-12/{vmid or known}", "importID": f"pve-ippri-12/{vmid or known}"}
    if vm:
        new["inputs"]["vmId"] = vmid or known
    else:
        del old["inputs"]["vmId"], new["inputs"]["vmId"]
    return [made, {**made, "op": "replace"}, {**without(made, "newState"), "op": "delete-replaced"}]


@pytest.mark.parametrize("vm", [True, False])
def test_an_adopted_guest_that_was_migrated_is_followed_with_a_key(vm: bool) -> None:
    for halves in (moved(0, vm=vm), moved(0, vm=vm)[::-1]):
        (stop,) = verdict("sp", *halves).stops
        assert (stop.rule, stop.field, stop.new, bool(stop.key)) == ("GRD-03", "nodeName", "pve-ippri-12", True)
        assert "fleet adopt sp" in stop.instead


@pytest.mark.parametrize("vm", [True, False])
@pytest.mark.parametrize("halves", [{"vmid": 999}, {"vmid": 0, "retained": False}])
def test_another_guest_or_one_that_would_be_deleted_is_not_followed(halves: Raw, vm: bool) -> None:
    made = verdict("sp", *moved(vm=vm, **halves))
    assert [stop.key for stop in made.stops if stop.rule == "GRD-01"] == [""]


@pytest.mark.parametrize(("name", "rule"), [(GPU, "GRD-01"), ("k3s-cluster-sp-token", "GRD-12")])
def test_what_goes_is_known_from_the_state_where_the_engine_does_not_show_it(name: str, rule: str) -> None:
    assert (rule, name) in found(verdict("sp", without(step("sp", name, "delete"), "oldState")))


def test_an_update_that_nobody_describes_is_a_stop() -> None:
    made = step("sp", "k3s-cluster-sp-labels-vm-sp-02", "update")
    for broken in (without(made, "newState"), renamed(without(made, "oldState"), "vm-sp-02", "vm-sp-77")):
        assert [stop.rule for stop in verdict("sp", broken).stops] == ["GRD-13"]
    chart = without(step("sp", "cilium-cluster-sp-chart", "update"), "newState")
    assert [stop.rule for stop in verdict("sp", chart).stops] == ["GRD-13"]


def test_details_may_be_null() -> None:
    made = step("sp", AGENT, "update", setting("disks", []), detailedDiff={"disks": None}, diffReasons=["disks"])
    assert ("GRD-02", AGENT) in found(verdict("sp", made))


def test_the_old_half_of_an_earlier_replacement_hides_behind_no_other_step() -> None:
    tags = step("sp", GPU, "update", setting("tags", ["x"]), diffReasons=["tags"])
    old_half = step("sp", GPU, "delete-replaced")
    del old_half["newState"]
    for order in ([tags, old_half], [old_half, tags]):
        assert ("GRD-01", GPU) in found(verdict("sp", *order))


def test_what_is_deleted_for_a_replacement_and_not_made_again_is_gone() -> None:
    gone = without(step("sp", GPU, "delete-replaced"), "newState")
    forgotten = without(step("sp", GPU, "remove-pending-replace"), "newState")
    (stop,) = verdict("sp", gone, forgotten).stops
    assert (stop.rule, stop.key) == ("GRD-01", "")


def test_an_adopted_container_is_known_by_its_id() -> None:
    """The provider's read leaves the VMID of a container unset, and its hostname is ignored."""
    asked: list[set[str]] = []

    def missing(touched: set[str], destroyed: set[str]) -> list[Violation]:
        asked.append(touched)
        return []

    made = step("sp", GPU, "replace", setting("nodeName", "pve-ippri-11"), replaceReasons=["nodeName"])
    for side in ("oldState", "newState"):
        made[side]["id"] = str(made[side]["inputs"].pop("vmId"))
        made[side]["outputs"] = {}
        del made[side]["inputs"]["initialization"]
    stops = verdict("sp", made, missing_backups=missing).stops
    (stop,) = (one for one in stops if one.rule == "GRD-01")
    assert "etcd member" in stop.consequence
    assert "VMID 401" in stop.consequence or f"VMID {made['oldState']['id']}" in stop.consequence
    assert {one.field for one in stops if one.rule == "GRD-03"} == {"nodeName"}
    assert asked == [{"guest/gpu-sp-01"}]


def test_a_disk_that_grew_in_proxmox_alone_does_not_shrink() -> None:
    details = {"disks[0].size": {"kind": "update", "inputDiff": False}}
    made = step("sp", AGENT, "update", detailedDiff=details, diffReasons=["disks"])
    made["oldState"]["outputs"] = {"disks": [{"interface": "scsi0", "size": 150}]}
    (stop,) = verdict("sp", made).stops
    assert (stop.rule, stop.old, stop.new) == ("GRD-02", 150, 100)


def test_a_disk_that_was_added_in_proxmox_does_not_go() -> None:
    details = {"disks[1]": {"kind": "delete", "inputDiff": False}}
    made = step("sp", AGENT, "update", detailedDiff=details, diffReasons=["disks"])
    made["oldState"]["outputs"] = {"disks": [{"interface": f"scsi{place}", "size": 100} for place in (0, 1)]}
    assert [(stop.rule, stop.field) for stop in verdict("sp", made).stops] == [("GRD-02", "scsi1.size in GiB")]
    other = step("sp", AGENT, "update", setting("tags", ["x"]), diffReasons=["tags"])
    other["oldState"]["outputs"] = made["oldState"]["outputs"]
    assert not verdict("sp", other).stops


def test_all_disks_at_once_do_not_go_because_the_outputs_still_have_them() -> None:
    made = step("sp", AGENT, "update", lambda inputs: inputs.pop("disks"), diffReasons=["disks"])
    made["newState"]["outputs"] = {"disks": made["oldState"]["inputs"]["disks"]}
    assert ("GRD-02", AGENT) in found(verdict("sp", made))


@pytest.mark.parametrize(
    ("old", "new", "stops"),
    [
        ("10G", "5G", True),
        ("1T", "900G", True),
        ("10G", "10240M", False),
        ("8G", "16G", False),
        ("8G", "[unknown]", True),
    ],
)
def test_sizes_with_units_are_compared(old: str, new: str, stops: bool) -> None:
    made = step("sp", AGENT, "update", setting("mountPoints", [{"path": "/srv", "size": new}]), diffReasons=["disks"])
    made["oldState"]["inputs"]["mountPoints"] = [{"path": "/srv", "size": old}]
    assert (("GRD-02", AGENT) in found(verdict("sp", made))) == stops


def test_a_key_of_a_replacement_fits_no_other_replacement() -> None:
    def key(**settings: Any) -> str:
        def change(inputs: Raw) -> None:
            inputs.update(settings)

        made = step("franca", "guest-vm-cpps-04-vm", "replace", change, replaceReasons=list(settings))
        made["oldState"]["protect"] = False
        return next(stop.key for stop in verdict("franca", made).stops if stop.rule == "GRD-01")

    assert key(bios="ovmf", machine="q35") == key(bios="ovmf", machine="q35")
    assert key(bios="ovmf", machine="q35") != key(bios="ovmf", machine="i440fx")


def test_a_key_of_what_nobody_can_read_is_bound_to_the_secrets() -> None:
    made = step("sp", "k3s-cluster-sp-token-vm-sp-01", "update", diffReasons=["stdin"])
    one, other = (verdict("sp", made, secret_binding=binding).stops[0].key for binding in ("one", "other"))
    assert one
    assert one != other


def test_a_key_of_a_missing_backup_fits_no_other_change() -> None:
    def missing(touched: set[str], destroyed: set[str]) -> list[Violation]:
        return [
            Violation(id="BKP-01", path="evidence.sp.guest/vm-sp-01", found="none", expected="one", remedy="make one")
        ]

    def key(memory: int) -> str:
        made = step("sp", SERVER, "update", setting("memory.dedicated", memory), detailedDiff=MEMORY)
        return verdict("sp", made, missing_backups=missing).stops[0].key

    assert key(9999) == key(9999)
    assert key(9999) != key(1)


def test_a_server_that_leaves_and_another_that_restarts_are_two() -> None:
    leaves = step("franca", FCA[2], "delete")
    made = verdict("franca", leaves, restarted("guest-vm-cpps-02-vm"))
    (stop,) = (one for one in made.stops if one.rule == "GRD-06")
    assert (stop.new, stop.key) == (2, "")
    assert "vm-cpps-02 restarted, vm-cpps-04 leaves" in stop.consequence


def test_two_servers_that_leave_at_once_are_two() -> None:
    made = verdict("franca", step("franca", FCA[1], "delete"), step("franca", FCA[2], "delete"))
    assert ("GRD-06", "cluster-fca") in found(made)


def test_a_guest_restarts_while_no_other_server_rolls() -> None:
    guest = restarted("guest-vm-cpps-02-vm")
    other = verdict("franca", guest, to_version("franca", FCA[1], "v1.32.14"))
    assert found(other) == {("GRD-06", "cluster-fca")}
    assert not verdict("franca", guest, to_version("franca", FCA[0], "v1.32.14")).stops


@pytest.mark.parametrize("name", [GPU, SERVER])
def test_a_guest_that_matters_is_not_switched_off(name: str) -> None:
    (stop,) = verdict("sp", step("sp", name, "update", setting("started", False), diffReasons=["started"])).stops
    assert (stop.rule, stop.field, bool(stop.key)) == ("GRD-01", "started", True)
    agent = step("sp", AGENT, "update", setting("started", False), diffReasons=["started"])
    assert not verdict("sp", agent).stops


def test_the_end_of_one_cluster_excuses_nothing_in_another() -> None:
    chart, pool = step("sp", "cilium-cluster-sp-chart", "delete"), step("sp", "cilium-cluster-sp-pool", "delete")
    pool = renamed(pool, "kubernetes:cilium.io/v2alpha1:CiliumLoadBalancerIPPool", "kubernetes:core/v1:Namespace")
    gone = [step("sp", name, "delete") for name in ("k3s-gpu-sp", "k3s-gpu-sp-api")]
    made = found(verdict("sp", chart, pool, *gone))
    assert ("GRD-09", "cilium-cluster-sp-chart") in made
    assert ("GRD-13", "cilium-cluster-sp-pool") in made


def test_another_provider_that_is_replaced_excuses_nothing() -> None:
    chart = step("sp", "cilium-cluster-sp-chart", "replace", replaceReasons=["provider"])
    provider = step("sp", "k3s-gpu-sp-api", "replace", replaceReasons=["clusterIdentifier"])
    assert ("GRD-09", "cilium-cluster-sp-chart") in found(verdict("sp", chart, provider))


@pytest.mark.parametrize("hidden", [{"apiKey": "[secret]"}, ["[secret]"]])
def test_a_change_within_a_secret_is_hidden_too(hidden: Any) -> None:
    name = "k3s-cluster-sp-labels-vm-sp-02"
    made = step("sp", name, "update", setting("environment", hidden), diffReasons=["environment"])
    made["oldState"]["inputs"]["environment"] = hidden
    assert found(verdict("sp", made)) == {("GRD-13", name)}


@pytest.mark.parametrize(
    "change",
    [stdin('node-name: "vm-sp-01"', "node-name: [unclosed"), stdin('node-name: "vm-sp-01"', 'another: "vm-sp-01"')],
)
def test_settings_that_are_none_are_a_stop(change: Callable[[Raw], None]) -> None:
    name = "k3s-cluster-sp-server-vm-sp-01"
    assert ("GRD-13", name) in found(verdict("sp", step("sp", name, "update", change, diffReasons=["stdin"])))


def test_a_name_with_dots_is_no_fault() -> None:
    def missing(touched: set[str], destroyed: set[str]) -> list[Violation]:
        return [
            Violation(id="BKP-01", path=f"evidence.sp.{what}", found="none", expected="one", remedy="make one")
            for what in touched
        ]

    made = step("sp", AGENT, "delete")
    made["oldState"]["inputs"]["name"] = "vm.sp.02"
    assert ("BKP-01", AGENT) in found(verdict("sp", made, missing_backups=missing))


def test_the_engine_may_leave_lists_out() -> None:
    state = raw("state-sp")
    assert not judge(read({}, state), fleet(), "sp").stops
    assert not judge(read({"steps": None}, {"deployment": None}), fleet(), "sp").stops
    assert plan("sp").step(copy.deepcopy(resource("sp", AGENT))["urn"]) is None


@pytest.mark.parametrize("broken", [{"steps": ["x"]}, {"steps": [{"op": "update", "newState": "x"}]}])
def test_a_plan_in_another_form_is_an_error_of_the_engine(tmp_path: Path, broken: Raw) -> None:
    played = Played(tmp_path, "nothing")
    played.play("preview.json", broken)
    with pytest.raises(EngineError, match="in no form that the guard knows"):
        played.look()


@pytest.mark.parametrize("text", ["[]", "null", "[" * 100_000])
def test_a_preview_that_is_no_document_is_an_error_of_the_engine(tmp_path: Path, text: str) -> None:
    played = Played(tmp_path, "nothing")
    (played.bin / "preview.json").write_text(text)
    with pytest.raises(EngineError, match="pulumi preview"):
        played.look()


@pytest.mark.parametrize("runs", [7, "x", {"key": "x"}, [1, {"key": 1}], [dict.fromkeys(FIELDS, 7)]])
def test_a_record_in_the_state_that_is_none_is_left_out(runs: Any) -> None:
    """The program would refuse it, and nobody could mend that."""
    state = {"type": STACK, "outputs": {OUTPUT: {"document": {}, "runs": runs}}}
    assert recorded({"deployment": {"resources": [state]}}) == []


def test_a_variable_as_deep_as_it_may_be_is_no_traceback() -> None:
    with pytest.raises(InvariantError):
        given("[" * 100_000, "sp")


def test_a_key_of_a_server_that_leaves_does_not_fit_a_smaller_cluster() -> None:
    def key(*gone: str) -> str:
        state = raw("state-franca")
        resources = state["deployment"]["resources"]
        state["deployment"]["resources"] = (
            [one for one in resources if not one["urn"].endswith(gone)] if gone else resources
        )
        documents, faults = fleet_of(
            patched(shipped(), {f"franca.guests.vm-cpps-0{number}.existing": False for number in (2, 3)})
        )
        assert documents is not None, faults
        made = judge(read({"steps": [step("franca", FCA[2], "delete")]}, state), documents, "franca")
        return next(stop.key for stop in made.stops if stop.rule == "GRD-05")

    assert key() == key()
    assert key() != key(FCA[1])
