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


def bgp_api_version(cilium_version: str) -> str:
    """BGP and LB-IPAM kinds of Cilium moved to v2 with 1.18 (BGP-11)."""
    minor = tuple(int(part) for part in cilium_version.split(".")[:2])
    return "cilium.io/v2" if minor >= (1, 18) else "cilium.io/v2alpha1"


METALLB = Chart("metallb", "https://metallb.github.io/metallb", "0.16.1")
KUBE_VIP_IMAGE = "ghcr.io/kube-vip/kube-vip:v1.2.3"
K3S_RELEASES = "https://github.com/k3s-io/k3s/releases/download"
