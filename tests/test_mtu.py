"""Packet sizes: what fits a path, and that what is told to Cilium fits it."""

from pathlib import Path
from typing import Any

import pytest

from infra.mtu import VXLAN_OVERHEAD, WAN_MTU, WIREGUARD_OVERHEAD, budgets, cilium_mtu, pod_mtu
from tests.cli import project
from tests.cli.project import folder_with
from tests.rules.documents import patched, shipped
from tests.sites import SITES, Documents, changed, declared, of_type, plan_of, three_sites


def values(record: Any, cluster: str) -> dict[str, Any]:
    found: dict[str, Any] = of_type(record, ":Release")[f"cilium-{cluster}-chart"].inputs["values"]
    return found


MAIN = {"franca": "cluster-fca", "sp": "cluster-sp", "norte": "north"}


@pytest.mark.parametrize("site_id", SITES)
def test_net_14_pods_of_the_mesh_stay_below_the_tunnel(site_id: str) -> None:
    """A packet of a Pod, its encapsulation and WireGuard around it fit the WAN."""
    fleet = three_sites()
    pods = pod_mtu(fleet, site_id, fleet.sites[site_id].clusters[MAIN[site_id]])
    assert pods + VXLAN_OVERHEAD + WIREGUARD_OVERHEAD <= WAN_MTU
    assert pods == 1370


@pytest.mark.parametrize("site_id", SITES)
def test_net_14_the_chart_gets_the_mtu_of_the_narrowest_tunnel(site_id: str) -> None:
    """Not that of the Pods: Cilium takes its encapsulation off itself."""
    assert values(declared(site_id), MAIN[site_id])["MTU"] == 1420


def test_a_narrower_tunnel_reaches_the_chart() -> None:
    def edit(documents: Documents) -> None:
        for site in SITES:
            documents[site]["wireguard"]["mtu"] = 1392

    fleet = changed(edit)
    assert values(plan_of(fleet, "sp"), "cluster-sp")["MTU"] == 1392


def test_the_mtu_outlives_the_mesh_since_routes_to_pods_cross_the_tunnel_without_it() -> None:
    def edit(documents: Documents) -> None:
        documents["sp"]["clusters"]["cluster-sp"]["in_mesh"] = False

    fleet = changed(edit)
    cluster = fleet.sites["sp"].clusters["cluster-sp"]
    assert cilium_mtu(fleet, "sp", cluster) == 1420
    assert values(plan_of(fleet, "sp"), "cluster-sp")["MTU"] == 1420


def test_without_a_tunnel_nothing_is_narrower_than_the_lan() -> None:
    def edit(documents: Documents) -> None:
        documents["common"]["tunnels"] = []

    fleet = changed(edit)
    assert cilium_mtu(fleet, "norte", fleet.sites["norte"].clusters["north"]) is None
    assert pod_mtu(fleet, "norte", fleet.sites["norte"].clusters["north"]) == 8950


def test_a_narrow_lan_of_the_peer_counts_too() -> None:
    def edit(documents: Documents) -> None:
        documents["sp"]["network"]["mtu"] = 1400

    fleet = changed(edit)
    assert cilium_mtu(fleet, "franca", fleet.sites["franca"].clusters["cluster-fca"]) == 1400


def test_routed_pods_carry_no_encapsulation() -> None:
    def edit(documents: Documents) -> None:
        documents["common"]["cilium"]["datapath"] = "native"

    fleet = changed(edit)
    assert pod_mtu(fleet, "sp", fleet.sites["sp"].clusters["cluster-sp"]) == 1420


def test_every_path_of_a_site_is_listed() -> None:
    listed = {budget.path: budget.mtu for budget in budgets(three_sites(), "sp")}
    assert listed == {
        "LAN": 1500,
        "wg0 to franca": 1420,
        "TCP segments through wg0": 1380,
        "wg2 to norte": 1420,
        "TCP segments through wg2": 1380,
        "cluster-sp: Cilium": 1420,
        "cluster-sp: Pods": 1370,
        "gpu-sp: Pods": 1450,
    }


def test_the_command_prints_the_budget_of_one_site_or_all() -> None:
    one, both = project.fleet("mtu", "franca"), project.fleet("mtu")
    assert (one.code, both.code) == (0, 0)
    assert "cluster-fca: Pods 1370 1420 - 50 of VXLAN" in one.text
    assert "gpu-sp" not in one.text
    assert "gpu-sp: Pods 1450" in both.text


def test_the_command_refuses_documents_that_contradict_each_other(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, patched(shipped(), {"sp.wireguard.mtu": 1380}))
    ran = project.fleet("mtu", "--folder", str(folder))
    assert ran.code == 1
    assert "[NET-14] franca.wireguard.mtu: found 1420; expected 1380 as in sp" in ran.text
