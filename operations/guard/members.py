"""Members of etcd: how many of a cluster a run would stop at once (GRD-06), and what stops a guest at all."""

from collections.abc import Iterator

from operations.guard.known import CONTAINER, VM, guest, is_guest, quorum
from operations.guard.plan import REPLACE, Step, steps
from operations.guard.situation import Situation
from operations.guard.stop import Stop

# Properties whose change makes the provider restart a running guest; for VMs `rebootAfterUpdate` prevents it.
CONTAINER_RESTARTS = frozenset(
    {"console", "cpu", "devicePassthroughs", "features", "initialization", "memory", "mountPoints", "networkInterfaces"}
    | {"operatingSystem"}
)
VM_NEVER_RESTARTS = frozenset({"description", "onBoot", "protection", "startup", "tags"})


def stops(now: Situation) -> Iterator[Stop]:
    """Every stop for the members of etcd."""
    for cluster, found in _touched(now).items():
        members = now.members(cluster)
        if len(found) == 1:
            ((name, how),) = found.items()
            if how == "restarted":
                now.note(f"{now.cluster(cluster)}: {name} may restart, one of {members} etcd members")
            continue
        names = [f"{name} {how}" for name, how in found.items()]
        yield Stop(
            rule="GRD-06",
            urn=cluster,
            name=now.cluster(cluster),
            field="etcd members that stop",
            old=0,
            new=len(found),
            consequence=f"{', '.join(sorted(names))} at once, in no order: {quorum(members, len(found))}",
            instead=f"change one guest, run fleet up {now.site_id}, wait until it is Ready, then the next",
            acceptable=False,
        )


def _touched(now: Situation) -> dict[str, dict[str, str]]:
    """By cluster: the etcd members that a run stops, and how."""
    touched: dict[str, dict[str, str]] = {}
    for step in now.plan.steps:
        before = guest(step.old, now.site) if step.old and is_guest(step.type) else None
        member = now.member_on(before) if before else None
        how = "" if follows(now, step) else stopped(step)
        if member and how:
            touched.setdefault(member.cluster, {})[member.name] = how
    stay = {(one.cluster, one.name) for one in now.nodes_after if one.server}
    servers = [one for one in now.nodes if one.server and not now.gone(one.cluster)]
    for server in servers:
        if (server.cluster, server.name) not in stay:
            touched.setdefault(server.cluster, {}).setdefault(server.name, "leaves")
    for server in servers:
        # Its script asks whether the others answer, and cannot know that the guest of one is about to stop.
        found, rolled = touched.get(server.cluster, {}), now.plan.step(server.urn)
        if rolled and "stdin" in rolled.reasons and {*found.values()} & {"restarted", "stopped", "replaced"}:
            found.setdefault(server.name, "restarts K3s")
    return touched


def stopped(step: Step) -> str:
    """How a step stops a running guest; empty if it does not."""
    if step.goes:
        return "replaced" if step.op == REPLACE else "deleted"
    if step.old is None or step.new is None:
        return ""
    changed = tops(step)
    if step.new.inputs.get("started") is False and step.old.inputs.get("started") is not False:
        return "stopped"
    if step.type == CONTAINER:
        return "restarted" if changed & CONTAINER_RESTARTS else ""
    if step.type == VM and step.new.inputs.get("rebootAfterUpdate") is not False:
        return "restarted" if changed - VM_NEVER_RESTARTS else ""
    return ""


def follows(now: Situation, step: Step) -> bool:
    """Whether the state takes the same guest anew under another id, as after a migration, and Proxmox keeps it."""
    if not (step.imports_again and step.old and step.new and step.old.retained):
        return False
    before, after = guest(step.old, now.site), guest(step.new, now.site)
    return bool(before and after and before.vmid is not None and before.vmid == after.vmid)


def top(path: str) -> str:
    """The property that a path begins with."""
    return str(next(steps(path), ""))


def tops(step: Step) -> set[str]:
    """The properties that a step changes."""
    return {top(change.path) for change in step.changes} | set(step.reasons)
