"""Runbook `cni-migration`: from Flannel to Cilium on the nodes of one site, in place and in order (MIG-01 to MIG-04).

Leaves out doing it: no update drains a node, changes the flags of a living cluster or removes one (MIG-10). The other
mode is `cli/rebuild.py`, the way back `cli/way_back.py`.

What the order rests on (K3s 1.32): an etcd member restarts with other flags unasked, only a joining server is compared;
so no server may join in between, and the program, which refuses a change of these flags, meets them once all have it.
"""

from cli.steps import (
    CNI_FLAGS,
    DRAIN,
    DROP_IN,
    KEPT,
    UNHEALTHY,
    UNIT,
    Guest,
    access,
    agents,
    alive,
    checklist,
    here,
    on,
    page,
    refuse,
    renewed,
    servers,
    shell,
    to_cilium,
    voters,
    without,
)
from infra.config import Cluster, Fleet
from infra.k3s.in_force import in_force
from infra.rules.mig import SERVERS


def runbook(fleet: Fleet, site_id: str, cluster: Cluster) -> str:
    site = fleet.sites[site_id]
    nodes, workers = servers(site, cluster), agents(site, cluster)
    names, first = ", ".join(node.name for node in nodes), 4
    documented = first + len(nodes) + len(workers)
    parts = [
        *preconditions(fleet, site_id, cluster),
        f"Applications stop. From the first drain to the end of step {documented + 2} a drained node has no network "
        "for Pods, and once the last node is drained nothing runs: plan for the whole cluster to be away, and for "
        "one restart of every Pod. A drain is no way back. Between the first server and the last the flags differ: "
        f"K3s starts with them, but no server can join. So no `./fleet up` before all of {names} have changed.",
        *_before(site_id, cluster, nodes),
    ]
    for place, node in enumerate(nodes):
        peer = nodes[0] if place else nodes[-1]  # speaks to the API while this one is down
        parts += _server(first + place, cluster, node, peer, nodes)
    for place, node in enumerate(workers, first + len(nodes)):
        parts += _agent(place, node, nodes)
    parts += _document(documented, site_id, cluster, nodes)
    parts += _install(documented + 1, site_id, nodes)
    parts += _uncordon(documented + 2, nodes, workers)
    parts += checks(documented + 3, nodes[0], site_id, cluster)
    parts += _after(documented + 4, site_id, nodes)
    return page(parts)


def preconditions(fleet: Fleet, site_id: str, cluster: Cluster) -> list[str]:
    """What must be there, and whether the documents say so."""
    site = fleet.sites[site_id]
    migration, nodes = site.migration, servers(site, cluster)
    lacking = ", ".join(server.name for server in nodes if server.name not in migration.snapshots)
    assumed = len(site.assumed) + len(fleet.common.assumed)
    backend = in_force(cluster, nodes).flannel_backend
    open_backend = ", ".join(
        node.name
        for node in nodes
        if node.current and node.current.runs == "server" and not node.current.flannel_backend
    )
    kept = ", ".join(node.name for node in nodes if node.recognised)
    enough = migration.mode == "rebuild" or len(nodes) >= SERVERS
    rows = [
        (
            migration.mode is not None and enough,
            f"MIG-01: mode {migration.mode or 'not chosen'}; {len(nodes)} servers, in_place takes {SERVERS}",
        ),
        (migration.window is not None, f"MIG-02: window {migration.window or 'migration.window is not set'}"),
        (
            backend != "none" and not open_backend,
            f"MIG-02: Flannel backend to go back to: {backend}"
            + (f"; current.flannel_backend is not set for {open_backend}" if open_backend else ""),
        ),
        (
            migration.mode == "rebuild" or bool(kept),
            f"MIG-03: servers that people keep: {kept or 'none, so the program refuses another CNI; rebuild'}",
        ),
        (not lacking, f"BKP-04: migration.snapshots of {lacking or 'every server'}"),
        (not assumed, f"GEN-07: {assumed} assumed values left; a real update refuses while there is one"),
    ]
    return [
        f"# {cluster.name}: from Flannel to Cilium ({migration.mode or 'no mode chosen'})",
        f"Site {site_id}. Nothing here is done by an update: a person takes each step, in this order, inside one "
        "window. Go on only when the check of a step shows what it should.",
        "## Before the window",
        checklist(rows),
        "Window and snapshots come with the step for backups. Everything else is settled before.",
    ]


