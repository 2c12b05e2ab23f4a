"""KAR: the federation. What policies and overrides say is tested on the declared resources and on `federated/`."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.decided import deviations
from infra.rules.members import HOLDS_STATE, apps, members, selected, selector
from infra.rules.nodes import CPPS, nodes, uses_gpu
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ARCHITECTURE, PLAN, SEEDS
from infra.violation import Level

LABELS = ("site", "provider", "tier", "region")
HOST_SERVERS = 3


@rule("KAR-01", level=Level.ACK, source=SEEDS["KAR-01"].source)
def federation_has_one_host(fleet: Fleet) -> Iterator[Finding]:
    """Karmada's control plane runs once, in Franca, and members have one to join."""
    yield from deviations(fleet, "KAR-01")
    hosts = [site_id for site_id, site in fleet.sites.items() if site.karmada.host]
    for site_id in hosts[1:]:
        yield Finding(
            f"{site_id}.karmada.host",
            f"a second host beside {hosts[0]}",
            "one control plane in the fleet",
            "set it to false",
            level=Level.ERROR,
        )
    joined = [member.path for member in members(fleet)]
    if joined and not hosts and not fleet.absent:
        found = f"{len(joined)} members and no site with karmada.host"
        remedy = "set karmada.host in one document, or drop the memberships"
        yield Finding(joined[0], found, "a control plane to join", remedy, level=Level.ERROR)


@rule("KAR-06", source=ARCHITECTURE)
def members_can_be_selected(fleet: Fleet) -> Iterator[Finding]:
    """A member has a name of its own and the labels that policies select on."""
    with_gpus = {id(node.cluster) for node in nodes(fleet) if uses_gpu(node.guest)}
    taken: dict[str, str] = {}
    for member in members(fleet):
        if member.name in taken:
            found = f"{member.name}, like {taken[member.name]}"
            yield Finding(f"{member.path}.member_name", found, "a name of its own", "rename one of the members")
        taken.setdefault(member.name, f"{member.path}.member_name")
        needed = (*LABELS, "capability", "gpu.model") if id(member.cluster) in with_gpus else LABELS
        missing = [key for key in needed if not member.labels.get(key)]
        if missing:
            found = f"no value for {', '.join(missing)}"
            yield Finding(f"{member.path}.labels", found, f"the labels {', '.join(needed)}", "add what is missing")


@rule("KAR-07", source=ARCHITECTURE, profile=CPPS)
def gpu_labels_tell_the_truth(fleet: Fleet) -> Iterator[Finding]:
    """The labels capability and gpu.model of a member say what GPUs its nodes have."""
    models: dict[int, set[str]] = {}
    for node in nodes(fleet):
        if uses_gpu(node.guest):
            there = node.host.gpus if node.host is not None else ()
            models.setdefault(id(node.cluster), set()).update(gpu.model for gpu in there)
    for member in members(fleet):
        found_models = models.get(id(member.cluster))
        if found_models is None:
            for key in ("capability", "gpu.model"):
                value = member.labels.get(key)
                if value == "gpu" or (key == "gpu.model" and value):
                    found = f"{value}, while no node of {member.cluster.name} has a GPU"
                    remedy = "label the GPU cluster instead"
                    yield Finding(f"{member.path}.labels.{key}", found, "no such label", remedy)
            continue
        for key, allowed in (("capability", {"gpu"}), ("gpu.model", found_models)):
            value = member.labels.get(key)
            if value and value not in allowed:  # none at all: KAR-06
                expected = ", ".join(sorted(allowed)) or "the model of a GPU that its host has"
                yield Finding(f"{member.path}.labels.{key}", value, expected, "correct the label")


@rule("KAR-12", level=Level.ACK, source=PLAN)
def failover_is_switched_on(fleet: Fleet) -> Iterator[Finding]:
    """Automatic failover is expected of federated apps alone, and the Karmada host has it switched on."""
    gate = any(site.karmada.host and site.karmada.failover for site in fleet.sites.values())
    for site_id, site in fleet.sites.items():
        if site.karmada.failover and not site.karmada.host:
            remedy = "set it on the Karmada host"
            yield Finding(f"{site_id}.karmada.failover", "true without a control plane here", "false", remedy)
    for entry in apps(fleet):
        if entry.app.failover == "none" or entry.app.kind in HOLDS_STATE:
            continue  # with state: KAR-19
        if not entry.app.federated:
            found, remedy = "automatic for an app that Karmada does not place", "federate it, or expect none"
            yield Finding(f"{entry.path}.failover", found, "none", remedy)
        elif not gate:
            found = "automatic, while the Failover gate is off: its tolerations would have no effect"
            remedy = "set karmada.failover on the Karmada host, or expect none"
            yield Finding(f"{entry.path}.failover", found, "none until the gate is on", remedy)


