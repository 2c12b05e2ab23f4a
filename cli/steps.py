"""Parts of a runbook that a person follows on the nodes of a cluster: blocks of shell, each with its check.

A block is a whole script: it stops at its first failure and can be pasted or run. What goes to a machine goes through
`ssh` on standard input, so that no quoting stands between the reader and the command. What a check looks at is read
into a variable first: in a pipe nobody would see that the reading failed.
"""

import re
import textwrap
from collections.abc import Iterable

from infra.config import Cluster, Lxc, Site, Vm

Guest = Vm | Lxc
DROP_IN = "/etc/rancher/k3s/config.yaml.d/90-cilium.yaml"
FLANNEL_DROP_IN = "/etc/rancher/k3s/config.yaml.d/90-flannel.yaml"
UNIT = ("/etc/systemd/system/k3s.service", "/etc/systemd/system/k3s.service.d")
KEPT = "/root/before-cilium"
# Interfaces that a CNI leaves behind. Flannel's and Cilium's VXLAN would want the same port, 8472.
FLANNEL_LINKS = "cni0 flannel.1 flannel-wg"
CILIUM_LINKS = "cilium_vxlan cilium_net cilium_host"
CNI_FLAGS = "/^(flannel-backend|disable-network-policy|disable-kube-proxy):/d"  # for sed
DRAIN = "--ignore-daemonsets --delete-emptydir-data --timeout=300s"
VOTER = '.status.conditions[?(@.type=="EtcdIsVoter")].status'


def main_clusters(site: Site) -> list[Cluster]:
    return [cluster for cluster in site.clusters.values() if cluster.role == "main"]


def servers(site: Site, cluster: Cluster) -> list[Guest]:
    return [site.guests[name] for name in cluster.servers if name in site.guests]


def agents(site: Site, cluster: Cluster) -> list[Guest]:
    return [site.guests[name] for name in cluster.agents if name in site.guests]


def page(parts: Iterable[str]) -> str:
    """Parts as one text: paragraphs at one width; blocks, headings and lists as they are."""
    laid = (one if one.startswith(("#", "-", "```")) else _filled(one) for one in parts if one)
    return "\n\n".join(part.strip("\n") for part in laid) + "\n"


def _filled(paragraph: str) -> str:
    return textwrap.fill(" ".join(paragraph.split()), 120, break_long_words=False, break_on_hyphens=False)


def checklist(rows: Iterable[tuple[bool, str]]) -> str:
    return "\n".join(f"- {'ready  ' if good else 'MISSING'} {text}" for good, text in rows)


def shell(*lines: str, kind: str = "sh") -> str:
    return f"```{kind}\n" + "\n".join(lines) + "\n```"


def here(*lines: str) -> str:
    """A script beside the person. In a shell of its own: pasted, a failure ends it and not the person's."""
    return shell("(", "set -eu", *lines, ")")


def on(guest: Guest, *lines: str) -> str:
    """A script as root on a guest."""
    return shell(f"ssh {guest.login}@{guest.address} sudo sh -s <<'EOF'", "set -eu", *lines, "EOF")


def access(site_id: str, cluster: Cluster, *then: str) -> str:
    """Commands that run beside the person, with a kubeconfig of the cluster."""
    file = f"kubeconfig-{cluster.name}"
    return here(
        "umask 077",
        f"pulumi stack output -s {site_id} --show-secrets --json |",
        f"    jq -er '.\"{cluster.name}\".kubeconfig' > {file}",
        f'export KUBECONFIG="$PWD/{file}"',
        *then,
    )


def voters(count: int) -> str:
    """Fails unless so many servers vote in etcd."""
    path = "{range .items[*]}{" + VOTER + '}{"\\n"}{end}'
    return (
        f"votes=$(k3s kubectl get nodes -o 'jsonpath={path}')\n"
        "votes=$(printf '%s' \"$votes\" | grep -c True || true)\n"
        f'echo "$votes of {count} servers vote in etcd"\n'
        f'[ "$votes" -eq {count} ]'
    )


