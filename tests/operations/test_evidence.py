"""The record of backups: reading, writing, how fresh one must be, and what the maximum-caution set demands (BKP-01)."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.config import Fleet
from infra.violation import InvariantError
from operations import evidence
from operations.evidence import COVERS, FORM, Evidence, Record, demanded_for, fresh, missing_evidence
from tests.rules.documents import fleet_of, patched, shipped

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
GUEST = "guest/vm-cpps-04"


def taken(what: str = GUEST, hours: float = 1, kind: str = "proxmox-snapshot", reference: str = "ref") -> Evidence:
    time = (NOW - timedelta(hours=hours)).strftime(FORM)
    return Evidence.model_validate({"what": what, "kind": kind, "reference": reference, "taken": time, "by": "ana"})


def record(*entries: Evidence) -> Record:
    return Record(evidence=entries)


def test_a_site_without_a_file_has_an_empty_record(tmp_path: Path) -> None:
    assert evidence.load(tmp_path, "sp") == (Record(), [])


def test_what_is_added_is_read_again_in_order_of_time(tmp_path: Path) -> None:
    late, early = taken(hours=1, reference="104@fleet-x: é"), taken("vyos", 5, "vyos-archive", "on")
    for one in (late, early):
        path = evidence.add(tmp_path, "franca", one)
    assert path == tmp_path / "evidence/franca.yaml"
    assert evidence.load(tmp_path, "franca") == (record(early, late), [])
    assert path.read_text().startswith("# Backups of this site")
    assert [file.name for file in path.parent.iterdir()] == ["franca.yaml"]


def test_a_faulty_record_is_never_overwritten(tmp_path: Path) -> None:
    path = evidence.path_of(tmp_path, "franca")
    path.parent.mkdir()
    path.write_text("evidence: [{what: moon}]\n")
    with pytest.raises(InvariantError, match=r"evidence\.franca\.evidence\.0\.what"):
        evidence.add(tmp_path, "franca", taken())
    assert path.read_text() == "evidence: [{what: moon}]\n"


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown what": ({"what": "moon"}, "DOC-03", "what"),
    "unknown kind": ({"kind": "tape"}, "DOC-03", "kind"),
    "kind of another thing": ({"kind": "etcd-snapshot"}, "DOC-03", "kind"),
    "local time": ({"taken": "2026-11-30T12:00:00-03:00"}, "DOC-03", "taken"),
    "impossible time": ({"taken": "2026-13-30T12:00:00Z"}, "DOC-03", "taken"),
    "empty reference": ({"reference": ""}, "DOC-03", "reference"),
    "control character": ({"reference": "a\x1b[2J"}, "DOC-03", "reference"),
    "unknown key": ({"size": "1"}, "DOC-02", "size"),
    "missing key": ({"by": None}, "DOC-03", "by"),
}


@pytest.mark.parametrize(("change", "id", "field"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_of_the_file_has_its_path(tmp_path: Path, change: dict[str, Any], id: str, field: str) -> None:
    path = evidence.path_of(tmp_path, "sp")
    path.parent.mkdir()
    path.write_text(yaml.safe_dump({"evidence": [taken().model_dump(), taken().model_dump() | change]}))
    _, (fault,) = evidence.load(tmp_path, "sp")
    assert (fault.id, fault.path) == (id, f"evidence.sp.evidence.1.{field}")


@pytest.mark.parametrize(
    ("hours", "counts"), [(0, True), (23.9, True), (24, True), (24.1, False), (-0.05, True), (-1, False)]
)
def test_a_backup_is_fresh_for_a_day_and_never_from_the_future(hours: float, counts: bool) -> None:
    assert (fresh(record(taken(hours=hours)), GUEST, NOW) is not None) is counts


def test_the_newest_counts_and_only_that_of_the_thing_itself() -> None:
    newest = taken(hours=2)
    known = record(taken(hours=9), newest, taken(hours=3), taken("guest/vm-cpps-03", 0))
    assert fresh(known, GUEST, NOW) == newest
    assert fresh(known, "guest/vm-cpps-02", NOW) is None
    assert fresh(known, GUEST, NOW, timedelta(hours=1)) is None
    assert fresh(known, GUEST, NOW, kinds=["pbs"]) is None


def stateless(fleet_site: str = "sp") -> Fleet:
    changed, faults = fleet_of(shipped())
    assert changed is not None, faults
    assert not changed.sites[fleet_site].guests["vm-sp-02"].stateful
    return changed


def test_bkp_01_a_guest_with_state_the_router_and_the_hosts_need_a_backup(fleet: Fleet) -> None:
    touched = ["vyos", GUEST, "host/pve-labri-31", "etcd/cluster-fca", GUEST]
    found = missing_evidence(fleet, "franca", touched, Record(), NOW)
    assert [one.path for one in found] == [
        "evidence.franca.guest/vm-cpps-04",
        "evidence.franca.host/pve-labri-31",
        "evidence.franca.vyos",
    ]
    assert str(found[0]) == (
        "[BKP-01] evidence.franca.guest/vm-cpps-04: found no recorded backup; expected a backup that is not older than "
        "24 h; fleet backup franca --guest vm-cpps-04; see Principio orientador"
    )
    assert "fleet backup franca --record vyos-archive:vyos=<file>" in found[2].remedy


def test_bkp_02_what_can_be_made_again_needs_none() -> None:
    assert missing_evidence(stateless(), "sp", ["guest/vm-sp-02", "etcd/cluster-sp"], Record(), NOW) == []


def test_bkp_01_a_guest_on_zfs_needs_a_backup_even_without_state() -> None:
    documents = patched(shipped(), {"sp.proxmox.storages.linstor-ssd.type": "zfspool"})
    changed, faults = fleet_of(documents)
    assert changed is not None, faults
    assert len(missing_evidence(changed, "sp", ["guest/vm-sp-02"], Record(), NOW)) == 1


def test_a_guest_that_left_the_document_needs_a_backup(fleet: Fleet) -> None:
    assert len(missing_evidence(fleet, "franca", ["guest/gone"], Record(), NOW)) == 1


def test_fresh_evidence_satisfies_and_old_evidence_is_named_with_its_time(fleet: Fleet) -> None:
    assert missing_evidence(fleet, "franca", [GUEST], record(taken()), NOW) == []
    (old,) = missing_evidence(fleet, "franca", [GUEST], record(taken(hours=50)), NOW)
    assert old.found == "proxmox-snapshot ref, taken 2026-11-28T10:00:00Z"
    (future,) = missing_evidence(fleet, "franca", [GUEST], record(taken(hours=-2)), NOW)
    assert "from the future" in future.found


@pytest.mark.parametrize(
    ("kind", "counts"), [("proxmox-snapshot", False), ("linstor-snapshot", False), ("pbs", True), ("vzdump", True)]
)
def test_a_guest_that_is_destroyed_needs_a_backup_outside_of_itself(fleet: Fleet, kind: str, counts: bool) -> None:
    found = missing_evidence(fleet, "franca", [], record(taken(kind=kind)), NOW, destroyed=[GUEST])
    assert (found == []) is counts
    if not counts:
        assert "which goes with the guest" in found[0].found
        assert "--record pbs:guest/vm-cpps-04=" in found[0].remedy


def test_a_step_demands_by_the_resource_that_it_touches(fleet: Fleet) -> None:
    vm, container = "proxmoxve:index/vmLegacy:VmLegacy", "proxmoxve:index/containerLegacy:ContainerLegacy"
    assert demanded_for(fleet, "franca", vm, "guest-vm-cpps-04-vm") == (GUEST,)
    assert demanded_for(fleet, "sp", container, "guest-gpu-sp-01-ct") == ("guest/gpu-sp-01",)
    assert demanded_for(fleet, "sp", vm, "guest-vm-sp-02-vm") == ()
    assert demanded_for(fleet, "sp", "command:remote:Command", "guest-vm-sp-01-contact") == ()
    assert demanded_for(fleet, "sp", "kubernetes:helm.sh/v3:Release", "cilium-cluster-sp-chart") == ()


def test_the_resources_of_the_plan_are_recognised(fleet: Fleet) -> None:
    """The names that `infra.proxmox` gives."""
    from cli.plan import plan  # noqa: PLC0415  # the SDK takes its time
    from cli.stand_in_inputs import placeholders  # noqa: PLC0415

    for site_id, site in fleet.sites.items():
        declared = plan(fleet, site_id, placeholders)
        found = {what for one in declared.values() for what in demanded_for(fleet, site_id, one.type, one.name)}
        assert found == {f"guest/{guest.name}" for guest in site.guests.values() if guest.stateful}


def test_every_kind_is_a_backup_of_something() -> None:
    kinds = Evidence.model_json_schema()["properties"]["kind"]["enum"]
    assert sorted(kinds) == sorted(COVERS)


@pytest.mark.parametrize("what", ["guest/nobody", "host/x", "etcd/nothing", "vyos/x", "moon", "guest/"])
def test_what_a_site_does_not_have_is_named_with_what_it_has(fleet: Fleet, what: str) -> None:
    fault = evidence.unknown("franca", fleet.sites["franca"], what)
    assert fault is not None
    assert "vm-cpps-04" in fault.expected
    for known in (GUEST, "host/pve-labri-31", "etcd/cluster-fca", "vyos"):
        assert evidence.unknown("franca", fleet.sites["franca"], known) is None
