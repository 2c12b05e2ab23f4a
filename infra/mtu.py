"""How large a packet may be on each path, from the documents: LAN, tunnel, and Pods over either.

Leaves out what the documents do not say: a WAN link that carries less than Ethernet. There `wireguard.mtu` is set lower
at both ends, and everything here follows.
"""

from dataclasses import dataclass

from infra.config.cluster import Cluster
from infra.config.fleet import Fleet, Tunnel

WAN_MTU = 1500  # bytes of the link behind a router
WIREGUARD_OVERHEAD = 60  # outer IPv4 20, UDP 8, WireGuard 32; endpoints are IPv4
VXLAN_OVERHEAD = 50  # outer IPv4 20, UDP 8, VXLAN 8, inner Ethernet 14
TCP_HEADERS = 40  # IPv4 and TCP without options: MTU less this is the MSS
TUNNEL_LIMIT = WAN_MTU - WIREGUARD_OVERHEAD


@dataclass(frozen=True, kw_only=True)
class Budget:
    """One path and the largest packet that fits it."""

    path: str
    mtu: int  # bytes
    why: str


def tunnels(fleet: Fleet, site_id: str) -> list[Tunnel]:
    """Tunnels that end in a site."""
    return [tunnel for tunnel in fleet.common.tunnels if site_id in tunnel.ends]


def tunnel_mtu(fleet: Fleet, tunnel: Tunnel) -> int:
    """What fits through a tunnel and both LANs behind it. An end without a document says nothing."""
    ends = [fleet.sites[end] for end in tunnel.ends if end in fleet.sites]
    return min(min(end.wireguard.mtu, end.network.mtu) for end in ends)


def cilium_mtu(fleet: Fleet, site_id: str, cluster: Cluster) -> int | None:
    """Value of the chart's `MTU`; None lets Cilium take that of the node's interface.

    It is the MTU of the path below the Pods: Cilium itself takes its encapsulation off (1.17: the MTU of routes is
    the base less 50 with a tunnel datapath, and the base without). A cluster has one value for all its peers, so the
    narrowest tunnel decides. It holds outside the mesh too: routes to Pods cross the tunnel without it, and a running
    Pod would keep the larger value after a cluster joined.
    """
    through = tunnels(fleet, site_id)
    if cluster.cni != "cilium" or not through:
        return None
    return min(tunnel_mtu(fleet, tunnel) for tunnel in through)


def pod_mtu(fleet: Fleet, site_id: str, cluster: Cluster) -> int:
    """Largest packet that a Pod sends to another node."""
    if cluster.cni == "flannel":
        return fleet.sites[site_id].network.mtu - VXLAN_OVERHEAD
    base = cilium_mtu(fleet, site_id, cluster) or fleet.sites[site_id].network.mtu
    return base - (VXLAN_OVERHEAD if fleet.common.cilium.datapath == "tunnel" else 0)


def budgets(fleet: Fleet, site_id: str) -> list[Budget]:
    """Every path of a site, from the cable up."""
    site = fleet.sites[site_id]
    found = [Budget(path="LAN", mtu=site.network.mtu, why="network.mtu")]
    for tunnel in tunnels(fleet, site_id):
        (peer,) = (end for end in tunnel.ends if end != site_id)
        mtu = tunnel_mtu(fleet, tunnel)
        why = f"wireguard.mtu; at most {WAN_MTU} - {WIREGUARD_OVERHEAD} of WireGuard over IPv4"
        found.append(Budget(path=f"{tunnel.interface} to {peer}", mtu=mtu, why=why))
        mss = mtu - TCP_HEADERS
        found.append(Budget(path=f"TCP segments through {tunnel.interface}", mtu=mss, why=f"{mtu} - {TCP_HEADERS}"))
    for cluster in site.clusters.values():
        base = cilium_mtu(fleet, site_id, cluster)
        if base is not None:
            why = "chart value MTU: the narrowest tunnel; Cilium takes its encapsulation off itself"
            found.append(Budget(path=f"{cluster.name}: Cilium", mtu=base, why=why))
        below = base or site.network.mtu
        mtu = pod_mtu(fleet, site_id, cluster)
        why = f"{below} - {VXLAN_OVERHEAD} of VXLAN" if mtu < below else f"{below}, routed as it is"
        found.append(Budget(path=f"{cluster.name}: Pods", mtu=mtu, why=why))
    return found
