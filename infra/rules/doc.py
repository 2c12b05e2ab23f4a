"""DOC: what makes a document consistent in itself. These rules are of the format, not of a decision."""

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address

from infra.config.fleet import Common, Fleet, Site
from infra.config.proxmox import Image, Vm
from infra.rules.nodes import places
from infra.rules.paths import MISSING, is_covered, value_at
from infra.rules.ranges import all_ranges
from infra.rules.registry import Finding, rule, with_article
from infra.violation import Level

NODE_PREFIX = 24  # of the Pod addresses that Kubernetes gives to one node
POD_PREFIXES = range(NODE_PREFIX - 16, NODE_PREFIX + 1)
SERVICE_PREFIXES = range(12, 29)  # the API server takes no larger range, and the DNS address is the tenth of it
# Kubelet arguments that K3s or the program sets; a second value would win silently.
TAKEN_ARGS = frozenset(
    {
        "cluster-dns",
        "cluster-domain",
        "config",
        "container-log-max-files",
        "container-log-max-size",
        "container-runtime-endpoint",
        "hostname-override",
        "kubeconfig",
        "node-ip",
        "node-labels",
    }
)


@rule("DOC-04", source="")
def assumed_paths_name_values(fleet: Fleet) -> Iterator[Finding]:
    """Each path under `assumed` names a value that the document states."""
    for root, document in _documents(fleet):
        for path in document.assumed:
            if value_at(document, path, stated=True) is MISSING:
                expected = "the path of a value in this document"
                yield Finding(f"{root}.assumed", path, expected, "correct the path, or remove the line")


@rule("DOC-05", source="")
def open_values_are_assumed(fleet: Fleet) -> Iterator[Finding]:
    """A checksum or key that nobody has obtained yet is null and listed under `assumed`."""
    for root, document in _documents(fleet):
        for path, value in _obtained(document):
            if value is None and not is_covered(path, document.assumed):
                remedy = f"set it, or list {path} under `assumed`"
                yield Finding(f"{root}.{path}", "null", "a value", remedy)


@rule("DOC-06", source="")
def references_lead_somewhere(fleet: Fleet) -> Iterator[Finding]:
    """Every name that a document refers to exists, and holds what the reference needs."""
    for index, tunnel in enumerate(fleet.common.tunnels):
        for end in fleet.absent & tunnel.ends.keys():
            found = f"{end}, which has no document"
            remedy = "add it, or correct the name; until then what spans both ends leaves it out"
            yield Finding(f"common.tunnels.{index}.ends.{end}", found, f"Pulumi.{end}.yaml", remedy, level=Level.WARN)
    manager = fleet.common.multikueue.manager
    if manager not in fleet.absent:
        yield from _known("common.multikueue.manager", manager, fleet.sites, "site")
    for path, _, cluster in fleet.clusters():
        releases = fleet.common.k3s_checksums
        yield from _known(f"{path}.k3s_version", cluster.k3s_version, releases, "release of common.k3s_checksums")
    yield from _nodes(fleet)
    for site_id, site in fleet.sites.items():
        yield from _guests(site_id, site)
        yield from _rest(site_id, site)


