"""What runs once per cluster: controller-manager, scheduler, kwok, what keeps Nodes and etcd in step, addresses.

In K3s each server runs its own controllers and they elect leaders among themselves. To save memory the stand-in elects
first (Lease `k3s-standin-controllers`) and only the holder starts them; they move when it dies.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from . import apiserver, lbipam, log
from .children import Child, binary
from .etcd import CLIENT_PORT, EtcdClient, EtcdError, Member
from .kubeapi import ApiError, Json, KubeApi
from .kubelet import KWOK_ANNOTATION
from .leases import Election
from .nodepassword import secret_name
from .paths import Paths, write
from .podstages import STAGES
from .settings import Settings, component_args

FINALIZER = "wrangler.cattle.io/managed-etcd-controller"
ETCD_NAME, ETCD_ADDRESS = "etcd.k3s.cattle.io/node-name", "etcd.k3s.cattle.io/node-address"
CONTROL_PLANE, ETCD = "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd"
_DURATION_S, _DEADLINE_S, _PERIOD_S = 8.0, 6.0, 2.0
_MEMORY = {"GOGC": "40", "GOMAXPROCS": "2"}


class Controllers:
    def __init__(
        self, paths: Paths, settings: Settings, node: str, has_etcd: bool, on_gain: Callable[[], Awaitable[None]]
    ) -> None:
        self._paths, self._settings, self._node, self._has_etcd = paths, settings, node, has_etcd
        self._on_gain = on_gain  # packaged addons: applied by whoever takes over
        self._children: dict[str, Child] = {}

    async def run(self) -> None:
        """Never returns; its children end with it."""
        async with apiserver.admin(self._paths) as api, EtcdClient(self._paths) as etcd:
            election = Election(
                api,
                "kube-system",
                "k3s-standin-controllers",
                self._node,
                duration_s=_DURATION_S,
                renew_deadline_s=_DEADLINE_S,
            )
            gained: asyncio.Task[None] | None = None
            try:
                while True:
                    if await election.held():
                        if gained is None:
                            log.info("Running the controllers of this cluster")
                            gained = asyncio.create_task(_logged(self._on_gain))
                        await self._keep_running()
                        await self._reconcile(api, etcd)
                    elif gained is not None:
                        log.info("Lost the controllers' lease")
                        gained.cancel()
                        gained = None
                        await self._stop()
                    await asyncio.sleep(_PERIOD_S)
            finally:
                if gained:
                    gained.cancel()
                await self._stop()
                await election.release()

    async def _keep_running(self) -> None:
        for name, argv in self._commands().items():
            child = self._children.get(name)
            if child and not child.running:
                log.error(f"{name} exited, starting it again: {' | '.join(child.tail(2))}")
            if not child or not child.running:
                self._children[name] = await Child.start(name, argv, self._paths.log(name), _MEMORY)

    async def _stop(self) -> None:
        await asyncio.gather(*(child.stop(3) for child in self._children.values()))
        self._children.clear()

    def _commands(self) -> dict[str, list[str]]:
        tls, settings = self._paths.tls, self._settings
        loopback = {"bind-address": "127.0.0.1", "leader-elect": "false", "profiling": "false"}
        manager = loopback | {
            "kubeconfig": str(self._paths.cred / "controller.kubeconfig"),
            "allocate-node-cidrs": "true",
            "cluster-cidr": ",".join(settings.items("cluster-cidr")),
            "service-cluster-ip-range": ",".join(settings.items("service-cidr")),
            "service-account-private-key-file": str(tls / "service.current.key"),
            "root-ca-file": str(tls / "server-ca.crt"),
            "cluster-signing-kube-apiserver-client-cert-file": str(tls / "client-ca.crt"),
            "cluster-signing-kube-apiserver-client-key-file": str(tls / "client-ca.key"),
            "cluster-signing-kubelet-client-cert-file": str(tls / "client-ca.crt"),
            "cluster-signing-kubelet-client-key-file": str(tls / "client-ca.key"),
            "cluster-signing-kubelet-serving-cert-file": str(tls / "server-ca.crt"),
            "cluster-signing-kubelet-serving-key-file": str(tls / "server-ca.key"),
            "cluster-signing-legacy-unknown-cert-file": str(tls / "server-ca.crt"),
            "cluster-signing-legacy-unknown-key-file": str(tls / "server-ca.key"),
            "use-service-account-credentials": "true",
            "controllers": "*,tokencleaner,-service-lb-controller,-node-route-controller",
            "kube-api-qps": "60",
            "kube-api-burst": "120",
        }
        scheduler = loopback | {"kubeconfig": str(self._paths.cred / "scheduler.kubeconfig")}
        stages = self._paths.server / "standin-stages.yaml"
        if not stages.exists() or stages.read_text() != STAGES:
            write(stages, STAGES)
        commands = {
            "kube-controller-manager": component_args(manager, settings.items("kube-controller-manager-arg")),
            "kube-scheduler": component_args(scheduler, settings.items("kube-scheduler-arg")),
            "kwok": [
                f"--kubeconfig={self._paths.cred / 'admin.kubeconfig'}",
                f"--config={stages}",
                "--manage-all-nodes=false",
                f"--manage-nodes-with-annotation-selector={'='.join(KWOK_ANNOTATION)}",
                "--node-lease-duration-seconds=0",
                "--v=WARN",
            ],
        }
        if settings.on("disable-scheduler"):
            del commands["kube-scheduler"]
        return {name: [binary(name), *args] for name, args in commands.items()}

    async def _reconcile(self, api: KubeApi, etcd: EtcdClient) -> None:
        try:
            nodes = await api.items("/api/v1/nodes")
            await _publish_apiservers(api, nodes, self._settings.text("https-listen-port"))
            await _own_password_secrets(api, nodes)
            await lbipam.reconcile(api)
            if self._has_etcd:
                await _keep_etcd_in_step(api, etcd, nodes)
        except (ApiError, EtcdError) as problem:
            log.warning(f"Controllers: {problem}")


async def _logged(action: Callable[[], Awaitable[None]]) -> None:
    try:
        await action()
    except ApiError as problem:
        log.error(f"Failed to deploy the packaged components: {problem}")


def _condition(node: Json, kind: str) -> Json:
    return next((c for c in (node.get("status") or {}).get("conditions") or [] if c["type"] == kind), {})


def address_of(node: Json) -> str:
    addresses = (node.get("status") or {}).get("addresses") or []
    return next((str(a["address"]) for a in addresses if a["type"] == "InternalIP"), "")


async def _publish_apiservers(api: KubeApi, nodes: list[Json], port: str) -> None:
    """Endpoints of the Service `kubernetes`: servers whose kubelet is heard of."""
    servers = sorted(
        address_of(n)
        for n in nodes
        if CONTROL_PLANE in n["metadata"].get("labels", {}) and _condition(n, "Ready").get("status") != "Unknown"
    )
    subsets = [
        {
            "addresses": [{"ip": ip} for ip in servers],
            "ports": [{"name": "https", "port": int(port), "protocol": "TCP"}],
        }
    ]
    path = "/api/v1/namespaces/default/endpoints"
    found = await api.find(f"{path}/kubernetes")
    if not servers or (found and found.get("subsets") == subsets):
        return
    metadata = {"name": "kubernetes", "namespace": "default"}
    body = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets}
    if found:
        await api.replace(f"{path}/kubernetes", body)
    else:
        await api.create(path, body)


async def _own_password_secrets(api: KubeApi, nodes: list[Json]) -> None:
    """The Secret goes with its Node: an owner reference, collected by the real controller-manager."""
    path = "/api/v1/namespaces/kube-system/secrets"
    uids = {secret_name(n["metadata"]["name"]): (n["metadata"]["name"], n["metadata"]["uid"]) for n in nodes}
    for secret in await api.items(path):
        name = secret["metadata"]["name"]
        if name in uids and not secret["metadata"].get("ownerReferences"):
            owner = {"apiVersion": "v1", "kind": "Node", "name": uids[name][0], "uid": uids[name][1]}
            await api.merge(f"{path}/{name}", {"metadata": {"ownerReferences": [owner]}})


async def _keep_etcd_in_step(api: KubeApi, etcd: EtcdClient, nodes: list[Json]) -> None:
    members = {m.name: m for m in await etcd.members()}
    for node in nodes:
        metadata = node["metadata"]
        name = metadata.get("annotations", {}).get(ETCD_NAME, "")
        if metadata.get("deletionTimestamp"):
            if FINALIZER in metadata.get("finalizers", []):
                if name in members:
                    log.info(f"Removing etcd member {name}")
                    await etcd.remove(members[name].id)
                left = [f for f in metadata["finalizers"] if f != FINALIZER]
                await api.merge(f"/api/v1/nodes/{metadata['name']}", {"metadata": {"finalizers": left}})
        elif name:
            await _report_vote(api, etcd, node, members.get(name))


async def _report_vote(api: KubeApi, etcd: EtcdClient, node: Json, member: Member | None) -> None:
    if member is None:
        status, reason, message = "False", "NotAMember", "Node is not a member of the etcd cluster"
    elif member.learner:
        status, reason, message = "False", "MemberIsLearner", "Node has not been promoted to voting member"
    elif not await etcd.healthy(f"https://{address_of(node)}:{CLIENT_PORT}"):
        status, reason, message = "False", "Unhealthy", "Node is not answering on its etcd client port"
    else:
        status, reason, message = "True", "MemberNotLearner", "Node is a voting member of the etcd cluster"
    found = _condition(node, "EtcdIsVoter")
    if (found.get("status"), found.get("reason")) != (status, reason):
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": "EtcdIsVoter", "status": status, "reason": reason, "message": message}
        condition |= {"lastTransitionTime": now, "lastHeartbeatTime": now}
        await api.strategic(f"/api/v1/nodes/{node['metadata']['name']}/status", {"status": {"conditions": [condition]}})
