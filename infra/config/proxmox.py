"""Proxmox of one site: hosts, storages, images, and the guests the program makes or adopts."""

from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import Field

from infra.config.base import (
    DriverVersion,
    HttpsUrl,
    K3sVersion,
    Mac,
    MachineAddress,
    Model,
    Name,
    Named,
    NodeLabels,
    NonEmpty,
    Sha256,
)
from infra.config.network import Cidr
from infra.names import PROGRAM_USER

GpuModel = Literal["a5000", "a5500"]
HardwareTier = Literal["1", "2A", "2B", "3"]
PackagedComponent = Literal["coredns", "servicelb", "traefik", "local-storage", "metrics-server"]


class Gpu(Model):
    """One physical GPU."""

    model: GpuModel
    """Model in lower case, the value of the label `gpu.model`."""
    memory_gib: Annotated[int, Field(ge=1, le=1024)]
    """Memory in GiB."""
    owner: Literal["host", "vfio"]
    """Who drives it: the host's driver (for containers) or vfio (for one VM), never both."""


class Host(Named):
    """One Proxmox VE machine. The program never changes it."""

    address: IPv4Address
    """Address in the LAN."""
    hardware_tier: HardwareTier
    """1, 2A (integrated GPU for the display), 2B, or 3 (the discrete GPU is the display too)."""
    gpus: tuple[Gpu, ...] = ()
    """GPUs in the machine."""
    linstor: Literal["controller", "satellite"] | None = None
    """Its part in LINSTOR storage, if any: such a host is doubly critical."""
    nvidia_driver: DriverVersion | None = None
    """Exact driver version on the host, shared by its containers."""
    planned_nvidia_driver: DriverVersion | None = None
    """Driver version that the host gets next; needs `maintenance` where a GPU container runs."""
    upgrade: bool = False
    """An upgrade of Proxmox VE on this host is planned for this change."""


class Storage(Named):
    """One storage of the Proxmox cluster, by the id it has there. Never created or resized."""

    type: Literal["dir", "lvmthin", "zfspool", "drbd", "nfs", "pbs", "rbd"]
    """Proxmox storage type; `drbd` is LINSTOR."""
    content: tuple[Literal["images", "rootdir", "import", "iso", "vztmpl", "snippets", "backup"], ...]
    """What it may hold."""


class Image(Model):
    """A file that Proxmox downloads once."""

    url: HttpsUrl
    """Where Proxmox gets it."""
    file_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.(qcow2|img|raw|tar\.zst|tar\.xz|tar\.gz)$")]
    """Name it gets on the storage."""
    storage: Name
    """Storage that holds it, with content `import` (VM image) or `vztmpl` (container template)."""
    sha256: Sha256 | None
    """SHA-256; null only while its path is listed under `assumed`."""


class Disk(Model):
    """One disk."""

    storage: Name
    """Storage id."""
    size_gib: Annotated[int, Field(ge=1, le=65536)]
    """Size in GiB. It can grow, never shrink."""


class Current(Model):
    """What runs on an existing guest before the program touches it."""

    runs: Literal["server", "agent", "other", "nothing"]
    """K3s role, other work, or nothing."""
    datastore: Literal["etcd", "sqlite"] | None = None
    """Datastore of a running server."""
    pod_cidr: Cidr | None = None
    """Pod CIDR in force."""
    service_cidr: Cidr | None = None
    """Service CIDR in force."""
    flannel_backend: Literal["vxlan", "host-gw", "wireguard-native", "none"] | None = None
    """Flannel backend in force; none in the document means `vxlan`, which K3s takes unasked."""
    secrets_encryption: bool = False
    """Secrets are encrypted in the datastore."""
    disable: tuple[PackagedComponent, ...] | None = None
    """Packaged components of K3s that are off today; none means those of the cluster."""
    k3s_version: K3sVersion | None = None
    """K3s release in force; none means that of the cluster."""
    managed: bool = False
    """The program takes K3s on this guest over; false only recognises it and changes nothing on the node."""

    @property
    def k3s(self) -> bool:
        """A node of a cluster runs here."""
        return self.runs in ("server", "agent")

    @property
    def on_flannel(self) -> bool:
        """Flannel carries the pods of its cluster today."""
        return self.runs == "server" and self.flannel_backend != "none"


class Backup(Model):
    """Evidence that the guest is backed up."""

    pbs: bool
    """A Proxmox Backup Server job covers it."""
    evidence: NonEmpty | None = None
    """Reference of the last verified backup; none says that nobody has shown one."""


