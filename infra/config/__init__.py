"""What a site is: the models of the documents, their reading, and the JSON Schema for editors."""

from infra.config.cluster import Cluster
from infra.config.fleet import Common, Fleet, Site
from infra.config.loading import load
from infra.config.network import Bgp, LoadBalancer, Network
from infra.config.proxmox import Guest, Host, Image, Lxc, Vm

__all__ = [
    "Bgp",
    "Cluster",
    "Common",
    "Fleet",
    "Guest",
    "Host",
    "Image",
    "LoadBalancer",
    "Lxc",
    "Network",
    "Site",
    "Vm",
    "load",
]
