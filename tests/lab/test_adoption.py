"""Guests that were there before the program: imported as they are, their K3s untouched, their cluster grown by one."""

import json
from typing import Any

import pytest
import yaml

from lab import control
from tests.lab.conftest import Checkout
from tests.lab.drill import EXISTING, Drill, in_proxmox, on_the_nodes

pytestmark = pytest.mark.lab

MADE = "vm-cpps-04"
VAULTS = ("secrets.json", "passphrase", "kubeconfigs", "nodes", "pve", "mirror", "run")


def resources(checkout: Checkout, site: str) -> dict[str, dict[str, Any]]:
    """Of the state, by name."""
    state = json.loads((checkout.place.state / f".pulumi/stacks/fleet/{site}.json").read_text())
    return {one["urn"].rpartition("::")[2]: one for one in state["checkpoint"]["latest"]["resources"]}


def test_proxmox_has_every_existing_guest_as_it_was(drill: Drill) -> None:
    assert drill.configs.keys() == EXISTING.keys()
    assert all(len(config) > 15 for config in drill.configs.values())
    assert in_proxmox(drill.checkout) == drill.configs


def test_they_are_imported_and_protected_and_the_new_one_is_made(drill: Drill) -> None:
    for name, site in EXISTING.items():
        document = drill.checkout.document(site)["guests"][name]
        suffix = "vm" if document["kind"] == "vm" else "ct"
        resource = resources(drill.checkout, site)[f"guest-{name}-{suffix}"]
        assert resource["importID"] == f"{document['host']}/{document['vmid']}"
        assert resource["protect"] is True
        assert resource["retainOnDelete"] is True
    assert not resources(drill.checkout, "franca")[f"guest-{MADE}-vm"].get("importID")


def test_k3s_on_them_was_not_touched(drill: Drill) -> None:
    """No file of theirs is another, and K3s is the process that it was."""
    for look in drill.nodes.values():
        assert "/etc/systemd/system/k3s.service\n" in look
        assert "/var/lib/rancher/k3s/server/tls/server-ca.crt" in look
        assert "NRestarts=0" in look
    after = on_the_nodes(drill.checkout)
    for name, before in drill.nodes.items():
        changed = set(before.splitlines()) ^ set(after[name].splitlines())
        assert not changed, (name, sorted(changed))


def test_the_new_server_joined_the_cluster_that_people_made(drill: Drill) -> None:
    checkout = drill.checkout
    nodes = checkout.nodes("cluster-fca")
    assert sorted(nodes) == ["vm-cpps-02", "vm-cpps-03", MADE]
    for name, node in nodes.items():
        ready = {one["type"]: one["status"] for one in node["status"]["conditions"]}
        assert ready["Ready"] == "True", (name, ready)
        assert ready["EtcdIsVoter"] == "True", (name, ready)
    own = "k3s kubectl get namespace kube-system -o jsonpath='{.metadata.uid}'"
    assert len({checkout.ssh(name, own) for name in nodes}) == 1
    config = yaml.safe_load(checkout.ssh(MADE, "cat /etc/rancher/k3s/config.yaml"))
    assert config.get("flannel-backend", "vxlan") == "vxlan"
    assert not config.get("secrets-encryption", False)


def test_what_was_recognised_is_in_the_outputs_and_cilium_waits(drill: Drill) -> None:
    cluster = resources(drill.checkout, "franca")["fleet-franca"]["outputs"]["cluster-fca"]
    assert cluster["recognised"].keys() == {"vm-cpps-02", "vm-cpps-03"}
    for found in cluster["recognised"].values():
        assert found["role"] == "server"
        assert found["datastore"] == "etcd"
        assert found["flannel_backend"] == "vxlan"
        assert found["cluster_cidr"] == "10.41.0.0/16"
    assert "Flannel runs" in cluster["cilium"]["status"]
    assert not [name for name in resources(drill.checkout, "franca") if name.startswith("cilium-cluster-fca")]
    assert not drill.checkout.get("cluster-fca", "secrets", "-A", "-l", "owner=helm")["items"]


def test_the_join_token_is_nowhere_in_plain_text(drill: Drill) -> None:
    checkout = drill.checkout
    token = checkout.ssh("vm-cpps-02", "cat /var/lib/rancher/k3s/server/token").strip()
    password = token.rpartition(":")[2].encode()
    assert len(password) >= 20
    assert password in checkout.ssh(MADE, "cat /etc/rancher/k3s/token").encode()
    searched = [
        path
        for top in checkout.place.root.iterdir()
        if top.name not in VAULTS
        for path in ([top] if top.is_file() else top.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 8 << 20
    ]
    assert any(path.name == "franca.json" for path in searched)
    assert [str(path) for path in [*searched, *checkout.runs] if password in path.read_bytes()] == []


def test_adopt_says_what_a_hand_changed_and_the_preview_is_empty_before(drill: Drill) -> None:
    checkout = drill.checkout
    same = checkout.fleet("lab", "run", "--", "adopt", "franca")
    assert same.code == 0, same.out
    assert "Nothing differs: vm-cpps-02, vm-cpps-03." in same.text, same.out

    before = drill.configs["vm-cpps-02"]
    by_hand(checkout, {"memory": "20480", "tags": "k3s;producao;urgente"})
    try:
        other = checkout.fleet("lab", "run", "--", "adopt", "franca")
    finally:
        by_hand(checkout, {"memory": before["memory"], "tags": before["tags"]})
    assert other.code == 1, other.out
    assert "memory_mib: 20480" in other.out, other.out
    assert checkout.fleet("lab", "run", "--", "adopt", "franca").code == 0


def by_hand(checkout: Checkout, values: dict[str, Any]) -> None:
    control.request(checkout.place.root, op="set-config", site="franca", name="vm-cpps-02", values=values)


def test_run_passes_the_exit_code_on(drill: Drill) -> None:
    assert drill.checkout.fleet("lab", "run", "--", "plan", "nowhere").code == 1
    assert drill.checkout.fleet("lab", "run", "--", "nonsense").code == 2
