"""kube-vip as a static pod on every server: keeps the API address on one of them.

Control plane only, ARP mode. A static pod with the server's own kubeconfig needs neither Service network nor CNI nor a
manifest that some first server holds: the kubelet of each server starts it, and it speaks to that server's API server.
"""

from typing import Any

import yaml

from infra.config import Cluster
from infra.k3s.settings import API_PORT
from infra.names import KUBE_SYSTEM
from infra.versions import KUBE_VIP_IMAGE

LEASE = "plndr-cp-lock"
LEASE_S, RENEW_S, RETRY_S = 5, 3, 1


def manifest(cluster: Cluster) -> str:
    """Pod manifest for `<data-dir>/agent/pod-manifests/kube-vip.yaml`; empty where the cluster has no API address."""
    if cluster.api.vip is None:
        return ""
    env = {
        "vip_arp": "true",
        "port": str(API_PORT),
        "address": str(cluster.api.vip),
        "vip_interface": cluster.api.vip_interface,
        "vip_subnet": "32",
        "cp_enable": "true",
        "cp_namespace": KUBE_SYSTEM,
        "svc_enable": "false",  # LoadBalancer Services belong to Cilium or MetalLB
        "vip_leaderelection": "true",
        "vip_leasename": LEASE,
        "vip_leaseduration": str(LEASE_S),
        "vip_renewdeadline": str(RENEW_S),
        "vip_retryperiod": str(RETRY_S),
        "k8s_config_file": "/etc/kubernetes/admin.conf",
    }
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "kube-vip", "namespace": KUBE_SYSTEM, "labels": {"app.kubernetes.io/name": "kube-vip"}},
        "spec": {
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "containers": [
                {
                    "name": "kube-vip",
                    "image": KUBE_VIP_IMAGE,
                    "args": ["manager"],
                    "env": [
                        *({"name": key, "value": value} for key, value in env.items()),
                        {"name": "vip_nodename", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    ],
                    "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]}},
                    "volumeMounts": [
                        {"name": "kubeconfig", "mountPath": "/etc/kubernetes/admin.conf", "readOnly": True}
                    ],
                }
            ],
            "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": "kubeconfig", "hostPath": {"path": "/etc/rancher/k3s/k3s.yaml", "type": "File"}}],
        },
    }
    return yaml.safe_dump(pod, sort_keys=False)
