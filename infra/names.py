"""Names that two layers must agree on."""

PROGRAM_USER = "fleet"  # login of the program on VMs, made by cloud-init
FILE_PREFIX = "fleet-"  # of every file that the program puts on a Proxmox storage
LB_CLASS = "io.cilium/bgp-control-plane"  # loadBalancerClass that Cilium's BGP control plane announces
ADVERTISE_LABEL = "fleet.colabh.org/advertise"  # "false" on a Service keeps its address out of BGP
BGP_GROUP_LABEL = "fleet.colabh.org/bgp"  # ties peer configuration and advertisements together
GPU_MODEL_LABEL = "gpu.model"
GPU_QUEUES = ("gpu-interactive", "gpu-batch")  # ClusterQueues that MultiKueue dispatches
KUBE_SYSTEM = "kube-system"


def tags(site: str, *more: str) -> list[str]:
    """Proxmox tags of a guest: lower case and sorted, as Proxmox returns them."""
    return sorted({"fleet", f"site-{site}", *more})
