"""The documents: facts of the fleet, one site, and all sites together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import Field, model_validator

from infra.config.base import HttpsUrl, K3sVersion, Model, Name, NonEmpty, Sha256, name_entries
from infra.config.cluster import Cluster
from infra.config.network import Bgp, Cidr, LoadBalancer, Network, Vyos, WireGuard
from infra.config.platform import (
    App,
    ArgoCd,
    Dns,
    Karmada,
    Maintenance,
    Migration,
    ObjectStore,
    Observability,
    Rejected,
    Secrets,
    Storage,
    TensorZero,
    Traefik,
    Velero,
)
from infra.config.proxmox import Guest, Host, Lxc, Proxmox, UnmanagedGuest, Vm

SshPublicKey = Annotated[str, Field(pattern=r"^ssh-ed25519 [A-Za-z0-9+/=]+$")]
RuleId = Annotated[str, Field(pattern=r"^[A-Z0-9]{2,4}-[0-9]{2}$")]


class Case(Model):
    """Acknowledgement of a rule that lists cases."""

    case: NonEmpty
    """Which of the rule's cases."""
    reason: NonEmpty
    """Why."""


class Tunnel(Model):
    """WireGuard tunnel between two sites."""

    interface: Annotated[str, Field(pattern=r"^wg[0-9]{1,3}$")]
    """Interface name on both routers."""
    cidr: Cidr
    """Its /30."""
    ends: Annotated[dict[Name, IPv4Address], Field(min_length=2, max_length=2)]
    """Address of each end, by site."""


class CiliumLine(Model):
    """What the main clusters must have in common."""

    version: Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}$")]
    """Chart version."""
    datapath: Literal["tunnel", "native"]
    """Encapsulation or native routing."""
    ca_mode: Literal["shared", "separate"] = "shared"
    """One CA for the mesh, or one per cluster."""
    ca_sha256: Sha256 | None
    """SHA-256 fingerprint of the shared CA certificate (DER); null only while its path is listed under `assumed`."""


class K3sChecksums(Model):
    """SHA-256 of the files of one K3s release for amd64, from the release's own checksum file."""

    binary_sha256: Sha256 | None
    """`k3s`; null only while its path is listed under `assumed`, and not needed with an artifact mirror."""
    images_sha256: Sha256 | None
    """`k3s-airgap-images-amd64.tar.zst`; likewise."""


class Git(Model):
    """Repository that Argo CD reads."""

    repository: HttpsUrl
    """URL."""
    revision: NonEmpty = "main"
    """Branch or tag."""


class MultiKueue(Model):
    """Batch jobs over sites."""

    enabled: bool = False
    """On once two GPU clusters exist."""
    manager: Name
    """Site whose main cluster is the manager."""
    distributed_over_sites: bool = False
    """Send distributed jobs over sites."""
    workloads: tuple[Name, ...] = ("fine-tuning", "ocr", "dataset-generation", "graphrag", "embeddings")
    """Classes of jobs that may run in another site than they were submitted in."""
    own_queue: Name | None = None
    """ClusterQueue for jobs that the manager runs itself; none lets it run none."""


class Common(Model):
    """Facts of the fleet: `fleet:common` in Pulumi.yaml."""

    schema_version: Literal[1]
    """Version of the documents' shape."""
    tunnels: tuple[Tunnel, ...]
    """Tunnels between sites."""
    cilium: CiliumLine
    """Cilium of the main clusters."""
    k3s_checksums: dict[K3sVersion, K3sChecksums]
    """Checksums by K3s release."""
    dns_zone: NonEmpty
    """Public DNS zone."""
    git: Git
    """GitOps repository."""
    multikueue: MultiKueue
    """Batch jobs over sites."""
    operators: dict[Name, SshPublicKey] = {}
    """Public SSH keys of people, by name: they open the guests beside the program's own key."""
    assumed: tuple[NonEmpty, ...] = ()
    """Paths of values that no document fixes yet. A real update refuses while one is listed."""


