"""`k3s server`: decides what this disk is, joins or founds a cluster, and runs its parts in order."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from . import (
    COMMIT,
    VERSION,
    agentconfig,
    apiserver,
    bootstrapdata,
    critical,
    datastore,
    log,
    membership,
    pki,
    runtimes,
    tokens,
)
from .addons import Addons
from .agent import read_token
from .children import Child
from .controllers import CONTROL_PLANE, ETCD, ETCD_ADDRESS, ETCD_NAME, FINALIZER, Controllers
from .etcd import EtcdClient, EtcdError
from .join import Refused, Supervisor, Unreachable, check_url, connect
from .kubeapi import ApiError, Json, KubeApi
from .kubelet import Kubelet
from .lifecycle import Tasks, notify_ready, stop_signal
from .listener import Listener
from .log import Fatal
from .network import check_ranges, node_address
from .paths import Paths, write
from .settings import Settings
from .staticpods import StaticPods
from .supervisor import SupervisorRoutes

_BOOTSTRAP = "Error: preparing server: failed to bootstrap cluster data: "
_MARK_PERIOD_S = 4


class Datastore(Enum):
    """What the state of the disk and the flags make of this server, in K3s' order."""

    MEMBER = "member"
    JOIN = "join"
    NEW = "new"
    SQLITE = "sqlite"
    SQLITE_TO_ETCD = "sqlite to etcd"


