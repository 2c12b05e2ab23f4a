"""K3s layer: one cluster on its guests, from an empty disk to a Kubernetes provider.

Leaves out upgrades, node replacement and restore (commands of their own) and everything inside the API but the
program's own credentials. Servers come and change one after another; which of them is alive decides who joins whom, so
that after the first start no server is special. Nodes that were there before the program are recognised: compared with
the document and left alone, until it says that the program takes them over.
"""

import base64
import json
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import IPv4Address

import pulumi
import pulumi_command as command
import pulumi_kubernetes as k8s
import pulumi_random as random
import yaml

from infra import remote
from infra.config import Cluster, Common, Lxc, Site, Vm
from infra.k3s import artifacts, kube_vip, lxc_host, settings
from infra.k3s.in_force import expected, first_running, in_force, waits_for_migration

NODE_TIMEOUT_S = 600
TOKEN_LENGTH = 48
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

VM_MODULES = ("overlay", "br_netfilter", "nf_conntrack", "ip_tables", "vxlan")
VM_SYSCTLS = {"net.ipv4.ip_forward": 1, "fs.inotify.max_user_instances": 8192, "fs.inotify.max_user_watches": 524288}


@dataclass(frozen=True, kw_only=True)
class K3sArgs:
    site_id: str
    site: Site
    common: Common
    cluster: Cluster
    machines: dict[str, remote.Machine]  # by guest
    mirror: artifacts.Mirror | None


# Identity of the cluster, the token to join it, and what joining waits for.
_Start = tuple[pulumi.Output[dict[str, str]], pulumi.Output[str], list[pulumi.Resource]]


