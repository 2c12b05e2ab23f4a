"""Network of one site: LAN, router, tunnel end, BGP and LoadBalancer addresses."""

from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from infra.config.base import AddressRange, Asn, Hostname, MachineAddress, Model, Mtu, Name, NonEmpty, Port, Server

Cidr = IPv4Network
Interface = Annotated[str, Field(pattern=r"^[a-z][a-z0-9.]{0,14}$")]
FirewallName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,27}$")]


def _known_line(version: object) -> object:
    if version in ("1.2", "1.3"):
        raise ValueError("1.4 or 1.5, since older ones have other configuration paths: upgrade the router first")
    return version


class Network(Model):
    """The LAN that hosts, guests and VIPs share."""

    lan_cidr: Cidr
    """CIDR of the LAN."""
    bridge: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,14}$")]
    """Bridge of the Proxmox hosts that carries the LAN."""
    vlan: Annotated[int, Field(ge=1, le=4094)] | None = None
    """VLAN tag on the bridge; none for untagged."""
    mtu: Mtu
    """MTU of the LAN in bytes."""
    dns_servers: Annotated[tuple[MachineAddress, ...], Field(min_length=1)]
    """Resolvers of the guests."""
    dns_search: Hostname
    """Search domain of the guests."""
    ntp_servers: Annotated[tuple[Server, ...], Field(min_length=1)]
    """Time servers of the guests."""
    dhcp_range: AddressRange | None
    """Range that DHCP gives out; none where the LAN has no DHCP."""
    vip_ranges: tuple[Cidr, ...] = ()
    """Ranges outside the LAN that carry LoadBalancer addresses."""
    storage_cidr: Cidr
    """Storage network of LINSTOR; never routed between sites."""


class Zones(Model):
    """The site's own zones and chains on a router with zones. Tunnels get a zone `FLEET` beside them."""

    lan: FirewallName
    """Zone of the LAN."""
    local: FirewallName
    """Zone of the router itself."""
    wan_to_local: FirewallName
    """Chain between the outside and the router; gets a rule for WireGuard."""
    lan_to_local: FirewallName
    """Chain between LAN and router; gets a rule for BGP."""
    wan_to_lan: FirewallName
    """Chain between the outside and the LAN; gets a rule for forwarded ports."""


class RouterSsh(Model):
    """How the program reaches the router to apply. A router that shows another host key is not spoken to."""

    address: IPv4Address
    """Address that answers SSH and stays in reach while tunnels change: that of the LAN, as a rule."""
    port: Port
    """TCP port."""
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
    """Login that may configure, with the public half of `fleet:sshPrivateKey`."""
    host_key: Annotated[str, Field(pattern=r"^ssh-ed25519 [A-Za-z0-9+/=]+$")]
    """Public host key, read at the router's console."""


class Vyos(Model):
    """The site's border router. The program renders its configuration and never applies it unasked."""

    lan_address: IPv4Address
    """Address in the LAN: gateway of the guests and BGP peer of Cilium."""
    public_address: MachineAddress | None
    """Fixed public address; none where it is dynamic."""
    version: Annotated[Literal["1.4", "1.5"], BeforeValidator(_known_line)]
    """VyOS release line, which decides the configuration paths."""
    wan_interface: Interface
    """Interface to the outside, where peers dial."""
    lan_interface: Interface
    """Interface in the LAN."""
    firewall: Literal["zones", "chains"]
    """Firewall model in use: zones, or rules in the base chains alone. With zones both judge a packet."""
    zones: Zones | None = None
    """Names of zones and chains; with `zones` alone."""
    apply: bool = False
    """Let `fleet vyos apply` change the router; needs `ssh`."""
    ssh: RouterSsh | None = None
    """How the program reaches it; needed with `apply: true`."""
    confirm_minutes: Annotated[int, Field(ge=2, le=60)] = 10
    """Minutes after which the router takes back a commit that nobody confirmed; 10 is its own default."""
    backup_ref: NonEmpty | None = None
    """Reference of a recorded backup; needed to apply."""


class WireGuard(Model):
    """This site's end of the tunnels; their addresses stand in `common.tunnels`."""

    listen_port: Port
    """UDP port of wg0; wgN listens N above it."""
    endpoint: MachineAddress | Hostname | None
    """Where peers dial; none where the address is dynamic."""
    dynamic: bool = False
    """The public address changes: only this site dials, with keepalive."""
    public_key: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$")] | None
    """Public key; null only while its path is listed under `assumed`."""
    mtu: Mtu
    """MTU of the interface in bytes."""
    route_lans: bool
    """Route the LANs of the sites through the tunnel (nodes must reach each other)."""
    allow_admin_ssh: bool = False
    """Let SSH through the tunnel for administration."""

    def port_of(self, interface: str) -> int:
        """UDP port of one tunnel: two interfaces cannot share one."""
        return self.listen_port + int(interface.removeprefix("wg"))


class BgpNode(Model):
    """What differs at one node of the main cluster."""

    router_id: MachineAddress | None = None
    """Router id of the node; none takes its address."""
    local_port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    """Port on which the node's speaker listens as well; none only dials."""


class Bgp(Model):
    """BGP of the site: Cilium peers with the local router, routers peer over the tunnel."""

    site_asn: Asn
    """ASN of the site, unique in the fleet."""
    cilium_asn: Asn
    """Local ASN of Cilium."""
    vyos_asn: Asn
    """ASN of the router; equal to `cilium_asn` means iBGP."""
    export_vips: bool = False
    """Announce this site's LoadBalancer addresses to other sites."""
    hold_time_s: Annotated[int, Field(ge=3, le=65535)]
    """Hold time in seconds."""
    keepalive_s: Annotated[int, Field(ge=1, le=21845)]
    """Keepalive interval in seconds."""
    graceful_restart_s: Annotated[int, Field(ge=0, le=4095)]
    """Graceful restart time in seconds; 0 switches it off."""
    connect_retry_s: Annotated[int, Field(ge=1, le=65535)] = 30
    """Seconds after which Cilium, which alone dials, tries again."""
    authenticated: bool = False
    """Peers use the password in the secret `fleet:bgpPassword`."""
    node_overrides: dict[Name, BgpNode] = {}
    """What differs at single nodes, by their names."""


class Vips(Model):
    """LoadBalancer addresses that others refer to."""

    traefik: IPv4Address | None = None
    """Ingress of the main cluster; none without Traefik there."""
    clustermesh_api: IPv4Address
    """ClusterMesh API server."""
    karmada_api: IPv4Address | None = None
    """Karmada API server, on the Karmada host's site alone."""


class LoadBalancer(Model):
    """Who hands out LoadBalancer addresses in the main cluster, and which."""

    mode: Literal["cilium", "metallb"] = "cilium"
    """`cilium` (LB-IPAM, default) or `metallb` (its controller alone, Cilium announces)."""
    binding: Literal["class", "default"]
    """Services name a loadBalancerClass, or the allocator takes all of them."""
    pool: AddressRange
    """Addresses of the pool."""
    vips: Vips
    """Fixed addresses within the pool, kept for Services with the label `fleet.colabh.org/fixed-address: "true"`."""
    l2_announcements: bool = False
    """Answer ARP for the addresses in the LAN as well."""
