"""The runbook of the migration, followed step by step on the guests that were there before: it ends with Cilium.

Each block of shell runs as it is printed, through the lab's SSH; commands of `./fleet` run as those of the lab. Left
out is what asks an agent of Cilium: nothing answers there, its Pods are stand-ins. It takes minutes, so `fleet test`
leaves it out; `tests/cli/test_runbook_shell.py` tries blocks of the way back and others against stand-in commands.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.made_up import private_file
from tests.lab.conftest import Checkout, Document, Ran, eventually

pytestmark = [pytest.mark.lab, pytest.mark.rehearsal]

CLUSTER = "cluster-fca"
SERVERS = ("vm-cpps-02", "vm-cpps-03", "vm-cpps-04")
ASKS_AN_AGENT = ("cilium status", "exec daemonset/cilium")
STEP = re.compile(r"^## (\d+)\. ", re.MULTILINE)


@pytest.fixture(scope="module")
def franca(checkout: Checkout) -> Iterator[Checkout]:
    """Franca beside its existing guests, its third server joined."""
    before = checkout.stack_file("franca").read_bytes()
    checkout.ok("lab", "up", "franca")
    yield checkout
    checkout.stack_file("franca").write_bytes(before)


def shim(checkout: Checkout) -> Path:
    """An `ssh` with the lab's key."""
    known = yaml.safe_load(checkout.place.secrets.read_text())["franca"]
    folder = checkout.root.parent / "shim"
    folder.mkdir(exist_ok=True)
    private_file(folder / "key", known["ssh_private_key"])
    options = "-o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no -o LogLevel=ERROR -o IdentitiesOnly=yes"
    text = f'#!/bin/sh\nexec /usr/bin/ssh -i {shlex.quote(str(folder / "key"))} {options} "$@"\n'
    (folder / "ssh").write_text(text)
    (folder / "ssh").chmod(0o755)
    return folder


def follow(checkout: Checkout, kind: str, block: str, path: Path, keys: list[str]) -> str | None:
    """Does what a block says; None where the lab cannot."""
    if kind == "yaml":
        checkout.edit(
            "franca", lambda document: write_down(document, yaml.safe_load(block.replace("<", "").replace(">", "")))
        )
        return ""
    if any(part in block for part in ASKS_AN_AGENT):
        return None
    if "./fleet" in block:
        said = []
        for line in block.splitlines():
            words = line.split()
            if words[:2] == ["./fleet", "up"]:
                accepted = [part for key in keys for part in ("--accept", f"{key}=cni-migration")]
                said.append(checkout.ok("lab", *words[1:], *accepted))
                keys.clear()
            elif words[:2] == ["./fleet", "preview"]:
                keys += stopped(checkout.fleet("lab", *words[1:]))
            elif words[:2] == ["./fleet", "backup"]:
                said.append(checkout.ok("lab", "run", "--", *words[1:]))
            elif words[:2] == ["./fleet", "check"]:
                said.append(checkout.ok("check"))
        return "\n".join(said)
    return checkout.inside(["env", f"PATH={path}:/usr/bin:/bin", "sh", "-c", block], timeout_s=420)


def stopped(ran: Ran) -> list[str]:
    """Keys of what the guard stopped a preview at; it may be the flags of the CNI alone."""
    stops, keys = re.findall(r"STOP \[(\S+)\]", ran.text), re.findall(r"--accept '(\S+?)=", ran.text)
    assert ran.code == (1 if stops else 0), ran.out
    assert set(stops) <= {"GRD-04"}
    assert len(keys) == len(stops)
    return keys


def write_down(document: Document, change: dict[str, Any]) -> None:
    for name, guest in change.get("guests", {}).items():
        document["guests"][name] |= guest
    # Confirmed long before a real window: nothing is assumed there.
    document["assumed"] = [path for path in document["assumed"] if path != "migration.mode"]
    mode = {"mode": "in_place"} if "window" in change["migration"] else {}
    document["migration"] = {"from_flannel": "window" in change["migration"], **mode, **change["migration"]}


def config(checkout: Checkout, node: str) -> dict[str, Any]:
    files = "cat /etc/rancher/k3s/config.yaml /etc/rancher/k3s/config.yaml.d/*.yaml 2>/dev/null || true"
    lines = checkout.ssh(node, f"sudo sh -c '{files}'").splitlines()
    return {key: value.strip(' "') for key, _, value in (line.partition(":") for line in lines) if value}


def test_mig_03_the_runbook_leads_from_flannel_to_cilium(franca: Checkout) -> None:
    text = franca.ok("runbook", "franca", "cni-migration")
    assert [int(number) for number in STEP.findall(text)] == list(range(1, 12))
    path, skipped, keys, asked = shim(franca), [], list[str](), 0
    assert all("flannel-backend" not in config(franca, node) for node in SERVERS)

    for kind, block in re.findall(r"^```(sh|yaml)\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE):
        said = follow(franca, kind, block, path, keys)
        asked = max(asked, len(keys))
        if said is None:
            skipped.append(block)
    assert len(skipped) == 2
    assert (asked, keys) == (3, []), "the flags of the one server of the program, and nothing afterwards"

    eventually(lambda: franca.all_ready(CLUSTER), 120, lambda: franca.try_kubectl(CLUSTER, "get", "nodes"))
    nodes = franca.nodes(CLUSTER)
    assert sorted(nodes) == list(SERVERS)
    assert not [name for name, node in nodes.items() if node["spec"].get("unschedulable")]
    releases = franca.get(CLUSTER, "secrets", "-A", "-l", "owner=helm")["items"]
    assert {release["metadata"]["labels"]["name"] for release in releases} == {"cilium"}
    for node in SERVERS:
        assert config(franca, node)["flannel-backend"] == "none", node
        assert config(franca, node)["disable-network-policy"] == "true", node
    # The program's own server has its flags where the program writes them, the others where the runbook did.
    drop_ins = {node: franca.ssh(node, "sudo ls /etc/rancher/k3s/config.yaml.d").split() for node in SERVERS}
    assert drop_ins == {"vm-cpps-02": ["90-cilium.yaml"], "vm-cpps-03": ["90-cilium.yaml"], "vm-cpps-04": []}


def test_mig_03_afterwards_nothing_is_left_to_change(franca: Checkout) -> None:
    out = franca.ok("lab", "up", "franca")
    assert re.search(r"franca: \d+ unchanged in", out), out


def test_the_status_shows_what_the_api_server_has_of_bgp_and_the_mesh(franca: Checkout) -> None:
    found = json.loads(franca.ok("lab", "status", "--json"))["clusters"][CLUSTER]["peering"]
    assert found["bgp"] == ["AS 65001 to 192.168.0.1 AS 65001"]
    assert found["advertised"] == ["PodCIDR", "Service, LoadBalancerIP"]
    fixed = [f"fixed 192.168.0.{last}" for last in (240, 241, 242)]
    assert found["pools"] == [*fixed, "site 192.168.0.243 to 192.168.0.250"]
    assert "bgp AS 65001 to 192.168.0.1 AS 65001" in franca.ok("lab", "status")