@rule("KAR-13", source=ARCHITECTURE)
def stateful_apps_stay_in_a_site(fleet: Fleet) -> Iterator[Finding]:
    """A stateful app is pinned to one site."""
    for entry in apps(fleet):
        if entry.app.kind == "stateful" and not entry.app.site_pinned:
            remedy = "pin it: its policy then selects the label of this site alone"
            yield Finding(f"{entry.path}.site_pinned", "false for a stateful app", "true", remedy)
    yield from _placed_twice(fleet, "stateful")


@rule("KAR-14", level=Level.ACK, source=SEEDS["KAR-14"].source)
def data_services_have_one_site(fleet: Fleet) -> Iterator[Finding]:
    """Data services are in Franca, and none is federated from two sites."""
    yield from deviations(fleet, "KAR-14")
    yield from _placed_twice(fleet, "data")


@rule("KAR-16", source=ARCHITECTURE)
def selectors_match_a_member(fleet: Fleet) -> Iterator[Finding]:
    """The labels that a federated app selects match a member."""
    for entry in apps(fleet):
        if entry.app.federated and not selected(fleet, entry):
            wanted = ", ".join(f"{key}={value}" for key, value in selector(entry).items())
            found = f"true, while no member has {wanted}" if wanted else "true in a fleet without members"
            yield Finding(f"{entry.path}.federated", found, "a member to place it on", "join one, or deploy it locally")


@rule("KAR-19", source=ARCHITECTURE)
def state_does_not_fail_over(fleet: Fleet) -> Iterator[Finding]:
    """Nothing that holds state fails over by itself: its storage is not replicated between sites."""
    for entry in apps(fleet):
        if entry.app.failover == "automatic" and entry.app.kind in HOLDS_STATE:
            steps = entry.app.recovery or "the steps that `recovery` is to name"
            remedy = f"set it to none; a person restores it by {steps}"
            yield Finding(f"{entry.path}.failover", f"automatic for a {entry.app.kind} app", "none", remedy)


@rule("KAR-20", source=ARCHITECTURE)
def control_plane_stays_in_a_site(fleet: Fleet) -> Iterator[Finding]:
    """Karmada is operated as best effort: no etcd and no control plane over sites."""
    for site_id, site in fleet.sites.items():
        if site.rejected.karmada_over_sites:
            remedy = "remove it: members go on without the control plane until it is back"
            yield Finding(f"{site_id}.rejected.karmada_over_sites", "true", "false", remedy)


@rule("KAR-21", source=ARCHITECTURE)
def host_stands_on_three_servers(fleet: Fleet) -> Iterator[Finding]:
    """Karmada's host is a main cluster of three servers with embedded etcd."""
    for site_id, site in fleet.sites.items():
        servers = [len(set(cluster.servers)) for cluster in site.clusters.values() if cluster.role == "main"]
        if site.karmada.host and max(servers, default=0) < HOST_SERVERS:
            found = f"true with servers in the main cluster: {max(servers, default=0)}"
            yield Finding(
                f"{site_id}.karmada.host", found, f"{HOST_SERVERS} servers first", "add servers, or set false"
            )


def _placed_twice(fleet: Fleet, kind: str) -> Iterator[Finding]:
    """Federated apps are one app for the whole fleet, so two documents cannot both bind it to their site."""
    bound: dict[str, str] = {}
    for entry in apps(fleet):
        if entry.app.federated and entry.app.kind == kind:
            if entry.name in bound:
                found = f"true, like {bound[entry.name]}"
                yield Finding(
                    f"{entry.path}.federated",
                    found,
                    f"one site for a {kind} app",
                    "name it in the document of its site alone",
                    level=Level.ERROR,
                )
            bound.setdefault(entry.name, f"{entry.path}.federated")
