"""K3S: clusters as documents show them. Flags, tokens and their order are tested on what the program generates."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.nodes import nodes, places
from infra.rules.ranges import left_to_gpu_rule, overlaps
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_009, ARCHITECTURE
from infra.violation import Level


@rule("K3S-01", source=ARCHITECTURE)
def main_clusters_make_room_for_cilium(fleet: Fleet) -> Iterator[Finding]:
    """A main cluster runs Cilium in place of Flannel, and without servicelb."""
    for path, _, cluster in fleet.clusters():
        if cluster.role != "main":
            continue
        if cluster.cni != "cilium":
            yield Finding(f"{path}.cni", cluster.cni, "cilium on a main cluster", "set it to cilium")
        if "servicelb" not in cluster.disable:
            yield Finding(
                f"{path}.disable", "a list without servicelb", "servicelb", "add it: Cilium gives the addresses"
            )


@rule("K3S-04", source=ARCHITECTURE)
def servers_are_odd(fleet: Fleet) -> Iterator[Finding]:
    """Embedded etcd has one, three or five servers."""
    for path, _, cluster in fleet.clusters():
        count = len(set(cluster.servers))
        if count not in (1, 3, 5):
            remedy = "an even count survives no more than one fewer: make one an agent, or add one"
            yield Finding(f"{path}.servers", f"{count} servers", "1, 3 or 5", remedy)


@rule("K3S-05", level=Level.WARN, source=ARCHITECTURE)
def single_server_is_known(fleet: Fleet) -> Iterator[Finding]:
    """A main cluster with one server loses its control plane with it."""
    for path, _, cluster in fleet.clusters():
        if cluster.role == "main" and len(cluster.servers) == 1:
            yield Finding(f"{path}.servers", f"{cluster.servers[0]} alone", "three servers", "plan two more servers")


@rule("K3S-06", source=ARCHITECTURE)
def etcd_stays_in_a_site(fleet: Fleet) -> Iterator[Finding]:
    """All servers of a cluster are guests of its own site, and no main cluster joins another."""
    homes: dict[str, str] = {}
    for path, _, guest in fleet.guests():
        homes.setdefault(guest.name, path)
    for place in places(fleet):
        site = place.site
        here = place.name in site.guests or place.name in site.unmanaged_guests or place.name in site.proxmox.hosts
        if place.name in homes and not here:
            found = f"{place.name}, a guest of another site ({homes[place.name]})"
            yield Finding(place.path, found, f"a guest of {place.site_id}", "make a guest in this site")
    for path, _, cluster in fleet.clusters():
        if cluster.role == "main" and cluster.joins is not None:
            yield Finding(f"{path}.joins", cluster.joins, "nothing", "remove it: each main cluster is its own")


@rule("K3S-08", source=ARCHITECTURE)
def one_traefik(fleet: Fleet) -> Iterator[Finding]:
    """The Traefik of K3s is off where the program installs its own."""
    for path, site, cluster in fleet.clusters():
        installs = site.traefik.main if cluster.role == "main" else site.traefik.gpu
        if installs and "traefik" not in cluster.disable:
            yield Finding(
                f"{path}.disable", "a list without traefik", "traefik", "add it: the program installs Traefik"
            )


@rule("K3S-09", source=ARCHITECTURE)
def ranges_of_a_running_cluster_stay(fleet: Fleet) -> Iterator[Finding]:
    """Pod and Service CIDR of a running cluster equal the target, unless the main cluster is rebuilt."""
    for node in nodes(fleet):
        current, rebuilt = node.guest.current, node.cluster.role == "main" and node.site.migration.mode == "rebuild"
        if not node.guest.existing or current is None or current.runs not in ("server", "agent") or rebuilt:
            continue
        for key in ("pod_cidr", "service_cidr"):
            runs, target = getattr(current, key), getattr(node.cluster, key)
            if runs != target:
                yield Finding(
                    f"{node.path}.current.{key}",
                    runs or "nothing",
                    f"{target}, the target of {node.cluster.name}",
                    "rebuild needed: keep the running range as target, or set migration.mode to rebuild",
                )


@rule("K3S-12", source=ARCHITECTURE)
def old_proxy_gets_no_k3s(fleet: Fleet) -> Iterator[Finding]:
    """The old proxy and other guests that the program leaves alone never become nodes."""
    for place in places(fleet):
        if place.name == place.site.traefik.legacy_proxy or (
            place.name in place.site.unmanaged_guests and place.name not in place.site.guests
        ):
            yield Finding(
                place.path, f"{place.name}, which the program leaves alone", "a guest of its own", "name another"
            )


@rule("K3S-14", level=Level.ACK, source=ADR_009)
def gpu_ranges_are_its_own(fleet: Fleet) -> Iterator[Finding]:
    """A GPU cluster shares no range with another cluster; outside the mesh an overlap can be accepted."""
    for first, second in overlaps(fleet):
        if left_to_gpu_rule(first, second):
            mine, other = (second, first) if second.owner.gpu else (first, second)
            joined = any(owner.gpu and owner.joined for owner in (first.owner, second.owner))
            yield Finding(
                mine.path,
                f"{mine.text}, which overlaps {other}",
                "a range of its own",
                "choose another range" if joined else "choose another range, or accept it under accept.K3S-14",
                level=Level.ERROR if joined else None,
            )
