"""Proxmox on a bad day, on running sites: each fault names our resource and a way out, and is outlived."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab import control
from tests.lab.conftest import Checkout, Document, Lab, summaries

pytestmark = pytest.mark.lab

GUEST, RESOURCE, STORAGE = "vm-sp-02", "guest-vm-sp-02-vm", "linstor-ssd"
SLOW_S = 8  # of the fault, lab/pve/faults.py


@contextmanager
def fault(checkout: Checkout, kind: str, subject: str = "") -> Iterator[None]:
    control.request(checkout.place.root, op="fault", site="sp", kind=kind, subject=subject, on=True)
    try:
        yield
    finally:
        control.request(checkout.place.root, op="fault", site="sp", kind=kind, subject=subject, on=False)


def in_proxmox(checkout: Checkout) -> tuple[str, str]:
    """Memory and first disk of the guest, as Proxmox has them."""
    config = control.request(checkout.place.root, op="guest-config", site="sp", name=GUEST)["config"]
    config |= config["pending"]  # memory waits for a restart, which is not the update's to make
    return str(config["memory"]), str(config["scsi0"]).rpartition("size=")[2].partition(",")[0]


def fails_clearly(checkout: Checkout, says: str, remedy: str) -> None:
    before = in_proxmox(checkout)
    ran = checkout.fleet("lab", "up", "--no-guard", "sp")
    assert ran.code == 1, ran.out
    assert "Traceback" not in ran.out, ran.out
    assert f"({RESOURCE}):" in ran.out, ran.out
    assert says in ran.text, ran.out
    told = [line for line in ran.out.splitlines() if line.startswith(f"what to do: {RESOURCE}: ")]
    assert len(told) == 1, ran.out
    assert remedy in ran.text.partition("what to do: ")[2], ran.out
    assert in_proxmox(checkout) == before


def converges(checkout: Checkout) -> str:
    out = checkout.ok("lab", "up", "--no-guard", "sp")
    assert f"updated {RESOURCE}" in out, out
    return out


def test_a_change_of_memory_outlives_every_fault(lab: Lab) -> None:
    checkout = lab.checkout

    def change(document: Document) -> None:
        document["guests"][GUEST]["memory_mib"] = 12288

    checkout.edit("sp", change)
    with fault(checkout, "locked", GUEST):
        fails_clearly(checkout, "VM is locked (backup)", "qm unlock")
    with fault(checkout, "no-quorum"):
        fails_clearly(checkout, "cluster not ready - no quorum?", "bring the missing hosts back")
    with fault(checkout, "unavailable"):
        fails_clearly(checkout, "HTTP 596", "does not answer")
    with fault(checkout, "expired"):
        fails_clearly(checkout, "HTTP 401", "pulumi config set --secret fleet:proxmoxApiToken")
    converges(checkout)
    assert in_proxmox(checkout)[0] == "12288"


@pytest.mark.rehearsal
def test_a_disk_grows_once_there_is_room_and_however_long_it_takes(lab: Lab) -> None:
    checkout = lab.checkout

    def change(document: Document) -> None:
        document["guests"][GUEST]["disks"][0]["size_gib"] = 110

    checkout.edit("sp", change)
    with fault(checkout, "full", STORAGE):
        fails_clearly(checkout, "No space left on device", "free space there")
    with fault(checkout, "slow"):
        out = converges(checkout)
    took = next(line for line in out.splitlines() if f"updated {RESOURCE}" in line)
    assert float(took.rpartition("(")[2].removesuffix("s)")) >= SLOW_S, took
    assert in_proxmox(checkout) == ("12288", "110G")
    assert "updated" not in summaries(checkout.ok("lab", "up", "--no-guard", "sp"))["sp"]
