"""Runbook `cni-migration` in mode `rebuild`: the main cluster is made anew with Cilium on the same guests.

Leaves out a second cluster beside the first: docs/operacoes/k3s-rebuild.md.
"""

from cli.migration import checks, preconditions
from cli.steps import agents, here, on, page, servers, shell, voters
from infra.config import Cluster, Fleet

REMOVE = """\
if [ -x /usr/local/bin/k3s-uninstall.sh ]; then
    /usr/local/bin/k3s-uninstall.sh
elif [ -x /usr/local/bin/k3s-agent-uninstall.sh ]; then
    /usr/local/bin/k3s-agent-uninstall.sh
else
    for unit in k3s k3s-agent; do systemctl disable --now "$unit" 2>/dev/null || true; done
    rm -rf /etc/rancher/k3s /var/lib/rancher/k3s /var/lib/fleet
    rm -f /etc/systemd/system/k3s.service /etc/systemd/system/k3s-agent.service
fi
[ ! -e /var/lib/rancher/k3s/server/db ]
echo gone"""


def runbook(fleet: Fleet, site_id: str, cluster: Cluster) -> str:
    site = fleet.sites[site_id]
    nodes, workers = servers(site, cluster), agents(site, cluster)
    adopted = [node for node in (*nodes, *workers) if node.existing]
    guests = [line for node in adopted for line in (f"      {node.name}:", "        current: {runs: nothing}")]
    return page(
        [
            *preconditions(fleet, site_id, cluster),
            "The cluster goes, with everything in it and every `local-path` volume, and is made anew on the same "
            "guests. There is no way back but the backups. Not tried on a site: two people read each list before a "
            "yes.",
            "## 1. Save",
            here(f"./fleet backup {site_id}", "./fleet check"),
            "Then the data of each application by its own means (`apps.<name>.recovery`), copied off the guests and "
            "read back once somewhere else. An etcd snapshot is no way into the new cluster.",
            "If not: stop here. Nothing has changed.",
            "## 2. Stop the work",
            "Scale every application down by its own means, and repeat the save of step 1.",
            on(nodes[0], "k3s kubectl get pods -A -o wide", "k3s kubectl get pv"),
            "If not: an application that still writes makes its copy worthless.",
            "## 3. Remove K3s",
            "Agents first, then servers, the first one last; each then restarts, which takes every rule and "
            "interface of the old network with it. The guests stay.",
            *(on(node, REMOVE, "systemctl reboot || reboot") for node in (*workers, *reversed(nodes))),
            "If not: a node that keeps /var/lib/rancher/k3s/server/db would join what is gone. Finish there before "
            "step 4.",
            "## 4. The document",
            shell(
                *(["    guests:", *guests] if guests else []),
                "    migration:",
                "      from_flannel: false",
                kind="yaml",
            ),
            shell("./fleet check", f"./fleet preview {site_id}"),
            f"Expected: start, token, servers and Cilium of {cluster.name} made. The guard stops with GRD-08, since "
            "it is another cluster, which is so here: accept that key and no other, for this run.",
            "If not: a guest among what is replaced or deleted means that the document is not what it should be. Stop. "
            "GRD-04, which takes no key, at a server that the program had made: its record still tells of the old "
            "cluster. That guest is made anew as well (docs/operacoes/k3s-rebuild.md, on the same guests, step 3).",
            "## 5. Make it anew",
            shell(f"./fleet up {site_id}"),
            on(nodes[0], voters(len(nodes))),
            "If not: read the failure it prints; a second run goes on where this one ended.",
            "## 6. Bring the data back",
            "From Git and from step 1, one application after another.",
            *checks(7, nodes[0], site_id, cluster),
        ]
    )
