"""What goes wrong: a lost server, a wrong token, a machine that cannot carry a lab; each a message and a way out."""

import fcntl
import os
from pathlib import Path

import pytest

from tests.lab.conftest import Checkout, Document, Lab, Ran, eventually

pytestmark = pytest.mark.lab


def refused(ran: Ran, *expected: str) -> None:
    assert ran.code == 1, ran.out
    assert "Traceback" not in ran.out, ran.out
    for text in expected:
        assert text in ran.text, ran.out


def cluster_uid(checkout: Checkout) -> str:
    return str(checkout.get("cluster-fca", "namespace", "kube-system")["metadata"]["uid"])


def test_a_lost_first_server_comes_back_as_a_member_and_never_as_a_second_cluster(lab: Lab) -> None:
    """The rebuilt guest has a new host key, which the document is given; its old Node and etcd member stand in the way
    until an operator removes them.
    """
    checkout, lost = lab.checkout, "vm-cpps-02"
    uid = cluster_uid(checkout)
    checkout.ask("wipe-node", lost)
    checkout.ask("start-node", lost)
    key = " ".join(checkout.ssh(lost, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2])

    def change(document: Document) -> None:
        document["guests"][lost]["ssh_host_key"] = key
        document["clusters"]["cluster-fca"] |= {"node_labels": {}, "kubelet_args": []}  # and the label goes

    checkout.edit("franca", change)
    refused(
        checkout.fleet("lab", "up", "--no-guard", "franca"),
        "duplicate node name found",
        f"[K3S-10] {lost}",
        f"kubectl delete node {lost}",
    )
    assert sorted(checkout.nodes("cluster-fca")) == ["vm-cpps-02", "vm-cpps-03", "vm-cpps-04"]
    assert cluster_uid(checkout) == uid

    checkout.kubectl("cluster-fca", "delete", "node", lost, "--timeout=60s")
    checkout.ok("lab", "up", "--no-guard", "franca")
    eventually(lambda: checkout.all_ready("cluster-fca"), 60, lambda: checkout.kubectl("cluster-fca", "get", "nodes"))
    nodes = checkout.nodes("cluster-fca")
    assert sorted(nodes) == ["vm-cpps-02", "vm-cpps-03", "vm-cpps-04"]
    for name, node in nodes.items():
        assert "rack" not in node["metadata"]["labels"], name
    own = "k3s kubectl get namespace kube-system -o jsonpath='{.metadata.uid}'"
    assert {checkout.ssh(name, own) for name in nodes} == {uid}


def test_an_agent_with_a_wrong_token_is_named_and_recovers(lab: Lab) -> None:
    checkout, agent = lab.checkout, "vm-sp-02"
    token = "/etc/rancher/k3s/token"
    checkout.ssh(agent, f"cp -p {token} /root/token; sed -i 's/::server:.*/::server:wrongwrongwrong/' {token}")

    def change(document: Document) -> None:
        document["clusters"]["cluster-sp"]["kubelet_args"] = ["max-pods=120"]

    checkout.edit("sp", change)
    refused(
        checkout.fleet("lab", "up", "--no-guard", "sp"), "401 Unauthorized", f"[K3S-10] {agent}", "turned away", token
    )
    checkout.ssh(agent, f"cp -p /root/token {token}")
    checkout.ok("lab", "up", "--no-guard", "sp")
    eventually(lambda: checkout.all_ready("cluster-sp"), 60, lambda: checkout.kubectl("cluster-sp", "get", "nodes"))
    assert "max-pods=120" in checkout.ssh(agent, "cat /etc/rancher/k3s/config.yaml; systemctl is-active k3s-agent")


def test_unknown_names_are_refused_with_those_that_exist(lab: Lab) -> None:
    refused(lab.checkout.fleet("lab", "up", "nowhere"), "no site nowhere", "franca, sp")
    refused(lab.checkout.fleet("lab", "kubectl", "nowhere", "--", "get", "nodes"), "no cluster nowhere", "gpu-sp")
    refused(lab.checkout.fleet("lab", "ssh", "nowhere"), "no guest nowhere", "vm-sp-01")


def test_a_second_update_at_the_same_time_is_refused(lab: Lab) -> None:
    with (lab.checkout.place.root / "update.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(lab.checkout.fleet("lab", "up", "--no-guard", "sp"), "another command is updating the lab", "wait")


def test_a_machine_without_namespaces_is_told_apart(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    shadow = tmp_path / "bin/unshare"
    shadow.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    shadow.chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{checkout.environment['PATH']}"
    ran = checkout.fleet("lab", "up", PATH=path, FLEET_LAB_DIR=str(tmp_path / "lab"))
    refused(ran, "refuses the namespaces", "Operation not permitted", "allow")
    assert not (tmp_path / "lab/run/daemon.json").exists()


def test_a_disk_that_is_too_small_is_told(checkout: Checkout, tmp_path: Path) -> None:
    """On a file system of its own, which only the command sees."""
    small = tmp_path / "small"
    small.mkdir()
    flags = [] if os.geteuid() == 0 else ["-U", "-r"]
    script = 'mount -t tmpfs -o size=200m tmpfs "$0" && FLEET_LAB_DIR="$0/lab" exec "$1" lab up'
    command = ["unshare", *flags, "-m", "sh", "-c", script, str(small), str(checkout.root / "fleet")]
    with checkout.run(command) as running:
        refused(running.ended(120), "GiB free; expected at least 1 GiB", "free some space")
