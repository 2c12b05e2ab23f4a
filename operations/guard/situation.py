"""Everything that the rules of the guard look at: plan, state, documents, and what follows from them."""

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

from infra.config import Fleet
from infra.violation import Violation
from operations.guard.known import Guest, Node, guest, node, on
from operations.guard.plan import Plan, Resource, Step, hides, name_of, steps
from operations.guard.stop import Stop

MissingBackups = Callable[[set[str], set[str]], list[Violation]]  # of what is touched, and of what is destroyed


class Situation:
    """One plan for one site. Rules read it, and leave notes."""

    def __init__(
        self,
        plan: Plan,
        fleet: Fleet,
        site_id: str,
        secret_binding: str = "",
        same_ca: Callable[[], bool] | None = None,
        missing_backups: MissingBackups | None = None,
    ) -> None:
        self.plan, self.fleet, self.site_id, self.site = plan, fleet, site_id, fleet.sites[site_id]
        self.secret_binding = secret_binding  # tells versions of the stack's secrets apart, without holding one
        self.same_ca = same_ca  # whether document and state have the same CA, where the engine does not say
        self.missing_backups = missing_backups  # none: nobody asks for backups, as in a lab
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    @cached_property
    def guests(self) -> list[Guest]:
        """As the state has them."""
        return [one for one in (guest(resource, self.site) for resource in self.plan.state) if one]

    @cached_property
    def nodes(self) -> list[Node]:
        """As their commands were last told; without the commands that made a cluster."""
        return [one for one in self._nodes(self.plan.state) if not one.first]

    @cached_property
    def first_servers(self) -> list[Node]:
        return [one for one in self._nodes(self.plan.state) if one.first]

    @cached_property
    def nodes_after(self) -> list[Node]:
        return [one for one in self._nodes(list(self.plan.after())) if not one.first]

    @staticmethod
    def _nodes(resources: "list[Resource] | tuple[Resource, ...]") -> list[Node]:
        return [one for one in (node(resource) for resource in resources) if one]

    def members(self, cluster: str) -> int:
        """How many etcd members a cluster has, by the state; by the document too, for those it does not hold."""
        known = {one.name for one in self.nodes if one.server and one.cluster == cluster}
        for name, written in self.site.clusters.items():
            if name == cluster or known & set(written.servers):
                known |= {one for one in written.servers if one in self.site.guests and self.site.guests[one].existing}
        return len(known)

    def member_on(self, guest: Guest) -> Node | None:
        """The etcd member that runs on a guest; by the document too, for what the program never set up."""
        known = next((one for one in self.nodes if one.server and on(one, [guest])), None)
        if known is not None:
            return known
        written = next((one for one in self.site.guests.values() if one.vmid == guest.vmid), None)
        cluster = next((one for one in self.site.clusters.values() if written and written.name in one.servers), None)
        if written is None or cluster is None or not guest.adopted:
            return None
        urn = next((one.cluster for one in self.nodes if one.name in cluster.servers), cluster.name)
        return Node(
            urn="", cluster=urn, name=written.name, address=str(written.address), server=True, first=False,
            version="", config={}, frozen=(),
        )  # fmt: skip

    def cluster(self, urn: str) -> str:
        """What a cluster is called in the document, else its component."""
        names = {one.name for one in (*self.nodes, *self.nodes_after) if one.cluster == urn}
        for cluster in self.site.clusters.values():
            if names & {*cluster.servers, *cluster.agents}:
                return cluster.name
        return name_of(urn)

    def gone(self, cluster: str) -> bool:
        """Whether the whole cluster leaves."""
        step = self.plan.step(cluster)
        return step is not None and step.goes

    def component_of(self, step: Step) -> str:
        """The K3s component whose Kubernetes provider made a resource; empty where state and plan do not say."""
        wanted = step.old.provider if step.old else ""
        provider = next((one for one in self.plan.state if one.urn == wanted), None)
        if provider is None:
            planned = self.plan.step(wanted)
            provider = planned.old if planned else None
        return provider.parent if provider else ""

    def cluster_gone(self, step: Step) -> bool:
        """Whether the Kubernetes provider of a resource leaves together with its cluster."""
        provider = self.plan.step(step.old.provider) if step.old else None
        return provider is not None and provider.goes and self.gone(self.component_of(step))

    def stop(self, rule: str, step: Step, field: str, old: Any, new: Any, **said: Any) -> Stop:
        """Its key is bound to all that the step changes, not to the part that the message names alone."""
        said.setdefault("bind", self._binding(step))
        return Stop(rule=rule, urn=step.urn, name=step.name, field=field, old=old, new=new, **said)

    def _binding(self, step: Step) -> str:
        changes, reasons = step.changes, sorted({*step.reasons, *step.replace_reasons})
        seen = {next(steps(change.path), "") for change in changes}
        unseen = not seen.issuperset(step.reasons) or any(hides([change.old, change.new]) for change in changes)
        shown = sorted((change.path, repr(change.old), repr(change.new)) for change in changes)
        return json.dumps([step.op, shown, reasons, self.secret_binding if unseen else ""])
