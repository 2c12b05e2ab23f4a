"""Guests: what of a plan would cost a machine or its data (GRD-01 to GRD-03, GRD-11, GRD-14)."""

from collections.abc import Iterator

from operations.guard import members
from operations.guard.known import Guest, guest, is_guest, quorum
from operations.guard.members import VM_NEVER_RESTARTS, follows, stopped, top, tops
from operations.guard.plan import CREATE, DELETE, IMPORT, REPLACE, UPDATE, Resource, Step
from operations.guard.situation import Situation
from operations.guard.stop import Stop

DISKS = frozenset({"disk", "disks", "mountPoints"})
TWO_STEPS = (
    "it is protected, so that this takes two runs: `stateful: false` for this guest and `fleet up {site}`, a backup, "
    "then this change, which prints a key of its own"
)


def stops(now: Situation) -> Iterator[Stop]:
    """Every stop for a guest."""
    for step in now.plan.steps:
        if not is_guest(step.type):
            continue
        before = guest(step.old, now.site) if step.old else None
        after = guest(step.new, now.site) if step.new and step.op != DELETE else None
        if step.op == IMPORT:
            yield from _import(now, step)
        if before is None or step.op in (IMPORT, CREATE):
            continue
        if before.resource.protect and step.new is not None and not step.new.protect:
            now.note(f"{before.name} (VMID {before.vmid}) loses its protection: a later run may delete it")
        if step.goes:
            if not follows(now, step):
                yield from _goes(now, step, before, after)
        elif stopped(step) == "stopped":
            yield from _halts(now, step, before)
        if after is not None:
            yield from _disks(step, before, after)
            yield from _moves(now, step, before, after)
        else:
            yield from _renamed(now, step, before)
    yield from members.stops(now)
    yield from _backups(now)
    yield from _unfinished(now)


def _kinds(now: Situation, before: Guest) -> list[str]:
    return [
        *(["protected"] if before.resource.protect else []),
        *(["adopted"] if before.adopted else []),
        *(["etcd member"] if now.member_on(before) else []),
        *(["GPU"] if before.gpu else []),
    ]


def _halts(now: Situation, step: Step, before: Guest) -> Iterator[Stop]:
    kinds, member = _kinds(now, before), now.member_on(before)
    if not kinds:
        return
    yield now.stop(
        "GRD-01",
        step,
        "started",
        True,
        False,
        consequence=f"this {', '.join(kinds)} guest is stopped, and stays so"
        + (f"; {now.cluster(member.cluster)}: {quorum(now.members(member.cluster), 1)}" if member else ""),
        instead="put it back; for work on the guest stop it in Proxmox, for a node after draining it",
        acceptable=True,
    )


def _goes(now: Situation, step: Step, before: Guest, after: Guest | None) -> Iterator[Stop]:
    kinds, member = _kinds(now, before), now.member_on(before)
    if not kinds:
        now.note(f"{before.name} (VMID {before.vmid}) is {step.op}d with its disks; it holds no state of its own")
        return
    what = "replaced" if step.op == REPLACE else "deleted"
    consequence = f"the guest with VMID {before.vmid} and its disks are deleted" + (
        ", and an empty one takes its place" if after else ""
    )
    if member:
        consequence += f"; {now.cluster(member.cluster)}: {quorum(now.members(member.cluster), 1)}"
    if before.gpu:
        consequence += "; the GPU work on it ends"
    changed = [change for change in step.changes if top(change.path) in step.replace_reasons]
    field = ", ".join(change.path for change in changed) if changed else "guest"
    old = changed[0].old if len(changed) == 1 else f"{', '.join(kinds)} guest"
    new = changed[0].new if len(changed) == 1 else what
    own = "take a backup (fleet backup) and, for a node, drain it first"
    yield now.stop(
        "GRD-01",
        step,
        field,
        old,
        new,
        consequence=f"this {', '.join(kinds)} guest is {what}: {consequence}",
        instead=TWO_STEPS.format(site=now.site_id) if before.resource.protect else own,
        acceptable=not before.resource.protect,
    )


def _disks(step: Step, before: Guest, after: Guest) -> Iterator[Stop]:
    changed = tops(step) | set(step.replace_reasons)
    # What Proxmox said last counts where disks change: one may have grown by hand, or been added.
    real = before.real_disks if changed & DISKS or not changed else {}
    for name in dict.fromkeys((*before.disks, *real)):
        sizes = [size for size in (before.disks.get(name), real.get(name)) if size is not None]
        size = max(sizes) if all(isinstance(one, int | float) for one in sizes) and sizes else next(iter(sizes), None)
        wanted = after.disks.get(name)
        both = isinstance(size, int | float) and isinstance(wanted, int | float)
        if size is not None and (wanted < size if both else wanted != size):
            yield Stop(
                rule="GRD-02",
                urn=step.urn,
                name=step.name,
                field=f"{name}.size in GiB",
                old=size,
                new=wanted,
                consequence="what lies beyond the new end is lost; Proxmox never shrinks a disk",
                instead=f"put {size} back, or make a guest with the smaller disk beside it, move the work, "
                "then remove this one",
                acceptable=False,
            )


