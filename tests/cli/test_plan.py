"""`fleet plan` and the recorder behind it: rules first, then the whole tree, and never a secret."""

import json
import shutil
from pathlib import Path

import pulumi
import pytest

from cli.plan import MASK, STACK, declare, plan
from cli.stand_in_inputs import placeholders
from infra.config import Fleet
from tests.cli import project
from tests.cli.project import ROOT, fleet_process, folder_with
from tests.rules.documents import patched, shipped

# What stands for a secret in a plan, and what the mocks make up.
MARKERS = ("<proxmoxApiToken>", "<proxmoxRootPassword>", "<sshPrivateKey>", "<ciliumCa", "plan-only-", "VE9LRU4=")


@pytest.mark.parametrize("site", ["franca", "sp"])
def test_the_tree_shows_every_layer_and_no_secret(site: str) -> None:
    ran = project.fleet("plan", site)
    assert ran.code == 0, ran.text
    assert f"fleet-{site}" in ran.out
    for word in ("Hypervisor", "VmLegacy", "K3s", "resources:", "assumed values"):
        assert word in ran.out
    # The main cluster of Franca runs Flannel until its migration.
    assert ("Release" in ran.out) == (site == "sp")
    assert not [marker for marker in MARKERS if marker in ran.out]


@pytest.mark.parametrize("site", ["franca", "sp"])
def test_json_lists_every_resource_with_its_secrets_masked(site: str) -> None:
    ran = fleet_process("plan", site, "--json")
    assert ran.code == 0, ran.err
    resources = json.loads(ran.out)
    keys = {"type", "name", "parent", "provider", "dependencies", "inputs", "protect"}
    assert all(set(resource) - {"import"} == keys for resource in resources)
    assert any("import" in resource for resource in resources)
    assert not [marker for marker in MARKERS if marker in ran.out]
    seen: set[str] = set()
    for resource in resources:
        assert resource["parent"] in seen or resource["type"] == STACK
        seen.add(resource["name"])


def test_a_secret_deep_in_an_input_is_masked_where_it_stands(fleet: Fleet) -> None:
    declared = plan(fleet, "sp", placeholders)
    chart = declared["kubernetes:helm.sh/v3:Release", "cilium-cluster-sp-chart"].shown["values"]
    assert chart["tls"]["ca"] == {"cert": MASK, "key": MASK}
    assert chart["cluster"] == {"id": 2, "name": "cluster-sp"}


def test_each_plan_of_a_process_has_its_own_stack(fleet: Fleet) -> None:
    for site in ("franca", "sp", "franca"):
        declared = plan(fleet, site, placeholders)
        assert [one.name for one in declared.values() if one.type == STACK] == [f"fleet-{site}"]
        assert declared["fleet:site:SiteStack", site].parent == f"fleet-{site}"


def test_the_output_is_the_same_each_time() -> None:
    assert project.fleet("plan", "sp", "--json").out == project.fleet("plan", "sp", "--json").out


def test_an_error_of_the_program_comes_through_the_recorder() -> None:
    def program() -> None:
        raise pulumi.RunError("mended elsewhere")

    with pytest.raises(pulumi.RunError, match="mended elsewhere"):
        declare(program)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_faulty_fleet_is_told_and_nothing_planned(tmp_path: Path, form: tuple[str, ...]) -> None:
    folder_with(tmp_path, patched(shipped(), {"franca.guests.vm-cpps-03.vmid": 102}))
    ran = project.fleet("plan", "sp", "--folder", str(tmp_path), *form)
    assert ran.code == 1
    assert "PVE-08" in ran.out
    assert "franca.guests.vm-cpps-03.vmid" in ran.out
    assert "VmLegacy" not in ran.out
    if form:
        assert json.loads(ran.out)["violations"]


def test_an_unknown_site_is_answered_with_the_known_ones() -> None:
    ran = project.fleet("plan", "paris")
    assert ran.code == 1
    assert "no site paris" in ran.err
    assert "franca, sp" in ran.err


def test_a_new_stack_file_is_a_new_site_without_a_change_of_code(tmp_path: Path) -> None:
    for name in ("Pulumi.yaml", "Pulumi.franca.yaml", "Pulumi.sp.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copy(ROOT / "Pulumi.sp.yaml", tmp_path / "Pulumi.copy.yaml")
    ran = project.fleet("plan", "copy", "--folder", str(tmp_path))
    assert ran.code == 1  # the same addresses twice
    assert "NET-09" in ran.text


def test_a_narrow_terminal_is_kept() -> None:
    ran = fleet_process("plan", "sp", COLUMNS="40")
    assert ran.code == 0
    assert max(len(line) for line in ran.out.splitlines()) <= 60  # a path is longer than the terminal
