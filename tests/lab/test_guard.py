"""The guard on running sites: each stop staged in the documents, told, and Proxmox untouched; then the way through.

A site's faults are staged together where they do not hide each other: a preview is what costs.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from infra.acknowledged import OUTPUT
from infra.config.loading import COMMON_KEY, PROJECT_FILE
from infra.names import CILIUM_CA_CERT, CILIUM_CA_KEY
from lab.engine import Engine
from lab.made_up import private_file
from tests.lab.conftest import Checkout, Document, Lab, Ran, eventually

pytestmark = pytest.mark.lab

NEWER, OLDER = "v1.34.1+k3s1", "v1.31.9+k3s1"
REBUILT_VMID = 204
AGENT = "k3s-cluster-sp-agent-vm-sp-02"
AHEAD = f'''
import pulumi


def _ahead(args):
    if args.name == "{AGENT}":
        text = pulumi.Output.from_input(args.props["stdin"])
        args.props["stdin"] = text.apply(lambda stdin: stdin.replace("v1.32.13", "v1.33.1"))
    return pulumi.ResourceTransformationResult(args.props, args.opts)


pulumi.runtime.register_stack_transformation(_ahead)
'''


def proxmox(checkout: Checkout) -> dict[str, Any]:
    """Config of every guest that the Proxmox fakes have, by site and VMID."""
    found: dict[str, Any] = {}
    secrets = json.loads(checkout.place.secrets.read_text())
    for site in ("franca", "sp"):
        header = checkout.root.parent / f"header-{site}"
        known = secrets[site]
        private_file(header, f"Authorization: PVEAPIToken={known['api_token_id']}={known['api_token_secret']}\n")
        endpoint = checkout.document(site)["proxmox"]["endpoint"].rstrip("/")

        def get(path: str, header: Any = header, endpoint: str = endpoint) -> Any:
            url = f"{endpoint}/api2/json/{path}"
            return json.loads(checkout.inside(["curl", "-ksSf", "--max-time", "20", "-H", f"@{header}", url]))["data"]

        for one in get("cluster/resources?type=vm"):
            path = f"nodes/{one['node']}/{one['type']}/{one['vmid']}"
            found[f"{site}/{one['vmid']}"] = {"host": one["node"], "status": one["status"], **get(f"{path}/config")}
    return found


def run(checkout: Checkout, *arguments: str) -> Ran:
    return checkout.fleet("lab", "run", "--", *arguments)


def stops(ran: Ran) -> set[tuple[str, str]]:
    """Rule and resource of each stop that a run printed."""
    return {(match[1], match[2]) for match in re.finditer(r"STOP \[(GRD-\d\d)\] (\S+)", ran.text)}


def keys(ran: Ran) -> list[str]:
    return re.findall(r"--accept '(GRD-\d\d-[0-9a-f]{8})=reason'", ran.text)


def stopped(checkout: Checkout, site: str) -> Ran:
    """A real try to update; nothing of it may reach Proxmox."""
    before = proxmox(checkout)
    ran = run(checkout, "up", site, "--yes")
    assert ran.code == 1, ran.out
    assert f"{site}: nothing was changed." in ran.text, ran.out
    assert "Traceback" not in ran.out
    assert proxmox(checkout) == before
    return ran


def accept(document: Document, *rules: str) -> None:
    document.setdefault("accept", {}).update(dict.fromkeys(rules, "a test of the guard"))


@contextmanager
def edited_file(checkout: Checkout, name: str, change: Callable[[str], str]) -> Iterator[None]:
    path = checkout.root / name
    before = path.read_text()
    path.write_text(change(before))
    try:
        yield
    finally:
        path.write_text(before)


def more_releases(text: str) -> str:
    data = yaml.safe_load(text)
    sums = data["config"][COMMON_KEY]["value"]["k3s_checksums"]
    known = next(iter(sums.values()))
    sums |= {NEWER: dict(known), OLDER: dict(known)}
    return yaml.safe_dump(data, sort_keys=False)


def test_disks_versions_and_ranges(lab: Lab) -> None:
    grown: list[int] = []

    def change(document: Document) -> None:
        (disk,) = document["guests"]["vm-sp-02"]["disks"]
        grown.append(disk["size_gib"])  # what an earlier test may have made of it
        disk["size_gib"] = 50
        document["clusters"]["gpu-sp"] |= {"service_cidr": "10.153.0.0/16", "k3s_version": NEWER}
        document["clusters"]["cluster-sp"]["k3s_version"] = OLDER

    checkout = lab.checkout
    with edited_file(checkout, PROJECT_FILE, more_releases), checkout.edited("sp", change):
        ran = stopped(checkout, "sp")
    assert stops(ran) == {
        ("GRD-02", "guest-vm-sp-02-vm"),
        ("GRD-04", "k3s-gpu-sp-server-gpu-sp-01"),
        ("GRD-07", "k3s-gpu-sp-server-gpu-sp-01"),
        ("GRD-07", "k3s-cluster-sp-server-vm-sp-01"),
        ("GRD-07", AGENT),
    }, ran.out
    for expected in (
        f"scsi0.size in GiB: {grown[0]} -> 50",
        "service-cidr: 10.152.0.0/16 -> 10.153.0.0/16",
        f"k3s_version: v1.32.13+k3s1 -> {NEWER}",
        "go to v1.33 first",
        f"k3s_version: v1.32.13+k3s1 -> {OLDER}",
        "docs/operacoes/k3s-rebuild.md",
    ):
        assert expected in ran.text, ran.out
    assert not keys(ran), ran.out  # for none of these is there a way through but another document


def test_agents_ahead_of_servers(lab: Lab) -> None:
    with edited_file(lab.checkout, "__main__.py", lambda text: text.replace("import pulumi\n", AHEAD, 1)):
        ran = stopped(lab.checkout, "sp")
    assert stops(ran) == {("GRD-07", AGENT)}, ran.out
    assert "servers at v1.32.13+k3s1 -> v1.33.1+k3s1" in ran.text, ran.out


def test_protected_etcd_and_gpu_guests(lab: Lab) -> None:
    def change(document: Document) -> None:
        document["guests"]["vm-sp-01"]["vmid"] = 299
        document["guests"]["gpu-sp-01"]["disk"]["size_gib"] -= 50

    with lab.checkout.edited("sp", change):
        ran = stopped(lab.checkout, "sp")
    assert stops(ran) == {
        ("GRD-01", "guest-vm-sp-01-vm"),
        ("GRD-03", "guest-vm-sp-01-vm"),
        ("GRD-01", "guest-gpu-sp-01-ct"),
        ("GRD-02", "guest-gpu-sp-01-ct"),
    }, ran.out
    for expected in ("vmId: 201 -> 299", "0 of 1 etcd members left", "the GPU work on it ends", "`stateful: false`"):
        assert expected in ran.text, ran.out


def test_two_etcd_members_in_one_run(lab: Lab) -> None:
    def change(document: Document) -> None:
        document["guests"]["vm-cpps-03"]["vmid"] = 193
        document["guests"]["vm-cpps-04"]["vmid"] = 194

    with lab.checkout.edited("franca", change):
        ran = stopped(lab.checkout, "franca")
    assert stops(ran) == {
        ("GRD-01", "guest-vm-cpps-03-vm"),
        ("GRD-01", "guest-vm-cpps-04-vm"),
        ("GRD-03", "guest-vm-cpps-03-vm"),
        ("GRD-03", "guest-vm-cpps-04-vm"),
        ("GRD-06", "cluster-fca"),
    }, ran.out
    assert "cluster-fca: 2 of 3 etcd members left, none may fail" in ran.text, ran.out
    assert "1 of 3 etcd members left: the quorum is lost" in ran.text, ran.out


def test_a_first_server_of_another_name(lab: Lab) -> None:
    def change(document: Document) -> None:
        document["guests"]["vm-cpps-05"] = document["guests"].pop("vm-cpps-02")
        document["clusters"]["cluster-fca"]["servers"] = ["vm-cpps-05", "vm-cpps-03", "vm-cpps-04"]
        accept(document, "PVE-02")

    with lab.checkout.edited("franca", change):
        ran = stopped(lab.checkout, "franca")
    assert {
        ("GRD-01", "guest-vm-cpps-02-vm"),
        ("GRD-03", "guest-vm-cpps-02-vm"),
        ("GRD-05", "k3s-cluster-fca-server-vm-cpps-02"),
        ("GRD-08", "k3s-cluster-fca-api"),
    } == stops(ran), ran.out
    assert "servers: vm-cpps-02 -> vm-cpps-05" in ran.text, ran.out
    assert "name: vm-cpps-02 -> vm-cpps-05" in ran.text, ran.out


def test_servers_in_another_order_replace_the_provider(lab: Lab) -> None:
    def change(document: Document) -> None:
        document["clusters"]["cluster-fca"]["servers"] = ["vm-cpps-03", "vm-cpps-02", "vm-cpps-04"]

    with lab.checkout.edited("franca", change):
        ran = stopped(lab.checkout, "franca")
    assert stops(ran) == {
        ("GRD-05", "k3s-cluster-fca-bootstrap-vm-cpps-02"),
        ("GRD-08", "k3s-cluster-fca-api"),
    }, ran.out
    assert "Cilium among them" in ran.text, ran.out
    assert [key[:6] for key in keys(ran)] == ["GRD-08"], ran.out
    corrected = run(lab.checkout, "preview", "franca")
    assert corrected.code == 0, corrected.out
    assert "guard: no stops." in corrected.text, corrected.out


def test_cilium_identity_goes_through_with_its_key(lab: Lab) -> None:
    checkout = lab.checkout

    def change(document: Document) -> None:
        document["clusters"]["cluster-sp"]["cluster_id"] = 9
        accept(document, "CIL-02")

    with checkout.edited("sp", change):
        ran = stopped(checkout, "sp")
        assert stops(ran) == {("GRD-09", "cilium-cluster-sp-chart")}, ran.out
        assert "values.cluster.id: 2 -> 9" in ran.text, ran.out
        (key,) = keys(ran)
        passed = run(checkout, "preview", "sp", "--accept", f"{key}=all Pods restart in one window")
    assert (passed.code, stops(passed)) == (0, set()), passed.out
    assert "all Pods restart in one window" in passed.text, passed.out


def test_another_ca_than_the_fleets_does_not_even_reach_the_guard(lab: Lab) -> None:
    checkout = lab.checkout
    copy = checkout.place.work / "Pulumi.sp.yaml"
    before = copy.read_text()
    data = yaml.safe_load(before)
    for key in (CILIUM_CA_CERT, CILIUM_CA_KEY):
        data["config"].pop(f"fleet:{key}")
    private_file(copy, yaml.safe_dump(data, sort_keys=False))
    Engine(checkout.place, checkout.toolchain).prepare("sp", {CILIUM_CA_CERT: "another", CILIUM_CA_KEY: "another"})
    try:
        ran = run(checkout, "preview", "sp")
    finally:
        private_file(copy, before)
    assert (ran.code, stops(ran)) == (1, set()), ran.out
    assert "[MSH-03] sp.fleet:ciliumCaCert" in ran.text, ran.out


def test_a_node_without_data_is_rebuilt_with_its_key_and_the_run_is_recorded(lab: Lab) -> None:
    checkout = lab.checkout

    def change(document: Document) -> None:
        document["guests"]["vm-sp-02"]["vmid"] = REBUILT_VMID

    with checkout.edited("sp", change):
        ran = stopped(checkout, "sp")
    assert stops(ran) == {("GRD-03", "guest-vm-sp-02-vm")}, ran.out
    assert "vmId: 202 -> 204" in ran.text, ran.out
    (key,) = keys(ran)
    stale = run(checkout, "up", "sp", "--yes", "--accept", f"{key}=nothing needs it")
    assert (stale.code, "no stop of this plan has that key" in stale.text) == (1, True), stale.out

    checkout.edit("sp", change)  # and so it stays
    checkout.kubectl("cluster-sp", "delete", "node", "vm-sp-02")
    before = proxmox(checkout)
    done = run(checkout, "up", "sp", "--yes", "--accept", f"{key}=the agent holds no data")
    assert done.code == 0, done.out
    after = proxmox(checkout)
    assert before.keys() - after.keys() == {"sp/202"}
    assert after.keys() - before.keys() == {f"sp/{REBUILT_VMID}"}
    assert {vmid: after[vmid] for vmid in before.keys() & after.keys()} == {
        vmid: before[vmid] for vmid in before.keys() & after.keys()
    }
    eventually(lambda: checkout.all_ready("cluster-sp"), 90, lambda: checkout.kubectl("cluster-sp", "get", "nodes"))

    engine = Engine(checkout.place, checkout.toolchain)
    (recorded,) = engine.outputs("sp")[OUTPUT]["runs"]
    assert (recorded["key"], recorded["reason"]) == (key, "the agent holds no data")
    assert recorded["change"] == "vmId: 202 -> 204"
    assert "K3S-05" in engine.outputs("sp")[OUTPUT]["document"]
    again = run(checkout, "up", "sp", "--yes")
    assert again.code == 0, again.out
    assert engine.outputs("sp")[OUTPUT]["runs"] == [recorded]
