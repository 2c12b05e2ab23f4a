"""Makes the backups that can be made from here: Proxmox snapshots of guests, etcd snapshots of main clusters.

Leaves out what the API cannot make or what lies elsewhere (PBS, VyOS: `fleet backup --record`), and deletes nothing,
ever. Whether a guest can be snapshotted Proxmox itself says when asked, since that depends on each disk and mount
point: LVM thin, ZFS, RBD, LINSTOR and qcow2 files can; plain LVM and raw files cannot, nor can a container with a bind
mount.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncssh
import requests
from proxmoxer import ProxmoxAPI
from proxmoxer.core import AuthenticationError, ResourceException

from infra import remote
from infra.config import Cluster, Guest, Site, Vm
from operations.access import Access, connect
from operations.evidence import FORM, Evidence

PREFIX = "fleet-"  # of the names of our snapshots
MANY = 5  # snapshots of ours on one guest; each makes its disks slower and larger
TASK_TIMEOUT_S = 600
SSH_TIMEOUT_S = 20
SAVE_TIMEOUT_S = 330
SAVE_ETCD = """\
set -eu
umask 077
mark=$(mktemp)
trap 'rm -f "$mark"' EXIT
sleep 1 # file times are coarse: what is saved at once would not count as newer
said=$(timeout 300 /usr/local/bin/k3s etcd-snapshot save --name fleet-backup 2>&1) || {
    printf '%s\\n' "$said" | grep -v 'Unknown flag' | tail -n 3 >&2
    exit 1
}
made=$(find /var/lib/rancher/k3s/server/db/snapshots -type f -name 'fleet-backup-*' -newer "$mark" -size +0 | head -n 1)
if [ -z "$made" ]; then
    echo "K3s says that it saved a snapshot, but there is none on this server" >&2
    exit 1
