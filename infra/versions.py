"""Every pinned chart and image that is not a fact of the documents, one per line, with its upstream.

K3s is pinned per cluster and Cilium for the fleet, in the documents: operators change those, reviewers of code do not.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chart:
    """A chart as its repository publishes it."""

    name: str
    repository: str  # URL of an HTTP repository
    version: str
    timeout_s: int = 600


def cilium(version: str) -> Chart:
    return Chart("cilium", "https://helm.cilium.io", version, timeout_s=900)


KUBE_VIP_IMAGE = "ghcr.io/kube-vip/kube-vip:v1.2.3"
K3S_RELEASES = "https://github.com/k3s-io/k3s/releases/download"
