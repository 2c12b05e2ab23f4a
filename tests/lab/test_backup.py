"""Backups on a living site: `fleet backup` as a person runs it. The snapshots of a roll are seen where one is."""

import pytest
import yaml

from tests.lab.conftest import WHOLE, Lab

pytestmark = pytest.mark.lab


def test_bkp_01_backup_saves_etcd_over_ssh_and_records_it(lab: Lab) -> None:
    ran = lab.checkout.fleet("lab", "run", "--", "backup", "franca")
    assert "etcd/cluster-fca etcd-snapshot vm-cpps-" in ran.text
    assert "PRIVATE KEY" not in ran.out
    path = lab.checkout.place.work / "evidence" / "franca.yaml"
    (entry,) = [one for one in yaml.safe_load(path.read_text())["evidence"] if one["what"] == "etcd/cluster-fca"]
    node, _, file = entry["reference"].partition(":")
    assert entry["kind"] == "etcd-snapshot"
    assert lab.checkout.ssh(node, WHOLE.format(file=file)).strip() == "whole"