class _Guest(Named):
    host: Name
    """Proxmox host it runs on."""
    vmid: Annotated[int, Field(ge=100, le=999_999_999)]
    """Proxmox id."""
    existing: bool = False
    """It exists already: adopted by its VMID, never created."""
    current: Current | None = None
    """What runs on it today; needed when `existing`."""
    ssh_user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] | None = None
    """Login of the program, with its key and sudo; none takes `fleet` on a VM, `root` in a container."""
    older_project: NonEmpty | None = None
    """Another Pulumi project whose state holds the guest too."""
    handed_over: NonEmpty | None = None
    """Evidence that `older_project` let go of it."""
    address: IPv4Address
    """Address in the LAN."""
    mac: Mac | None = None
    """MAC address; none lets Proxmox choose."""
    cores: Annotated[int, Field(ge=1, le=512)]
    """Virtual CPUs."""
    memory_mib: Annotated[int, Field(ge=512, le=4_178_944)]
    """Memory in MiB."""
    tags: tuple[Annotated[str, Field(pattern=r"^[a-z0-9_][a-z0-9_+.-]*$")], ...] = ()
    """Further Proxmox tags; the program adds its own."""
    start_order: Annotated[int, Field(ge=1, le=9999)]
    """Place in the boot order of its host."""
    stateful: bool
    """It holds state that a rebuild would lose: protected against deletion."""
    live_migration: bool = False
    """It is to move between hosts while it runs."""
    backup: Backup
    """Backup of the guest."""
    node_labels: NodeLabels = {}
    """Kubernetes labels of its node."""
    ssh_host_key: Annotated[str, Field(pattern=r"^ssh-ed25519 [A-Za-z0-9+/=]+$")] | None = None
    """Public host key; none pins the key seen at the first contact."""

    @property
    def recognised(self) -> bool:
        """It runs a K3s that the program did not make and does not touch."""
        return self.existing and self.current is not None and self.current.k3s and not self.current.managed

    @property
    def in_cluster(self) -> bool:
        """It has been a node since before the program, taken over or not."""
        return self.existing and self.current is not None and self.current.k3s


class Vm(_Guest):
    """A virtual machine made from the site's cloud image."""

    kind: Literal["vm"]
    """`vm`."""
    disks: Annotated[tuple[Disk, ...], Field(min_length=1)]
    """Disks; the first holds the system."""
    cpu_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "x86-64-v2-AES"
    """Proxmox CPU type."""
    pci_mappings: tuple[Name, ...] = ()
    """Mapped PCI devices (GPU passthrough)."""

    @property
    def login(self) -> str:
        return self.ssh_user or PROGRAM_USER


class Lxc(_Guest):
    """A container made from the site's template."""

    kind: Literal["lxc"]
    """`lxc`."""
    disk: Disk
    """Root file system."""
    privileged: bool
    """Runs with the host's root: only for the GPU cluster."""
    nesting: bool
    """Feature `nesting`."""
    keyctl: bool
    """Feature `keyctl`: no effect on a privileged container, kept as it is in production."""
    devices: tuple[Annotated[str, Field(pattern=r"^/dev/[a-z0-9/_-]+$")], ...] = ()
    """Device nodes of the host that the container gets, each by name."""
    nvidia_driver: DriverVersion | None = None
    """Version of the user-space driver; equals the host's."""

    @property
    def login(self) -> str:
        return self.ssh_user or "root"


Guest = Annotated[Vm | Lxc, Field(discriminator="kind")]


class UnmanagedGuest(Named):
    """A guest that the program leaves alone, named so that nothing takes its VMID or address."""

    vmid: Annotated[int, Field(ge=100, le=999_999_999)] | None
    """Proxmox id; none where it is not known."""
    address: MachineAddress | None
    """Address; none where it is not known."""
    remark: NonEmpty
    """What it is."""


class Proxmox(Model):
    """The site's Proxmox cluster."""

    endpoint: HttpsUrl
    """API of the cluster, e.g. https://192.0.2.10:8006/."""
    verify_tls: bool
    """Check the API's certificate against the system's authorities."""
    hosts: dict[Name, Host]
    """Hosts by name."""
    storages: dict[Name, Storage]
    """Storages by id."""
    vm_image: Image
    """Cloud image that VMs are made from."""
    container_template: Image | None = None
    """Template that containers are made from."""