class Site(Model):
    """One site: `fleet:site` in Pulumi.<site>.yaml. One site is one stack."""

    schema_version: Literal[1]
    """Version of the document's shape."""
    profile: Literal["cpps", "datacenter", "solo", "lab"] = "cpps"
    """Decisions in force; `solo` and `lab` installs run no Kubernetes."""
    region: Name | None = None
    """Region of a datacenter site."""
    network: Network
    """LAN."""
    vyos: Vyos
    """Border router."""
    wireguard: WireGuard
    """This site's end of the tunnels."""
    bgp: Bgp
    """BGP."""
    lb: LoadBalancer
    """LoadBalancer addresses."""
    proxmox: Proxmox
    """Proxmox cluster."""
    guests: dict[Name, Guest]
    """Guests of the program, by name."""
    unmanaged_guests: dict[Name, UnmanagedGuest] = {}
    """Guests it leaves alone."""
    clusters: dict[Name, Cluster]
    """K3s clusters, by name; for a mesh member that is Cilium's `cluster.name`."""
    karmada: Karmada
    """Federation."""
    argocd: ArgoCd
    """GitOps."""
    traefik: Traefik
    """Ingress."""
    dns: Dns
    """Public names."""
    storage: Storage
    """Persistent volumes."""
    object_store: ObjectStore | None
    """Object store; none until one is needed."""
    secrets: Secrets
    """Secrets."""
    velero: Velero = Velero()
    """Backup of Kubernetes."""
    observability: Observability
    """Logs and metrics."""
    apps: dict[Name, App] = {}
    """Applications, for placement rules."""
    tensorzero: TensorZero = TensorZero(enabled=False)
    """Gateway for interactive GPU calls."""
    migration: Migration = Migration(from_flannel=False)
    """Move from Flannel to Cilium."""
    maintenance: Maintenance | None = None
    """A planned risky change."""
    rejected: Rejected = Rejected()
    """Systems that the decisions turned down."""
    accept: dict[RuleId, NonEmpty | Case] = {}
    """Acknowledgements by rule id, each with its reason."""
    assumed: tuple[NonEmpty, ...] = ()
    """Paths of values that no document fixes yet. A real update refuses while one is listed."""

    @model_validator(mode="after")
    def _name_entries(self) -> "Site":
        for entries in (self.proxmox.hosts, self.proxmox.storages, self.guests, self.unmanaged_guests, self.clusters):
            name_entries(entries)
        return self

    @property
    def vms(self) -> Iterator[Vm]:
        return (guest for guest in self.guests.values() if isinstance(guest, Vm))

    @property
    def containers(self) -> Iterator[Lxc]:
        return (guest for guest in self.guests.values() if isinstance(guest, Lxc))

    @property
    def runs_cilium(self) -> bool:
        """Whether one of its clusters does."""
        return any(cluster.cni == "cilium" for cluster in self.clusters.values())

    @property
    def mesh_member(self) -> Cluster | None:
        """Its cluster in the ClusterMesh: the main one, which has the one address for the mesh API (MSH-01)."""
        members = (one for one in self.clusters.values() if one.role == "main" and one.cni == "cilium" and one.in_mesh)
        return next(members, None)

    def nodes(self, cluster: Cluster) -> Iterator[Vm | Lxc]:
        """Guests of a cluster that the document has, servers first."""
        return (self.guests[name] for name in (*cluster.servers, *cluster.agents) if name in self.guests)


@dataclass(frozen=True)
class Fleet:
    """All sites by id. A stack sees its siblings' documents, never their secrets or their state."""

    common: Common
    sites: Mapping[str, Site]

    @property
    def absent(self) -> frozenset[str]:
        """Sites at the end of a tunnel that have no document, yet or any more. Whether they hold what others lack
        cannot be told."""
        return frozenset(end for tunnel in self.common.tunnels for end in tunnel.ends) - self.sites.keys()

    def clusters(self) -> Iterator[tuple[str, Site, Cluster]]:
        """Each cluster with its path (`sp.clusters.gpu-sp`) and its site."""
        for site_id, site in self.sites.items():
            for cluster in site.clusters.values():
                yield f"{site_id}.clusters.{cluster.name}", site, cluster

    def guests(self) -> Iterator[tuple[str, Site, Vm | Lxc]]:
        """Each guest with its path (`sp.guests.gpu-sp-01`) and its site."""
        for site_id, site in self.sites.items():
            for guest in site.guests.values():
                yield f"{site_id}.guests.{guest.name}", site, guest

    def hosts(self) -> Iterator[tuple[str, Site, Host]]:
        """Each Proxmox host with its path (`sp.proxmox.hosts.pve-ippri-31`) and its site."""
        for site_id, site in self.sites.items():
            for host in site.proxmox.hosts.values():
                yield f"{site_id}.proxmox.hosts.{host.name}", site, host
