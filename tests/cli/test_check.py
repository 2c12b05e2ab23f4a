"""`fleet check`: every fault of every document, told clearly, with exit code 1 and no traceback."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.project import fleet, fleet_process, folder_with
from tests.rules.documents import patched, shipped

BROKEN: dict[str, tuple[dict[str, Any], tuple[str, ...], str, str]] = {
    "an unknown key": ({"sp.network.lan_cdir": "192.168.10.0/24"}, (), "DOC-02", "sp.network.lan_cdir"),
    "a wrong type": ({"sp.guests.vm-sp-01.cores": "eight"}, (), "DOC-03", "sp.guests.vm-sp-01.cores"),
    "a missing value": ({}, ("franca.network.bridge",), "GEN-07", "franca.network.bridge"),
    "overlapping CIDRs": (
        {"sp.clusters.cluster-sp.pod_cidr": "10.41.128.0/17"},
        (),
        "NET-09",
        "sp.clusters.cluster-sp.pod_cidr",
    ),
    "a duplicate VMID": ({"sp.guests.vm-sp-02.vmid": 201}, (), "PVE-08", "sp.guests.vm-sp-02.vmid"),
    "two etcd servers": (
        {"franca.clusters.cluster-fca.servers": ["vm-cpps-02", "vm-cpps-03"]},
        (),
        "K3S-03",
        "franca.clusters.cluster-fca.servers",
    ),
}


def test_the_shipped_documents_pass_and_their_assumed_values_are_counted() -> None:
    ran = fleet("check")
    assert ran.code == 0, ran.text
    assert "2 sites, 0 violations" in ran.text
    assert "assumed values (common" in ran.text


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_is_named_by_id_and_path_and_ends_with_1(tmp_path: Path, fault: str) -> None:
    changes, removed, id, path = BROKEN[fault]
    folder_with(tmp_path, patched(shipped(), changes, delete=removed))
    ran = fleet("check", "--folder", str(tmp_path))
    assert ran.code == 1
    line = next(line for line in ran.out.splitlines() if f"[{id}] {path}" in line)
    assert "found " in line
    assert "expected " in line
    assert "Traceback" not in ran.text


def test_all_faults_of_a_document_are_reported_at_once(tmp_path: Path) -> None:
    changes = {"sp.network.mtu": "big", "sp.network.colour": "blue", "franca.bgp.site_asn": 0}
    folder_with(tmp_path, patched(shipped(), changes))
    ran = fleet("check", "--folder", str(tmp_path))
    assert ran.code == 1
    assert all(path in ran.text for path in changes)
    assert ran.text.index("Pulumi.franca.yaml") < ran.text.index("Pulumi.sp.yaml")  # grouped
    assert "3 violations" in ran.text


def test_all_faults_of_sense_are_reported_at_once(tmp_path: Path) -> None:
    changes = {"sp.guests.vm-sp-02.vmid": 201, "sp.clusters.cluster-sp.pod_cidr": "10.41.0.0/16"}
    folder_with(tmp_path, patched(shipped(), changes))
    ran = fleet("check", "--folder", str(tmp_path))
    assert ran.code == 1
    assert "[PVE-08] sp.guests.vm-sp-02.vmid" in ran.text
    assert "[NET-09] sp.clusters.cluster-sp.pod_cidr" in ran.text


@pytest.mark.parametrize("missing", ["Pulumi.yaml", "Pulumi.*.yaml"])
def test_a_missing_file_is_a_fault(tmp_path: Path, missing: str) -> None:
    folder_with(tmp_path, shipped())
    for path in tmp_path.glob(missing):
        path.unlink()
    ran = fleet("check", "--folder", str(tmp_path))
    assert ran.code == 1
    assert missing in ran.text


def test_a_missing_folder_is_a_message(tmp_path: Path) -> None:
    ran = fleet("check", "--folder", str(tmp_path / "none"))
    assert ran.code == 1
    assert "no such folder" in ran.err


def test_a_file_that_is_no_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    folder_with(tmp_path, shipped())
    (tmp_path / "Pulumi.sp.yaml").write_text("config:\n  fleet:site: {broken\n")
    ran = fleet("check", "--folder", str(tmp_path))
    assert ran.code == 1
    assert "[DOC-01] Pulumi.sp.yaml:" in ran.text


def test_json_is_all_that_is_on_standard_output(tmp_path: Path) -> None:
    folder_with(tmp_path, patched(shipped(), {"sp.guests.vm-sp-02.vmid": 201}))
    ran = fleet_process("check", "--json", "--folder", str(tmp_path))
    assert ran.code == 1
    found = json.loads(ran.out)
    assert found["sites"] == ["franca", "sp"]
    fault = next(fault for fault in found["violations"] if fault["id"] == "PVE-08")
    assert set(fault) == {"id", "path", "found", "expected", "remedy", "source", "level"}
    assert {"warnings", "accepted", "assumed"} <= set(found)
    assert all(entry["reason"] for entry in found["accepted"])
    assert "network.bridge" in found["assumed"]["sp"]


def test_json_of_sound_documents_ends_with_0() -> None:
    ran = fleet("check", "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["violations"] == []


def test_a_narrow_terminal_wraps_lines_and_breaks_no_path(tmp_path: Path) -> None:
    folder_with(tmp_path, patched(shipped(), {"sp.guests.vm-sp-02.vmid": 201}))
    ran = fleet_process("check", "--folder", str(tmp_path), COLUMNS="40")
    assert ran.code == 1
    assert all(len(line) <= 40 or " " not in line.strip() for line in ran.out.splitlines())
    assert "sp.guests.vm-sp-02.vmid" in ran.out


def test_nothing_but_plain_text_goes_into_a_pipe() -> None:
    ran = fleet_process("check")
    assert "\x1b" not in ran.out
    assert "\r" not in ran.out
