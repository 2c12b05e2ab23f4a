"""Commands on machines: what an update must never run by itself, and that their output stays secret."""

import re
from collections.abc import Iterator

from policy.judging import Fault, Resource, each
from policy.reading import UNKNOWN, at, text

TEXTS = ("create", "update", "delete", "stdin")
# Each is a step of a runbook, for a person (MIG-05, MIG-08), or has no place on any machine of ours.
DESTRUCTIVE = re.compile(
    r"k3s(-agent)?-uninstall|k3s-killall|--cluster-reset"
    r"|\betcdctl\b[^\n]*\bremove\b|\betcd\s+member\s+remove\b|\bmember\s+remove\b"
    r"|\brm\s([^\n;&|#]{0,400}\s)?[\"']?/+(var/lib/rancher|etc/rancher|var/lib/kubelet)(?![\w.-])"
    r"|\b(qm|pct)\s+(destroy|rollback)\b|\b(zpool|zfs)\s+destroy\b|\b(lv|vg|pv)remove\b|\bwipefs\b|\bmkfs\b"
    r"|\bhelm\s+(uninstall|delete)\b|\bkubectl\s+drain\b|\bdrbdadm\s+(down|wipe-md)\b|\blinstor\s+\S+\s+delete\b"
)
HYPERVISOR = re.compile(r"/etc/pve\b|/etc/corosync\b|\bpvecm\b|\bpvesm\s+(add|remove|set)\b|\bpveum\b|\bcorosync-\w+")
QUIET_OUTPUTS = ("stdout", "stderr")


@each("MIG-10")
def commands_destroy_nothing(resource: Resource) -> Iterator[Fault]:
    """No command of an update runs a destructive step: those are runbooks, for a person."""
    yield from _matching(resource, DESTRUCTIVE, "no uninstall, no removal of members, guests, volumes or data")


@each("PVE-01")
def commands_leave_proxmox_alone(resource: Resource) -> Iterator[Fault]:
    """No command touches the Proxmox cluster: membership, quorum, storages, access or files below /etc/pve."""
    yield from _matching(resource, HYPERVISOR, "nothing of the Proxmox cluster itself")


@each("SEC-07")
def commands_keep_their_output_secret(resource: Resource) -> Iterator[Fault]:
    """What a command prints reaches no log, and the state as a secret."""
    if resource.type != "command:remote:Command":
        return
    if at(resource.props, "logging") not in ("none", UNKNOWN):
        yield Fault("logging", "none")
    for output in QUIET_OUTPUTS:
        if output not in resource.secret_outputs:
            yield Fault("additional_secret_outputs", f"{output} among them")


def _matching(resource: Resource, pattern: re.Pattern[str], expected: str) -> Iterator[Fault]:
    if resource.type.startswith("command:"):
        for key in TEXTS:
            if pattern.search(text(at(resource.props, key))):
                yield Fault(key, expected)