def alive(guest: Guest) -> str:
    """Waits until a server answers and votes again: five minutes at most."""
    vote = f"k3s kubectl get node {guest.name} -o 'jsonpath={{{VOTER}}}' 2>/dev/null"
    return on(
        guest,
        "tries=0",
        'until [ "$(k3s kubectl get --raw /readyz 2>/dev/null)" = ok ] &&',
        f'    [ "$({vote})" = True ]; do',
        "    tries=$((tries + 1))",
        '    [ "$tries" -lt 60 ] || { journalctl -u k3s -n 20 --no-pager -o cat; exit 1; }',
        "    sleep 5",
        "done",
        f'echo "{guest.name} is ready and votes"',
    )


def without(pattern: str) -> str:
    """Takes lines out of every file from which K3s reads flags."""
    return f"""\
for file in /etc/rancher/k3s/config.yaml /etc/rancher/k3s/config.yaml.d/*.yaml /etc/rancher/k3s/config.yaml.d/*.yml; do
    if [ -f "$file" ]; then sed -i -E '{pattern}' "$file"; fi
done"""


def refuse(pattern: str, places: Iterable[str], say: str) -> str:
    """Stops where a pattern is found. Of the lines alone: grep also fails where a place is not there."""
    looked = " \\\n    ".join(places)
    return f"""\
found=$(grep -rnsE -e '{pattern}' \\
    {looked} || true)
if [ -n "$found" ]; then
    printf '%s\\n' "$found" "{say}" >&2
    exit 1
fi"""


def to_cilium(unit: str) -> str:
    flannel = ("/var/lib/rancher/k3s/agent/etc/cni/net.d/10-flannel.conflist",)
    return _restart(unit, FLANNEL_LINKS, "KUBE-|CNI-|FLANNEL", flannel)


def to_flannel(unit: str) -> str:
    cilium = ("/etc/cni/net.d/05-cilium.conflist", "/etc/cni/net.d/05-cilium.conf")
    return _restart(unit, CILIUM_LINKS, "CILIUM_|cilium", cilium)


def _restart(unit: str, links: str, chains: str, files: Iterable[str]) -> str:
    """Stops K3s, removes what the other CNI left on the node, starts K3s."""
    return f"""\
systemctl stop {unit}
for link in {links}; do
    if ip link show "$link" >/dev/null 2>&1; then ip link delete "$link"; fi
done
rm -f {" ".join(files)}
if command -v iptables-save >/dev/null; then
    iptables-save | grep -vE '{chains}' | iptables-restore
fi
systemctl start --no-block {unit}"""


def renewed(node: Guest) -> str:
    """Deletes the Pods of a node that got their address from the CNI before; their controllers make them again."""
    columns = "NS:.metadata.namespace,NAME:.metadata.name,HOST:.spec.hostNetwork"
    return f"""\
pods=$(k3s kubectl get pods -A --no-headers --field-selector spec.nodeName={node.name} -o custom-columns={columns})
printf '%s\\n' "$pods" | while read -r namespace name host; do
    if [ -n "$name" ] && [ "$host" != true ]; then
        k3s kubectl -n "$namespace" delete pod "$name" --wait=false --ignore-not-found </dev/null
    fi
done"""


# Lists Pods that do not run as they should, crash-looping ones among them; fails if there is one.
UNHEALTHY = """\
pods=$(k3s kubectl get pods -A --no-headers)
printf '%s\\n' "$pods" | awk '
    NF { split($3, ready, "/") }
    NF && $4 != "Completed" && ($4 != "Running" || ready[1] != ready[2]) { print; found = 1 }
    END { exit found }'"""


def blocks(text: str) -> list[str]:
    """The shell of a page, block by block."""
    return re.findall(r"^```sh\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