class Server:
    def __init__(self, settings: Settings, argv: Sequence[str]) -> None:
        self.settings, self.argv = settings, list(argv)
        self.paths = Paths(Path(settings.text("data-dir")))
        self.node = settings.text("node-name")
        self.address = node_address(settings)
        self.password = ""
        self.agent_password = ""
        self.kind = Datastore.SQLITE
        self.etcd_name = ""
        self._etcd: Child | None = None
        self._api: Child | None = None
        self._listener: Listener | None = None
        self._tasks = Tasks()
        self._initial: list[str] = []

    @property
    def has_etcd(self) -> bool:
        return self.kind is not Datastore.SQLITE

    @property
    def core_ready(self) -> bool:
        return self._listener is not None and self._listener.core_ready

    async def run(self) -> None:
        stop = stop_signal()
        try:
            self._tasks.add(self._start())
            await self._tasks.until(stop.wait())
        finally:
            await self._tasks.cancel()
            if self._listener:
                await self._listener.stop()
            for child in (self._api, self._etcd):
                if child:
                    await child.stop(6)

    async def _start(self) -> None:
        settings, paths = self.settings, self.paths
        log.info(f"Starting k3s {VERSION} ({COMMIT})")
        datastore.clear_leftovers(paths)
        self.kind = decide(paths, settings)
        await self._settle_trust()
        self.etcd_name = datastore.name(paths, self.kind is Datastore.SQLITE, self.node)
        pki.issue_all(paths, self._sans(), [self.address, self.node, "127.0.0.1", "::1", "localhost"])
        apiserver.write_component_kubeconfigs(paths)
        routes = SupervisorRoutes(self)
        bind = settings.text("bind-address") or "0.0.0.0"
        self._listener = Listener(paths, int(settings.text("https-listen-port")), bind, routes.authorises, routes.table)
        await self._listener.start()
        await self._start_etcd()
        self._api = await apiserver.start(paths, settings, settings.text("advertise-address") or self.address)
        self._tasks.add(self._api.must_run())
        async with apiserver.admin(paths) as api:
            await api.wait_ready()
            await _after_reset(api, paths, self.node)
        log.info("Kube API server is now running")
        self._listener.core_ready = True
        target = apiserver.write_user_kubeconfig(paths, settings)
        log.info(f"Wrote kubeconfig {target}")
        self._start_workers(target)
        log.info("k3s is up and running")
        notify_ready()

    async def _settle_trust(self) -> None:
        """Certificates and token: taken from the server that is joined, from this disk, or made new."""
        settings, paths = self.settings, self.paths
        given, file = read_token(settings, "token", "token-file"), paths.server / "token"
        url = check_url(settings.text("server")) if settings.text("server") else ""
        if self.kind is Datastore.JOIN or (self.kind is Datastore.MEMBER and url and not pki.complete(paths)):
            if not given:
                raise Fatal("--token is required")
            await self._take_over(url, tokens.parse(given))
        elif self.kind is Datastore.MEMBER and not pki.complete(paths):
            raise Fatal(f"{_BOOTSTRAP}certificates are missing in {paths.tls} and no server to get them from is set")
        else:
            provider = settings.text("secrets-encryption-provider") if settings.on("secrets-encryption") else ""
            pki.create_authorities(paths, provider)
        ca_pem = (paths.tls / "server-ca.crt").read_text()
        token = tokens.parse(given or (file.read_text() if file.exists() else tokens.new_password()))
        if token.ca_hash and token.ca_hash != tokens.ca_hash(ca_pem):
            raise Fatal(
                f"{_BOOTSTRAP}failed to validate token: token CA hash does not match the Cluster CA certificate hash: "
                f"{token.ca_hash} != {tokens.ca_hash(ca_pem)}"
            )
        self.password = token.password
        self.agent_password = read_token(settings, "agent-token", "agent-token-file") or self.password
        self.write_tokens()

    def write_tokens(self) -> None:
        server, ca_pem = self.paths.server, (self.paths.tls / "server-ca.crt").read_text()
        write(server / "token", tokens.full(self.password, ca_pem) + "\n")
        links = {"node-token": "token", "agent-token": "token"}
        if self.agent_password != self.password:
            (server / "agent-token").unlink(missing_ok=True)
            node_token = tokens.full(self.agent_password, ca_pem).replace("::server:", "::node:")
            write(server / "agent-token", node_token + "\n")
            links = {"node-token": "agent-token"}
        for name, target in links.items():
            (server / name).unlink(missing_ok=True)
            (server / name).symlink_to(server / target)

    async def _take_over(self, url: str, token: tokens.Token) -> None:
        what = f"{_BOOTSTRAP}failed to check if bootstrap data has been initialized: "
        try:
            supervisor = await connect(url, token, "server")
            content = await supervisor.json("/v1-k3s/server-bootstrap")
        except (Fatal, Unreachable) as problem:
            raise Fatal(f"{what}{problem}") from None
        except Refused as problem:
            raise Fatal(f"{what}failed to validate token: {problem}") from None
        if self.kind is Datastore.JOIN:
            await critical.compare(self.settings, supervisor)
        pki.take_over(self.paths, content)
        if self.kind is Datastore.JOIN:
            await self._enter_cluster(supervisor)

    async def _enter_cluster(self, supervisor: Supervisor) -> None:
        own = [self.address, self.node, "127.0.0.1", "::1", "localhost"]
        pki.issue_all(self.paths, own, own)  # etcd is asked with a certificate of its CA
        log.info("Managed etcd cluster not yet initialized")
        name = datastore.name(self.paths, False, self.node)
        self._initial = await membership.enter(self.paths, supervisor, name, self.node, self.address)

    async def _start_etcd(self) -> None:
        if self.kind is Datastore.MEMBER:
            log.info("Managed etcd cluster bootstrap already complete and initialized")
        elif self.kind in (Datastore.NEW, Datastore.SQLITE_TO_ETCD):
            log.info("Managed etcd cluster initializing")
        self._etcd = await datastore.start(
            self.paths, self.settings, self.etcd_name, self.address, sqlite=not self.has_etcd, initial=self._initial
        )
        self._tasks.add(datastore.must_run(self.paths, self._etcd))
        await datastore.wait(self.paths, self._etcd, self.etcd_name)
        async with EtcdClient(self.paths) as client:
            await bootstrapdata.save_or_check(self.paths, client, self.password)
        if self.has_etcd:
            self._tasks.add(membership.promote_learners(self.paths))

    def _start_workers(self, kubeconfig: Path) -> None:
        addons = Addons(self.paths, self.settings)
        addons.write_packaged()
        controllers = Controllers(self.paths, self.settings, self.node, self.has_etcd, addons.deploy_packaged)
        self._tasks.add(controllers.run())
        self._tasks.add(addons.apply_manifests())
        if not self.settings.on("disable-agent"):
            self._tasks.add(self._run_node(kubeconfig))

    async def _run_node(self, kubeconfig: Path) -> None:
        token = tokens.Token(self.password, "server", tokens.ca_hash((self.paths.tls / "server-ca.crt").read_text()))
        url = f"https://127.0.0.1:{self.settings.text('https-listen-port')}"
        identity = await agentconfig.obtain(self.paths, [url], token, self.node)
        runtimes.write_config(self.paths, self.settings)
        agent = self.paths.agent
        api = KubeApi.from_files(
            apiserver.URL, agent / "server-ca.crt", agent / "client-kubelet.crt", agent / "client-kubelet.key"
        )
        async with api, apiserver.admin(self.paths) as admin:
            kubelet = Kubelet(api, self.settings, self.node, identity.cluster, self.argv)
            pods = StaticPods(api, self.paths.pod_manifests, self.node, kubeconfig)
            await asyncio.gather(kubelet.run(), pods.run(), self._mark_node(admin))

    async def _mark_node(self, api: KubeApi) -> None:
        """Role labels, etcd annotations and the finalizer by which the member goes with the Node."""
        roles = {CONTROL_PLANE: "true", "node-role.kubernetes.io/master": "true"}
        notes: dict[str, str] = {}
        if self.has_etcd:
            roles[ETCD] = "true"
            notes = {ETCD_NAME: self.etcd_name, ETCD_ADDRESS: self.address}
        while True:
            try:
                node = await api.find(f"/api/v1/nodes/{self.node}")
                if node and not node["metadata"].get("deletionTimestamp"):
                    metadata = node["metadata"]
                    finalizers = metadata.get("finalizers") or []
                    wanted = [*finalizers, FINALIZER] if self.has_etcd and FINALIZER not in finalizers else finalizers
                    patch: Json = {"labels": roles, "annotations": notes, "finalizers": wanted}
                    marked = roles.items() <= metadata.get("labels", {}).items()
                    noted = notes.items() <= metadata.get("annotations", {}).items()
                    if not (marked and noted and wanted == finalizers):
                        await api.merge(f"/api/v1/nodes/{self.node}", {"metadata": patch})
                await asyncio.sleep(_MARK_PERIOD_S if node else 1)
            except ApiError:
                await asyncio.sleep(_MARK_PERIOD_S)

    def _sans(self) -> list[str]:
        settings, domain = self.settings, self.settings.text("cluster-domain")
        return [
            *settings.items("tls-san"),
            self.node,
            self.address,
            *settings.items("node-ip"),
            *settings.items("node-external-ip"),
            *filter(None, [settings.text("advertise-address")]),
            "127.0.0.1",
            "::1",
            "localhost",
            apiserver.service_address(settings),
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            f"kubernetes.default.svc.{domain}",
        ]


