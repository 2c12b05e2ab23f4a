"""Answers of the supervisor on port 6443: what other servers, agents and this machine's own commands ask it."""

import base64
import json
import re
from typing import TYPE_CHECKING

from aiohttp import web

from . import apiserver, bootstrapdata, critical, nodepassword, pki, snapshots, tokens
from .etcd import EtcdClient, EtcdError
from .kubeapi import ApiError
from .listener import Handler
from .log import Fatal

if TYPE_CHECKING:  # the server makes this object and hands itself over
    from .server import Server

_BOOTSTRAP_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")


class SupervisorRoutes:
    def __init__(self, server: "Server") -> None:
        self._server = server
        self.table: dict[str, tuple[str, Handler]] = {
            "/ping": ("", self._ping),
            "/cacerts": ("", self._cacerts),
            "/v1-k3s/readyz": ("node", self._readyz),
            "/v1-k3s/config": ("node", self._config),
            "/v1-k3s/apiservers": ("node", self._apiservers),
            "/v1-k3s/client-kubelet.crt": ("node", self._kubelet_certificate),
            "/v1-k3s/server-bootstrap": ("server", self._bootstrap),
            "/v1-k3s/token": ("server", self._rotate),
            "/db/info": ("server", self._members),
            "/db/snapshot": ("server", self._snapshot),
        }

    async def authorises(self, user: str, credentials: str) -> bool:
        server = self._server
        if credentials == f"server:{server.password}":
            return True
        if user == "server":
            return False
        name, _, password = credentials.partition(":")
        if name == "node" and password == server.agent_password:
            return True
        found = _BOOTSTRAP_TOKEN.fullmatch(password)
        return found is not None and await self._is_bootstrap_token(found[1], found[2])

    async def _is_bootstrap_token(self, name: str, secret: str) -> bool:
        try:
            async with apiserver.admin(self._server.paths) as api:
                stored = await api.find(f"/api/v1/namespaces/kube-system/secrets/bootstrap-token-{name}")
        except ApiError:
            return False
        value = ((stored or {}).get("data") or {}).get("token-secret", "")
        return base64.b64decode(value).decode() == secret

    async def _ping(self, _: web.Request) -> web.Response:
        return web.Response(text="pong")

    async def _cacerts(self, _: web.Request) -> web.Response:
        return web.Response(text=(self._server.paths.tls / "server-ca.crt").read_text())

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok") if self._server.core_ready else _starting()

    async def _config(self, _: web.Request) -> web.Response:
        return web.json_response(critical.published(self._server.settings))

    async def _apiservers(self, _: web.Request) -> web.Response:
        if not self._server.core_ready:
            return _starting()
        own = f"{self._server.address}:{self._server.settings.text('https-listen-port')}"
        try:
            async with apiserver.admin(self._server.paths) as api:
                found = await api.find("/api/v1/namespaces/default/endpoints/kubernetes")
        except ApiError:
            found = None
        servers = [
            f"{address['ip']}:{subset['ports'][0]['port']}"
            for subset in (found or {}).get("subsets") or []
            for address in subset.get("addresses") or []
        ]
        return web.json_response(servers or [own])

    async def _bootstrap(self, _: web.Request) -> web.Response:
        return web.json_response(pki.shared(self._server.paths))

    async def _kubelet_certificate(self, request: web.Request) -> web.Response:
        node, password = request.headers.get("k3s-Node-Name", ""), request.headers.get("k3s-Node-Password", "")
        if not node or not password:
            return web.Response(status=400, text="node name and password are required\n")
        if not self._server.core_ready:
            return _starting()
        try:
            async with apiserver.admin(self._server.paths) as api:
                accepted = await nodepassword.accepted(api, node, password)
        except ApiError as problem:
            return web.Response(status=503, text=f"{problem}\n")
        if not accepted:
            return web.Response(status=403, text=f"{nodepassword.REJECTED}\n")
        pair = pki.issue(self._server.paths, "client-ca", f"system:node:{node}", ("system:nodes",))
        return web.json_response({"certificate": pair[0], "key": pair[1]})

    async def _rotate(self, request: web.Request) -> web.Response:
        server = self._server
        new = tokens.parse(str((await request.json())["newToken"])).password
        try:
            async with EtcdClient(server.paths) as client:
                await bootstrapdata.change_password(client, server.password, new)
        except (EtcdError, Fatal) as problem:
            return web.Response(status=500, text=f"{problem}\n")
        if server.agent_password == server.password:
            server.agent_password = new
        server.password = new
        server.write_tokens()
        return web.Response(text="")

    async def _members(self, _: web.Request) -> web.Response:
        if not self._server.has_etcd:
            return web.Response(status=500, text="etcd datastore disabled\n")
        try:
            async with EtcdClient(self._server.paths) as client:
                members = [{"name": m.name, "clientURLs": list(m.client_urls)} for m in await client.members()]
        except EtcdError as problem:
            return web.Response(status=503, text=f"{problem}\n")
        return web.json_response({"members": members})

    async def _snapshot(self, request: web.Request) -> web.Response:
        if not self._server.has_etcd:
            return web.Response(status=500, text="etcd datastore disabled\n")
        try:
            order = await request.json()
            answer = await snapshots.execute(self._server.paths, self._server.settings, self._server.node, order)
            return web.json_response(answer)
        except (EtcdError, Fatal, OSError, json.JSONDecodeError) as problem:
            return web.Response(status=500, text=f"{problem}\n")


def _starting() -> web.Response:
    return web.Response(status=503, text="starting\n")
