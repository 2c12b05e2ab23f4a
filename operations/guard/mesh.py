"""The ClusterMesh: its address and certificates are taken from a cluster only as the document says (GRD-15).

The program leaves the layer out where the stack has no certificates of it, which a person may have lost by accident.
"""

from collections.abc import Iterator

from infra.config import Cluster, Site
from operations.guard.plan import DELETE, REPLACE, Step, at, name_of, types_of
from operations.guard.situation import Situation
from operations.guard.stop import Stop

LAYERS = {"fleet:clustermesh:ClusterMesh", "fleet:clustermesh:MeshCertificates"}
SERVICE = "kubernetes:core/v1:Service"
SECRET_KIND = "kubernetes:core/v1:Secret"


def judges(step: Step) -> bool:
    """Whether a step is judged here alone: the mesh's Service or a certificate goes, or one makes room for the next."""
    if step.type not in (SERVICE, SECRET_KIND) or not LAYERS & set(types_of(step.urn)):
        return False
    return step.op == DELETE or (step.op == REPLACE and step.type == SECRET_KIND and _same_place(step))


def stops(now: Situation) -> Iterator[Stop]:
    """One stop for all that a member of the mesh would lose; a note where the document lets it go."""
    for cluster, steps in _by_cluster(now).items():
        gone = sorted((step for step in steps if step.op == DELETE), key=lambda step: (step.type != SERVICE, step.urn))
        renewed = [step.name for step in steps if step.op == REPLACE]
        if renewed:
            now.note(f"{cluster or now.site_id}: certificates of the mesh are replaced: {', '.join(sorted(renewed))}")
        if not gone or now.cluster_gone(gone[0]):
            continue
        member = now.site.mesh_member
        if member is not None and cluster in (member.name, ""):  # without a name nothing says that it is another one
            yield _lost(now, member, gone)
        else:
            now.note(_left(now, cluster, gone))


def _by_cluster(now: Situation) -> dict[str, list[Step]]:
    """Steps of the mesh by the cluster that they are in; "" where neither state nor plan says which."""
    found: dict[str, list[Step]] = {}
    for step in now.plan.steps:
        if judges(step):
            component = now.component_of(step)
            found.setdefault(now.cluster(component) if component else "", []).append(step)
    return found


def _same_place(step: Step) -> bool:
    """Whether a replaced object comes back under its name, where the pods mount it."""
    if step.old is None or step.new is None:
        return False
    paths = ("metadata.name", "metadata.namespace", "type")
    return all(at(step.old.inputs, path) == at(step.new.inputs, path) is not None for path in paths)


def _lost(now: Situation, member: Cluster, gone: list[Step]) -> Stop:
    return now.stop(
        "GRD-15",
        gone[0],
        "ClusterMesh",
        sorted(name_of(step.urn) for step in gone),
        None,
        consequence=f"{member.name} leaves the mesh, though its document says in_mesh: true: {_loses(now)}",
        instead="bring back what the program makes the mesh of: its certificates in the stack (the stack file as it "
        f"was, or fleet credentials init {now.site_id}) and common.cilium.ca_mode: shared; to leave the mesh, write "
        f"in_mesh: false for {member.name}",
        acceptable=True,
    )


def _left(now: Situation, cluster: str, gone: list[Step]) -> str:
    what = f"{len(gone)} object{'' if len(gone) == 1 else 's'}"
    return f"{cluster or 'a cluster'} leaves the mesh, as the document says ({what}): {_loses(now)}"


def _loses(now: Situation) -> str:
    """What the other members lose."""
    peers = sorted(site.mesh_member.name for site in _others(now) if site.mesh_member)
    if not peers:
        return "no other site has a member that would miss it"
    return (
        f"{', '.join(peers)} can no longer dial its mesh API {now.site.lb.vips.clustermesh_api}, and know neither its "
        "Pods nor what it serves of global Services"
    )


def _others(now: Situation) -> Iterator[Site]:
    return (site for site_id, site in now.fleet.sites.items() if site_id != now.site_id)
