"""Runbook `cni-rollback`: from Cilium back to Flannel (MIG-04 to MIG-06). The order of its six steps is decided.

It is printed before the window, from a document that still knows the former backend.
"""

import re
from collections.abc import Mapping
from shlex import quote

from cli.steps import (
    CILIUM_LINKS,
    CNI_FLAGS,
    DROP_IN,
    FLANNEL_DROP_IN,
    KEPT,
    UNHEALTHY,
    UNIT,
    Guest,
    access,
    agents,
    alive,
    here,
    on,
    page,
    refuse,
    renewed,
    servers,
    shell,
    to_flannel,
    without,
)
from infra.config import Cluster, Fleet, Vm
from infra.k3s.in_force import in_force


def runbook(fleet: Fleet, site_id: str, cluster: Cluster) -> str:
    site = fleet.sites[site_id]
    nodes, workers = servers(site, cluster), agents(site, cluster)
    flags = in_force(cluster, nodes)
    backend = flags.flannel_backend if flags.flannel_backend != "none" else None
    stays = "servicelb" in flags.disable and backend is not None
    first, everyone = nodes[0], (*nodes, *workers)
    made = ", ".join(node.name for node in nodes if not node.recognised)
    return page(
        [
            f"# {cluster.name}: back from Cilium to Flannel",
            f"Site {site_id}. For when an agent of Cilium cannot start and every node has lost its network for Pods; a "
            "drain is no way back. Six steps in this order. Print this before the window, and from now on nobody runs "
            f"`./fleet up {site_id}`.",
            "## 1. Flags, on each server",
            "Out go `--flannel-backend=none`, `--disable-network-policy` and, which came with them, "
            "`--disable-kube-proxy`. "
            + ("`--disable=servicelb` was in force before and stays. " if stays else "So does `--disable=servicelb`. ")
            + f"In goes the former backend: {backend or f'the document no longer knows it, look into {KEPT}/k3s'}. "
            "Nothing restarts yet.",
            *(on(node, *_flags(backend, stays)) for node in nodes),
            f"If not: a flag stands in ExecStart. {KEPT}/k3s.service is the former unit; then `systemctl "
            "daemon-reload`.",
            "## 2. Cilium",
            access(
                site_id,
                cluster,
                "helm uninstall cilium -n kube-system --ignore-not-found",
                "left=$(helm list -n kube-system --all -q --filter '^cilium$')",
                '[ -z "$left" ]',
                'echo "no release of Cilium left"',
            ),
            "On the nodes its CNI configuration, BPF programs and iptables rules may "
            "stay: the next step cleans them, a reboot of the node does so for certain.",
            "If not: the API does not answer. Take step 3 on the servers, then this one, then step 3 again.",
            "## 3. Restart, servers then agents",
            f"`k3s` on the servers, one after another, then `k3s-agent`. In between {CILIUM_LINKS} go.",
            *(block for node in nodes for block in (on(node, to_flannel("k3s")), alive(node))),
            *(on(node, to_flannel("k3s-agent"), "sleep 10", "systemctl is-active k3s-agent") for node in workers),
            "If not: reboot the node. A server that still does not come up: read its journal; most servers must vote.",
            "## 4. Pods that do not run",
            on(first, "k3s kubectl get pods -A --field-selector status.phase!=Running -o wide"),
            "That selector also lists Completed and Pending Pods, which are no fault, and misses crash-looping ones, "
            "whose phase is Running. This one finds them too:",
            on(first, f"{UNHEALTHY} || true"),
            "If not: no answer at all means that step 3 is not done.",
            "## 5. Delete what is stuck",
            "A Pod that Cilium gave its address runs on without a network, and nothing lists it. So all of them, "
            "node by node, but those of the host network. Then the nodes take Pods again.",
            on(
                first,
                *(renewed(node) for node in everyone),
                *(f"k3s kubectl uncordon {node.name}" for node in everyone),
            ),
            on(first, UNHEALTHY),
            "If not: wait two minutes, look again. Pods of one node alone: reboot it. Pods everywhere: step 6.",
            "## 6. If it is still broken: snapshots",
            "The fastest way, and the last: everything since the backups is lost. All servers together. One etcd "
            "member alone with an older state is unsafe: that one is removed from the cluster instead, and joins "
            "again. All down, all back, all up; each command runs on the host of the guest. Where the block stops "
            "after the first rollback, start none by hand: mend what stopped it and run it again, from its first line:",
            _snapshots(nodes, site.migration.snapshots),
            *(alive(node) for node in nodes),
            "If not: docs/operacoes/etcd-restore.md.",
            "## Afterwards",
            "The document says again what runs: `current.flannel_backend` of each existing server and `migration` as "
            "they were in Git. The state of the stack still lists Cilium. A refresh drops what is gone; the preview "
            "must then remove objects of Cilium alone, and the guard may ask for GRD-09 to be accepted for that run. "
            + (
                f"It also stops at flannel-backend, disable-network-policy and disable-kube-proxy of {made} (GRD-04): "
                f"those keys are accepted too. Once they are applied {FLANNEL_DROP_IN} goes there. "
                if made
                else ""
            )
            + "Not tried on a site.",
            shell("./fleet check", f"pulumi refresh -s {site_id}", f"./fleet preview {site_id}"),
        ]
    )


def _flags(backend: str | None, servicelb_stays: bool) -> list[str]:
    return [
        f"rm -f {DROP_IN}",
        without(CNI_FLAGS),
        *([] if servicelb_stays else [without('/^ *- *"?servicelb"?$/d')]),
        *([] if backend else [f'BACKEND="${{BACKEND:?the former Flannel backend, from {KEPT}/k3s}}"']),
        f"""printf 'flannel-backend: "%s"\\n' "{backend or "$BACKEND"}" > {FLANNEL_DROP_IN}""",
        f"chmod 0600 {FLANNEL_DROP_IN}",
        refuse(
            'flannel-backend[=: ]*"?none|disable-network-policy|disable-kube-proxy'
            + ("" if servicelb_stays else "|servicelb"),
            ("/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/config.yaml.d", *UNIT),
            "these flags belong to Cilium: take them out, in a unit with systemctl daemon-reload",
        ),
        f"cat {FLANNEL_DROP_IN}",
    ]


def _snapshots(nodes: list[Guest], known: Mapping[str, str]) -> str:
    def name(node: Guest) -> str:
        variable = "SNAPSHOT_" + re.sub(r"\W", "_", node.name.upper())
        # Quoted twice: what `echo` prints is read by the shell of the host.
        return quote(quote(known[node.name])) if node.name in known else f'"${{{variable}:?snapshot of {node.name}}}"'

    def tool(node: Guest) -> str:
        return "qm" if isinstance(node, Vm) else "pct"

    def each(verb: str) -> list[str]:
        return [f"ssh root@{node.host} {tool(node)} {verb} {node.vmid}" for node in nodes]

    # Before anything stops: inside a pipe a name that is not set would pass for an empty command.
    asked = [f": {name(node)}" for node in nodes if node.name not in known]
    back = [f"echo {tool(node)} rollback {node.vmid} {name(node)} | ssh root@{node.host} sh -s" for node in nodes]
    return here(*asked, *each("stop"), *back, *each("start"))