fi
printf '%s\\n' "$made"
"""


class _Failed(Exception):
    """A backup was not made; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one backup."""

    what: str
    made: Evidence | None = None
    remark: str = ""  # why there is none, or what to know of it
    absent: bool = False  # there is nothing yet that could be backed up


def back_up(
    site_id: str,
    site: Site,
    access: Access,
    *,
    guests: Iterable[str],
    clusters: Iterable[str],
    by: str,
    now: datetime,
    keep: Callable[[Evidence], object],
    say: Callable[[str], None],
) -> list[Outcome]:
    """Makes one after another and hands each to `keep` as soon as it exists; what fails does not stop the others."""
    outcomes = []
    api: ProxmoxAPI | None = None
    for name in guests:
        what = f"guest/{name}"
        say(f"{what}: Proxmox snapshot")
        try:
            api = api or _proxmox(site, access)
            outcomes.append(_kept(_guest(api, site_id, site.guests[name], now), by, now, keep))
        except (_Failed, ResourceException, AuthenticationError, requests.RequestException) as error:
            outcomes.append(Outcome(what=what, remark=_told(error)))
    for name in clusters:
        what = f"etcd/{name}"
        say(f"{what}: etcd snapshot")
        try:
            reference = asyncio.run(_etcd(site, site.clusters[name], access))
            outcomes.append(_kept((what, "etcd-snapshot", reference, ""), by, now, keep))
        except _Failed as error:
            outcomes.append(Outcome(what=what, remark=str(error)))
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):  # its text may quote the key
            outcomes.append(
                Outcome(what=what, remark="fleet:sshPrivateKey is no private key without a passphrase; set it again")
            )
    return outcomes


def _proxmox(site: Site, access: Access) -> ProxmoxAPI:
    try:
        return connect(site, access.api_token)
    except ValueError:
        raise _Failed("fleet:proxmoxApiToken is no token; expected user@realm!name=uuid; set it again") from None


def _kept(
    made: tuple[str, str, str, str] | Outcome, by: str, now: datetime, keep: Callable[[Evidence], object]
) -> Outcome:
    if isinstance(made, Outcome):
        return made
    what, kind, reference, remark = made
    evidence = Evidence.model_validate(
        {"what": what, "kind": kind, "reference": reference, "taken": now.strftime(FORM), "by": by}
    )
    keep(evidence)
    return Outcome(what=what, made=evidence, remark=remark)


def _guest(api: ProxmoxAPI, site_id: str, guest: Guest, now: datetime) -> tuple[str, str, str, str] | Outcome:
    what = f"guest/{guest.name}"
    found = next((one for one in api.cluster.resources.get(type="vm") if one["vmid"] == guest.vmid), None)
    if found is None:
        return Outcome(what=what, remark=f"no guest with VMID {guest.vmid} exists yet", absent=True)
    if found.get("name") != guest.name:
        raise _Failed(
            f"VMID {guest.vmid} is {found.get('name', 'without a name')}, not {guest.name}: correct the document"
        )
    kind = "qemu" if isinstance(guest, Vm) else "lxc"
    place = api.nodes(found["node"])(kind)(guest.vmid)
    elsewhere = f"back it up to PBS, then: fleet backup {site_id} --record pbs:{what}=<snapshot>"
    name = f"{PREFIX}{now.strftime('%Y%m%d-%H%M%S')}"
    # Without the memory of a VM: what comes back is what a power cut would leave, the disks.
    more = {"vmstate": 0} if kind == "qemu" else {}
    task = place.snapshot.post(snapname=name, description=f"fleet backup {site_id}", **more)
    said = _ended(api, found["node"], task)
    if "feature is not available" in said:
        raise _Failed(f"its storage cannot make snapshots ({_storages(guest)}); {elsewhere}")
    listed = {one["name"]: one for one in place.snapshot.get()}
    if name not in listed or listed[name].get("snapstate"):
        raise _Failed(f"Proxmox task: {said or 'ended, but made no snapshot'}; read it in Proxmox, then run this again")
    ours = [one for one in listed if one.startswith(PREFIX)]
    remark = "" if len(ours) <= MANY else f"{len(ours)} snapshots of ours on it: delete old ones in Proxmox"
    return what, "proxmox-snapshot", f"{guest.vmid}@{name}", remark


def _storages(guest: Guest) -> str:
    disks = guest.disks if isinstance(guest, Vm) else (guest.disk,)
    return ", ".join(sorted({disk.storage for disk in disks}))


def _ended(api: ProxmoxAPI, node: str, task: str) -> str:
    """Waits for a task; what went wrong with it, empty if nothing did. Raises _Failed when the time is up."""
    deadline = time.monotonic() + TASK_TIMEOUT_S
    pause_s = 0.2
    while (status := api.nodes(node).tasks(task).status.get()).get("status") != "stopped":
        if time.monotonic() > deadline:
            raise _Failed(f"Proxmox task {task} runs longer than {TASK_TIMEOUT_S} s: look at it in Proxmox")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 5)
    said = str(status.get("exitstatus", ""))
    return "" if said == "OK" or said.startswith("WARNINGS") else said


async def _etcd(site: Site, cluster: Cluster, access: Access) -> str:
    """Saves a snapshot on the first server that can: each holds all of etcd. Returns `server:path`."""
    refused = []
    for name in cluster.servers:
        try:
            return f"{name}:{await _saved(site.guests[name], access)}"
        except _Failed as error:
            refused.append(f"{name}: {error}")
        except TimeoutError:
            refused.append(f"{name}: no answer in time")
        except (OSError, asyncssh.Error) as error:
            refused.append(f"{name}: {error}")
    raise _Failed(f"no server could save one ({'; '.join(refused)}); mend one of them, then run this again")


async def _saved(guest: Guest, access: Access) -> str:
    if guest.name not in access.host_keys:
        raise _Failed("its host key is neither in the document nor in the state: no update has reached it yet")
    try:
        pinned = asyncssh.import_known_hosts(f"{guest.address} {access.host_keys[guest.name]}\n")
    except ValueError:
        raise _Failed("its host key, in the document or the state, is none that OpenSSH knows: correct it") from None
    async with asyncio.timeout(SSH_TIMEOUT_S + SAVE_TIMEOUT_S):
        async with asyncssh.connect(
            str(guest.address),
            username=guest.login,
            client_keys=[asyncssh.import_private_key(access.private_key)],
            known_hosts=pinned,
            config=None,  # the program's own key and host keys, whatever the person has configured
            agent_path=None,
            connect_timeout=SSH_TIMEOUT_S,
            login_timeout=SSH_TIMEOUT_S,
        ) as connection:
            done = await connection.run(
                remote.shell(guest.login), input=remote.assemble(SAVE_ETCD, {}), check=False, timeout=SAVE_TIMEOUT_S
            )
    lines = str(done.stdout or "").strip().splitlines()
    if done.exit_status != 0 or not lines:
        said = " ".join(str(done.stderr or "").split())[-400:]
        raise _Failed(said or f"exit status {done.exit_status} without a word")
    return lines[-1]


def _told(error: Exception) -> str:
    if isinstance(error, ResourceException):
        more = f" {error.errors}" if error.errors else ""
        hint = "; the token needs VM.Snapshot and VM.Audit" if error.status_code == 403 else ""
        return f"Proxmox: {error.status_code} {error.status_message} {error.content}{more}{hint}".strip()
    if isinstance(error, AuthenticationError):
        return f"Proxmox: {error}; check fleet:proxmoxApiToken"
    if isinstance(error, requests.RequestException):
        return f"Proxmox does not answer: {error}"
    return str(error)


def utc_now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