def decide(paths: Paths, settings: Settings) -> Datastore:
    if datastore.is_member(paths):
        return Datastore.MEMBER
    if settings.text("datastore-endpoint"):
        raise Fatal("datastore-endpoint: the lab's k3s has embedded etcd and sqlite only")
    if settings.text("server"):
        return Datastore.JOIN
    if settings.on("cluster-init"):
        return Datastore.SQLITE_TO_ETCD if paths.sqlite.exists() else Datastore.NEW
    return Datastore.SQLITE


async def _after_reset(api: KubeApi, paths: Paths, node: str) -> None:
    """The first normal start after a reset forgets the flag and this node's password."""
    flag = paths.db / "reset-flag"
    if flag.exists():
        await api.delete(f"/api/v1/namespaces/kube-system/secrets/{node}.node-password.k3s")
        flag.unlink()


async def serve(settings: Settings, argv: Sequence[str], env: Mapping[str, str]) -> int:
    if os.geteuid() != 0:
        raise Fatal("server must run as root, or with --rootless and/or --disable-agent")
    check_ranges(settings)
    if settings.text("cluster-reset-restore-path") and not settings.on("cluster-reset"):
        raise Fatal("invalid flag use; --cluster-reset required with --cluster-reset-restore-path")
    server = Server(settings, argv)
    if settings.on("cluster-reset"):
        given = read_token(settings, "token", "token-file")
        await datastore.reset(server.paths, settings, server.node, server.address, given)
        return 0
    try:
        await server.run()
    except EtcdError as problem:
        raise Fatal(f"starting kubernetes: {problem}") from None
    return 0
