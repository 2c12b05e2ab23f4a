"""Runbooks of the migration: their order, their shell, and that every name and address is the document's."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.faults import Stop
from cli.runbooks import text
from cli.steps import blocks
from infra.config import Fleet
from tests.cli import project
from tests.rules.documents import faults_of, patched, shipped
from tests.sites import Documents, adopted, all_new

NODES = {"vm-cpps-02": "192.168.0.12", "vm-cpps-03": "192.168.0.13", "vm-cpps-04": "192.168.0.14"}
TOPICS = ("cni-migration", "cni-rollback", "proxy-cutover")
FLANNEL = {"runs": "server", "datastore": "etcd", "flannel_backend": "host-gw", "disable": ["traefik"]}


def third(documents: Documents) -> None:
    """The invented site runs Flannel on servers that people made, and its proxy still serves."""
    site = documents["norte"]
    site["migration"] = {"from_flannel": True, "mode": "in_place"}
    for name in ("north-a", "north-b"):
        site["guests"][name] |= {"existing": True, "current": dict(FLANNEL), "ssh_user": "admin"}
    site["traefik"]["legacy_proxy"] = "old-proxy"
    site["unmanaged_guests"] = {"old-proxy": {"vmid": 9500, "address": "172.22.64.90", "remark": "a proxy"}}


def rebuilding(documents: Documents) -> None:
    documents["franca"]["migration"]["mode"] = "rebuild"


def handed_over(documents: Documents) -> None:
    for guest in documents["franca"]["guests"].values():
        if guest.get("existing"):
            guest["current"]["managed"] = True


FLEETS: dict[str, tuple[Fleet, str]] = {
    "franca": (adopted(), "franca"),
    "rebuild": (adopted(rebuilding), "franca"),
    "third": (adopted(third), "norte"),
}
PAGES = [(which, topic) for which in FLEETS for topic in TOPICS]


def page(which: str, topic: str) -> str:
    fleet, site_id = FLEETS[which]
    return text(fleet, site_id, topic)


def steps(printed: str) -> dict[int, str]:
    """Text of each numbered step."""
    parts = re.split(r"^## (\d+)\. ", printed, flags=re.MULTILINE)
    return {int(number): body for number, body in zip(parts[1::2], parts[2::2], strict=True)}


def nodes_of(shell: str) -> list[str]:
    return re.findall(r"^ssh \S+@(\S+) sudo sh", shell, re.MULTILINE)


@pytest.mark.parametrize(("which", "topic"), PAGES)
def test_every_block_passes_shellcheck_as_do_the_scripts_that_it_sends(which: str, topic: str, tmp_path: Path) -> None:
    found = blocks(page(which, topic))
    assert len(found) > 5
    for number, block in enumerate(found):
        (tmp_path / f"{number}.sh").write_text(f"#!/bin/sh\n{block}\n")
        for place, sent in enumerate(re.findall(r"<<'EOF'\n(.*?)\nEOF$", block, re.DOTALL | re.MULTILINE)):
            (tmp_path / f"{number}-{place}.sh").write_text(f"#!/bin/sh\n{sent}\n")
    program = Path(sys.executable).parent / "shellcheck"
    files = sorted(tmp_path.glob("*.sh"))
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("which", "topic"), PAGES)
def test_steps_are_numbered_and_each_says_what_to_do_when_it_fails(which: str, topic: str) -> None:
    found = steps(page(which, topic))
    assert list(found) == list(range(1, len(found) + 1))
    last = {"cni-migration": ("Afterwards", "Bring the data"), "proxy-cutover": ("Remove it",)}.get(topic, ())
    for body in found.values():
        assert "If not: " in body or body.startswith(last), body[:80]


@pytest.mark.parametrize(("which", "topic"), PAGES)
def test_lines_that_people_read_have_one_width(which: str, topic: str) -> None:
    prose = re.sub(r"```.*?```", "", page(which, topic), flags=re.DOTALL)
    assert max(len(line) for line in prose.splitlines() if not line.startswith("-")) <= 120


def test_mig_03_servers_change_one_after_another_before_the_program_and_cilium() -> None:
    found = steps(page("franca", "cni-migration"))
    heads = [body.splitlines()[0] for body in found.values()]
    assert heads == [
        "Every server there",
        "The way back, printed now",
        "Backups",
        *(f"Server {name} ({address})" for name, address in NODES.items()),
        "The document",
        "Cilium",
        "Back to work",
        "Checks",
        "Afterwards",
    ]
    for number, (name, address) in enumerate(NODES.items(), 4):
        body = found[number]
        order = ["EtcdIsVoter", f"kubectl drain {name} ", "90-cilium.yaml", "systemctl stop k3s", "is ready and votes"]
        places = [body.index(part) for part in order]
        assert places == sorted(places)
        by, *own = nodes_of(body)
        assert by != address, "a server that restarts does not answer"
        assert own == [address] * 3
    ups = [number for number, body in found.items() if "./fleet up" in body]
    assert ups == [1, 8], "no server joins while the flags differ"


def test_mig_03_what_it_writes_down_is_accepted_by_the_rules() -> None:
    """Both edits of the document, as printed."""
    edits = [
        yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", page("franca", "cni-migration"), re.DOTALL)
    ]
    first, second = edits
    documents = patched(
        shipped(),
        {"franca.migration.window": "one night", "franca.migration.snapshots": first["migration"]["snapshots"]},
    )
    known = {(fault.id, fault.path) for fault in faults_of(shipped())}
    assert {(fault.id, fault.path) for fault in faults_of(documents)} <= known
    after: dict[str, Any] = {f"franca.guests.{name}.current": one["current"] for name, one in second["guests"].items()}
    assert len(after) == 2
    assert {one["flannel_backend"] for one in after.values()} == {"none"}
    assumed = [path for path in documents["franca"]["assumed"] if path != "migration.mode"]
    changed = patched(documents, {**after, "franca.migration": second["migration"], "franca.assumed": assumed})
    assert {(fault.id, fault.path) for fault in faults_of(changed)} <= known


def test_mig_04_draining_is_called_no_way_back_and_the_way_back_comes_before_the_window() -> None:
    printed = page("franca", "cni-migration")
    assert "A drain is no way back." in " ".join(printed.split())
    assert "./fleet runbook franca cni-rollback" in steps(printed)[2]


@pytest.mark.parametrize("which", ["franca", "third"])
def test_mig_05_the_way_back_has_its_six_steps_in_order(which: str) -> None:
    found = steps(page(which, "cni-rollback"))
    assert len(found) == 6
    fleet, site_id = FLEETS[which]
    site = fleet.sites[site_id]
    cluster = next(one for one in site.clusters.values() if one.role == "main")
    addresses = [str(site.guests[name].address) for name in cluster.servers]
    workers = [str(site.guests[name].address) for name in cluster.agents]
    assert nodes_of(found[1]) == addresses, "flags on each server"
    for flag in ("--flannel-backend=none", "--disable-network-policy", "--disable=servicelb"):
        assert flag in found[1]
    assert "helm uninstall cilium -n kube-system" in found[2]
    assert list(dict.fromkeys(nodes_of(found[3]))) == [*addresses, *workers], "servers, then workers"
    assert found[3].count("systemctl start --no-block k3s\n") == len(addresses)
    assert found[3].count("systemctl start --no-block k3s-agent\n") == len(workers)
    assert "get pods -A --field-selector status.phase!=Running" in found[4]
    assert "delete pod" not in found[4]
    assert "delete pod" in found[5]
    assert re.findall(r"qm (\w+) \d+", found[6]) == [
        verb for verb in ("stop", "rollback", "start") for _ in addresses
    ], "all down, all back, all up"


@pytest.mark.parametrize(("which", "backend"), [("franca", "vxlan"), ("third", "host-gw")])
def test_mig_02_the_way_back_leads_to_the_backend_that_was_written_down(which: str, backend: str) -> None:
    assert f"""printf 'flannel-backend: "%s"\\n' "{backend}" >""" in steps(page(which, "cni-rollback"))[1]


def test_mig_05_servicelb_comes_back_only_where_it_was_on() -> None:
    assert "servicelb" not in "\n".join(blocks(page("franca", "cni-rollback")))
    assert '"?servicelb"?$/d' in "\n".join(blocks(page("third", "cni-rollback")))
    assert '  - "servicelb"\n  - "traefik"\nYAML' in page("third", "cni-migration")


def test_mig_06_the_way_back_says_what_its_steps_miss() -> None:
    found = steps(page("franca", "cni-rollback"))
    assert "also lists Completed and Pending Pods" in found[4]
    assert "misses crash-looping ones" in found[4]
    assert "CNI configuration, BPF programs and iptables rules may stay" in found[2]
    assert "One etcd member alone with an older state is unsafe" in " ".join(found[6].split())


@pytest.mark.parametrize("which", ["franca", "rebuild", "third"])
def test_mig_07_connectivity_flows_and_pods_are_checked(which: str) -> None:
    printed = page(which, "cni-migration")
    for part in ("cilium connectivity test", "hubble observe", "pods=$(k3s kubectl get pods -A --no-headers)"):
        assert part in printed


def test_mig_08_the_proxy_moves_route_by_route_and_goes_last() -> None:
    found = steps(page("third", "proxy-cutover"))
    assert [body.splitlines()[0] for body in found.values()] == [
        "Backups, the router's first",
        "Routes",
        "Traefik answers",
        "The port forward",
        "The old K3s stops, and stays",
        "Remove it",
    ]
    assert "vyos@172.22.64.1" in found[1]
    assert "qm snapshot 9500" in found[1]
    assert "--resolve" in found[3]
    assert "172.22.67.4" in found[4]
    assert 'ssh "root@172.22.64.90" systemctl disable --now k3s' in found[5]
    assert "qm destroy" not in page("third", "proxy-cutover")


def test_what_is_missing_is_listed_before_anything_else() -> None:
    head = page("franca", "cni-migration").split("## 1.")[0]
    missing = re.findall(r"^- MISSING ([A-Z]+-\d+)", head, re.MULTILINE)
    assert missing == ["MIG-02", "BKP-04", "GEN-07"]
    assert "vm-cpps-02, vm-cpps-03, vm-cpps-04" in head

    ready = adopted(prepared)
    head = text(ready, "franca", "cni-migration").split("## 1.")[0]
    assert "MISSING" not in head


def prepared(documents: Documents) -> None:
    site = documents["franca"]
    site["migration"] |= {"window": "one night", "snapshots": dict.fromkeys(NODES, "before")}
    documents["common"]["assumed"] = site["assumed"] = []


def test_snapshots_of_the_document_are_those_of_the_last_step() -> None:
    printed = steps(text(adopted(prepared), "franca", "cni-rollback"))[6]
    assert [f"echo qm rollback 10{n + 1} before | ssh root@pve-labri-3{n}" in printed for n in (1, 2, 3)] == [True] * 3


def test_in_place_needs_servers_that_people_keep() -> None:
    """A server that was handed over is the program's, which refuses another CNI."""
    head = text(adopted(handed_over), "franca", "cni-migration").split("## 1.")[0]
    assert "MISSING MIG-03" in head


