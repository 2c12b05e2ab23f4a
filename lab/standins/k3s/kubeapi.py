"""The few calls of the Kubernetes API that the stand-in needs; no client library, for the sake of memory."""

import asyncio
import base64
import json
import ssl
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import yaml

Json = dict[str, Any]


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KubeApi:
    """One API server and one identity; use as an asynchronous context."""

    def __init__(self, server: str, context: ssl.SSLContext) -> None:
        self.server = server
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def from_files(cls, server: str, ca: Path, certificate: Path, key: Path) -> "KubeApi":
        context = ssl.create_default_context(cafile=str(ca))
        context.load_cert_chain(certificate, key)
        return cls(server, context)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> "KubeApi":
        """Raises ApiError when the file is not a kubeconfig with an embedded client certificate."""
        try:
            document = yaml.safe_load(path.read_text())
            cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
            authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
            pair = base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"])
        except (OSError, KeyError, TypeError, IndexError, ValueError, yaml.YAMLError) as problem:
            raise ApiError(0, f"{path}: {problem}") from None
        context = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile() as file:  # the ssl module takes certificates from files only
            file.write(pair)
            file.flush()
            context.load_cert_chain(file.name)
        return cls(str(cluster["server"]), context)

    async def __aenter__(self) -> "KubeApi":
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._context))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()

    async def text(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = "application/json",
        timeout_s: float = 10,
    ) -> str:
        """Raises ApiError, with status 0 when there was no answer."""
        assert self._session
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": content_type}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(
                method, self.server + path, data=data, headers=headers, timeout=timeout
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise ApiError(0, str(problem) or type(problem).__name__) from None
        if answer.status >= 400:
            raise ApiError(answer.status, _message(text))
        return text

    async def get(self, path: str) -> Json:
        return dict(json.loads(await self.text("GET", path)))

    async def find(self, path: str) -> Json | None:
        try:
            return await self.get(path)
        except ApiError as problem:
            if problem.status == 404:
                return None
            raise

    async def items(self, path: str) -> list[Json]:
        return list((await self.get(path)).get("items") or [])

    async def create(self, path: str, body: Json) -> Json:
        return dict(json.loads(await self.text("POST", path, body)))

    async def replace(self, path: str, body: Json) -> Json:
        return dict(json.loads(await self.text("PUT", path, body)))

    async def merge(self, path: str, body: Json) -> None:
        await self.text("PATCH", path, body, "application/merge-patch+json")

    async def strategic(self, path: str, body: Json) -> None:
        await self.text("PATCH", path, body, "application/strategic-merge-patch+json")

    async def delete(self, path: str, options: Json | None = None) -> None:
        try:
            await self.text("DELETE", path, options)
        except ApiError as problem:
            if problem.status != 404:
                raise

    async def wait_ready(self) -> None:
        while True:
            try:
                await self.text("GET", "/readyz", timeout_s=3)
                return
            except ApiError:
                await asyncio.sleep(0.4)


def selector(text: str) -> str:
    return quote(text, safe="")


def _message(text: str) -> str:
    try:
        return str(json.loads(text).get("message") or text)
    except (json.JSONDecodeError, AttributeError):
        return text.strip()[:300]
