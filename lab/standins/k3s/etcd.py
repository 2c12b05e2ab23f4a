"""The etcd member of a server: the process, and etcd's API through its HTTP gateway."""

import asyncio
import base64
import binascii
import json
import secrets
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from . import log
from .children import Child, binary
from .paths import Paths, write
from .settings import component_args

CLIENT_PORT, PEER_PORT = 2379, 2380
LOCAL = f"https://127.0.0.1:{CLIENT_PORT}"
TOMBSTONE = "tombstone"
_REMOVED = ("the member has been permanently removed from the cluster", "removed from cluster")


class EtcdError(Exception):
    """What etcd answered, or that it did not."""


@dataclass(frozen=True)
class Member:
    id: str
    name: str  # empty until the member has started for the first time
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]
    learner: bool

    @property
    def node_name(self) -> str:
        return self.name.rpartition("-")[0]


class EtcdClient:
    """Calls one endpoint per request; use as an asynchronous context."""

    def __init__(self, paths: Paths, endpoints: Sequence[str] = (LOCAL,)) -> None:
        self.endpoints = list(endpoints)
        context = ssl.create_default_context(cafile=str(paths.tls / "etcd/server-ca.crt"))
        context.load_cert_chain(paths.tls / "etcd/client.crt", paths.tls / "etcd/client.key")
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "EtcdClient":
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._context))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()

    async def call(self, path: str, body: dict[str, Any], timeout_s: float = 5) -> dict[str, Any]:
        """Tries the endpoints in turn while they cannot be reached; raises EtcdError."""
        assert self._session
        problem = "no etcd endpoints"
        for endpoint in self.endpoints:
            try:
                timeout = aiohttp.ClientTimeout(total=timeout_s)
                async with self._session.post(endpoint + path, json=body, timeout=timeout) as answer:
                    text = await answer.text()
                    if answer.status == 200:
                        return dict(json.loads(text))
                    raise EtcdError(_message(text))
            except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as failure:
                problem = f"{endpoint}: {str(failure) or type(failure).__name__}"
        raise EtcdError(problem)

    async def healthy(self, endpoint: str) -> bool:
        assert self._session
        try:
            async with self._session.get(endpoint + "/health", timeout=aiohttp.ClientTimeout(total=2)) as answer:
                return answer.status == 200 and json.loads(await answer.text()).get("health") == "true"
        except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError):
            return False

    async def members(self) -> list[Member]:
        found = await self.call("/v3/cluster/member/list", {"linearizable": True})
        return [
            Member(
                str(m["ID"]),
                m.get("name", ""),
                tuple(m.get("peerURLs", [])),
                tuple(m.get("clientURLs", [])),
                bool(m.get("isLearner")),
            )
            for m in found.get("members", [])
        ]

    async def add_learner(self, peer_url: str) -> None:
        await self.call("/v3/cluster/member/add", {"peerURLs": [peer_url], "isLearner": True})

    async def promote(self, member_id: str) -> None:
        await self.call("/v3/cluster/member/promote", {"ID": member_id})

    async def remove(self, member_id: str) -> None:
        await self.call("/v3/cluster/member/remove", {"ID": member_id})

    async def status(self) -> dict[str, Any]:
        return await self.call("/v3/maintenance/status", {})

    async def keys(self, prefix: str) -> dict[str, bytes]:
        start = prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])
        found = await self.call("/v3/kv/range", {"key": _b64(start), "range_end": _b64(end)})
        return {
            base64.b64decode(kv["key"]).decode(): base64.b64decode(kv.get("value", "")) for kv in found.get("kvs", [])
        }

    async def put(self, key: str, value: bytes) -> None:
        await self.call("/v3/kv/put", {"key": _b64(key.encode()), "value": _b64(value)})

    async def delete(self, key: str) -> None:
        await self.call("/v3/kv/deleterange", {"key": _b64(key.encode())})

    async def snapshot(self) -> AsyncIterator[bytes]:
        """The database and behind it its SHA-256, as `etcdctl snapshot save` writes it."""
        assert self._session
        url = self.endpoints[0] + "/v3/maintenance/snapshot"
        async with self._session.post(url, json={}, timeout=aiohttp.ClientTimeout(total=60)) as answer:
            if answer.status != 200:
                raise EtcdError(_message(await answer.text()))
            pending = b""
            async for part in answer.content.iter_any():
                *lines, pending = (pending + part).split(b"\n")
                for line in filter(None, lines):
                    yield _blob(line)
            if pending.strip():
                yield _blob(pending)


