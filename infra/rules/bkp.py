"""BKP: backups as documents state them. Taking one is `operations/backup.py`.

What a driver change needs is GPU-06, what a router change needs NET-15.
"""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.config.proxmox import Host
from infra.rules.nodes import CPPS, gpu_containers, nodes
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ARCHITECTURE, TUTOR
from infra.violation import Level


@rule("BKP-01", level=Level.ACK, source=ARCHITECTURE, profile=CPPS)
def proxmox_changes_have_a_backup(fleet: Fleet) -> Iterator[Finding]:
    """A Proxmox host is upgraded with a recorded backup only."""
    for path, site, host in fleet.hosts():
        if host.upgrade and (site.maintenance is None or site.maintenance.backup_ref is None):
            remedy = "back the host up and set the reference, or accept it under accept.BKP-01"
            yield Finding(f"{path}.upgrade", "true without maintenance.backup_ref", "reference of a backup", remedy)


@rule("BKP-03", source=ARCHITECTURE, profile=CPPS)
def etcd_is_state(fleet: Fleet) -> Iterator[Finding]:
    """A guest that runs a server holds the state of etcd and is protected."""
    judged = {node.path for node, _ in gpu_containers(fleet)}  # by LXC-10
    for node in nodes(fleet):
        if not node.guest.stateful and node.guest.name in node.cluster.servers and node.path not in judged:
            found = f"false on a server of {node.cluster.name}"
            yield Finding(f"{node.path}.stateful", found, "true, which protects it", "set it to true")


@rule("BKP-04", source=ARCHITECTURE)
def migration_starts_from_snapshots(fleet: Fleet) -> Iterator[Finding]:
    """A scheduled move from Flannel has a snapshot of every server of the main cluster."""
    for path, site, cluster in fleet.clusters():
        if cluster.role != "main" or not site.migration.from_flannel or site.migration.window is None:
            continue
        for server in dict.fromkeys(cluster.servers):
            if server not in site.migration.snapshots:
                where = f"{path.split('.', 1)[0]}.migration.snapshots"
                yield Finding(where, f"nothing for {server}", "a snapshot of every server", f"snapshot {server} first")


@rule("BKP-06", source=ARCHITECTURE, profile=CPPS)
def guests_with_state_are_backed_up(fleet: Fleet) -> Iterator[Finding]:
    """Proxmox Backup Server or vzdump covers a guest with state; a planned change of its host wants the evidence."""
    judged = {node.path for node, _ in gpu_containers(fleet)}  # by LXC-11
    for path, site, guest in fleet.guests():
        host = site.proxmox.hosts.get(guest.host)
        if not guest.stateful or guest.backup.evidence is not None:
            continue
        if not guest.backup.pbs and path not in judged:
            expected = "true, or the evidence of another backup of the whole guest"
            remedy = "add the guest to a backup job: Velero covers Kubernetes alone"
            yield Finding(f"{path}.backup.pbs", "false for a guest with state", expected, remedy)
        elif host is not None and _changes(host):
            found, remedy = f"nothing, with a change of {host.name} planned", "verify the last backup and name it"
            yield Finding(f"{path}.backup.evidence", found, "reference of a verified backup", remedy)


@rule("BKP-07", level=Level.WARN, source=ARCHITECTURE)
def velero_waits_for_its_trigger(fleet: Fleet) -> Iterator[Finding]:
    """Velero is off until an app beside Tutor is critical."""
    for site_id, site in fleet.sites.items():
        critical = [name for name, app in site.apps.items() if app.critical and name != TUTOR]
        if critical and not site.velero.enabled:
            found = f"false with the critical {', '.join(critical)}"
            yield Finding(f"{site_id}.velero.enabled", found, "true", "choose an object store and enable it")


@rule("BKP-08", source=ARCHITECTURE)
def snapshots_leave_the_cluster(fleet: Fleet) -> Iterator[Finding]:
    """A CSI snapshot alone is no backup: it is moved to the object store."""
    for site_id, site in fleet.sites.items():
        if site.velero.csi_snapshots and not site.velero.data_mover:
            found = "false with csi_snapshots"
            yield Finding(f"{site_id}.velero.data_mover", found, "true", "move the snapshots off the cluster")


@rule("BKP-09", level=Level.ACK, source=ARCHITECTURE)
def kopia_uploads(fleet: Fleet) -> Iterator[Finding]:
    """Velero uploads with Kopia; Restic is for backups that exist already."""
    for site_id, site in fleet.sites.items():
        if site.velero.uploader == "restic":
            remedy = "use kopia, or name the old backups under accept.BKP-09"
            yield Finding(f"{site_id}.velero.uploader", "restic", "kopia", remedy)


@rule("BKP-10", source=ARCHITECTURE)
def velero_has_a_target(fleet: Fleet) -> Iterator[Finding]:
    """Velero writes to the object store of its site."""
    for site_id, site in fleet.sites.items():
        if site.velero.enabled and site.object_store is None:
            expected = "the object store of the site"
            yield Finding(f"{site_id}.object_store", "null with Velero on", expected, "name the store and its bucket")


@rule("BKP-11", source=ARCHITECTURE)
def the_backend_can_snapshot(fleet: Fleet) -> Iterator[Finding]:
    """CSI snapshots need a storage backend that has them."""
    for site_id, site in fleet.sites.items():
        if site.velero.csi_snapshots and site.storage.backend == "local-path":
            found, remedy = "true on local-path, which has none", "switch it off, or choose another storage.backend"
            yield Finding(f"{site_id}.velero.csi_snapshots", found, "false", remedy)


@rule("BKP-15", source=ARCHITECTURE)
def kasten_is_refused(fleet: Fleet) -> Iterator[Finding]:
    """Kasten K10 is not used."""
    for site_id, site in fleet.sites.items():
        if site.rejected.kasten:
            yield Finding(f"{site_id}.rejected.kasten", "true", "false", "remove it: Velero backs Kubernetes up")


def _changes(host: Host) -> bool:
    return host.upgrade or host.planned_nvidia_driver not in (None, host.nvidia_driver)
