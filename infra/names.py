"""Names that two layers must agree on."""

PROGRAM_USER = "fleet"  # login of the program on VMs, made by cloud-init
FILE_PREFIX = "fleet-"  # of every file that the program puts on a Proxmox storage
MESH_API_PORT = 2379  # of the ClusterMesh API, an etcd
LB_CLASS = "io.cilium/bgp-control-plane"  # loadBalancerClass that Cilium's BGP control plane announces
ADVERTISE_LABEL = "fleet.colabh.org/advertise"  # "false" on a Service keeps its address out of BGP
FIXED_ADDRESS_LABEL = "fleet.colabh.org/fixed-address"  # "true" on the Services that may have one of `lb.vips`
BGP_GROUP_LABEL = "fleet.colabh.org/bgp"  # ties peer configuration and advertisements together
GPU_MODEL_LABEL = "gpu.model"
GPU_QUEUES = ("gpu-interactive", "gpu-batch")  # ClusterQueues that MultiKueue dispatches
KUBE_SYSTEM = "kube-system"
TRAEFIK_NAMESPACE = "traefik-system"
# Configuration keys of the mesh certificates, certificate and private key, by role.
MESH_KEYS = {
    role: (f"mesh{role.title()}Cert", f"mesh{role.title()}Key") for role in ("server", "admin", "remote", "local")
}
# Keys of a stack's configuration, plain ones: a secret nested in a structured value arrives as plain text.
API_TOKEN = "proxmoxApiToken"
ROOT_PASSWORD = "proxmoxRootPassword"
SSH_PRIVATE_KEY = "sshPrivateKey"
SSH_PUBLIC_KEY = "sshPublicKey"  # not secret
CILIUM_CA_CERT = "ciliumCaCert"
CILIUM_CA_KEY = "ciliumCaKey"
BGP_PASSWORD = "bgpPassword"
MESH_SECRETS = tuple(key for pair in MESH_KEYS.values() for key in pair)
SECRETS = (API_TOKEN, ROOT_PASSWORD, SSH_PRIVATE_KEY, CILIUM_CA_CERT, CILIUM_CA_KEY, BGP_PASSWORD, *MESH_SECRETS)
# Of layers that this program or its GitOps installs; policies of applications leave them alone.
PLATFORM_NAMESPACES = frozenset(
    {
        "argocd",
        "cert-manager",
        "cilium-secrets",
        "default",
        "external-secrets",
        "gpu-operator",
        "kai-scheduler",
        "karmada-cluster",
        "karmada-system",
        "kueue-system",
        "longhorn-system",
        "metallb-system",
        "nvidia-device-plugin",
        "piraeus-datastore",
        TRAEFIK_NAMESPACE,
        "velero",
    }
)


def tags(site: str, *more: str) -> list[str]:
    """Proxmox tags of a guest: lower case and sorted, as Proxmox returns them."""
    return sorted({"fleet", f"site-{site}", *more})