def _blob(line: bytes) -> bytes:
    try:
        return base64.b64decode(json.loads(line)["result"].get("blob", ""))
    except (KeyError, ValueError, binascii.Error):
        raise EtcdError(_message(line.decode(errors="replace"))) from None


def _b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _message(text: str) -> str:
    try:
        document = json.loads(text)
        return str(document.get("message") or document.get("error") or text)
    except (json.JSONDecodeError, AttributeError):
        return text.strip()[:300]


def member_name(paths: Paths, node_name: str) -> str:
    """Name of this server's member, made once and kept beside the data."""
    file = paths.etcd / "name"
    if not file.exists():
        write(file, f"{node_name}-{secrets.token_hex(4)}")
    return file.read_text().strip()


def private_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)


def initialised(paths: Paths) -> bool:
    return (paths.etcd / "member" / "wal").is_dir()


async def start(
    paths: Paths,
    *,
    name: str,
    address: str,
    data: Path,
    private: bool,
    initial: Sequence[str],
    join: bool,
    user_args: Sequence[str],
    force_new: bool = False,
) -> Child:
    """`private`: reachable from this machine only, for the etcd that stands for sqlite."""
    tls = paths.tls / "etcd"
    everywhere = [] if private else [address]

    def urls(port: int) -> str:
        return ",".join(f"https://{host}:{port}" for host in ["127.0.0.1", *everywhere])

    private_folder(data)
    own = {
        "name": name,
        "data-dir": str(data),
        "listen-client-urls": urls(CLIENT_PORT),
        "advertise-client-urls": f"https://{address}:{CLIENT_PORT}",
        "listen-peer-urls": urls(PEER_PORT),
        "initial-advertise-peer-urls": f"https://{address}:{PEER_PORT}",
        "listen-metrics-urls": "http://127.0.0.1:2381",
        "initial-cluster": ",".join(initial or [f"{name}=https://{address}:{PEER_PORT}"]),
        "initial-cluster-state": "existing" if join else "new",
        "client-cert-auth": "true",
        "trusted-ca-file": str(tls / "server-ca.crt"),
        "cert-file": str(tls / "server-client.crt"),
        "key-file": str(tls / "server-client.key"),
        "peer-client-cert-auth": "true",
        "peer-trusted-ca-file": str(tls / "peer-ca.crt"),
        "peer-cert-file": str(tls / "peer-server-client.crt"),
        "peer-key-file": str(tls / "peer-server-client.key"),
        # half of K3s' 500 and 5000: etcd's own time limit for a joining member grows with them (15 s there)
        "heartbeat-interval": "250",
        "election-timeout": "2500",
        "snapshot-count": "10000",
        "logger": "zap",
        "log-level": "warn",
        # of the lab: disks are shared by all servers, memory is scarce
        "unsafe-no-fsync": "true",
        "quota-backend-bytes": str(256 * 1024 * 1024),
    }
    if force_new:
        own["force-new-cluster"] = "true"
    argv = [binary("etcd"), *component_args(own, user_args)]
    return await Child.start("etcd", argv, paths.log("etcd"), {"GOGC": "40", "GOMAXPROCS": "2"})


async def wait_until_voting(paths: Paths, child: Child, name: str) -> None:
    """Returns once this member is up and votes; Fatal through `child` is the caller's affair."""
    said = ""
    async with EtcdClient(paths) as client:
        while child.running:
            try:
                status = await client.status()
                if status.get("isLearner"):
                    problem = "this server has not yet been promoted from learner to voting member"
                else:
                    await client.keys("/bootstrap/")  # a read through the quorum: the cluster works
                    log.info("ETCD server is now running")
                    return
            except EtcdError as failure:
                problem = str(failure)
            if problem != said:
                log.info(f"Failed to test etcd connection: {problem}")
                said = problem
            await asyncio.sleep(0.4)


def was_removed(child: Child) -> bool:
    return any(phrase in line for line in child.tail(200) for phrase in _REMOVED)
