"""STO: storage of the clusters. That one backend is chosen is a matter of shape; its objects are tested as declared."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ARCHITECTURE
from infra.violation import Level

PROVISIONER = "local-storage"  # packaged component of K3s that brings the default StorageClass local-path


@rule("STO-02", source=ARCHITECTURE)
def one_default_storage_class(fleet: Fleet) -> Iterator[Finding]:
    """A cluster has one default StorageClass: that of K3s gives way to another backend, and to nothing else."""
    for path, site, cluster in fleet.clusters():
        backend = site.storage.backend if cluster.role == "main" else "local-path"
        off = PROVISIONER in cluster.disable
        if off and backend == "local-path":
            found, remedy = f"{PROVISIONER} with the backend local-path", "remove it: no default would be left"
            yield Finding(f"{path}.disable", found, f"a list without {PROVISIONER}", remedy)
        elif not off and backend != "local-path":
            found = f"a list without {PROVISIONER} with the backend {backend}"
            yield Finding(f"{path}.disable", found, PROVISIONER, "add it: there would be two defaults")


@rule("STO-03", source=ARCHITECTURE)
def openebs_is_refused(fleet: Fleet) -> Iterator[Finding]:
    """OpenEBS is not used."""
    for site_id, site in fleet.sites.items():
        if site.rejected.openebs:
            remedy = "choose one of storage.backend: local-path, linstor-csi, longhorn"
            yield Finding(f"{site_id}.rejected.openebs", "true", "false", remedy)


@rule("STO-04", source=ARCHITECTURE)
def linstor_can_be_reached(fleet: Fleet) -> Iterator[Finding]:
    """The backend linstor-csi has a variant, and the controller an address in the storage network."""
    for site_id, site in fleet.sites.items():
        storage, path = site.storage, f"{site_id}.storage"
        linstor = storage.backend == "linstor-csi"
        if linstor and storage.linstor_variant is None:
            remedy = "piraeus runs satellites in the cluster, direct calls the controller outside"
            yield Finding(f"{path}.linstor_variant", "nothing with linstor-csi", "piraeus or direct", remedy)
        if linstor and storage.linstor_variant == "direct" and storage.linstor_vip is None:
            found, expected = "nothing with the variant direct", "the address of the LINSTOR controller"
            yield Finding(f"{path}.linstor_vip", found, expected, "give it, and route the storage network to the nodes")
        if storage.linstor_vip is not None and storage.linstor_vip not in site.network.storage_cidr:
            expected = f"an address of network.storage_cidr {site.network.storage_cidr}"
            yield Finding(f"{path}.linstor_vip", storage.linstor_vip, expected, "correct one of the two")


@rule("STO-05", level=Level.ACK, source=ARCHITECTURE)
def state_waits_for_the_storage_decision(fleet: Fleet) -> Iterator[Finding]:
    """A stateful app on local-path is pinned to its site and accepted: its volumes are on one node."""
    for site_id, site in fleet.sites.items():
        for name, app in site.apps.items() if site.storage.backend == "local-path" else ():
            path = f"{site_id}.apps.{name}"
            if app.kind != "stateful":
                continue
            if not app.site_pinned:
                found = "false for a stateful app on local-path"
                yield Finding(f"{path}.site_pinned", found, "true", "pin it to the site", level=Level.ERROR)
            remedy = "wait for the storage decision, or accept it under accept.STO-05"
            yield Finding(f"{path}.kind", "stateful on local-path", "replicated storage", remedy)


@rule("STO-13", source=ARCHITECTURE)
def state_has_a_way_back(fleet: Fleet) -> Iterator[Finding]:
    """A stateful app says how its state comes back: ClusterMesh replicates no storage."""
    for site_id, site in fleet.sites.items():
        for name, app in site.apps.items():
            if app.kind == "stateful" and app.recovery is None:
                remedy = "name its replication, or the restore and the downtime it accepts"
                yield Finding(f"{site_id}.apps.{name}.recovery", "nothing", "how the state comes back", remedy)
