"""What runs in clusters: Kubernetes provider and Cilium (GRD-08 to GRD-10); and what nobody can judge (GRD-13)."""

from collections.abc import Iterator, Mapping
from typing import Any

from infra.versions import METALLB
from operations.guard import mesh
from operations.guard.known import COMMAND, is_guest
from operations.guard.plan import KNOWN_OPS, SECRET, UNKNOWN, UPDATE, Change, Step, at, hides, steps, types_of
from operations.guard.situation import Situation
from operations.guard.stop import Stop
from operations.releases import RELEASE

KUBERNETES = "pulumi:providers:kubernetes"
CILIUM = "fleet:cilium:Cilium"
CA = ("values.tls.ca.cert", "values.tls.ca.key")
# Types whose end costs nothing that a further run does not bring back, beside those with rules of their own.
HARMLESS = (
    "pulumi:providers:",
    "fleet:",
    "random:index/randomPassword:RandomPassword",
    "proxmoxve:download/",
    "kubernetes:cilium.io/",
)


def is_cilium(kind: str, urn: str, *inputs: Mapping[str, Any]) -> bool:
    """Whether it is Cilium's own release: its component installs the other owner of addresses too, MetalLB.

    Without a name that can be read it may be Cilium.
    """
    names = [at(one, "name") for one in inputs] or [None]
    return kind == RELEASE and CILIUM in types_of(urn) and any(name != METALLB.name for name in names)


def stops(now: Situation) -> Iterator[Stop]:
    """Every stop for what runs in clusters, and for steps that no rule understands."""
    ended = {step.urn for step in now.plan.steps if step.type == KUBERNETES and step.goes}
    for step in now.plan.steps:
        if step.type == KUBERNETES and step.goes and not now.gone(_parent(step)):
            yield _provider(now, step)
        elif is_cilium(step.type, step.urn, *(side.inputs for side in (step.old, step.new) if side is not None)):
            yield from _cilium(now, step, ended)
        elif not mesh.judges(step):
            yield from _unjudged(now, step, ended)


def _parent(step: Step) -> str:
    return step.old.parent if step.old else ""


def _provider(now: Situation, step: Step) -> Stop:
    hanging = [other for other in now.plan.steps if other.goes and other.replace_reasons == ("provider",)]
    changed = [change for change in step.changes if change.path in step.replace_reasons]
    first = next((one for one in changed if SECRET not in (one.old, one.new)), None) or next(iter(changed), None)
    return now.stop(
        "GRD-08",
        step,
        first.path if first else ", ".join(step.replace_reasons) or "provider",
        first.old if first else "the provider",
        first.new if first else step.op,
        consequence=f"all that it manages in the cluster is removed and installed anew ({len(hanging)} more resources, "
        "Cilium among them): the cluster is without a network meanwhile",
        instead="put back what makes it another cluster (its first server, or a rebuilt one); accept only after the "
        "cluster itself was built anew",
        acceptable=True,
    )


def _cilium(now: Situation, step: Step, ended: set[str]) -> Iterator[Stop]:
    if step.goes:
        if not _with_provider(step, ended) and not now.cluster_gone(step):
            yield now.stop(
                "GRD-09",
                step,
                ", ".join(step.replace_reasons) or "release",
                "Cilium installed",
                step.op,
                consequence="the cluster is without its network: nodes turn NotReady and Pods lose their addresses",
                instead="put the document back; a CNI is changed in a window of its own (docs/operacoes)",
                acceptable=True,
            )
        return
    if step.old is None or step.new is None:
        yield from _unjudged(now, step, ended)
        return
    for path in ("values.cluster.name", "values.cluster.id"):
        old, new = at(step.old.inputs, path), at(step.new.inputs, path)
        if old != new:
            yield now.stop(
                "GRD-09",
                step,
                path,
                old,
                new,
                consequence="identities of all Pods carry the old value: connections break until every Pod of the "
                "cluster was restarted, and peers of the mesh no longer know it",
                instead="put it back; to change it take the cluster out of the mesh first, then restart all Pods "
                "in one window",
                acceptable=True,
            )
    yield from _ca(now, step)


def _ca(now: Situation, step: Step) -> Iterator[Stop]:
    assert step.old is not None and step.new is not None
    if step.detailed:
        fields = [path for path in step.detailed if path.startswith("values.tls") or path == "values"]
        changed = bool(fields)
    else:
        same = now.same_ca() if now.same_ca else False
        fields, changed = list(CA), not same
    if changed:
        yield now.stop(
            "GRD-10",
            step,
            ", ".join(fields),
            SECRET,
            SECRET,
            consequence="clusters of the mesh trust one CA: until all sites have the new one, peers refuse this "
            "cluster; certificates of Hubble and the mesh are made anew",
            instead="change it on all sites in one window: the same certificate and key, one site after another",
            acceptable=True,
            bind=now.secret_binding,
        )


def _with_provider(step: Step, ended: set[str]) -> bool:
    """Whether a resource is replaced for no other reason than that its own provider is: one stop stands for all."""
    return step.replace_reasons == ("provider",) and step.old is not None and step.old.provider in ended


def _unjudged(now: Situation, step: Step, ended: set[str]) -> Iterator[Stop]:
    why = _why(now, step, ended)
    if why:
        changes = step.changes
        first: Change | None = changes[0] if len(changes) == 1 else None
        yield now.stop(
            "GRD-13",
            step,
            first.path if first else ", ".join(step.reasons) or step.op,
            first.old if first else "as it is",
            first.new if first else step.op,
            consequence=f"the guard cannot judge this step: {why}",
            instead=f"look at pulumi preview -s {now.site_id} --diff, and accept once you know what it does",
            acceptable=True,
        )


def _why(now: Situation, step: Step, ended: set[str]) -> str:
    """Why a step cannot be judged; empty if it can."""
    if step.op not in KNOWN_OPS:
        return f"operation {step.op} is unknown"
    if step.old is None and (step.goes or step.op == UPDATE):
        return "neither the engine nor the state says what is there"
    if step.new is None and step.op == UPDATE:
        return "the engine does not say what it becomes"
    if step.goes:
        return _why_gone(now, step, ended)
    blind = not step.detailed and not step.type.startswith("pulumi:providers:")  # these touch nothing outside
    if blind and step.op == UPDATE and step.old is not None and step.new is not None:
        sides = [step.old.inputs, step.new.inputs]
        seen = {next(steps(change.path), "") for change in step.changes}
        hidden = [
            name
            for name in step.reasons
            for values in [[at(side, name) for side in sides]]
            if SECRET in values or UNKNOWN in values or (name not in seen and any(map(hides, values)))
        ]
        if hidden:
            return f"the provider gives no details, and {', '.join(hidden)} cannot be read"
    return ""


def _why_gone(now: Situation, step: Step, ended: set[str]) -> str:
    """Why the end of a resource cannot be judged; empty if it can."""
    if is_guest(step.type) or step.type.startswith(HARMLESS):
        return ""
    if step.type == COMMAND:
        old = step.old.inputs if step.old else {}
        return "the command does something when it is deleted" if "delete" in old else ""
    if step.type.startswith("kubernetes:") and (_with_provider(step, ended) or now.cluster_gone(step)):
        return ""
    return f"nothing is known of what it costs when a {step.type} is {step.op}d"
