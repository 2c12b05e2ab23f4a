"""MET: LoadBalancer addresses. That one allocator owns them and servicelb is off follows from models and K3S-01."""

from collections.abc import Iterator
from ipaddress import IPv4Address

from infra.config.fleet import Fleet, Site
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ARCHITECTURE
from infra.violation import Level


@rule("MET-04", level=Level.ACK, source=ARCHITECTURE)
def metallb_has_a_reason(fleet: Fleet) -> Iterator[Finding]:
    """MetalLB is used for a stated reason only."""
    for site_id, site in fleet.sites.items():
        if site.lb.mode == "metallb":
            remedy = "use cilium, or say under accept.MET-04 which MetalLB feature is needed"
            yield Finding(f"{site_id}.lb.mode", "metallb", "cilium", remedy)


@rule("MET-07", source=ARCHITECTURE)
def mesh_api_takes_a_pool_address(fleet: Fleet) -> Iterator[Finding]:
    """The ClusterMesh API has an address of the pool."""
    for site_id, site in fleet.sites.items():
        if site.lb.vips.clustermesh_api not in site.lb.pool:
            found, expected = site.lb.vips.clustermesh_api, f"an address of the pool {site.lb.pool}"
            yield Finding(f"{site_id}.lb.vips.clustermesh_api", found, expected, "take one of the pool")


@rule("MET-08", source=ARCHITECTURE)
def fixed_addresses_are_distinct(fleet: Fleet) -> Iterator[Finding]:
    """Fixed VIPs are there where something needs them, are distinct, and lie in the pool."""
    for site_id, site in fleet.sites.items():
        path, taken = f"{site_id}.lb.vips", dict[IPv4Address, str]()
        for key, vip in _vips(site):
            if vip in taken:
                found = f"{vip}, like {taken[vip]}"
                yield Finding(f"{path}.{key}", found, "an address of its own", "take a free one of the pool")
            if vip not in site.lb.pool and key != "clustermesh_api":
                yield Finding(f"{path}.{key}", vip, f"an address of the pool {site.lb.pool}", "take one of the pool")
            taken.setdefault(vip, f"{path}.{key}")
        for needed, key in ((site.traefik.main, "traefik"), (site.karmada.host, "karmada_api")):
            if needed and key not in dict(_vips(site)):
                where = "traefik.main" if key == "traefik" else "karmada.host"
                yield Finding(f"{path}.{key}", "nothing", f"an address, since {where} is true", "take one of the pool")


def _vips(site: Site) -> Iterator[tuple[str, IPv4Address]]:
    vips = site.lb.vips
    for key, vip in (
        ("traefik", vips.traefik),
        ("clustermesh_api", vips.clustermesh_api),
        ("karmada_api", vips.karmada_api),
    ):
        if vip is not None:
            yield key, vip
