"""Clusters: what of a plan a living K3s cluster would not survive (GRD-04, GRD-05, GRD-07, GRD-12)."""

import re
from collections.abc import Iterator

from infra.k3s.settings import DEFAULT_FLANNEL
from operations.guard.known import COMMAND, K3S, Node, node, quorum, sections
from operations.guard.plan import DELETE, REPLACE, UPDATE, Resource, Step, name_of, types_of
from operations.guard.situation import Situation
from operations.guard.stop import Stop

CNI = ("flannel-backend", "disable-network-policy", "disable-kube-proxy")
REBUILD = "docs/operacoes/k3s-rebuild.md"
RANDOM_PASSWORD = "random:index/randomPassword:RandomPassword"
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:\+k3s(\d+))?$")


def stops(now: Situation) -> Iterator[Stop]:
    """Every stop for a cluster."""
    after = {one.urn: one for one in now.nodes_after}
    for before in now.nodes:
        then = after.get(before.urn)
        if then is not None and then != before:
            yield from _frozen(now, before, then)
            yield from _version(before, then)
    yield from _servers(now)
    yield from _ahead(now)
    for step in now.plan.steps:
        if step.type == COMMAND and step.op in (UPDATE, REPLACE):
            yield from _unreadable(now, step)
        in_cluster = len(types_of(step.urn)) > 1 and types_of(step.urn)[-2] == K3S
        if step.type == RANDOM_PASSWORD and in_cluster and step.goes:
            yield from _token(now, step)
    _rolling(now)


def _frozen(now: Situation, before: Node, then: Node) -> Iterator[Stop]:
    """The list of what stays travels with each command; the node refuses the same, but in the middle of an update."""
    for key in dict.fromkeys((*before.frozen, *then.frozen)):
        old, new = before.config.get(key), then.config.get(key)
        if old != new:
            runbook = _moved_by_hand(now, key, then)
            yield Stop(
                rule="GRD-03" if key == "node-name" else "GRD-04",
                urn=before.urn,
                name=name_of(before.urn),
                field=key,
                old=old,
                new=new,
                consequence=f"{now.cluster(before.cluster)} runs with {old if old is not None else 'no such setting'}: "
                "K3s fixes this when a cluster is made, and nodes and Pods that disagree lose each other",
                instead="accept it in the window of the migration alone, once every server runs with it: follow "
                f"fleet runbook {now.site_id} {runbook}"
                if runbook
                else f"put the document back; for another value build the cluster anew ({REBUILD})",
                acceptable=bool(runbook),
            )


def _moved_by_hand(now: Situation, key: str, then: Node) -> str:
    """Runbook that people have carried out, so the document says; empty where a change of this key is none of its.

    It says so with `current` of every server that was there before the program, some of which people still keep, and
    with `migration.from_flannel`, off after the move and on again after the way back. What those servers run is what
    this one is to get, in each of the keys. Each node compares its flags with that before anything happens there.
    """
    cluster = next((one for one in now.site.clusters.values() if then.name in one.servers), None)
    if key not in CNI or cluster is None or cluster.role != "main":
        return ""
    there = [one for one in now.site.nodes(cluster) if one.name in cluster.servers and one.in_cluster]
    said = {one.current.flannel_backend if one.current else None for one in there}
    if len(said) != 1 or None in said or not any(one.recognised for one in there):
        return ""
    (backend,) = said
    forward = backend == "none"
    wanted = {"flannel-backend": backend, "disable-network-policy": forward, "disable-kube-proxy": forward}
    got = {one: then.config.get(one, taken) for one, taken in zip(CNI, (DEFAULT_FLANNEL, False, False), strict=True)}
    if got != wanted or forward == now.site.migration.from_flannel:
        return ""
    return "cni-migration" if forward else "cni-rollback"


def _version(before: Node, then: Node) -> Iterator[Stop]:
    if before.version == then.version:
        return
    old, new = _parsed(before.version), _parsed(then.version)
    said = {
        "rule": "GRD-07",
        "urn": before.urn,
        "name": name_of(before.urn),
        "field": "k3s_version",
        "old": before.version,
        "new": then.version,
    }
    if old is None or new is None:
        yield Stop(**said, consequence="nobody can tell whether this is an upgrade",
                   instead="write a release such as v1.32.13+k3s1", acceptable=True)  # fmt: skip
    elif new[:2] < old[:2]:
        yield Stop(**said, consequence="etcd and the API keep what the newer minor wrote, which the older cannot read",
                   instead="put the version back; the way down is a snapshot from before the upgrade "
                   "(docs/operacoes/etcd-restore.md)", acceptable=False)  # fmt: skip
    elif new < old:
        yield Stop(**said, consequence="an older patch release brings back the faults that the newer one mended",
                   instead="put the version back", acceptable=True)  # fmt: skip
    elif new[0] != old[0] or new[1] > old[1] + 1:
        yield Stop(**said, consequence="Kubernetes upgrades one minor at a time: what a skipped one converts is lost",
                   instead=f"go to v{old[0]}.{old[1] + 1} first, wait until all nodes are Ready, then on",
                   acceptable=False)  # fmt: skip


def _parsed(version: str) -> tuple[int, int, int, int] | None:
    found = _VERSION.match(version)
    if found is None:
        return None
    major, minor, patch, build = found.groups(default="0")
    return int(major), int(minor), int(patch), int(build)


