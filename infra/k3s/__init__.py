"""K3s: servers and agents on guests, to a kubeconfig and a Kubernetes provider."""

from infra.k3s.artifacts import Mirror
from infra.k3s.cluster import K3s, K3sArgs

__all__ = ["K3s", "K3sArgs", "Mirror"]
