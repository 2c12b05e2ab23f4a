"""`fleet topology`: the fleet of the documents as one picture, sites side by side.

From the top: tunnels between the routers, each with its BGP session; per site the router, its sessions with the nodes,
the clusters, and the hosts with the guests on them. One dashed line joins the members of the mesh. What a machine could
tell of itself is left out: it shows what is planned, not what runs.
"""

from dataclasses import dataclass

from cli.sheet import LEAD, Sheet, svg, widest, width
from infra.config import Bgp, Cluster, Fleet, Lxc, Site, Vm
from infra.config.fleet import Tunnel
from infra.config.proxmox import Host
from infra.k3s.in_force import in_force, waits_for_migration

FILE = "docs/topology.svg"
PAD, GAP, MARGIN = 12, 12, 16
BETWEEN = 120  # px between two sites: the name of the mesh stands there
LANE = 30  # px for one tunnel
WIRES = 74  # px between router and clusters
COLUMNS = 3  # hosts in a row
HEAD = 20  # px, name of a site
CLUSTER_NAME = 15


def of(fleet: Fleet) -> str:
    return svg(layout(fleet))


def layout(fleet: Fleet) -> Sheet:
    """Every box, text and line of the picture."""
    names = ", ".join(fleet.sites)
    sheet = Sheet(
        title=f"The fleet: {names}",
        description="Sites with router, K3s clusters, Proxmox hosts and guests; WireGuard tunnels with BGP between "
        "the routers; the ClusterMesh between main clusters.",
    )
    tunnels = [tunnel for tunnel in fleet.common.tunnels if all(end in fleet.sites for end in tunnel.ends)]
    order = list(fleet.sites)
    # Short ones below long ones, so that fewer lines cross.
    tunnels.sort(key=lambda one: -_span(order, one))
    top = MARGIN + LANE * len(tunnels) + (MARGIN if tunnels else 0)
    drawn: dict[str, _Drawn] = {}
    x = MARGIN
    for site_id, site in fleet.sites.items():
        ends = [place for place, tunnel in enumerate(tunnels) if site_id in tunnel.ends]
        drawn[site_id] = _site(sheet, fleet, site_id, site, ends, x, top)
        x += drawn[site_id].width + BETWEEN
    bottom = max(one.bottom for one in drawn.values())
    for place, tunnel in enumerate(tunnels):
        _tunnel(sheet, fleet, tunnel, place, drawn)
    _mesh(sheet, drawn)
    sheet.width = x - BETWEEN + MARGIN
    _legend(sheet, bottom + 2 * MARGIN)
    sheet.width = max(sheet.width, max(text.box.x + text.box.width for text in sheet.texts) + MARGIN)
    return sheet


def _span(order: list[str], tunnel: Tunnel) -> int:
    first, second = (order.index(end) for end in tunnel.ends)
    return abs(first - second)


@dataclass
class _Drawn:
    """Where a site is, and where lines meet it."""

    x: int
    width: int
    bottom: int
    router: int  # top of the router
    plugs: dict[int, int]  # x of each tunnel, by its place
    bus: int  # y of the mesh
    members: list[int]  # x of each member of the mesh