def _servers(now: Situation) -> Iterator[Stop]:
    left = {(one.cluster, one.name) for one in now.nodes_after if one.server}
    firsts = {one.cluster: one for one in now.first_servers}
    gone_clusters: set[str] = set()
    for server in (one for one in now.nodes if one.server):
        if now.gone(server.cluster):
            if server.cluster not in gone_clusters:
                gone_clusters.add(server.cluster)
                yield _cluster_gone(now, server)
        elif (server.cluster, server.name) not in left:
            yield _server_gone(now, server, first=_is_first(firsts.get(server.cluster), server))
    for first in now.first_servers:
        step = now.plan.step(first.urn)
        if step and step.goes and not now.gone(first.cluster) and (first.cluster, first.name) in left:
            made = next((node(one.new) for one in now.plan.steps if one.new and _makes(one.new, first)), None)
            yield Stop(
                rule="GRD-05",
                urn=first.urn,
                name=name_of(first.urn),
                field="first server",
                old=first.name,
                new=made.name if made else None,
                consequence="the record of who made the cluster goes: its Kubernetes provider and all that it manages "
                "would be removed and installed anew",
                instead=f"keep {first.name} first in `servers`; their order means nothing to etcd",
                acceptable=False,
            )


def _makes(resource: Resource, first: Node) -> bool:
    made = node(resource)
    return made is not None and made.first and made.cluster == first.cluster and made.urn != first.urn


def _is_first(first: Node | None, server: Node) -> bool:
    return first is not None and first.name == server.name


def _server_gone(now: Situation, server: Node, *, first: bool) -> Stop:
    cluster, members = now.cluster(server.cluster), now.members(server.cluster)
    still = {one.name for one in now.nodes}
    heirs = [one.name for one in now.nodes_after if one.server and one.cluster == server.cluster]
    renamed = next((name for name in heirs if name not in still), None)
    leave = f"drain {server.name}, kubectl delete node {server.name} (which takes it out of etcd), then accept"
    return Stop(
        rule="GRD-05",
        urn=server.urn,
        name=name_of(server.urn),
        field="servers",
        old=server.name,
        new=renamed,
        consequence=f"{cluster} loses {'its first server' if first else 'a server'}: {quorum(members, 1)}"
        + ("; its Kubernetes provider and all that it manages would be installed anew" if first else ""),
        instead=f"keep {server.name} first in `servers`: rebuild its guest under the same name where need be"
        if first
        else leave,
        acceptable=not first,
        bind=f"of {members}",  # what it costs depends on how many there are
    )


def _cluster_gone(now: Situation, server: Node) -> Stop:
    cluster, members = now.cluster(server.cluster), now.members(server.cluster)
    return Stop(
        rule="GRD-05",
        urn=server.cluster,
        name=name_of(server.cluster),
        field="cluster",
        old=name_of(server.cluster),
        new=None,
        consequence=f"the whole cluster leaves the site: {quorum(members, members)}",
        instead=f"take {cluster} out of Karmada and DNS, keep a snapshot of etcd (fleet backup), then accept",
        acceptable=True,
    )


def _ahead(now: Situation) -> Iterator[Stop]:
    """Agents newer than servers, in the state that the run would leave."""
    for cluster in dict.fromkeys(one.cluster for one in now.nodes_after):
        nodes = [one for one in now.nodes_after if one.cluster == cluster]
        servers = [(version, one) for one in nodes if one.server and (version := _parsed(one.version))]
        if not servers:
            continue
        oldest, server = min(servers, key=lambda pair: pair[0])
        for agent in nodes:
            version = _parsed(agent.version)
            if not agent.server and version and version > oldest and _touched(now, agent, server):
                yield Stop(
                    rule="GRD-07",
                    urn=agent.urn,
                    name=name_of(agent.urn),
                    field="k3s_version of an agent",
                    old=f"servers at {server.version}",
                    new=agent.version,
                    consequence="no kubelet may be newer than its API server: Pods of the node may fail to start",
                    instead=f"bring {server.name} and the other servers to {agent.version} first",
                    acceptable=False,
                )


def _touched(now: Situation, *nodes: Node) -> bool:
    return any(now.plan.step(one.urn) for one in nodes)


def _unreadable(now: Situation, step: Step) -> Iterator[Stop]:
    """A node's command whose new data nobody can read: version and ranges cannot be compared."""
    if step.old is None or step.new is None or not sections(step.old.inputs.get("stdin")).get("config.yaml"):
        return
    if node(step.new) is None:
        yield now.stop(
            "GRD-13",
            step,
            "stdin",
            "readable settings of a node",
            step.new.inputs.get("stdin"),
            consequence="version, ranges and name of the node cannot be compared",
            instead="find out why the settings are secret or unknown; apply what they depend on first",
            acceptable=True,
        )


def _token(now: Situation, step: Step) -> Iterator[Stop]:
    if not now.gone(step.old.parent if step.old else ""):
        yield now.stop(
            "GRD-12",
            step,
            "result",
            "the cluster's token",
            "another one" if step.op != DELETE else None,
            consequence="the old token locks the bootstrap data in etcd: no node could join or restart with another",
            instead="put back what changed; a token is rotated on a server (k3s token rotate)",
            acceptable=False,
        )


def _rolling(now: Situation) -> None:
    for cluster in dict.fromkeys(one.cluster for one in now.nodes):
        rolled = [
            one.name
            for one in now.nodes
            if one.server and one.cluster == cluster and (step := now.plan.step(one.urn)) and "stdin" in step.reasons
        ]
        if rolled:
            now.note(
                f"{now.cluster(cluster)}: servers may restart K3s one after another, each once all others answer: "
                f"{', '.join(rolled)}"
            )
