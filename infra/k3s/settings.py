"""What a cluster's document means to K3s: one config file per node, derived and never written twice.

Rows K3S-01 to K3S-10. Keys are K3s 1.32's; a server ignores an unknown key with a warning, so none is taken from a
document unchecked.
"""

import json
from typing import Any

import yaml

from infra.config import Cluster, Lxc, Vm
from infra.k3s.in_force import InForce

CONFIG_DIR = "/etc/rancher/k3s"
TOKEN_FILE = f"{CONFIG_DIR}/token"
DATA_DIR = "/var/lib/rancher/k3s"
API_PORT = 6443
DEFAULT_FLANNEL = "vxlan"  # what K3s takes unasked

# Equal on every server for the cluster's life (K3s: critical configuration values, and the choice of proxy and
# datastore): a change of one stops the update and names the runbook. The scripts get this list as data.
FROZEN = (
    "cluster-cidr",
    "service-cidr",
    "cluster-dns",
    "cluster-domain",
    "flannel-backend",
    "disable-network-policy",
    "disable-kube-proxy",
    "disable-cloud-controller",
    "disable-helm-controller",
    "egress-selector-mode",
    "secrets-encryption",
    "data-dir",
    "datastore-endpoint",
    "node-name",
    "node-ip",
)


def api_host(cluster: Cluster, servers: list[Vm | Lxc]) -> str:
    """Address of the Kubernetes API: the one that kube-vip keeps, or that of the only server.

    While some server is only recognised, kube-vip does not run there: then it is that server's own address, which its
    certificate holds.
    """
    recognised = next((server for server in servers if server.recognised), None)
    if recognised is not None:
        return str(recognised.address)
    return str(cluster.api.vip or servers[0].address)


def server_config(cluster: Cluster, node: Vm | Lxc, in_force: InForce | None = None) -> dict[str, Any]:
    """config.yaml of a server: equal on all servers but for the node's own name, address and labels (K3S-10).

    Holds the address to join by only where the API has an address of its own: a server that lost its disk then joins
    again instead of making a second cluster. In a cluster that was there before the program, what K3s compares between
    servers is what its servers have, not what the document plans.
    """
    flags = InForce.planned(cluster) if in_force is None else in_force
    config: dict[str, Any] = {
        **_node(cluster, node),
        "token-file": TOKEN_FILE,
        "tls-san": sorted({*map(str, cluster.api.tls_sans), *([str(cluster.api.vip)] if cluster.api.vip else [])}),
        "cluster-cidr": str(flags.pod_cidr),
        "service-cidr": str(flags.service_cidr),
        "disable": sorted(flags.disable),
        "write-kubeconfig-mode": "0600",
        "etcd-snapshot-schedule-cron": cluster.etcd_snapshots.schedule,
        "etcd-snapshot-retention": cluster.etcd_snapshots.retention,
    }
    if flags.secrets_encryption:
        config["secrets-encryption"] = True
    if flags.flannel_backend == "none":
        config |= {"flannel-backend": "none", "disable-network-policy": True, "disable-kube-proxy": True}
    elif flags.flannel_backend != DEFAULT_FLANNEL:
        config["flannel-backend"] = flags.flannel_backend
    if cluster.api.vip:
        config["server"] = f"https://{cluster.api.vip}:{API_PORT}"
    return config


def agent_config(cluster: Cluster, node: Vm | Lxc, api: str) -> dict[str, Any]:
    """config.yaml of an agent. An agent dies of a key that belongs to servers."""
    return {**_node(cluster, node), "token-file": TOKEN_FILE, "server": f"https://{api}:{API_PORT}"}


def _node(cluster: Cluster, node: Vm | Lxc) -> dict[str, Any]:
    return {
        "node-name": node.name,  # never changes
        "node-ip": str(node.address),  # else the API address may be taken for the node's
        "node-label": [f"{key}={value}" for key, value in sorted(labels(cluster, node).items())],
        "kubelet-arg": [
            f"container-log-max-files={cluster.logs.max_files}",
            f"container-log-max-size={cluster.logs.max_size_mib}Mi",
            *cluster.kubelet_args,
        ],
    }


def labels(cluster: Cluster, node: Vm | Lxc) -> dict[str, str]:
    """Kubernetes labels of a node. K3s sets them when it registers the node, the scripts on every later change."""
    return {**cluster.node_labels, **node.node_labels}


def text(config: dict[str, Any]) -> str:
    """The file as K3s' YAML parser reads it: strings quoted, so that no mode or number is taken for another type."""
    lines = []
    for key in sorted(config):
        value = config[key]
        if isinstance(value, list):
            lines += [f"{key}:" if value else f"{key}: []", *(f"  - {json.dumps(item)}" for item in value)]
        else:
            lines.append(f"{key}: {json.dumps(value)}")
    document = "\n".join(lines) + "\n"
    assert yaml.safe_load(document) == config
    return document