def _site(sheet: Sheet, fleet: Fleet, site_id: str, site: Site, ends: list[int], x: int, top: int) -> _Drawn:
    subtitle = f"LAN {site.network.lan_cidr}, MTU {site.network.mtu}"
    router = _router(site)
    asn = f"AS {site.bgp.vyos_asn}"
    clusters = list(site.clusters.values())
    texts = {cluster.name: _cluster_texts(fleet, site, cluster) for cluster in clusters}
    sizes = [_cluster_width(site, cluster, texts[cluster.name]) for cluster in clusters]
    grid = _Grid(site)
    head = width(site_id, HEAD, bold=True) + 2 * PAD + width(subtitle) + 24 * (len(ends) + 1)
    inner = max(
        head,
        widest(router, bold=True) + width(asn, bold=True) + 4 * PAD,
        sum(sizes) + GAP * (len(sizes) - 1),
        grid.width,
    )
    spare = inner - sum(sizes) - GAP * (len(sizes) - 1)
    sizes = [size + spare // len(sizes) for size in sizes]
    left, y = x + PAD, top + PAD
    frame = len(sheet.boxes)
    sheet.text(left, y + HEAD, site_id, "head", size=HEAD)
    sheet.text(left + width(site_id, HEAD, bold=True) + 2 * PAD, y + HEAD, subtitle, "soft")
    plugs = {place: x + inner + PAD - 12 - 24 * number for number, place in enumerate(reversed(ends))}

    y = router_top = y + HEAD + PAD
    high = LEAD * len(router) + 2 * PAD
    sheet.box(left, y, inner, high, "router")
    for number, text in enumerate(router):
        sheet.text(left + PAD, y + PAD + 14 + LEAD * number, text, "" if number else "name")
    sheet.text(left + inner - PAD, y + PAD + 14, asn, "name", end=True)
    y += high
    bus, row, members = y + 44, y + WIRES, []
    high = max((len(lines) for lines in texts.values()), default=0) * LEAD + 2 * PAD
    at = left
    for cluster, size in zip(clusters, sizes, strict=True):
        if cluster.cni == "cilium":
            sheet.line("bgp", (at + 22, y), (at + 22, row))
            sheet.text(at + 32, y + 24, _sessions(site.bgp), "gold")
        if cluster.in_mesh:
            members.append(at + size - 22)
            sheet.line("mesh", (members[-1], bus), (members[-1], row))
            sheet.text(at + size - 32, bus + 19, _mesh_api(site), "violet", end=True)
        sheet.box(at, row, size, high, cluster.cni)
        for number, text in enumerate(texts[cluster.name]):
            kind, px = ("name", CLUSTER_NAME) if number == 0 else ("", 13)
            sheet.text(at + PAD, row + PAD + 14 + LEAD * number, text, kind, size=px)
        at += size + GAP
    y = grid.draw(sheet, left, row + high + 2 * GAP, inner)
    if site.unmanaged_guests:
        sheet.text(left, y + LEAD, f"left alone: {', '.join(site.unmanaged_guests)}", "soft")
        y += LEAD
    y += PAD
    wide = inner + 2 * PAD
    if site.unmanaged_guests:
        wide = max(wide, width(f"left alone: {', '.join(site.unmanaged_guests)}") + 2 * PAD)
    sheet.box(x, top, wide, y - top, "site")
    sheet.boxes.insert(frame, sheet.boxes.pop())  # below what lies on it
    return _Drawn(x=x, width=wide, bottom=y, router=router_top, plugs=plugs, bus=bus, members=members)


def _router(site: Site) -> list[str]:
    reached = (
        "dynamic address, dials out" if site.wireguard.dynamic else f"public {site.vyos.public_address or 'unknown'}"
    )
    return [f"VyOS {site.vyos.version}, {site.vyos.lan_address}", f"{reached}, UDP {site.wireguard.listen_port}"]


def _sessions(bgp: Bgp) -> str:
    kind = "iBGP" if bgp.cilium_asn == bgp.vyos_asn else "eBGP"
    return f"{kind} with every node, AS {bgp.cilium_asn}"


def _mesh_api(site: Site) -> str:
    return f"mesh API {site.lb.vips.clustermesh_api}"


def _cluster_texts(fleet: Fleet, site: Site, cluster: Cluster) -> list[str]:
    servers = [site.guests[name] for name in cluster.servers if name in site.guests]
    mesh = "in the mesh" if cluster.in_mesh else "outside the mesh"
    id = f", id {cluster.cluster_id}" if cluster.cluster_id else ""
    first = [f"{'main' if cluster.role == 'main' else 'GPU'}, {cluster.cni.capitalize()}{id}, {mesh}"]
    if servers and waits_for_migration(cluster, servers):
        first.append(f"until its migration: Flannel ({in_force(cluster, servers).flannel_backend})")
    api = cluster.api.vip or (servers[0].address if servers else "unknown")
    texts = [cluster.name, *first, f"API {api}", f"Pods {cluster.pod_cidr}", f"Services {cluster.service_cidr}"]
    if cluster.gpu is not None:
        texts.append(f"GPUs {cluster.gpu.model.upper()}, shared by {cluster.gpu.sharing}")
    if cluster.cni == "cilium":
        texts.append(f"LB pool {site.lb.pool.start} to {site.lb.pool.stop}")
        named = [
            (name, vip) for name, vip in site.lb.vips if vip and not (cluster.in_mesh and name == "clustermesh_api")
        ]
        texts += [f"{name.replace('_', ' ')} {vip}" for name, vip in named]
    return texts


def _cluster_width(site: Site, cluster: Cluster, texts: list[str]) -> int:
    wide = max(width(texts[0], CLUSTER_NAME, bold=True), widest(texts[1:])) + 2 * PAD
    if cluster.cni == "cilium":
        wide = max(wide, width(_sessions(site.bgp)) + 64)
    return max(wide, width(_mesh_api(site)) + 64) if cluster.in_mesh else wide


class _Grid:
    """Hosts in rows, each with its guests on it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        hosts = list(site.proxmox.hosts.values())
        self._rows = [hosts[start : start + COLUMNS] for start in range(0, len(hosts), COLUMNS)]
        columns = len(self._rows[0]) if self._rows else 0
        self._widths = [
            max(self._host_width(row[column]) for row in self._rows if column < len(row)) for column in range(columns)
        ]
        self.width = sum(self._widths) + GAP * max(0, columns - 1)

    def draw(self, sheet: Sheet, left: int, y: int, inner: int) -> int:
        """Returns where it ends."""
        spare = (inner - self.width) // max(1, len(self._widths))
        widths = [size + spare for size in self._widths]
        for row in self._rows:
            high, x = max(self._host_height(host) for host in row), left
            for host, size in zip(row, widths, strict=False):
                self._host(sheet, host, x, y, size, high)
                x += size + GAP
            y += high + GAP
        return y

    def _guests(self, host: Host) -> list[Vm | Lxc]:
        return [guest for guest in self._site.guests.values() if guest.host == host.name]

    def _host_width(self, host: Host) -> int:
        guests = [text for guest in self._guests(host) for text in _guest_texts(self._site, guest)]
        return max(widest(_host_texts(host), bold=True) + 2 * PAD, widest(guests, bold=True) + 4 * PAD)

    def _host_height(self, host: Host) -> int:
        guests = sum(LEAD * 3 + PAD + 10 for _ in self._guests(host))
        return LEAD * len(_host_texts(host)) + PAD + 4 + guests

    def _host(self, sheet: Sheet, host: Host, x: int, y: int, wide: int, high: int) -> None:
        sheet.box(x, y, wide, high, "host")
        texts = _host_texts(host)
        for number, text in enumerate(texts):
            sheet.text(x + PAD, y + PAD + 12 + LEAD * number, text, "soft" if number else "name")
        y += PAD + LEAD * len(texts) + 4
        for guest in self._guests(host):
            cluster = _cluster_of(self._site, guest.name)
            kind = cluster.cni if cluster else "alone"
            sheet.box(x + PAD, y, wide - 2 * PAD, LEAD * 3 + 10, f"{kind} there" if guest.existing else kind)
            for number, text in enumerate(_guest_texts(self._site, guest)):
                sheet.text(x + 2 * PAD, y + 19 + LEAD * number, text, "" if number else "name")
            y += LEAD * 3 + 10 + PAD


def _host_texts(host: Host) -> list[str]:
    models: dict[str, int] = {}
    for gpu in host.gpus:
        models[f"{gpu.model.upper()} {gpu.memory_gib} GiB"] = (
            models.get(f"{gpu.model.upper()} {gpu.memory_gib} GiB", 0) + 1
        )
    gpus = ", ".join(f"{count} x {model}" for model, count in models.items()) or "no GPU"
    return [host.name, f"{host.address}, tier {host.hardware_tier}", gpus]


def _guest_texts(site: Site, guest: Vm | Lxc) -> list[str]:
    cluster = _cluster_of(site, guest.name)
    role = "no node" if cluster is None else "server" if guest.name in cluster.servers else "agent"
    kind = "LXC" if isinstance(guest, Lxc) else "VM"
    where = f"{role} of {cluster.name}" if cluster else role
    return [guest.name, f"{guest.address}, {kind} {guest.vmid}", where]


def _cluster_of(site: Site, guest: str) -> Cluster | None:
    return next((one for one in site.clusters.values() if guest in (*one.servers, *one.agents)), None)


def _tunnel(sheet: Sheet, fleet: Fleet, tunnel: Tunnel, place: int, drawn: dict[str, _Drawn]) -> None:
    """A lane of its own above the sites, down to both routers."""
    ends = sorted(tunnel.ends, key=lambda end: drawn[end].x)
    lane = MARGIN + LANE * place + 22
    points = [(drawn[end].plugs[place], y) for end in ends for y in (drawn[end].router, lane)]
    sheet.line("tunnel", points[0], points[1], points[3], points[2])
    asns = [fleet.sites[end].bgp.vyos_asn for end in ends]
    kind = "iBGP" if asns[0] == asns[1] else "eBGP"
    sides = " to ".join(f"{end} {tunnel.ends[end]}" for end in ends)
    label = f"WireGuard {tunnel.interface} {tunnel.cidr}: {sides}; {kind} AS {asns[0]} to AS {asns[1]}"
    middle = (points[1][0] + points[3][0] - width(label, bold=True)) // 2
    sheet.text(max(MARGIN, middle), lane - 6, label, "red on-line name")


def _mesh(sheet: Sheet, drawn: dict[str, _Drawn]) -> None:
    """One line for all members: each of them speaks to each other one."""
    members = [(site, x) for site in drawn.values() for x in site.members]
    if len(members) < 2:
        return
    (first, start), (last, stop) = members[0], members[-1]
    bus = max(site.bus for site, _ in members)
    sheet.line("mesh", (start, bus), (stop, bus))
    sheet.text(first.x + first.width + 10, bus - 8, "ClusterMesh", "violet")
    assert last.bus == bus, "routers have one height"


def _legend(sheet: Sheet, y: int) -> None:
    entries = (
        ("cilium", "cluster and guests with Cilium"),
        ("flannel", "with Flannel"),
        ("host", "Proxmox host, there already"),
        ("cilium there", "guest that was there before"),
        ("router", "router"),
    )
    x, start = MARGIN, y
    for kind, text in entries:
        if x > MARGIN and x + 40 + width(text) > sheet.width - MARGIN:
            x, y = MARGIN, y + LEAD + 6
        sheet.box(x, y - 12, 26, 16, kind)
        sheet.text(x + 34, y, text, "soft")
        x += 34 + width(text) + 24
    sheet.height = max(y, start) + MARGIN