@rule("DOC-07", source="")
def values_do_not_contradict(fleet: Fleet) -> Iterator[Finding]:
    """A document does not contradict itself: a guest is one node of one cluster, a range ends after it starts."""
    taken: dict[tuple[str, str], tuple[str, str]] = {}
    for place in places(fleet):
        key, role = (place.site_id, place.name), place.cluster.role
        before, before_role = taken.setdefault(key, (place.path, role))
        if before != place.path and before_role == role:  # in a main and a GPU cluster: GPU-01
            expected = "one node of one cluster"
            yield Finding(place.path, f"{place.name}, also at {before}", expected, "name the guest once")
    for path, _, cluster in fleet.clusters():
        if cluster.api.vip is None and len(cluster.servers) > 1:
            found = f"nothing for {len(cluster.servers)} servers"
            yield Finding(f"{path}.api.vip", found, "an address that outlives a server", "choose a free LAN address")
    yield from _sizes(fleet)
    for path, _, cluster in fleet.clusters():
        for index, argument in enumerate(cluster.kubelet_args):
            name = argument.partition("=")[0].rstrip("+-")
            if name in TAKEN_ARGS:
                expected = "an argument that neither K3s nor the program sets"
                yield Finding(
                    f"{path}.kubelet_args.{index}", name, expected, "remove it; `logs` has the limits of logs"
                )
    for site_id, site in fleet.sites.items():
        for key_name, addresses in (("lb.pool", site.lb.pool), ("network.dhcp_range", site.network.dhcp_range)):
            if addresses is not None and addresses.start > addresses.stop:
                yield Finding(f"{site_id}.{key_name}", addresses, "start before stop", "swap the two")
        if site.bgp.hold_time_s < 3 * site.bgp.keepalive_s:
            expected = f"at least three keepalives of {site.bgp.keepalive_s} s"
            yield Finding(f"{site_id}.bgp.hold_time_s", site.bgp.hold_time_s, expected, "correct one of the two")
        dhcp, lan = site.network.dhcp_range, site.network.lan_cidr
        if dhcp is not None and not (dhcp.start in lan and dhcp.stop in lan):
            yield Finding(
                f"{site_id}.network.dhcp_range", dhcp, f"addresses of the LAN {lan}", "correct one of the two"
            )
        yield from _router(fleet, site_id, site)


def _router(fleet: Fleet, site_id: str, site: Site) -> Iterator[Finding]:
    vyos, path = site.vyos, f"{site_id}.vyos"
    if (vyos.zones is not None) != (vyos.firewall == "zones"):
        found = "nothing with firewall: zones" if vyos.zones is None else f"zones with firewall: {vyos.firewall}"
        yield Finding(f"{path}.zones", found, "names of zones exactly when firewall is zones", "correct one of the two")
    if vyos.wan_interface == vyos.lan_interface:
        expected = "another interface than that of the LAN"
        yield Finding(f"{path}.wan_interface", vyos.wan_interface, expected, "correct one of the two")
    tunnels = {tunnel.interface for tunnel in fleet.common.tunnels if site_id in tunnel.ends}
    for key, name in (("wan_interface", vyos.wan_interface), ("lan_interface", vyos.lan_interface)):
        if name in tunnels:
            expected = "an interface that is no tunnel of common.tunnels"
            yield Finding(f"{path}.{key}", name, expected, "name the interface towards LAN or provider")
    if vyos.apply and vyos.ssh is None:
        expected = "address, port, user and host key of its SSH"
        yield Finding(f"{path}.ssh", "nothing with apply: true", expected, "set them, or drop apply")
    taken: dict[tuple[bool, str], str] = {}  # of zones and of chains: in one chain two rules would share a number
    for key, name in vyos.zones or ():
        before = taken.setdefault(("_to_" in key, name), key)
        if before != key:
            yield Finding(
                f"{path}.zones.{key}", f"{name}, like {before}", "a name of its own", "correct one of the two"
            )
        if name.upper().startswith("FLEET"):
            yield Finding(f"{path}.zones.{key}", name, "a name of the site's own", "FLEET begins names of this program")


@rule("DOC-08", level=Level.WARN, source="")
def guests_have_a_cluster(fleet: Fleet) -> Iterator[Finding]:
    """A guest is a node of a cluster; one that no cluster names is a slip, unless the document accepts it."""
    named = {(place.site_id, place.name) for place in places(fleet)}
    for path, site, guest in fleet.guests():
        if (path.split(".", 1)[0], guest.name) not in named and guest.name != site.traefik.legacy_proxy:
            remedy = "name it under servers or agents, remove it, or accept it under accept.DOC-08"
            yield Finding(path, "a guest that no cluster names", "a node of a cluster", remedy)


def _sizes(fleet: Fleet) -> Iterator[Finding]:
    """What no cluster could be made with, said before it is fixed for the cluster's life."""
    for path, _, cluster in fleet.clusters():
        count = len({*cluster.servers, *cluster.agents})
        prefix = cluster.pod_cidr.prefixlen
        if prefix not in POD_PREFIXES or count > 1 << (NODE_PREFIX - prefix):
            expected = f"a /{POD_PREFIXES[0]} to /{POD_PREFIXES[-1]} with a /{NODE_PREFIX} for each of {count} nodes"
            yield Finding(f"{path}.pod_cidr", cluster.pod_cidr, expected, "choose a larger or smaller range")
        if cluster.service_cidr.prefixlen not in SERVICE_PREFIXES:
            expected = f"a /{SERVICE_PREFIXES[0]} to /{SERVICE_PREFIXES[-1]}"
            yield Finding(f"{path}.service_cidr", cluster.service_cidr, expected, "choose a larger or smaller range")
    for entry in all_ranges(fleet):
        ends = (IPv4Address(entry.first), IPv4Address(entry.last))
        if entry.first >> 24 == 0 or any(
            end.is_loopback or end.is_link_local or end.is_multicast or end.is_reserved for end in ends
        ):
            yield Finding(entry.path, entry.text, "addresses that machines can have", "choose another range")