class K3s(pulumi.ComponentResource):
    """A running cluster: every server a voting etcd member, every node registered, the API at its address."""

    api_host: str  # IPv4 address
    kubeconfig: pulumi.Output[str]  # YAML, secret
    provider: k8s.Provider
    recognised: dict[str, pulumi.Output[dict[str, object]]]  # by node: what was found there
    waits_for_migration: bool  # Cilium is planned, Flannel runs

    def __init__(self, name: str, args: K3sArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__("fleet:k3s:K3s", name, None, opts)
        self._name, self._args = name, args
        cluster = args.cluster
        servers = [args.site.guests[guest] for guest in cluster.servers]
        agents = [args.site.guests[guest] for guest in cluster.agents]
        nodes = [*servers, *agents]
        self.api_host = settings.api_host(cluster, servers)
        self.waits_for_migration = waits_for_migration(cluster, servers)
        self._in_force = in_force(cluster, servers)

        known = {node.name: self._recognise(node, nodes) for node in nodes if node.recognised}
        self.recognised = {name: pulumi.Output.unsecret(made.stdout.apply(json.loads)) for name, made in known.items()}
        prepared = {node.name: self._prepare(node) for node in nodes if not node.recognised}
        running = first_running(servers)
        if running is None:
            identity, joining, last = self._begun(servers, prepared)
        else:
            identity, joining, last = self._joined(running, list(known.values()))
        begun = servers[0] if running is None else None
        tokens = {node.name: self._token(node, joining) for node in nodes if not node.recognised and node is not begun}

        for server in servers:
            if server.recognised:
                continue
            made = self._run(
                f"server-{server.name}",
                server,
                ["lib", "server"],
                self._server_data(server, servers, "member"),
                # One after another, each behind the health of the one before.
                after=[prepared[server.name], *([tokens[server.name]] if server.name in tokens else []), *last],
            )
            last = [made]
        # Speaks to the API for the others: a server of the program's own where there is one.
        first = next((server for server in servers if not server.recognised), servers[0])
        for agent in agents:
            if agent.recognised:
                continue
            joined = self._run(
                f"agent-{agent.name}",
                agent,
                ["lib", "agent"],
                self._agent_data(agent),
                after=[prepared[agent.name], tokens[agent.name], *last],
            )
            self._run(
                f"labels-{agent.name}",
                first,
                ["lib", "agent_labels"],
                {"node": self._node_section(agent), "labels": self._labels_section(agent)},
                after=[joined],
            )
        credentials = self._run(f"credentials-{cluster.name}", first, ["lib", "credentials"], None, after=last)

        self.kubeconfig = pulumi.Output.secret(
            credentials.stdout.apply(lambda text: kubeconfig(cluster, self.api_host, json.loads(text)))
        )
        self.provider = k8s.Provider(
            f"{name}-api",
            kubeconfig=self.kubeconfig,
            # Replaced with the cluster alone, never with its certificates, address or credentials.
            cluster_identifier=pulumi.Output.unsecret(identity.apply(lambda known: known["uid"])),
            enable_server_side_apply=True,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({"kubeconfig": self.kubeconfig, "api_host": self.api_host})

    def _begun(self, servers: list[Vm | Lxc], prepared: dict[str, pulumi.Resource]) -> _Start:
        """A cluster that the program makes: a token of its own, and the first start on the first server."""
        password = random.RandomPassword(
            f"{self._name}-token", length=TOKEN_LENGTH, special=False, opts=pulumi.ResourceOptions(parent=self)
        )
        token: pulumi.Output[str] = pulumi.Output.secret(password.result)
        first = servers[0]
        bootstrap = self._run(
            f"bootstrap-{first.name}",
            first,
            ["lib", "server", "identity"],
            self._server_data(first, servers, "bootstrap"),
            after=[prepared[first.name], self._token(first, token)],
            # Once in the cluster's life. What later changes on this server is the business of its own command below;
            # a rebuilt server joins the others like any.
            ignore_changes=["connection", "create", "stdin", "logging"],
        )
        identity = bootstrap.stdout.apply(_identity)
        joining = pulumi.Output.all(token, identity).apply(lambda both: full_token(both[0], both[1]["ca_hash"]))
        return identity, joining, [bootstrap]

    def _joined(self, running: Vm | Lxc, known: list[pulumi.Resource]) -> _Start:
        """A cluster that was there before the program: its token is read, once every old node is what it should be."""
        identity = self._run(f"identity-{running.name}", running, ["lib", "identity"], None, after=known)
        token = self._run(f"join-token-{running.name}", running, ["lib", "join_token"], None, after=known)
        read: pulumi.Output[str] = token.stdout.apply(lambda text: text.strip())
        return identity.stdout.apply(_identity), pulumi.Output.secret(read), [*known, identity, token]

    def _recognise(self, node: Vm | Lxc, nodes: list[Vm | Lxc]) -> command.remote.Command:
        wanted = expected(self._args.cluster, node, nodes, self._in_force)
        data = {
            "node": self._node_section(node),
            "expected": "\n".join(f"{key}={value}" for key, value in wanted.items()),
        }
        return self._run(f"recognise-{node.name}", node, ["lib", "recognise"], data, after=[])

    def _run(
        self,
        role: str,
        node: Vm | Lxc,
        parts: list[str],
        data: pulumi.Input[dict[str, str]] | None,
        after: list[pulumi.Resource],
        ignore_changes: list[str] | None = None,
    ) -> command.remote.Command:
        return remote.run(
            f"{self._name}-{role}",
            self._args.machines[node.name],
            script(*parts),
            pulumi.ResourceOptions(
                parent=self,
                depends_on=after,  # what flows is data; that a server is up before the next one starts does not
                ignore_changes=ignore_changes,
                custom_timeouts=pulumi.CustomTimeouts(create=f"{2 * NODE_TIMEOUT_S}s", update=f"{2 * NODE_TIMEOUT_S}s"),
            ),
            data=data,
        )

    def _prepare(self, node: Vm | Lxc) -> pulumi.Resource:
        if isinstance(node, Lxc):
            minimums = "\n".join(f"{key}={value}" for key, value in lxc_host.CHECKED_SYSCTLS.items())
            data = {
                "node": self._node_section(node),
                "devices": "\n".join(node.devices),
                "modules": "\n".join(lxc_host.CHECKED_MODULES),
                "minimums": minimums,
            }
            return self._run(f"host-{node.name}", node, ["lib", "verify_lxc"], data, after=[])
        data = {
            "node": self._node_section(node),
            "modules": "\n".join(VM_MODULES),
            "sysctl": "\n".join(f"{key} = {value}" for key, value in VM_SYSCTLS.items()),
            "timesyncd": "[Time]\nNTP=" + " ".join(self._args.site.network.ntp_servers),
            "operators": "\n".join(f"{key} {who}" for who, key in sorted(self._args.common.operators.items())),
        }
        return self._run(f"base-{node.name}", node, ["lib", "prepare_vm"], data, after=[])

    def _token(self, node: Vm | Lxc, token: pulumi.Output[str]) -> pulumi.Resource:
        data = token.apply(lambda text: {"token": text})
        return self._run(f"token-{node.name}", node, ["lib", "token"], data, after=[])

    def _node_section(self, node: Vm | Lxc, **more: str) -> str:
        known = {
            "name": node.name,
            "site": self._args.site_id,
            "user": self._args.machines[node.name].user,
            "api": self.api_host,
            "renew_on": renewal_day(self._args.cluster, node.name),
            "timeout_s": str(NODE_TIMEOUT_S),
            **more,
        }
        return "\n".join(f"{key}={value}" for key, value in known.items())

    def _labels_section(self, node: Vm | Lxc) -> str:
        return "\n".join(f"{k}={v}" for k, v in sorted(settings.labels(self._args.cluster, node).items()))

    def _server_data(self, node: Vm | Lxc, servers: list[Vm | Lxc], mode: str) -> dict[str, str]:
        cluster = self._args.cluster
        peers = " ".join(str(other.address) for other in servers if other.name != node.name)
        return {
            "node": self._node_section(node, mode=mode, vip=str(cluster.api.vip or ""), peers=peers),
            "config.yaml": settings.text(settings.server_config(cluster, node, self._in_force)),
            "kube-vip.yaml": kube_vip.manifest(cluster),
            "labels": self._labels_section(node),
            **self._release(),
        }

    def _agent_data(self, node: Vm | Lxc) -> dict[str, str]:
        config = settings.agent_config(self._args.cluster, node, self.api_host)
        return {"node": self._node_section(node), "config.yaml": settings.text(config), **self._release()}

    def _release(self) -> dict[str, str]:
        source = artifacts.source(self._in_force.k3s_version, self._args.common, self._args.mirror)
        return {
            "frozen": "\n".join(settings.FROZEN),
            "guard": read_script("guard"),
            "renew": read_script("renew"),
            "artifacts": source.section(),
        }


def read_script(name: str) -> str:
    return files("infra.k3s").joinpath("scripts", f"{name}.sh").read_text(encoding="utf-8")


def script(*parts: str) -> str:
    """The scripts one after another as one text; comments stay, they are for who reads it on a node."""
    return "\n".join(read_script(part) for part in parts)


def renewal_day(cluster: Cluster, node: str) -> str:
    """Day of the week on which a node may restart to renew its certificates: never that of the server before it."""
    return WEEKDAYS[[*cluster.servers, *cluster.agents].index(node) % len(WEEKDAYS)]


def full_token(token: str, ca_hash: str) -> str:
    """The token in the form that lets a joining node check the cluster's CA at its first contact."""
    return f"K10{ca_hash}::server:{token}"


def kubeconfig(cluster: Cluster, host: str, credentials: dict[str, str]) -> str:
    """kubeconfig for the API address; `credentials` holds `ca` and `token`, both base64 as in a Secret."""
    context = cluster.context or cluster.name
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": cluster.name,
                    "cluster": {
                        "server": f"https://{IPv4Address(host)}:{settings.API_PORT}",
                        "certificate-authority-data": credentials["ca"],
                    },
                }
            ],
            "users": [
                {"name": f"{cluster.name}-fleet", "user": {"token": base64.b64decode(credentials["token"]).decode()}}
            ],
            "contexts": [{"name": context, "context": {"cluster": cluster.name, "user": f"{cluster.name}-fleet"}}],
            "current-context": context,
        },
        sort_keys=False,
    )


def _identity(stdout: str) -> dict[str, str]:
    known: dict[str, str] = json.loads(stdout)
    return known
