"""MSH: members of the ClusterMesh. Its other preconditions come with the layer itself."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_009


@rule("MSH-01", source=ADR_009)
def only_cilium_joins_the_mesh(fleet: Fleet) -> Iterator[Finding]:
    """A cluster without Cilium has no Cilium id and is no member of the ClusterMesh."""
    for path, _, cluster in fleet.clusters():
        if cluster.cni == "cilium":
            continue
        if cluster.in_mesh:
            yield Finding(f"{path}.in_mesh", f"true with {cluster.cni}", "false", "leave the mesh, or use cilium")
        if cluster.cluster_id is not None:
            found = f"{cluster.cluster_id} with {cluster.cni}"
            yield Finding(f"{path}.cluster_id", found, "nothing", "drop the id, or use cilium")
