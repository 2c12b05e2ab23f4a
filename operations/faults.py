"""What Proxmox says when it cannot do what was asked, in terms of what a person does about it.

Reads the diagnostics that Pulumi prints. Left out: faults of the program's own scripts, which say their remedy
themselves, and anything that no pattern knows: Proxmox's own words stand above in any case.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_RESOURCE = re.compile(r"^ {2}\S+ \((?P<name>[^)]+)\):$")
_AGAIN = "then run the update again; what is done stays done"


@dataclass(frozen=True)
class _Known:
    """A fault by its words; the remedy may use the pattern's groups."""

    pattern: re.Pattern[str]
    remedy: str


_KNOWN = tuple(
    _Known(re.compile(pattern), remedy)
    for pattern, remedy in (
        (
            r"(?P<kind>VM|CT) is locked \((?P<lock>[\w-]+)\)",
            "another task holds the guest ({lock}): wait for it to end (task list of the host); if none runs, it died "
            "and left the lock: as root on the host, {tool} unlock VMID; " + _AGAIN,
        ),
        (
            r"can't lock file \S+ - got timeout",
            "another task is changing this guest: wait for it to end (task list of the host), " + _AGAIN,
        ),
        (
            r"no quorum\?|cluster not ready|not quorate",
            "the Proxmox cluster has lost its quorum and is read-only: bring the missing hosts back (pvecm status), "
            "and change nothing by force meanwhile; " + _AGAIN,
        ),
        (
            r"reboot_after_update is off",
            "a change that waits for a restart, such as memory or cores, stands beside one of a disk: make them in two "
            "updates, and restart the guest in its turn between them",
        ),
        (
            r"No space left on device|[Ii]nsufficient free space|not enough (?:free )?space",
            "the storage named above is full: free space there (old backups, unused disks) or grow it, " + _AGAIN,
        ),
        (
            r"storage '(?P<storage>[^']+)' is not online|no such storage|storage '[^']+' does not exist",
            "the storage is not there on that host: check pvesm status and the name under proxmox.storages, " + _AGAIN,
        ),
        (
            r"HTTP 401|failed to authenticate|authentication failure|invalid PVE ticket|no such token|token expired",
            "Proxmox does not accept the credential: it expired or was revoked. Make a new one and store it with "
            "pulumi config set --secret fleet:proxmoxApiToken (or fleet:proxmoxRootPassword); " + _AGAIN,
        ),
        (
            r"HTTP 403",
            "the credential lacks the privilege named above: grant it (docs/production.md lists them), " + _AGAIN,
        ),
        (
            r"HTTP 59\d|HTTP 50[234]|No route to host|[Cc]onnection refused|[Cc]onnection timed out",
            "the Proxmox host does not answer, or the one it passes requests on to: check the host, its pveproxy and "
            "the network, " + _AGAIN,
        ),
        (
            r"timeout while waiting for (?:VM|Container|task)|task \S+ still runs after",
            "a Proxmox task takes longer than its limit: look at the task list of the host and wait for it to end, "
            + _AGAIN,
        ),
        (
            r"cannot re-use a name that is still in use",
            "an update was cut off while Helm installed, and Helm's record stands in the way: fleet up removes it and "
            "goes on; with plain pulumi delete the Secrets labelled owner=helm and name=<release> in its namespace "
            "(never the release itself), then run the update again",
        ),
        (
            r"inputs to import do not match the existing resource",
            "the real guest differs from the document: fleet adopt SITE prints the lines that make them equal; "
            "nothing was changed",
        ),
    )
)


def remedies(lines: Iterable[str]) -> list[str]:
    """One line for each resource and fault that Pulumi's diagnostics name and that is known here."""
    return list(dict.fromkeys(_found(lines)))


def _found(lines: Iterable[str]) -> Iterator[str]:
    resource = ""
    for line in lines:
        if header := _RESOURCE.match(line):
            resource = header["name"]
        elif resource and (known := _first(line)):
            found, match = known
            tool = "pct" if match.groupdict().get("kind") == "CT" else "qm"
            yield f"{resource}: {found.remedy.format(tool=tool, **match.groupdict())}"


def _first(line: str) -> tuple[_Known, re.Match[str]] | None:
    for known in _KNOWN:
        if match := known.pattern.search(line):
            return known, match
    return None