def _before(site_id: str, cluster: Cluster, nodes: list[Guest]) -> list[str]:
    way_back = f"cni-rollback-{site_id}.md"
    return [
        "## 1. Every server there",
        f"All servers of {cluster.name} are voting members. One that the program makes joins with the flags in force.",
        shell(f"./fleet up {site_id}"),
        on(nodes[0], voters(len(nodes))),
        "If not: bring the missing server up first; with fewer than three choose `migration.mode: rebuild`.",
        "## 2. The way back, printed now",
        "Once the document says that Cilium runs, it no longer knows the former backend.",
        here(f"./fleet runbook {site_id} cni-rollback > {way_back}", f"cat {way_back}"),
        "If not: settle what it lacks first. Without a way back there is no window.",
        "## 3. Backups",
        "The window is open and nobody deploys. Proxmox snapshots of the guests, and an etcd snapshot:",
        shell(f"./fleet backup {site_id}"),
        f"Write what it printed into Pulumi.{site_id}.yaml:",
        shell(
            "    migration:",
            "      window: <when>",
            "      snapshots:",
            *(f"        {node.name}: <reference>" for node in nodes),
            kind="yaml",
        ),
        shell("./fleet check"),
        "If not: BKP-04 names the server without a snapshot. No step below starts before it has one.",
    ]


def _disabled(cluster: Cluster, nodes: list[Guest]) -> list[str]:
    """What is off, with servicelb, where that is a change. Nothing else is taken off a living cluster on the way."""
    off = in_force(cluster, nodes).disable
    return [] if "servicelb" in off else sorted([*off, "servicelb"])


def _drained(node: Guest, peer: Guest, count: int) -> list[str]:
    return [
        on(peer, voters(count), f"k3s kubectl drain {node.name} {DRAIN}"),
        "If not: the message names the Pod. Scale its application down by its own means and repeat. Nothing has "
        f"changed yet: `kubectl uncordon {node.name}` undoes it. Fewer votes than {count}: mend that server first.",
    ]


def _server(number: int, cluster: Cluster, node: Guest, peer: Guest, nodes: list[Guest]) -> list[str]:
    flags = ['flannel-backend: "none"', "disable-network-policy: true", "disable-kube-proxy: true"]
    if off := _disabled(cluster, nodes):
        flags += ["disable:", *(f'  - "{name}"' for name in off)]
    return [
        f"## {number}. Server {node.name} ({node.address})",
        "Empty it. Pods with a `local-path` volume stay Pending until it is back; `emptyDir` volumes are lost.",
        *_drained(node, peer, len(nodes)),
        f"Flags. What was there is kept in {KEPT}; a flag on the command line of the unit would win over the file.",
        on(
            node,
            refuse(
                "--(flannel-backend|disable-network-policy|disable-kube-proxy)",
                UNIT,
                "take these flags out of ExecStart first, then systemctl daemon-reload",
            ),
            f"if [ ! -d {KEPT} ]; then",
            f"    rm -rf {KEPT}.part",
            f"    mkdir -m 0700 {KEPT}.part",
            f"    cp -a /etc/rancher/k3s /etc/systemd/system/k3s.service {KEPT}.part/",
            f"    mv {KEPT}.part {KEPT}",
            "fi",
            "mkdir -p /etc/rancher/k3s/config.yaml.d",
            without(CNI_FLAGS),
            f"cat > {DROP_IN} <<'YAML'",
            *flags,
            "YAML",
            f"chmod 0600 {DROP_IN}",
            f"cat {DROP_IN}",
        ),
        f"If not: K3s still runs as before. Remove {DROP_IN}, put the files of {KEPT} back, uncordon.",
        "Restart, without what Flannel left on the node:",
        on(node, to_cilium("k3s")),
        alive(node),
        f"If not: read the journal it shows. K3s does not start: take step 1 of the way back for {node.name} alone, "
        "start it, uncordon it; the others run as they did. Never go on to the next server with one down.",
        f"{node.name} is now NotReady for want of a CNI. That lasts until Cilium is there.",
    ]


def _agent(number: int, node: Guest, nodes: list[Guest]) -> list[str]:
    return [
        f"## {number}. Agent {node.name} ({node.address})",
        "It learns the flags from its server.",
        *_drained(node, nodes[0], len(nodes)),
        on(node, to_cilium("k3s-agent"), "sleep 10", "systemctl is-active k3s-agent"),
        "If not: read `journalctl -u k3s-agent` there; its servers must answer on 6443.",
    ]


