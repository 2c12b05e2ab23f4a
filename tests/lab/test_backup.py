"""Backups on a living site: `fleet backup` as a person runs it, and etcd saved before each server of a roll."""

import re

import pytest
import yaml

from tests.lab.conftest import Document, Lab

pytestmark = pytest.mark.lab

SERVERS = ("vm-cpps-02", "vm-cpps-03", "vm-cpps-04")
SNAPSHOTS = "/var/lib/rancher/k3s/server/db/snapshots"
# A snapshot of etcd ends with the SHA-256 of what stands before it.
WHOLE = (
    'f={file}; n=$(($(wc -c <"$f") - 32)); '
    'test "$(head -c "$n" "$f" | sha256sum | cut -d " " -f 1)" = '
    '"$(tail -c 32 "$f" | od -An -v -tx1 | tr -d " \\n")" && echo whole'
)


def saved(lab: Lab, node: str, name: str) -> list[str]:
    """Paths of the snapshots on a server, oldest first."""
    return lab.checkout.ssh(node, f"ls -tr {SNAPSHOTS}/{name}-* 2>/dev/null || true").split()


def test_bkp_01_backup_saves_etcd_over_ssh_and_records_it(lab: Lab) -> None:
    ran = lab.checkout.fleet("lab", "run", "--", "backup", "franca")
    assert "etcd/cluster-fca etcd-snapshot vm-cpps-" in ran.text
    assert "PRIVATE KEY" not in ran.out
    path = lab.checkout.place.work / "evidence" / "franca.yaml"
    (entry,) = [one for one in yaml.safe_load(path.read_text())["evidence"] if one["what"] == "etcd/cluster-fca"]
    node, _, file = entry["reference"].partition(":")
    assert entry["kind"] == "etcd-snapshot"
    assert lab.checkout.ssh(node, WHOLE.format(file=file)).strip() == "whole"


def test_bkp_01_a_roll_saves_etcd_on_each_server_before_it_restarts(lab: Lab) -> None:
    def change(document: Document) -> None:
        document["clusters"]["cluster-fca"]["api"]["tls_sans"] = ["backup.example.org"]

    before = {node: saved(lab, node, "fleet-before-roll") for node in SERVERS}
    with lab.checkout.edited("franca", change):
        lab.checkout.ok("lab", "up", "franca")
    for node in SERVERS:
        new = [file for file in saved(lab, node, "fleet-before-roll") if file not in before[node]]
        assert len(new) == 1, node
        assert lab.checkout.ssh(node, WHOLE.format(file=new[0])).strip() == "whole"
        taken = int(re.findall(r"-(\d+)$", new[0])[0])
        started = lab.checkout.ssh(node, "stat -c %Y /etc/rancher/k3s/config.yaml")
        assert taken <= int(started), "before anything of the server changed"
