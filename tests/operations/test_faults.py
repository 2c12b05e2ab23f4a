"""Remedies for what Proxmox says, out of the diagnostics of an update."""

import pytest

from operations.faults import remedies

HEAD = "  proxmoxve:index:VmLegacy (guest-vm-sp-02-vm):"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("received an HTTP 500 response - Reason: VM is locked (backup)", "qm unlock VMID"),
        ("received an HTTP 500 response - Reason: CT is locked (snapshot)", "pct unlock VMID"),
        ("can't lock file '/var/lock/qemu-server/lock-202.conf' - got timeout", "another task is changing"),
        ("received an HTTP 500 response - Reason: cluster not ready - no quorum?", "bring the missing hosts back"),
        ("reboot_after_update is off: the disks cannot be resized, as that needs a restart", "in two updates"),
        ("VM disk resize: task failed to complete with exit code: No space left on device", "free space there"),
        ("received an HTTP 500 response - Reason: storage 'linstor-ssd' is not online", "pvesm status"),
        ("received an HTTP 401 response - Reason: authentication failure", "pulumi config set --secret"),
        ("received an HTTP 403 response - Reason: Permission check failed (/vms/1, VM.X)", "lacks the privilege"),
        ("received an HTTP 596 response - Reason: Connection timed out", "does not answer"),
        ("error: inputs to import do not match the existing resource", "fleet adopt SITE"),
    ],
)
def test_each_fault_has_a_remedy_for_the_resource_that_met_it(said: str, remedy: str) -> None:
    found = remedies(["Diagnostics:", HEAD, f"    error: {said}", ""])
    assert len(found) == 1
    assert found[0].startswith("guest-vm-sp-02-vm: ")
    assert remedy in found[0]
    assert "{" not in found[0]


def test_a_fault_is_told_once_and_an_unknown_one_not_at_all() -> None:
    locked = "    error: VM is locked (backup)"
    assert len(remedies([HEAD, locked, locked])) == 1
    assert remedies([HEAD, "    error: something new"]) == []
    assert remedies([locked]) == []  # of no resource: a step's line while the update runs
