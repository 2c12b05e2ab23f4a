"""PVE: Proxmox guests, their places and addresses. What the program may declare there is tested on its resources."""

from collections.abc import Iterator
from ipaddress import IPv4Address

from infra.config.fleet import Fleet, Site
from infra.rules.decided import deviations
from infra.rules.nodes import CPPS, places
from infra.rules.ranges import is_host_of
from infra.rules.registry import Finding, rule, with_article
from infra.rules.seeds import ADR_009, ARCHITECTURE, SEEDS
from infra.violation import Level

SHARED_STORAGE = ("drbd", "nfs", "rbd")  # storage types that every host of the cluster sees


@rule("PVE-03", level=Level.ACK, source=SEEDS["PVE-03"].source, profile=CPPS)
def existing_guests_are_adopted(fleet: Fleet) -> Iterator[Finding]:
    """A guest that exists is adopted, never created a second time, and says what runs on it today."""
    yield from deviations(fleet, "PVE-03")
    for path, _, guest in fleet.guests():
        if guest.existing and guest.current is None:
            yield Finding(
                f"{path}.current",
                "nothing",
                "what runs on the existing guest today",
                "look at the guest and write it down",
                level=Level.ERROR,
            )


@rule("PVE-04", source=ARCHITECTURE, profile=CPPS)
def servers_sit_on_different_hosts(fleet: Fleet) -> Iterator[Finding]:
    """No two servers of a main cluster share a Proxmox host: one host may fail."""
    for path, site, cluster in fleet.clusters():
        taken: dict[str, str] = {}
        for name in dict.fromkeys(cluster.servers if cluster.role == "main" else ()):
            guest = site.guests.get(name)
            if guest is None:
                continue
            if guest.host in taken:
                yield Finding(
                    f"{path.split('.', 1)[0]}.guests.{name}.host",
                    f"{guest.host}, where {taken[guest.host]} runs too",
                    f"a host of its own for each server of {cluster.name}",
                    "move one of the two servers to another host",
                )
            taken.setdefault(guest.host, name)


@rule("PVE-05", level=Level.WARN, source=ARCHITECTURE, profile=CPPS)
def moving_guests_have_replicated_disks(fleet: Fleet) -> Iterator[Finding]:
    """A VM that is to move while it runs has its disks on storage that all hosts share."""
    for site_id, site in fleet.sites.items():
        for guest in site.vms:
            for index, disk in enumerate(guest.disks if guest.live_migration else ()):
                storage = site.proxmox.storages.get(disk.storage)
                if storage is not None and storage.type not in SHARED_STORAGE:
                    yield Finding(
                        f"{site_id}.guests.{guest.name}.disks.{index}.storage",
                        f"{disk.storage}, local storage of type {storage.type}",
                        f"storage of type {' or '.join(SHARED_STORAGE)}",
                        "put the disk on LINSTOR, or set live_migration to false",
                    )


@rule("PVE-06", source=ADR_009, profile=CPPS)
def k3s_runs_in_guests(fleet: Fleet) -> Iterator[Finding]:
    """K3s runs in a VM or a container, never on a Proxmox host itself."""
    for place in places(fleet):
        if place.name in place.site.proxmox.hosts and place.name not in place.site.guests:
            yield Finding(place.path, f"the Proxmox host {place.name}", "a guest", "make a guest on that host")


@rule("PVE-08", source=ARCHITECTURE, profile=CPPS)
def guests_do_not_clash(fleet: Fleet) -> Iterator[Finding]:
    """VMIDs, names, MAC and IPv4 addresses are unique in a site; addresses lie in the LAN, outside pool and DHCP."""
    for site_id, site in fleet.sites.items():
        yield from _unique("VMID", _vmids(site_id, site))
        yield from _unique("name", _names(site_id, site))
        yield from _unique("MAC address", _macs(site_id, site))
        yield from _unique("address", _addresses(site_id, site))
        for path, address in _lan_addresses(site_id, site):
            yield from _in_lan(path, address, site)


@rule("PVE-09", level=Level.WARN, source=ADR_009, profile=CPPS)
def host_upgrades_have_a_window(fleet: Fleet) -> Iterator[Finding]:
    """An upgrade of a host that runs a GPU container is a GPU maintenance window: they share a kernel."""
    for path, site, host in fleet.hosts():
        if not host.upgrade or site.maintenance is not None:
            continue
        containers = [guest.name for guest in site.containers if guest.host == host.name]
        if containers:
            yield Finding(
                f"{path}.upgrade",
                f"an upgrade under {', '.join(containers)} without a maintenance window",
                "maintenance.window",
                "plan the window under `maintenance`",
            )


def _vmids(site_id: str, site: Site) -> Iterator[tuple[str, object]]:
    for guest in site.guests.values():
        yield f"{site_id}.guests.{guest.name}.vmid", guest.vmid
    for other in site.unmanaged_guests.values():
        if other.vmid is not None:
            yield f"{site_id}.unmanaged_guests.{other.name}.vmid", other.vmid


def _names(site_id: str, site: Site) -> Iterator[tuple[str, object]]:
    for host in site.proxmox.hosts:
        yield f"{site_id}.proxmox.hosts.{host}", host
    for guest in site.guests:
        yield f"{site_id}.guests.{guest}", guest
    for other in site.unmanaged_guests:
        yield f"{site_id}.unmanaged_guests.{other}", other


def _macs(site_id: str, site: Site) -> Iterator[tuple[str, object]]:
    for guest in site.guests.values():
        if guest.mac is not None:
            yield f"{site_id}.guests.{guest.name}.mac", guest.mac


def _lan_addresses(site_id: str, site: Site) -> Iterator[tuple[str, IPv4Address]]:
    """Addresses of machines and of Kubernetes APIs, all of them in the LAN."""
    yield f"{site_id}.vyos.lan_address", site.vyos.lan_address
    for host in site.proxmox.hosts.values():
        yield f"{site_id}.proxmox.hosts.{host.name}.address", host.address
    for guest in site.guests.values():
        yield f"{site_id}.guests.{guest.name}.address", guest.address
    for cluster in site.clusters.values():
        if cluster.api.vip is not None:
            yield f"{site_id}.clusters.{cluster.name}.api.vip", cluster.api.vip


def _addresses(site_id: str, site: Site) -> Iterator[tuple[str, object]]:
    yield from _lan_addresses(site_id, site)
    for other in site.unmanaged_guests.values():
        if other.address is not None:
            yield f"{site_id}.unmanaged_guests.{other.name}.address", other.address


def _unique(what: str, entries: Iterator[tuple[str, object]]) -> Iterator[Finding]:
    taken: dict[object, str] = {}
    for path, value in entries:
        if value in taken:
            yield Finding(
                path,
                f"{value}, like {taken[value]}",
                f"{with_article(what)} of its own",
                f"give one of them another {what}",
            )
        taken.setdefault(value, path)


def _in_lan(path: str, address: IPv4Address, site: Site) -> Iterator[Finding]:
    lan, pool, dhcp = site.network.lan_cidr, site.lb.pool, site.network.dhcp_range
    if not is_host_of(lan, address) and address != site.vyos.lan_address:  # the router's own address: BGP-02
        yield Finding(path, address, f"an address of the LAN {lan}", "correct the address or network.lan_cidr")
    if address in pool:
        yield Finding(path, f"{address}, in the pool {pool}", "an address outside lb.pool", "move one of the two")
    if dhcp is not None and address in dhcp:
        remedy = "move one of the two: DHCP may give the address away"
        yield Finding(path, f"{address}, in the DHCP range {dhcp}", "an address outside network.dhcp_range", remedy)