def test_the_rebuild_removes_agents_first_and_the_first_server_last() -> None:
    found = steps(page("rebuild", "cni-migration"))
    assert nodes_of(found[3]) == list(reversed(NODES.values()))
    assert "There is no way back but the backups." in " ".join(page("rebuild", "cni-migration").split())
    assert "current: {runs: nothing}" in found[4]


def test_every_address_and_name_of_a_third_site_is_its_own() -> None:
    for topic in TOPICS:
        printed = page("third", topic)
        assert not re.search(r"192\.168\.|vm-cpps|cluster-fca|franca|\bsp\b", printed), topic
        assert "172.22." in printed
    assert "ssh admin@172.22.64.21" in page("third", "cni-migration")
    assert "Agent north-d (172.22.64.24)" in page("third", "cni-migration")


def test_a_site_that_has_nothing_to_move_is_told_so() -> None:
    fleet = adopted()
    for topic in TOPICS:
        with pytest.raises(Stop, match="site sp"):
            text(fleet, "sp", topic)
    new = project.fleet("runbook", "sp", "cni-migration")
    assert new.code == 1
    assert "migration.from_flannel" in new.text


def test_the_command_prints_each_topic() -> None:
    for topic in TOPICS:
        ran = project.fleet("runbook", "franca", topic)
        assert ran.code == 0
        assert ran.out.startswith("# ")


