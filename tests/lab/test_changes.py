"""Changes of a living site: what rolls, server by server behind its API address, and what stops."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from infra.k3s import settings
from lab import control
from lab.engine import Engine
from tests.lab.conftest import WHOLE, Checkout, Document, Lab, eventually, summaries

pytestmark = pytest.mark.lab

SNAPSHOTS = "/var/lib/rancher/k3s/server/db/snapshots"
SERVERS = ("vm-cpps-02", "vm-cpps-03", "vm-cpps-04")
VIP = "192.168.0.20"
LABEL, ARGUMENT = {"rack": "r1"}, "max-pods=150"
LONGEST_GAP_S = 15.0
POLLER = """
import base64, os, ssl, sys, time, urllib.request, yaml
config = yaml.safe_load(open(sys.argv[1]))
cluster, token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
request = urllib.request.Request(cluster["server"] + "/readyz", headers={"Authorization": "Bearer " + token})
until = time.monotonic() + 400
while not os.path.exists(sys.argv[2]) and time.monotonic() < until:
    try:
        with urllib.request.urlopen(request, timeout=2, context=context) as answer:
            good = answer.read() == b"ok"
    except OSError:
        good = False
    print(time.monotonic(), int(good), flush=True)
    time.sleep(0.3)
"""


@contextmanager
def polled(checkout: Checkout, cluster: str) -> Iterator[list[tuple[float, bool]]]:
    """Asks /readyz through the cluster's address all the while; the list is filled at the end."""
    stop, out = checkout.root.parent / "stop-polling", checkout.root.parent / "polled.txt"
    stop.unlink(missing_ok=True)
    found: list[tuple[float, bool]] = []
    kubeconfig = str(checkout.place.kubeconfigs / f"{cluster}.yaml")
    command = control.inside(checkout.place.root, [sys.executable, "-c", POLLER, kubeconfig, str(stop)])
    with out.open("w") as file, subprocess.Popen(command, stdout=file, stdin=subprocess.DEVNULL) as poller:
        try:
            yield found
        finally:
            stop.touch()  # no signal passes nsenter
            poller.wait(30)
    pairs = (line.split() for line in out.read_text().splitlines())
    found += [(float(when), good == "1") for when, good in pairs]


def gaps(answers: list[tuple[float, bool]]) -> list[float]:
    """Lengths of the times without an answer, in seconds."""
    lengths, last_good = [], answers[0][0]
    for before, (when, good) in zip([True, *(good for _, good in answers)], answers, strict=False):
        if good:
            if not before:
                lengths.append(when - last_good)
            last_good = when
    if not answers[-1][1]:
        lengths.append(answers[-1][0] - last_good)
    return lengths


def last_start(checkout: Checkout, node: str) -> tuple[datetime, datetime]:
    """From the journal: when K3s began its latest start, and when it was up."""
    began = up = None
    for line in checkout.ssh(node, "journalctl -u k3s --no-pager -o cat").splitlines():
        if line.startswith("time="):
            when = datetime.fromisoformat(line.split('"')[1].replace("Z", "+00:00"))
            if "Starting k3s v" in line:
                began, up = when, None
            elif "k3s is up and running" in line:
                up = when
    assert began is not None, node
    assert up is not None, node
    return began, up


def holder(checkout: Checkout) -> str:
    lease = checkout.get("cluster-fca", "lease", "-n", "kube-system", "plndr-cp-lock")
    return str(lease["spec"]["holderIdentity"])


def test_a_changed_label_and_kubelet_argument_roll_server_by_server(lab: Lab) -> None:
    checkout = lab.checkout

    def change(document: Document) -> None:
        document["clusters"]["cluster-fca"] |= {"node_labels": LABEL, "kubelet_args": [ARGUMENT]}

    checkout.edit("franca", change)
    began = datetime.now(UTC).replace(microsecond=0)
    with polled(checkout, "cluster-fca") as answers:
        out = checkout.ok("lab", "up", "--no-guard", "franca")
    updated = [line.split()[2] for line in out.splitlines() if ": updated k3s-cluster-fca-server-" in line]
    assert updated == [f"k3s-cluster-fca-server-{name}" for name in SERVERS], out

    assert len(answers) > 20, answers
    lost = gaps(answers)
    print(f"{len(answers)} requests, times without an answer: {[round(gap, 1) for gap in lost]}")
    assert max(lost, default=0) <= LONGEST_GAP_S, lost

    starts = [last_start(checkout, name) for name in SERVERS]
    assert began <= starts[0][0], (began, starts)
    for (_, up), (next_began, _) in pairwise(starts):
        assert up <= next_began, starts

    for name, node in checkout.nodes("cluster-fca").items():
        assert LABEL.items() <= node["metadata"]["labels"].items(), name
        assert f'- "{ARGUMENT}"' in checkout.ssh(name, "cat /etc/rancher/k3s/config.yaml")

    for name in SERVERS:  # BKP-01: saved on each server before anything of it changed
        (snapshot,) = checkout.ssh(name, f"ls {SNAPSHOTS}/fleet-before-roll-*").split()
        assert checkout.ssh(name, WHOLE.format(file=snapshot)).strip() == "whole"
        changed = checkout.ssh(name, "stat -c %Y /etc/rancher/k3s/config.yaml")
        assert int(snapshot.rpartition("-")[2]) <= int(changed), name


def test_the_api_address_moves_when_its_holder_is_killed(lab: Lab) -> None:
    checkout = lab.checkout
    killed = holder(checkout)
    assert killed in SERVERS
    checkout.ask("kill-node", killed)
    try:
        ready = lambda: checkout.answers(VIP) and checkout.try_kubectl("cluster-fca", "get", "--raw", "/readyz") == "ok"  # noqa: E731  # one use
        eventually(ready, 30, lambda: f"no ready API at {VIP} after {killed} was killed")
        assert holder(checkout) != killed
    finally:
        checkout.ask("start-node", killed)
    eventually(lambda: checkout.all_ready("cluster-fca"), 90, lambda: checkout.kubectl("cluster-fca", "get", "nodes"))


def test_a_changed_pod_range_stops_and_changes_nothing(lab: Lab) -> None:
    checkout = lab.checkout
    look = "cat /etc/rancher/k3s/config.yaml; systemctl show -p MainPID k3s"
    before = checkout.ssh("vm-sp-01", look)

    def change(document: Document) -> None:
        document["clusters"]["cluster-sp"]["pod_cidr"] = "10.60.0.0/16"
        document.setdefault("accept", {})["NET-07"] = "a test of what stops"

    with checkout.edited("sp", change):
        ran = checkout.fleet("lab", "up", "sp")
        # Without the guard, as under a plain `pulumi up`, the node's own script is the second line of defence.
        said: list[str] = []
        code = Engine(checkout.place, checkout.toolchain).run("up", "sp", said.append)
    assert ran.code == 1, ran.out
    assert code == 1, said
    plain = " ".join(" ".join(said).split())
    for text, id in ((ran.text, "[GRD-04]"), (plain, "[K3S-09] vm-sp-01")):
        for expected in (id, "cluster-cidr", "10.42.0.0/16", "10.60.0.0/16", "docs/operacoes/k3s-rebuild.md"):
            assert expected in text, text
    assert "Traceback" not in ran.out
    assert checkout.ssh("vm-sp-01", look) == before
    again = checkout.ok("lab", "up", "--no-guard", "sp")
    assert "unchanged" in summaries(again)["sp"], again
    assert checkout.ssh("vm-sp-01", look) == before
    assert settings.FROZEN[0] == "cluster-cidr"