def _moves(now: Situation, step: Step, before: Guest, after: Guest) -> Iterator[Stop]:
    for field, old, new in (("vmId", before.vmid, after.vmid), ("nodeName", before.host, after.host)):
        if old == new or old is None:
            continue
        if new is None and step.old is not None and field not in step.old.inputs:  # known by its id alone
            continue
        if follows(now, step):
            yield _followed(now, step, old, new)
            continue
        move = f"migrate it in Proxmox (qm migrate {before.vmid} {new}), then pulumi refresh -s {now.site_id}"
        yield now.stop(
            "GRD-03",
            step,
            field,
            old,
            new,
            consequence="the provider deletes the guest with its disks and makes an empty one"
            if step.op == REPLACE
            else "the provider cannot move a guest that exists",
            instead=f"put {old} back; {move if field == 'nodeName' else 'a guest keeps its VMID for life'}; "
            "for a rebuild of a node without data: drain it and accept",
            acceptable=not before.resource.protect,
        )


def _followed(now: Situation, step: Step, old: object, new: object) -> Stop:
    return now.stop(
        "GRD-03",
        step,
        "nodeName",
        old,
        new,
        consequence="the state takes the guest anew, from its new host; where it runs there, nothing happens to it",
        instead=f"fleet adopt {now.site_id} must say that nothing differs, so that it runs on {new}; then accept",
        acceptable=True,
    )


def _renamed(now: Situation, step: Step, before: Guest) -> Iterator[Stop]:
    """Deleted, while another guest with its VMID or address is made in the same run."""
    for other in now.plan.steps:
        made = guest(other.new, now.site) if other.op == CREATE and other.new else None
        if made is None or not (made.vmid == before.vmid or made.addresses & before.addresses):
            continue
        yield now.stop(
            "GRD-03",
            step,
            "name",
            before.name,
            made.name,
            consequence=f"VMID {before.vmid} is to be deleted and made again in one run: the new guest comes first, "
            "and its VMID or address is taken",
            instead=f"put {before.name} back, or take two runs: remove {before.name}, then add {made.name}",
            acceptable=False,
        )


def _backups(now: Situation) -> Iterator[Stop]:
    """BKP-01, for each guest that a step changes in more than its notes."""
    if now.missing_backups is None:
        return
    touched: dict[str, Step] = {}
    for step in now.plan.steps:
        before = guest(step.old, now.site) if step.old and is_guest(step.type) else None
        changed = tops(step)
        if (
            before
            and before.name
            and not follows(now, step)
            and (step.goes or (step.op == UPDATE and changed - VM_NEVER_RESTARTS))
        ):
            touched[f"guest/{before.name}"] = step
    gone = {what for what, step in touched.items() if step.goes}
    for missing in now.missing_backups(set(touched), gone):
        step = touched[missing.path.partition(f".{now.site_id}.")[2]]
        yield now.stop(
            "BKP-01",
            step,
            "backup",
            missing.found,
            missing.expected,
            consequence="what goes wrong with this guest cannot be undone",
            instead=missing.remedy,
            acceptable=True,
        )


def _import(now: Situation, step: Step) -> Iterator[Stop]:
    fields = [change.path for change in step.changes] if step.detailed or step.reasons else []
    fields = fields or list(step.reasons)
    if not fields:
        return
    first = step.changes[0] if step.changes else None
    yield now.stop(
        "GRD-11",
        step,
        ", ".join(fields),
        first.old if first and len(fields) == 1 else "as the guest is",
        first.new if first and len(fields) == 1 else "as the document says",
        consequence="the guest differs from its document: an import refuses it, and an update would change it",
        instead=f"fleet adopt {now.site_id} prints the lines of the document that fit",
        acceptable=False,
    )


def _unfinished(now: Situation) -> Iterator[Stop]:
    done = {resource.urn for resource in now.plan.state}
    for kind, resource in now.plan.pending:
        if kind == "creating" and is_guest(resource.type) and resource.urn not in done:
            yield _cut_off(resource)


def _cut_off(resource: Resource) -> Stop:
    vmid, host = resource.inputs.get("vmId"), resource.inputs.get("nodeName")
    return Stop(
        rule="GRD-14",
        urn=resource.urn,
        name=resource.name,
        field="vmId",
        old="a creation that was cut off",
        new=vmid,
        consequence=f"VMID {vmid} on {host} may have been made without being recorded; a second creation fails",
        instead=f"look at VMID {vmid} in Proxmox: if it is there, new and empty, remove it; then accept",
        acceptable=True,
    )