def _documents(fleet: Fleet) -> Iterator[tuple[str, Common | Site]]:
    yield "common", fleet.common
    yield from fleet.sites.items()


def _obtained(document: Common | Site) -> Iterator[tuple[str, object]]:
    """Values that come from elsewhere and are never made up."""
    if isinstance(document, Common):
        yield "cilium.ca_sha256", document.cilium.ca_sha256
        for release, sums in document.k3s_checksums.items():
            yield f"k3s_checksums.{release}.binary_sha256", sums.binary_sha256
            yield f"k3s_checksums.{release}.images_sha256", sums.images_sha256
        return
    yield "wireguard.public_key", document.wireguard.public_key
    yield "proxmox.vm_image.sha256", document.proxmox.vm_image.sha256
    if document.proxmox.container_template is not None:
        yield "proxmox.container_template.sha256", document.proxmox.container_template.sha256


def _known(path: str, name: str, known: Mapping[str, object], what: str) -> Iterator[Finding]:
    if name not in known:
        names = sorted(known)
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        yield Finding(
            path, f"{name}, which is unknown", f"{with_article(what)}: {shown or 'there is none'}", "correct the name"
        )


def _nodes(fleet: Fleet) -> Iterator[Finding]:
    known = {guest.name for _, _, guest in fleet.guests()}
    for place in places(fleet):
        site = place.site
        judged = place.name in known or place.name in site.proxmox.hosts
        if not judged and place.name not in site.unmanaged_guests:
            yield from _known(place.path, place.name, site.guests, "guest")  # else PVE-06, K3S-06 or K3S-12


def _guests(site_id: str, site: Site) -> Iterator[Finding]:
    for guest in site.guests.values():
        path = f"{site_id}.guests.{guest.name}"
        yield from _known(f"{path}.host", guest.host, site.proxmox.hosts, "host")
        if isinstance(guest, Vm):
            for index, disk in enumerate(guest.disks):
                yield from _storage(f"{path}.disks.{index}.storage", disk.storage, site, "images")
            continue
        yield from _storage(f"{path}.disk.storage", guest.disk.storage, site, "rootdir")
        if site.proxmox.container_template is None:
            where = f"{site_id}.proxmox.container_template"
            yield Finding(where, "nothing", f"the template of {guest.name}", "name the template")


def _rest(site_id: str, site: Site) -> Iterator[Finding]:
    def image(key: str, image: Image | None, content: str) -> Iterator[Finding]:
        if image is not None:
            yield from _storage(f"{site_id}.proxmox.{key}.storage", image.storage, site, content)

    yield from image("vm_image", site.proxmox.vm_image, "import")
    yield from image("container_template", site.proxmox.container_template, "vztmpl")
    if site.traefik.legacy_proxy is not None:
        known = {**site.guests, **site.unmanaged_guests}
        yield from _known(f"{site_id}.traefik.legacy_proxy", site.traefik.legacy_proxy, known, "guest")
    for guest in site.migration.snapshots:
        yield from _known(f"{site_id}.migration.snapshots.{guest}", guest, site.guests, "guest")
    for index, app in enumerate(site.secrets.legacy_generators):
        yield from _known(f"{site_id}.secrets.legacy_generators.{index}", app, site.apps, "app")


def _storage(path: str, name: str, site: Site, content: str) -> Iterator[Finding]:
    storage = site.proxmox.storages.get(name)
    if storage is None:
        yield from _known(path, name, site.proxmox.storages, "storage")
    elif content not in storage.content:
        found = f"{name}, which holds {', '.join(storage.content) or 'nothing'}"
        yield Finding(path, found, f"a storage with content {content}", "name another storage, or add the content")
