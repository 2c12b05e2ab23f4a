"""One site, from its Proxmox hosts up: the table of contents of the program. Only this file knows what comes first."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi

from infra.cilium import Cilium, CiliumArgs
from infra.clustermesh import ClusterMesh, MeshCertificates, SecretPair, checks, mesh_values, peers
from infra.config import Cluster, Fleet, Site, Vm
from infra.k3s import K3s, K3sArgs, Mirror
from infra.mtu import cilium_mtu
from infra.names import MESH_API_PORT
from infra.policies import Policies
from infra.proxmox import Credentials, GpuContainer, GuestArgs, Hypervisor, HypervisorArgs, VirtualMachine
from infra.remote import Machine

WAITS = "left out: Flannel runs until the migration (MIG-01)"
NO_MESH = "left out: the stack has no certificates of the mesh (fleet credentials init)"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a stack adds to its document: secrets, and mirrors of an air-gapped site."""

    credentials: Credentials
    cilium_ca: tuple[pulumi.Input[str], pulumi.Input[str]]  # certificate and key, PEM, secret
    artifacts: Mirror | None
    charts: str | None  # chart directory
    bgp_password: pulumi.Input[str] | None = None  # secret; None where the site has no authentication
    mesh: Mapping[str, SecretPair] | None = None  # certificates of the ClusterMesh by role; none leaves the layer out


class SiteStack(pulumi.ComponentResource):
    """Guests, then clusters, then their network."""

    outputs: dict[str, pulumi.Input[object]]

    def __init__(self, fleet: Fleet, site_id: str, inputs: Inputs) -> None:
        super().__init__("fleet:site:SiteStack", site_id)
        site = fleet.sites[site_id]

        hypervisor = Hypervisor(
            f"proxmox-{site_id}",
            HypervisorArgs(site_id=site_id, site=site, credentials=inputs.credentials),
            pulumi.ResourceOptions(parent=self),
        )
        machines = self._guests(site_id, site, hypervisor, inputs.credentials)

        self.outputs = {}
        for cluster in site.clusters.values():
            k3s = K3s(
                f"k3s-{cluster.name}",
                K3sArgs(
                    site_id=site_id,
                    site=site,
                    common=fleet.common,
                    cluster=cluster,
                    machines=machines,
                    mirror=inputs.artifacts,
                ),
                pulumi.ResourceOptions(parent=self),
            )
            published: dict[str, pulumi.Input[object]] = {
                "api": f"https://{k3s.api_host}:6443",
                "kubeconfig": k3s.kubeconfig,
                "pod_cidr": str(cluster.pod_cidr),
                "service_cidr": str(cluster.service_cidr),
                "nodes": [*cluster.servers, *cluster.agents],
            }
            if k3s.recognised:
                published["recognised"] = dict(k3s.recognised)
            if k3s.waits_for_migration:
                published["cilium"] = {"name": cluster.name, "id": cluster.cluster_id, "status": WAITS}
            else:
                ready: pulumi.Resource = k3s
                if cluster.cni == "cilium":
                    ready, mesh = self._network(fleet, site_id, cluster, inputs, k3s)
                    published |= {
                        "cilium": {"name": cluster.name, "id": cluster.cluster_id, "status": ready.status},
                        "asn": site.bgp.cilium_asn,
                        "lb_pool": str(site.lb.pool),
                        "vips": {key: str(vip) for key, vip in site.lb.vips if vip},
                        **mesh,
                    }
                traefik = site.traefik.main and cluster.role == "main" and cluster.cni == "cilium"
                if cluster.managed_namespaces or traefik:
                    Policies(
                        f"policies-{cluster.name}",
                        cluster,
                        traefik=traefik,
                        opts=pulumi.ResourceOptions(parent=self, providers=[k3s.provider], depends_on=[ready]),
                    )
            self.outputs[cluster.name] = published
        self.register_outputs({})

    def _network(
        self, fleet: Fleet, site_id: str, cluster: Cluster, inputs: Inputs, k3s: K3s
    ) -> tuple[Cilium, dict[str, pulumi.Input[object]]]:
        """Cilium, and around it the site's half of the mesh: certificates before, the address after."""
        site = fleet.sites[site_id]
        in_mesh = site.mesh_member == cluster
        leaves = inputs.mesh if in_mesh else None
        found = peers(fleet, site_id)
        before: list[pulumi.Resource] = [k3s]
        if leaves is not None:
            before.append(
                MeshCertificates(
                    f"mesh-certificates-{cluster.name}",
                    inputs.cilium_ca[0],
                    leaves,
                    pulumi.ResourceOptions(parent=self, providers=[k3s.provider], depends_on=[k3s]),
                )
            )
        network = Cilium(
            f"cilium-{cluster.name}",
            CiliumArgs(
                cluster=cluster,
                line=fleet.common.cilium,
                lb=site.lb,
                bgp=site.bgp,
                router=str(site.vyos.lan_address),
                router_on_link=_on_link(site, cluster),
                bgp_password=inputs.bgp_password,
                ca=inputs.cilium_ca,
                charts=inputs.charts,
                mtu=cilium_mtu(fleet, site_id, cluster),
                mesh_values=mesh_values(found) if leaves is not None else None,
            ),
            pulumi.ResourceOptions(parent=self, providers=[k3s.provider], depends_on=before),
        )
        if leaves is None:
            return network, {"mesh": {"status": NO_MESH}} if in_mesh else {}
        ClusterMesh(
            f"clustermesh-{cluster.name}",
            site.lb,
            pulumi.ResourceOptions(parent=self, providers=[k3s.provider], depends_on=[network]),
        )
        told = {
            "api": f"{site.lb.vips.clustermesh_api}:{MESH_API_PORT}",
            "peers": [peer.name for peer in found],
            "checks": checks(cluster, found),
        }
        return network, {"mesh": told}

    def _guests(self, site_id: str, site: Site, hypervisor: Hypervisor, credentials: Credentials) -> dict[str, Machine]:
        machines: dict[str, Machine] = {}
        for guest in site.guests.values():
            image = hypervisor.images.get(guest.name)
            args = GuestArgs(site_id=site_id, site=site, image=image, credentials=credentials)
            name = f"guest-{guest.name}"
            if isinstance(guest, Vm):
                opts = pulumi.ResourceOptions(parent=self, providers=[hypervisor.token])
                machines[guest.name] = VirtualMachine(name, guest, args, opts).machine
            else:
                login = hypervisor.root if guest.privileged and hypervisor.root else hypervisor.token
                opts = pulumi.ResourceOptions(parent=self, providers=[login])
                machines[guest.name] = GpuContainer(name, guest, args, opts).machine
        return machines


def _on_link(site: Site, cluster: Cluster) -> bool:
    """Whether the router is a neighbour of every node."""
    addresses = [site.vyos.lan_address, *(guest.address for guest in site.nodes(cluster))]
    return all(address in site.network.lan_cidr for address in addresses)
