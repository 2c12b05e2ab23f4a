"""The one home of the values that the decisions fix for the sites they name (OPS-03).

Data alone, keyed by rule, site id and path: a site that is not named here is not compared with anything. A document
that deviates is stopped unless it says why under `accept.<ID>`: the level of every such check is `ack`.
"""

from collections.abc import Mapping
from typing import NamedTuple

ADR_005, ADR_009 = "CPPS-ADR-005", "CPPS-ADR-009"
ARCHITECTURE, PLAN = "CPPS architecture", "CPPS integration plan"
DC_ADR_0001 = "DC-ADR-0001"

TUTOR = "tutor-openedx"  # the one app that was in production before the program


class Count(NamedTuple):
    """Expects that many entries."""

    entries: int


class Prefix(NamedTuple):
    """Expects text that begins so."""

    text: str


class OneOf(NamedTuple):
    """Expects one of several texts."""

    texts: tuple[str, ...]


Value = str | int | bool | frozenset[str] | Count | Prefix | OneOf


class Seed(NamedTuple):
    """Values of one rule: by site id, or by the ids of the two ends for a tunnel."""

    source: str
    statement: str  # empty where the rule has a check of its own, whose docstring says it
    values: Mapping[str, Mapping[str, Value]]


SEEDS: Mapping[str, Seed] = {
    "PVE-02": Seed(
        ARCHITECTURE,
        "The main cluster of Franca runs on the VMs vm-cpps-02, vm-cpps-03 and vm-cpps-04.",
        {
            "franca": {
                "clusters.cluster-fca.servers": frozenset({"vm-cpps-02", "vm-cpps-03", "vm-cpps-04"}),
                "guests.vm-cpps-02.kind": "vm",
                "guests.vm-cpps-03.kind": "vm",
                "guests.vm-cpps-04.kind": "vm",
            }
        },
    ),
    "PVE-03": Seed(
        ADR_005,
        "",
        {
            "franca": {"guests.vm-cpps-02.existing": True, "guests.vm-cpps-03.existing": True},
            "sp": {"guests.gpu-sp-01.existing": True},
        },
    ),
    "PVE-10": Seed(
        ADR_005,
        "The existing GPU guest of São Paulo stays a container.",
        {"sp": {"guests.gpu-sp-01.kind": "lxc"}},
    ),
    "TIER-04": Seed(
        ADR_005, "pve-ippri-31 is a Tier 3 host.", {"sp": {"proxmox.hosts.pve-ippri-31.hardware_tier": "3"}}
    ),
    "TIER-05": Seed(
        ADR_005,
        "pve-labri-31, pve-labri-32 and pve-labri-33 are Tier 2A hosts.",
        {
            "franca": {
                "proxmox.hosts.pve-labri-31.hardware_tier": "2A",
                "proxmox.hosts.pve-labri-32.hardware_tier": "2A",
                "proxmox.hosts.pve-labri-33.hardware_tier": "2A",
            }
        },
    ),
    "LXC-09": Seed(
        ADR_005,
        "gpu-sp-01 runs on pve-ippri-31, which has an NVIDIA A5000.",
        {"sp": {"guests.gpu-sp-01.host": "pve-ippri-31", "proxmox.hosts.pve-ippri-31.gpus.0.model": "a5000"}},
    ),
    "GPU-12": Seed(
        ADR_009,
        "Three hosts of each site have one GPU of 24 GiB: A5500 in Franca, A5000 in São Paulo.",
        {
            "franca": {
                "proxmox.hosts.pve-labri-31.gpus.0.model": "a5500",
                "proxmox.hosts.pve-labri-31.gpus.0.memory_gib": 24,
                "proxmox.hosts.pve-labri-32.gpus.0.model": "a5500",
                "proxmox.hosts.pve-labri-32.gpus.0.memory_gib": 24,
                "proxmox.hosts.pve-labri-33.gpus.0.model": "a5500",
                "proxmox.hosts.pve-labri-33.gpus.0.memory_gib": 24,
            },
            "sp": {
                "proxmox.hosts.pve-ippri-31.gpus.0.memory_gib": 24,
                "proxmox.hosts.pve-ippri-33.gpus.0.model": "a5000",
                "proxmox.hosts.pve-ippri-33.gpus.0.memory_gib": 24,
                "proxmox.hosts.pve-ippri-34.gpus.0.model": "a5000",
                "proxmox.hosts.pve-ippri-34.gpus.0.memory_gib": 24,
            },
        },
    ),
    "K3S-03": Seed(
        ARCHITECTURE,
        "The main cluster of Franca has three servers with embedded etcd.",
        {"franca": {"clusters.cluster-fca.servers": Count(3)}},
    ),
    "NET-01": Seed(
        ARCHITECTURE,
        "",
        {"franca sp": {"cidr": "10.255.0.0/30", "ends.franca": "10.255.0.1", "ends.sp": "10.255.0.2"}},
    ),
    "NET-02": Seed(
        PLAN,
        "",
        {"franca sp": {"interface": "wg0"}},
    ),
    "NET-03": Seed(
        PLAN,
        "The public endpoint of Franca is 200.145.122.96.",
        {"franca": {"wireguard.endpoint": "200.145.122.96", "vyos.public_address": "200.145.122.96"}},
    ),
    "NET-05": Seed(PLAN, "The LAN of Franca is 192.168.0.0/23.", {"franca": {"network.lan_cidr": "192.168.0.0/23"}}),
    "NET-07": Seed(
        ARCHITECTURE,
        "Pods of the main clusters use 10.41.0.0/16 in Franca and 10.42.0.0/16 in São Paulo.",
        {
            "franca": {"clusters.cluster-fca.pod_cidr": "10.41.0.0/16"},
            "sp": {"clusters.cluster-sp.pod_cidr": "10.42.0.0/16"},
        },
    ),
    "NET-08": Seed(
        ARCHITECTURE,
        "Services of the main clusters use 10.141.0.0/16 in Franca and 10.142.0.0/16 in São Paulo.",
        {
            "franca": {"clusters.cluster-fca.service_cidr": "10.141.0.0/16"},
            "sp": {"clusters.cluster-sp.service_cidr": "10.142.0.0/16"},
        },
    ),
    "BGP-01": Seed(
        ARCHITECTURE,
        "",
        {"franca": {"bgp.site_asn": 65001}, "sp": {"bgp.site_asn": 65002}},
    ),
    "MET-05": Seed(
        ARCHITECTURE,
        "The LoadBalancer pool of Franca is 192.168.0.240 to 192.168.0.250.",
        {"franca": {"lb.pool.start": "192.168.0.240", "lb.pool.stop": "192.168.0.250"}},
    ),
    "MET-06": Seed(
        ARCHITECTURE,
        "The LoadBalancer pool of São Paulo is 192.168.10.240 to 192.168.10.250.",
        {"sp": {"lb.pool.start": "192.168.10.240", "lb.pool.stop": "192.168.10.250"}},
    ),
    "CIL-01": Seed(
        ARCHITECTURE,
        "",
        {"common": {"cilium.version": Prefix("1.17.")}},
    ),
    "CIL-02": Seed(
        ARCHITECTURE,
        "Cilium knows the main clusters as cluster-fca with id 1 and cluster-sp with id 2.",
        {"franca": {"clusters.cluster-fca.cluster_id": 1}, "sp": {"clusters.cluster-sp.cluster_id": 2}},
    ),
    "KAR-01": Seed(PLAN, "", {"franca": {"karmada.host": True}}),
    "KAR-04": Seed(
        ARCHITECTURE,
        "Policies find the main cluster of Franca by site, provider, tier and region.",
        {
            "franca": {
                "clusters.cluster-fca.karmada.labels.site": "franca",
                "clusters.cluster-fca.karmada.labels.provider": "onprem",
                "clusters.cluster-fca.karmada.labels.tier": "prod",
                "clusters.cluster-fca.karmada.labels.region": "sudeste-br",
            }
        },
    ),
    "KAR-05": Seed(
        ARCHITECTURE,
        "Policies find the clusters of São Paulo by the same labels, and gpu-sp by its GPUs too.",
        {
            "sp": {
                "clusters.cluster-sp.karmada.labels.site": "sp",
                "clusters.cluster-sp.karmada.labels.provider": "onprem",
                "clusters.cluster-sp.karmada.labels.tier": "prod",
                "clusters.cluster-sp.karmada.labels.region": "sudeste-br",
                "clusters.gpu-sp.karmada.labels.site": "sp",
                "clusters.gpu-sp.karmada.labels.provider": "onprem",
                "clusters.gpu-sp.karmada.labels.tier": "prod",
                "clusters.gpu-sp.karmada.labels.region": "sudeste-br",
                "clusters.gpu-sp.karmada.labels.capability": "gpu",
                "clusters.gpu-sp.karmada.labels.gpu.model": "a5000",
            }
        },
    ),
    "KAR-14": Seed(
        PLAN,
        "",
        {"franca": {"apps.qdrant.kind": "data", "apps.neo4j.kind": "data", "apps.postgresql.kind": "data"}},
    ),
    "ARG-03": Seed(
        ADR_005,
        "The Argo CD of São Paulo manages gpu-sp under the context gpu-sp-context.",
        {"sp": {"argocd.enabled": True, "clusters.gpu-sp.context": "gpu-sp-context"}},
    ),
    "ARG-04": Seed(ADR_005, "Franca has an Argo CD of its own.", {"franca": {"argocd.enabled": True}}),
    "ARG-05": Seed(
        ADR_009,
        "",
        {"sp": {"clusters.cluster-sp.apps_folder": "apps/sp", "clusters.gpu-sp.apps_folder": "apps/sp-gpu"}},
    ),
    "STO-06": Seed(
        ARCHITECTURE,
        "LINSTOR of São Paulo runs on pve-ippri-11, pve-ippri-12 and pve-ippri-31 behind 10.10.10.1.",
        {
            "sp": {
                "proxmox.hosts.pve-ippri-11.linstor": OneOf(("controller", "satellite")),
                "proxmox.hosts.pve-ippri-12.linstor": OneOf(("controller", "satellite")),
                "proxmox.hosts.pve-ippri-31.linstor": OneOf(("controller", "satellite")),
                "storage.linstor_vip": "10.10.10.1",
            }
        },
    ),
    "STO-07": Seed(
        ADR_009,
        "pve-labri-31, pve-labri-32 and pve-labri-33 are LINSTOR controllers.",
        {
            "franca": {
                "proxmox.hosts.pve-labri-31.linstor": "controller",
                "proxmox.hosts.pve-labri-32.linstor": "controller",
                "proxmox.hosts.pve-labri-33.linstor": "controller",
            }
        },
    ),
    "TRF-02": Seed(
        ARCHITECTURE, "Traefik of Franca answers at 192.168.0.240.", {"franca": {"lb.vips.traefik": "192.168.0.240"}}
    ),
}