def _document(number: int, site_id: str, cluster: Cluster, nodes: list[Guest]) -> list[str]:
    lines, made = [], ", ".join(node.name for node in nodes if not node.recognised)
    for node in nodes:
        if not (node.existing and node.current and node.current.k3s):
            continue
        changes: dict[str, object] = {"flannel_backend": "none"}
        if off := _disabled(cluster, nodes):
            changes["disable"] = tuple(off)
        plain = node.current.model_copy(update=changes).model_dump(mode="json", exclude_defaults=True)
        inside = ", ".join(f"{key}: {_flow(value)}" for key, value in plain.items())
        lines += [f"      {node.name}:", f"        current: {{{inside}}}"]
    return [
        f"## {number}. The document",
        f"Every server has the new flags. Say so in Pulumi.{site_id}.yaml; window and snapshots go:",
        shell(*(["    guests:", *lines] if lines else []), "    migration:", "      from_flannel: false", kind="yaml"),
        shell("./fleet check", f"./fleet preview {site_id}"),
        "Expected: Cilium and its objects created, nothing replaced or deleted."
        + (
            f" Commands of {made} are updated, and the guard stops at its flannel-backend, disable-network-policy and "
            "disable-kube-proxy (GRD-04): those keys, and no other, are accepted in the next step."
            if made
            else ""
        ),
        "If not: K3S-10 or K3S-09 names the server whose flags differ from the document. Mend its file, restart, "
        "repeat.",
    ]


def _flow(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _install(number: int, site_id: str, nodes: list[Guest]) -> list[str]:
    first, made = nodes[0], [node for node in nodes if not node.recognised]
    return [
        f"## {number}. Cilium",
        f"{first.name} takes Pods again first: parts of Cilium's release need a place, and nothing starts there before "
        "Cilium has made the node Ready. What stayed on it through the drain has an address of Flannel and is made "
        "again.",
        on(first, renewed(first), f"k3s kubectl uncordon {first.name}"),
        shell(
            *(["# for each key of the step before: --accept 'KEY=cni-migration'"] if made else []),
            f"./fleet up {site_id}",
        ),
        on(
            first,
            "k3s kubectl -n kube-system rollout status daemonset/cilium --timeout=600s",
            "k3s kubectl -n kube-system rollout status deployment/cilium-operator --timeout=300s",
            "k3s kubectl wait node --all --for=condition=Ready --timeout=300s",
            "k3s kubectl get nodes -o wide",
        ),
        "If not: `kubectl -n kube-system logs ds/cilium -c cilium-agent` says why. An agent that cannot start leaves "
        "every node without a network: mend it within the window, or take the way back, from its first step.",
    ]


def _uncordon(number: int, nodes: list[Guest], workers: list[Guest]) -> list[str]:
    return [
        f"## {number}. Back to work",
        "The other nodes, one after another, as the first one.",
        *(on(nodes[0], renewed(node), f"k3s kubectl uncordon {node.name}") for node in (*nodes[1:], *workers)),
        "If not: leave the node cordoned and look at its agent: `kubectl -n kube-system get pods -o wide`.",
    ]


def checks(number: int, server: Guest, site_id: str, cluster: Cluster) -> list[str]:
    """Connectivity, flows, Pods (MIG-07), and the sessions with the router."""
    agent = "k3s kubectl -n kube-system exec daemonset/cilium -c cilium-agent --"
    return [
        f"## {number}. Checks",
        "No Pod is stuck, flows are seen, the router has its sessions:",
        on(server, UNHEALTHY),
        on(server, f"{agent} hubble observe --last 20", f"{agent} cilium-dbg bgp peers"),
        access(site_id, cluster, "cilium status --wait", "cilium connectivity test"),
        "If not: one Pod: delete it. Several on one node: cordon it and restart its agent. Failures across nodes: "
        "look at the MTU first (`./fleet mtu`), then at 8472/udp between the nodes. Not mended by the end of the "
        "window: the way back.",
    ]


def _after(number: int, site_id: str, nodes: list[Guest]) -> list[str]:
    made = [node for node in nodes if not node.recognised]
    own = "Servers of the program have the flags in their own file now; the one made by hand goes, without a restart:"
    return [
        f"## {number}. Afterwards",
        shell(f"./fleet preview {site_id}", f"./fleet backup {site_id}", "rm -f kubeconfig-*"),
        "Expected: nothing to change.",
        own if made else "",
        *(on(node, "grep '^flannel-backend' /etc/rancher/k3s/config.yaml", f"rm {DROP_IN}") for node in made),
        f"The other servers keep {DROP_IN} until they are handed over with `current.managed: true`, one at a time "
        "(docs/operacoes/adoption.md). Remove the Proxmox snapshots and the folders "
        f"{KEPT} when the time for a way back is over.",
    ]
