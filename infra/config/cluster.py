"""A K3s cluster of a site, and the GPU platform on it."""

from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import Field

from infra.config.base import Cron, Hostname, K3sVersion, Labels, Model, Name, Named, NodeLabels, NonEmpty, RepoFolder
from infra.config.network import Cidr
from infra.config.proxmox import GpuModel, PackagedComponent

KubernetesArg = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*(\+|-)?=[ -~]*$")]


class Api(Model):
    """How the Kubernetes API is reached."""

    vip: IPv4Address | None
    """Address that kube-vip keeps on one of the servers; none where one server is all there will be."""
    vip_interface: Annotated[str, Field(pattern=r"^[a-z][a-z0-9.]{0,14}$")] = "eth0"
    """Interface of the servers that carries the address."""
    tls_sans: tuple[Hostname | IPv4Address, ...] = ()
    """Further names in the API certificate."""


class EtcdSnapshots(Model):
    """Scheduled snapshots of embedded etcd on each server's disk."""

    schedule: Cron
    """Cron expression."""
    retention: Annotated[int, Field(ge=1, le=365)]
    """How many are kept."""


class Logs(Model):
    """Limits of container logs, set on the kubelet."""

    max_size_mib: Annotated[int, Field(ge=1, le=1024)] = 10
    """Size in MiB at which a log is rotated."""
    max_files: Annotated[int, Field(ge=2, le=100)] = 5
    """Files kept per container."""


class GpuQueues(Model):
    """Kueue quotas of a GPU cluster, in whole GPUs."""

    interactive_gpus: Annotated[int, Field(ge=0, le=4096)]
    """Nominal quota of ClusterQueue `gpu-interactive`."""
    batch_gpus: Annotated[int, Field(ge=0, le=4096)]
    """Nominal quota of ClusterQueue `gpu-batch`."""
    labs: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Research labs; each gets a LocalQueue in its namespace."""


class GpuPlatform(Model):
    """GPU sharing of a GPU cluster."""

    runtime: Literal["lxc", "vm"]
    """Guest kind of its nodes: container with device nodes, or VM with PCIe passthrough."""
    sharing: Literal["hami", "time-slicing", "none"]
    """The one owner of `nvidia.com/gpu` on each node."""
    single_tenant: bool
    """Only one lab's trusted users run code there; needed for privileged containers."""
    multi_tenant: bool = False
    """Users of several labs run their own code."""
    tenant_limits: bool = False
    """Limit GPU memory and cores per tenant; needs HAMi."""
    kai: bool = False
    """Install the KAI scheduler."""
    dra: bool = False
    """Use dynamic resource allocation."""
    mig: bool = False
    """Partition GPUs in hardware."""
    vgpu: bool = False
    """Use vGPU GRID."""
    queues: GpuQueues
    """Kueue quotas."""
    model: GpuModel
    """GPU model of the nodes."""


class Karmada(Model):
    """Membership in the federation."""

    member_name: Name
    """Name in the Karmada API; never used by a policy."""
    mode: Literal["pull", "push"] = "pull"
    """Who dials: the member (works behind NAT) or the Karmada host."""
    labels: Labels
    """Labels that policies select on."""


class Cluster(Named):
    """One K3s cluster. All its servers run in this site."""

    role: Literal["main", "gpu"]
    """General cluster of the site, or its GPU cluster."""
    cni: Literal["cilium", "flannel"]
    """The one CNI of the cluster."""
    cluster_id: Annotated[int, Field(ge=1, le=255)] | None = None
    """Cilium `cluster.id`, unique in the fleet; none keeps the cluster out of the mesh."""
    in_mesh: bool = False
    """Member of the ClusterMesh."""
    pod_cidr: Cidr
    """CIDR of Pod addresses. Fixed for the cluster's life."""
    service_cidr: Cidr
    """CIDR of Service addresses. Fixed for the cluster's life."""
    k3s_version: K3sVersion
    """K3s release."""
    api: Api
    """Kubernetes API."""
    servers: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Guests that run the control plane with embedded etcd."""
    agents: tuple[Name, ...] = ()
    """Guests that run workloads alone."""
    joins: Name | None = None
    """Cluster whose server it joins; a cluster of its own has none."""
    disable: tuple[PackagedComponent, ...] = ("servicelb", "traefik")
    """Packaged components of K3s that stay off."""
    node_labels: NodeLabels = {}
    """Kubernetes labels of all its nodes."""
    kubelet_args: tuple[KubernetesArg, ...] = ()
    """Kubelet arguments, `name=value` without dashes."""
    logs: Logs = Logs()
    """Container logs."""
    etcd_snapshots: EtcdSnapshots
    """Scheduled etcd snapshots."""
    gpu: GpuPlatform | None = None
    """GPU platform; only on a GPU cluster."""
    karmada: Karmada | None = None
    """Membership in the federation; none keeps it out."""
    apps_folder: RepoFolder | None = None
    """Folder of the Git repository with its local applications; none takes `apps/<cluster>`."""
    managed_namespaces: tuple[Name, ...] = ()
    """Application namespaces that get the default-deny policy."""
    context: NonEmpty | None = None
    """kubeconfig context name; none takes the cluster's name."""

    @property
    def apps(self) -> str:
        """Folder of its local applications."""
        return self.apps_folder or f"apps/{self.name}"
