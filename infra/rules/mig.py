"""MIG: the move of a main cluster from Flannel to Cilium. Its steps and the way back are runbooks.

A move that is only planned passes with its mode alone; what a window needs is asked for once one is set. That ranges
stay the same is K3S-09, the snapshots are BKP-04.
"""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ARCHITECTURE

SERVERS = 3  # that drain one at a time and keep their quorum


@rule("MIG-01", source=ARCHITECTURE)
def migration_has_a_mode(fleet: Fleet) -> Iterator[Finding]:
    """A move from Flannel is in place, on three servers, or a rebuild."""
    for path, site, cluster in fleet.clusters():
        migration, where = site.migration, f"{path.split('.', 1)[0]}.migration.mode"
        if cluster.role != "main" or not migration.from_flannel:
            continue
        if migration.mode is None:
            yield Finding(where, "nothing", "in_place or rebuild", "choose: in_place needs three servers")
        elif migration.mode == "in_place" and len(set(cluster.servers)) < SERVERS:
            found = f"in_place with {len(set(cluster.servers))} servers in {cluster.name}"
            yield Finding(where, found, f"{SERVERS} servers, or rebuild", "add servers first, or rebuild")


@rule("MIG-02", source=ARCHITECTURE)
def migration_is_prepared(fleet: Fleet) -> Iterator[Finding]:
    """Snapshots for a move belong to a window, and the window knows the Flannel backend to go back to."""
    for path, site, cluster in fleet.clusters():
        migration, site_id = site.migration, path.split(".", 1)[0]
        if cluster.role != "main" or not migration.from_flannel:
            continue
        if migration.snapshots and migration.window is None:
            yield Finding(
                f"{site_id}.migration.window", "nothing with snapshots taken", "the window", "name the window"
            )
        for server in dict.fromkeys(cluster.servers if migration.window is not None else ()):
            guest = site.guests.get(server)
            current = guest.current if guest is not None and guest.existing else None
            if current is not None and current.runs == "server" and current.flannel_backend in (None, "none"):
                yield Finding(
                    f"{site_id}.guests.{server}.current.flannel_backend",
                    current.flannel_backend or "nothing",
                    "the backend in force, to which the rollback returns",
                    "look at the server's flags and write it down",
                )
