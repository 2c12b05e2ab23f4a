"""What runs on the clusters of a site. The layers that read these come later; the document's shape is settled here."""

from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import Field

from infra.config.base import Cron, Hostname, HttpsUrl, Model, Name, NonEmpty


class Karmada(Model):
    """Karmada control plane on this site's main cluster."""

    host: bool
    """The control plane runs here: on one site of the fleet."""
    failover: bool = False
    """Move stateless workloads off a lost member (feature gate, eviction flag and taint policy together)."""
    estimator: bool = False
    """Run a scheduler estimator per member."""


class ArgoCd(Model):
    """GitOps of the site: one Argo CD, local destinations only."""

    enabled: bool
    """Install Argo CD."""
    name: NonEmpty
    """Display name."""
    host: Hostname
    """Host name of its web page."""
    plugins: tuple[Name, ...] = ()
    """Config-management plugins, which compute manifests while it syncs."""


class Traefik(Model):
    """Ingress of the site."""

    main: bool
    """Traefik on the main cluster."""
    gpu: bool
    """Traefik on the GPU cluster."""
    gpu_discovery: Literal["traefik", "loadbalancer", "external-name", "clustermesh"] = "traefik"
    """How the main cluster finds services of the GPU cluster; the decisions turned `clustermesh` down."""
    inference_hosts: tuple[Hostname, ...] = ()
    """Host names of inference routes on the GPU cluster."""
    legacy_proxy: Name | None = None
    """Guest that still serves as proxy until the cut-over is confirmed."""


class Dns(Model):
    """Public names that this site answers for."""

    records: tuple[Hostname, ...] = ()
    """Host names that point at the site's public address."""
    cloudflare: bool = False
    """Manage them at Cloudflare; otherwise they are emitted as data."""
    failover_by: Literal["dns-health-check", "gslb", "anycast", "front-load-balancer"] | None = None
    """What moves traffic to another site when this one is lost, outside the clusters; none where nothing does."""


class Storage(Model):
    """Persistent volumes of the main cluster."""

    backend: Literal["local-path", "linstor-csi", "longhorn"] = "local-path"
    """The one provisioner behind the default StorageClass."""
    linstor_variant: Literal["piraeus", "direct"] | None = None
    """Satellites inside the cluster, or the LINSTOR controller outside."""
    linstor_vip: IPv4Address | None = None
    """Address of the LINSTOR controller on the storage network."""
    drbd_cross_site: bool = False
    """Replicate block storage between sites."""
    drbd_reactor: bool = False
    """Fail over the LINSTOR controller."""


class ObjectStore(Model):
    """Object store of the site."""

    kind: Literal["seaweedfs", "minio", "external"]
    """Product."""
    endpoint: HttpsUrl
    """S3 endpoint."""
    bucket: NonEmpty
    """Bucket for backups."""


class Secrets(Model):
    """How Secrets reach the clusters."""

    backend: Literal["sealed-secrets", "eso-vault", "sops"] | None
    """The one way in force; null while none is, which keeps every app out of the federation."""
    vault: HttpsUrl | None = None
    """Vault, with `eso-vault`."""
    vault_runs_in: Literal["vm", "kubernetes"] | None = None
    """Where Vault runs, with `eso-vault`: in a VM of its own, or in a cluster."""
    count: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """How many Secrets there are, roughly."""
    legacy_generators: tuple[Name, ...] = ()
    """Apps that still use Kustomize secret generators."""


class Velero(Model):
    """Backup of Kubernetes objects and volumes."""

    enabled: bool = False
    """Install Velero."""
    uploader: Literal["kopia", "restic"] = "kopia"
    """File uploader."""
    csi_snapshots: bool = False
    """Take CSI snapshots, moved off the cluster."""
    data_mover: bool = True
    """Move snapshots to the object store."""
    schedule: Cron = "0 3 * * *"
    """Cron expression."""


class Observability(Model):
    """Where logs and metrics go."""

    openobserve: HttpsUrl | None
    """OpenObserve endpoint."""
    collector: bool
    """Run OpenTelemetry collectors."""
    gpu_host_watch: bool
    """Watch kernel log and nvidia-smi of GPU hosts."""


class App(Model):
    """One application, named so that its placement can be judged. Argo CD deploys it."""

    kind: Literal["stateless", "stateful", "data", "web", "inference", "batch", "distributed"]
    """Its class: decides placement, router and failover."""
    critical: bool = False
    """Its loss stops the lab."""
    recovery: NonEmpty | None = None
    """How its state comes back; needed when stateful."""
    federated: bool = False
    """Karmada places it, from `federated/<app>`; otherwise Argo CD of this site does, from the folder of a cluster."""
    has_secrets: bool = True
    """It has Secrets of its own."""
    seals: tuple[Name, ...] = ()
    """Members of the federation for whose keys its Secrets are sealed, with `sealed-secrets`."""
    site_pinned: bool = False
    """Stays in this site."""
    failover: Literal["none", "automatic"] = "none"
    """What is expected when its site is lost."""
    router: Literal["tensorzero", "kueue", "global-service", "traefik"] | None = None
    """Who routes its calls."""
    is_global: bool = False
    """Visible in all clusters of the mesh."""
    reviewed: bool = False
    """Its GPU code was reviewed for production."""


class TensorZero(Model):
    """Gateway for interactive GPU calls."""

    enabled: bool
    """Runs in this site."""
    backends: tuple[HttpsUrl, ...] = ()
    """OpenAI-compatible backends of all sites."""


class Migration(Model):
    """Move of the main cluster from Flannel to Cilium."""

    from_flannel: bool
    """The cluster runs Flannel today."""
    mode: Literal["in_place", "rebuild"] | None = None
    """How; needed when `from_flannel`."""
    window: NonEmpty | None = None
    """Maintenance window."""
    snapshots: dict[Name, NonEmpty] = {}
    """Proxmox snapshot of each server, by guest."""


class Maintenance(Model):
    """A risky change that is planned, and its safety net."""

    window: NonEmpty
    """When."""
    rollback_doc: NonEmpty
    """Where the way back is written."""
    snapshot_id: NonEmpty
    """Snapshot taken first."""
    backup_ref: NonEmpty | None = None
    """Recorded backup of what the change touches; needed to upgrade a Proxmox host."""


class Rejected(Model):
    """Systems that the decisions turned down. Asking for one is answered with the decision."""

    external_workloads: bool = False
    """VMs in the Cilium mesh."""
    submariner: bool = False
    """Submariner beside ClusterMesh."""
    headscale: bool = False
    """Headscale in place of the tunnel."""
    flux: bool = False
    """Flux in place of Argo CD."""
    kasten: bool = False
    """Kasten K10 for backups."""
    openebs: bool = False
    """OpenEBS for volumes."""
    karmada_over_sites: bool = False
    """Karmada's etcd or control plane spread over sites."""
    openstack: bool = False
    """OpenStack for the VMs of a datacenter site."""
    libvirt: bool = False
    """Plain libvirt for the VMs of a datacenter site."""
