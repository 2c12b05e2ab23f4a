"""Port 6443 of a server: K3s' supervisor, and everything else handed to the local kube-apiserver.

A caller's client certificate is checked here and passed on as front-proxy headers; a bearer token passes untouched.
Left out: upgraded connections (exec, attach, port-forward), for there are no containers.
"""

import json
import ssl
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web

from . import apiserver, log
from .paths import Paths

_HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailers",
    "transfer-encoding",
    "upgrade",
    "host",
    "content-length",
}
_AUTHORISES = Callable[[str, str], Awaitable[bool]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Listener:
    """`routes` are the supervisor's paths with the user they need ("" nobody, "node", "server") and their handlers."""

    def __init__(
        self, paths: Paths, port: int, bind: str, authorises: _AUTHORISES, routes: dict[str, tuple[str, Handler]]
    ) -> None:
        self._paths, self._port, self._bind = paths, port, bind
        self._authorises, self._routes = authorises, routes
        self.core_ready = False
        self._runner: web.AppRunner | None = None
        self._as_proxy: aiohttp.ClientSession | None = None
        self._plain: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        tls = self._paths.tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(tls / "serving-kube-apiserver.crt", tls / "serving-kube-apiserver.key")
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(tls / "client-ca.crt")
        upstream = ssl.create_default_context(cafile=str(tls / "server-ca.crt"))
        proxy = ssl.create_default_context(cafile=str(tls / "server-ca.crt"))
        proxy.load_cert_chain(tls / "client-auth-proxy.crt", tls / "client-auth-proxy.key")
        self._plain, self._as_proxy = _upstream(upstream), _upstream(proxy)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        # a watch whose client has gone must not live on here
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._bind, self._port, ssl_context=context, reuse_address=True).start()
        except OSError as problem:
            raise log.Fatal(f"listen tcp {self._bind}:{self._port}: bind: {problem.strerror}") from None

    async def stop(self) -> None:
        for session in (self._plain, self._as_proxy):
            if session:
                await session.close()
        if self._runner:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in self._routes:
            user, handler = self._routes[request.path]
            if user and not await self._authorises(user, _basic(request)):
                return web.Response(
                    status=401, text="Unauthorized\n", headers={"WWW-Authenticate": 'Basic realm="k3s"'}
                )
            return await handler(request)
        if request.path.startswith(("/v1-k3s/", "/db/")):
            return web.Response(status=404, text=f"{request.path} is not among what the lab's k3s answers\n")
        if "upgrade" in request.headers.get("Connection", "").lower():
            return web.Response(status=501, text="the lab has no containers: no exec, attach or port-forward\n")
        if not self.core_ready:
            return web.Response(status=503, text="starting\n")
        return await self._forward(request)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        headers = [
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in _HOP_BY_HOP and not name.lower().startswith("x-remote-")
        ]
        user, groups = _caller(request)
        session = self._as_proxy if user else self._plain
        if user:
            headers = [h for h in headers if h[0].lower() != "authorization"]
            headers += [("X-Remote-User", user), *(("X-Remote-Group", group) for group in groups)]
        assert session
        body = request.content if request.body_exists else None
        try:
            answer = await session.request(
                request.method, apiserver.URL + request.raw_path, headers=headers, data=body, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError) as problem:
            return _status(502, f"the local API server does not answer: {problem}")
        async with answer:
            response = web.StreamResponse(status=answer.status, reason=answer.reason)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    response.headers.add(name, value)
            if "Content-Length" in answer.headers and "Content-Encoding" not in answer.headers:
                response.content_length = int(answer.headers["Content-Length"])
            await response.prepare(request)
            try:
                async for part in answer.content.iter_any():
                    await response.write(part)
                await response.write_eof()
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                if request.transport:  # the headers are out: only a broken connection can still tell the client
                    request.transport.abort()
        return response


def _upstream(context: ssl.SSLContext) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=0),
        timeout=aiohttp.ClientTimeout(total=None, connect=10),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    )


def _caller(request: web.Request) -> tuple[str, list[str]]:
    """User and groups of a client certificate, which the TLS layer has verified already."""
    certificate = request.get_extra_info("peercert")
    pairs = [pair for part in (certificate or {}).get("subject", ()) for pair in part]
    names = [value for key, value in pairs if key == "commonName"]
    groups = [value for key, value in pairs if key == "organizationName"]
    return (names[0], [*groups, "system:authenticated"]) if names else ("", [])


def _basic(request: web.Request) -> str:
    """`user:password`, empty without credentials."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(value).decode()
    except (Base64Error, UnicodeDecodeError):
        return ""


def _status(code: int, message: str) -> web.Response:
    body: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "code": code,
        "reason": "ServiceUnavailable",
    }
    return web.Response(status=code, text=json.dumps(body), content_type="application/json")
