"""Brings both sites up beside the guests that were there before, with the engine killed once in each phase."""

import os
import random
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import control
from tests.lab.conftest import Checkout, Ran

EXISTING = {"vm-cpps-02": "franca", "vm-cpps-03": "franca", "gpu-sp-01": "sp"}
TRIGGER_TIMEOUT_S = 150
# Whole of what people wrote on a node, and what K3s keeps for its life. Nothing here changes by itself.
LOOK = """
for folder in /etc /usr/local /root /home /var/lib/fleet /var/lib/rancher/k3s/server/token \
    /var/lib/rancher/k3s/server/tls /var/lib/rancher/k3s/server/cred /var/lib/rancher/k3s/agent/pod-manifests; do
    [ ! -e $folder ] || find $folder -type f -exec sha256sum {} +
done | sort -k 2
pid=$(systemctl show -p MainPID k3s | cut -d = -f 2)
echo "k3s: process $pid, started at $(sed 's/.*) //' /proc/$pid/stat | cut -d ' ' -f 20)"
systemctl show -p NRestarts k3s
"""


@dataclass(frozen=True)
class Phase:
    """A place of an update to be killed at: the engine's own line for a step that begins."""

    name: str
    sites: tuple[str, ...]  # that the run is told to bring up; none: all
    site: str  # whose log has the line
    begins: str  # regular expression
    longest_s: float  # the kill comes at most so long after it


PHASES = (
    Phase("provider registration", ("franca",), "franca", r"providers:proxmoxve \S+ creating", 0.05),
    Phase("import of an existing guest", ("franca",), "franca", r"guest-vm-cpps-0[23]-vm importing", 0.1),
    Phase("creation of a guest", ("franca",), "franca", r"guest-vm-cpps-04-vm creating", 0.8),
    Phase("first contact", ("franca",), "franca", r"guest-vm-cpps-04-contact creating", 0.2),
    Phase("recognition of a running K3s", ("franca",), "franca", r"recognise-vm-cpps-0[23] creating", 2),
    Phase("join of a server", ("franca",), "franca", r"k3s-cluster-fca-server-vm-cpps-04 creating", 6),
    Phase("download of an image", (), "sp", r"proxmox-sp-vm-image-\S+ creating", 0.1),
    Phase("first start of a cluster", ("sp",), "sp", r"k3s-cluster-sp-bootstrap-vm-sp-01 creating", 6),
    Phase("token of an agent", ("sp",), "sp", r"k3s-cluster-sp-(token|agent)-vm-sp-02 creating", 1),
    Phase("Helm release", ("sp",), "sp", r"cilium-cluster-sp-chart creating", 1),
    Phase("custom resources", ("sp",), "sp", r"cilium.io/\S+ \S+ creating", 0.1),
)


@dataclass(frozen=True)
class Kill:
    phase: Phase
    after_s: float  # from the line on
    ran: Ran

    def __str__(self) -> str:
        return f"{self.phase.name}: {self.after_s:.2f} s after {self.phase.begins!r}"


@dataclass(frozen=True)
class Drill:
    """A seeded lab, both sites up, and what was seen on the way."""

    checkout: Checkout
    seed: int
    kills: tuple[Kill, ...]
    last: Ran  # the run after the last kill
    again: Ran  # one more
    configs: dict[str, dict[str, Any]]  # of the existing guests in Proxmox, before anything was updated
    nodes: dict[str, str]  # what `LOOK` printed on them then


def carried_out(checkout: Checkout, seed: int) -> Drill:
    chance = random.Random(seed)
    kills: list[Kill] = []
    configs: dict[str, dict[str, Any]] = {}
    nodes: dict[str, str] = {}
    print(f"seed of the kills: {seed} (FLEET_KILL_SEED)")
    for phase in PHASES:
        after_s = chance.uniform(0, phase.longest_s)
        kill = Kill(phase, after_s, _killed(checkout, phase, after_s))
        print(kill)
        kills.append(kill)
        if not configs:  # the first kill comes before the first look at a guest
            configs, nodes = in_proxmox(checkout), on_the_nodes(checkout)
    last = checkout.fleet("lab", "up")
    return Drill(checkout, seed, tuple(kills), last, checkout.fleet("lab", "up", "--no-guard"), configs, nodes)


def _killed(checkout: Checkout, phase: Phase, after_s: float) -> Ran:
    (checkout.place.logs / f"pulumi-up-{phase.site}.log").unlink(missing_ok=True)  # that of the run before
    with checkout.start("lab", "up", *phase.sites) as running:
        deadline = time.monotonic() + TRIGGER_TIMEOUT_S
        while not re.search(phase.begins, checkout.log("up", phase.site)):
            assert running.process.poll() is None, f"{phase.name}: the run ended before it\n{running.out}"
            assert time.monotonic() < deadline, f"{phase.name}: not reached in {TRIGGER_TIMEOUT_S} s\n{running.out}"
            time.sleep(0.02)
        time.sleep(after_s)
        kill_the_engine(checkout)
        return running.ended(60)


def kill_the_engine(checkout: Checkout) -> None:
    """SIGKILL to pulumi alone."""
    killed = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                arguments = (entry / "cmdline").read_bytes().split(bytes(1))
                if arguments[0].endswith(b"/pulumi") and str(checkout.place.work).encode() in arguments:
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed.append(entry.name)
    assert killed, "no engine runs"


def in_proxmox(checkout: Checkout) -> dict[str, dict[str, Any]]:
    return {
        name: control.request(checkout.place.root, op="guest-config", site=site, name=name)["config"]
        for name, site in EXISTING.items()
    }


def on_the_nodes(checkout: Checkout) -> dict[str, str]:
    return {name: checkout.ssh(name, LOOK) for name in EXISTING}
