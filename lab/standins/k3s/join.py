"""Talking to the supervisor of another server: trust, tokens, what a joining server or agent fetches.

Where K3s encrypts the bootstrap data with the token, the stand-in sends it inside TLS to whoever knows the token.
"""

import base64
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from . import log, tokens
from .log import Fatal


class Refused(Exception):
    """The supervisor answered, but not with what was asked for."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(Exception):
    """No answer; the text is worded like that of a Go program."""


class Supervisor:
    """A server that is trusted by its CA; made by `connect`."""

    def __init__(self, url: str, ca_pem: str, user: str, password: str) -> None:
        self.url = url
        self.ca_pem = ca_pem
        self._context = ssl.create_default_context(cadata=ca_pem)
        self._credentials = base64.b64encode(f"{user}:{password}".encode()).decode()

    async def text(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        timeout_s: float = 15,
    ) -> str:
        """Raises Refused or Unreachable."""
        all_headers = {"Authorization": f"Basic {self._credentials}", **(headers or {})}
        return await _request(self.url + path, self._context, method, all_headers, body=body, timeout_s=timeout_s)

    async def json(self, path: str) -> Any:
        return json.loads(await self.text(path))


def check_url(url: str) -> str:
    """Raises Fatal unless it is https://HOST[:PORT]."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        raise Fatal(f"only https:// URLs are supported, invalid scheme: {url}")
    return url.rstrip("/")


async def connect(url: str, token: tokens.Token, default_user: str) -> Supervisor:
    """Raises Fatal on a CA that is not the token's, Unreachable when nobody answers."""
    untrusting = ssl.create_default_context()
    untrusting.check_hostname, untrusting.verify_mode = False, ssl.CERT_NONE
    try:
        ca_pem = await _request(url + "/cacerts", untrusting, "GET", {}, body=None, timeout_s=10)
    except (Unreachable, Refused) as problem:
        raise Unreachable(f"failed to validate token: failed to get CA certs: {problem}") from None
    if token.ca_hash:
        found = tokens.ca_hash(ca_pem)
        if found != token.ca_hash:
            raise Fatal(f"token CA hash does not match the Cluster CA certificate hash: {token.ca_hash} != {found}")
    else:
        log.warning(
            "Cluster CA certificate is not trusted by the host CA bundle, but the token does not include a CA hash. "
            "Use the full token from the server's node-token file to enable Cluster CA validation."
        )
    return Supervisor(url, ca_pem, token.user or default_user, token.password)


async def _request(
    url: str, context: ssl.SSLContext, method: str, headers: Mapping[str, str], *, body: Any, timeout_s: float
) -> str:
    try:
        connector = aiohttp.TCPConnector(ssl=context)
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=5)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(method, url, headers=dict(headers), json=body) as answer,
        ):
            text = await answer.text()
            if answer.status == 200:
                return text
            reason = text.strip() if answer.status != 401 else ""
            raise Refused(answer.status, f"{url}: {answer.status} {answer.reason}" + (f": {reason}" if reason else ""))
    except aiohttp.ClientConnectorCertificateError as problem:
        raise Unreachable(f'{_verb(method)} "{url}": tls: failed to verify certificate: x509: {problem}') from None
    except (aiohttp.ClientConnectorError, OSError) as problem:
        address = urlsplit(url).netloc
        cause = getattr(problem, "os_error", problem)
        what = {111: "connection refused", 113: "no route to host", 101: "network is unreachable"}.get(
            getattr(cause, "errno", 0) or 0, str(cause) or "i/o timeout"
        )
        raise Unreachable(f'{_verb(method)} "{url}": dial tcp {address}: connect: {what}') from None
    except (aiohttp.ClientError, TimeoutError) as problem:
        raise Unreachable(f'{_verb(method)} "{url}": {problem or "context deadline exceeded"}') from None


def _verb(method: str) -> str:
    return method.capitalize()