def test_a_cluster_that_never_ran_flannel_has_no_way_back() -> None:
    def edit(documents: Documents) -> None:
        all_new(documents)
        documents["franca"]["migration"] = {"from_flannel": False}

    with pytest.raises(Stop, match="ever ran Flannel"):
        text(adopted(edit), "franca", "cni-rollback")


@pytest.mark.parametrize("topic", ["cni-migration", "cni-rollback"])
@pytest.mark.parametrize("site", [{"guests": {}}, {"clusters": {}}], ids=lambda edit: next(iter(edit)))
def test_a_cluster_that_the_document_does_not_hold_has_no_runbook(topic: str, site: dict[str, Any]) -> None:
    fleet = adopted(lambda found: found["franca"].update(site))
    with pytest.raises(Stop, match="fleet check"):
        text(fleet, "franca", topic)


def test_bkp_04_the_name_of_a_snapshot_reaches_the_host_as_one_word(tmp_path: Path) -> None:
    odd = "it's $(touch ran) two"

    def edit(found: Documents) -> None:
        found["franca"]["migration"]["snapshots"] = dict.fromkeys(NODES, odd)

    [line] = [line for line in text(adopted(edit), "franca", "cni-rollback").splitlines() if "qm rollback 102" in line]
    there = "#!/bin/sh\nqm() { printf '%s\\n' \"$@\"; }\n. /dev/stdin\n"
    (tmp_path / "host").write_text(there)
    done = subprocess.run(
        ["sh", "-c", re.sub(r"ssh \S+ sh -s", "sh ./host", line)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["rollback", "102", odd]
    assert not (tmp_path / "ran").exists()
