"""Annotations of a Service that is visible in every cluster of the mesh: the one way to write them (MSH-07 to MSH-10).

Nothing is global by default: a Service without these annotations stays in its cluster. The twin of the same name and
namespace in another site is a rule over the documents (MSH-14).
"""

from typing import Literal, get_args

from infra.config import Cluster
from infra.violation import InvariantError, Violation

Affinity = Literal["local", "remote", "none"]
PREFIX = "service.cilium.io"


def global_service(cluster: Cluster, *, affinity: Affinity = "local", shared: bool = True) -> dict[str, str]:
    """Annotations, all of them texts: Kubernetes refuses a boolean, and Cilium reads nothing else.

    `affinity`: whose backends are preferred. `shared`: whether backends of this cluster serve others too.
    Raises InvariantError for a cluster outside the mesh, where the annotations would have no effect.
    """
    if cluster.cni != "cilium" or not cluster.in_mesh:
        raise InvariantError(
            [
                Violation(
                    id="MSH-10",
                    path=f"{cluster.name}.in_mesh",
                    found=f"a global Service in a cluster with {cluster.cni}, outside the mesh",
                    expected="a cluster of the ClusterMesh",
                    remedy="drop it: other sites call the app by its URL",
                    source="CPPS-ADR-009",
                )
            ]
        )
    if affinity not in get_args(Affinity) or not isinstance(shared, bool):
        raise InvariantError(
            [
                Violation(
                    id="MSH-09",
                    path=f"{cluster.name}.{PREFIX}/affinity",
                    found=f"affinity {affinity!r}, shared {shared!r}",
                    expected=f"affinity {', '.join(get_args(Affinity))}; shared True or False",
                    remedy="correct the call",
                )
            ]
        )
    return {
        f"{PREFIX}/global": "true",
        f"{PREFIX}/affinity": affinity,
        f"{PREFIX}/shared": "true" if shared else "false",
    }
