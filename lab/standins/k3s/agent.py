"""`k3s agent`: joins for ever, forwards 127.0.0.1:6444 to the servers, runs the kubelet's part."""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from . import COMMIT, VERSION, agentconfig, log, runtimes, tokens
from .join import Refused, Supervisor, Unreachable, check_url
from .kubeapi import KubeApi
from .kubelet import Kubelet
from .lifecycle import Tasks, notify_ready, stop_signal
from .log import Fatal
from .network import node_address
from .paths import Paths, write
from .settings import Settings
from .staticpods import StaticPods

_REFRESH_S = 10


class LoadBalancer:
    """TCP from the loopback address to the first server that answers."""

    def __init__(self, paths: Paths, fallback: str) -> None:
        self._file = paths.agent / "etc/k3s-agent-load-balancer.json"
        self._fallback = fallback
        saved = json.loads(self._file.read_text())["ServerAddresses"] if self._file.exists() else []
        self.servers: list[str] = list(saved)

    def candidates(self) -> list[str]:
        return list(dict.fromkeys([*self.servers, self._fallback]))

    def learn(self, servers: list[str]) -> None:
        if servers and servers != self.servers:
            self.servers = servers
            content = {"ServerURL": f"https://{self._fallback}", "ServerAddresses": servers}
            write(self._file, json.dumps(content, indent=2) + "\n")
            log.info(f"Running load balancer k3s-agent-load-balancer 127.0.0.1:6444 -> {servers}")

    async def listen(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for server in self.candidates():
            host, _, port = server.rpartition(":")
            try:
                upstream, downstream = await asyncio.wait_for(asyncio.open_connection(host, int(port)), 2)
            except (OSError, TimeoutError):
                continue
            await asyncio.gather(_copy(reader, downstream), _copy(upstream, writer))
            return
        writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while part := await source.read(65536):
            sink.write(part)
            await sink.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        sink.close()


async def serve(settings: Settings, argv: Sequence[str], env: Mapping[str, str]) -> int:
    if os.geteuid() != 0:
        raise Fatal("agent must be run as root")
    secret = read_token(settings, "token", "token-file")
    if not secret:
        raise Fatal("--token is required")
    if not settings.text("server"):
        raise Fatal("--server is required")
    url = check_url(settings.text("server"))
    token, node, paths = tokens.parse(secret), settings.text("node-name"), Paths(Path(settings.text("data-dir")))
    node_address(settings)
    log.info(f"Starting k3s agent {VERSION} ({COMMIT})")
    stop, tasks = stop_signal(), Tasks()
    try:
        tasks.add(_run(settings, argv, paths, url=url, token=token, node=node))
        await tasks.until(stop.wait())
    finally:
        await tasks.cancel()
    return 0


async def _run(
    settings: Settings, argv: Sequence[str], paths: Paths, *, url: str, token: tokens.Token, node: str
) -> None:
    parts = urlsplit(url)
    balancer = LoadBalancer(paths, f"{parts.hostname}:{parts.port or 443}")
    urls = [url, *(f"https://{server}" for server in balancer.servers)]
    identity = await agentconfig.obtain(paths, urls, token, node)
    await _refresh(balancer, identity.supervisor)
    port = int(settings.text("lb-server-port"))
    listener = await balancer.listen(port)
    runtimes.write_config(paths, settings)
    api = KubeApi.from_files(
        f"https://127.0.0.1:{port}",
        paths.agent / "server-ca.crt",
        paths.agent / "client-kubelet.crt",
        paths.agent / "client-kubelet.key",
    )
    async with listener, api:
        await api.wait_ready()
        kubelet = Kubelet(api, settings, node, identity.cluster, list(argv))
        pods = StaticPods(api, paths.pod_manifests, node, Path("/etc/rancher/k3s/k3s.yaml"))
        log.info("k3s agent is up and running")
        notify_ready()
        await asyncio.gather(kubelet.run(), pods.run(), _keep_refreshing(balancer, token, identity.supervisor))


async def _keep_refreshing(balancer: LoadBalancer, token: tokens.Token, supervisor: Supervisor) -> None:
    while True:
        await asyncio.sleep(_REFRESH_S)
        for server in balancer.candidates():
            other = Supervisor(f"https://{server}", supervisor.ca_pem, token.user or "node", token.password)
            if await _refresh(balancer, other):
                break


async def _refresh(balancer: LoadBalancer, supervisor: Supervisor) -> bool:
    try:
        balancer.learn(list(await supervisor.json("/v1-k3s/apiservers")))
        return True
    except (Refused, Unreachable):
        return False


def read_token(settings: Settings, flag: str, file_flag: str) -> str:
    """Value of a token from its flag or the file that is named; empty when there is neither."""
    if settings.text(flag):
        return settings.text(flag)
    if settings.text(file_flag):
        try:
            return Path(settings.text(file_flag)).read_text().strip()
        except OSError as problem:
            raise Fatal(f"open {settings.text(file_flag)}: {problem.strerror}") from None
    return ""
