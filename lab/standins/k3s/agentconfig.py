"""What a node asks a server for before its kubelet runs: the cluster's settings and a client certificate."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from . import log, nodepassword
from .join import Refused, Supervisor, Unreachable, connect
from .log import Fatal
from .paths import Paths, write
from .tokens import Token

RETRY_S = 5.0


@dataclass(frozen=True)
class NodeIdentity:
    name: str
    cluster: dict[str, Any]  # answer of /v1-k3s/config
    supervisor: Supervisor


async def obtain(paths: Paths, urls: list[str], token: Token, node: str) -> NodeIdentity:
    """Tries for ever, as an agent does; a log line tells why it waits. Writes the kubelet's certificate."""
    while True:
        problem = ""
        for url in urls:
            try:
                supervisor = await connect(url, token, "node")
                return await _fetch(paths, supervisor, node)
            except (Refused, Unreachable, Fatal) as failure:
                problem = problem or str(failure)
        log.info(f"Waiting to retrieve agent configuration; server is not ready: {problem}")
        await asyncio.sleep(RETRY_S)


async def _fetch(paths: Paths, supervisor: Supervisor, node: str) -> NodeIdentity:
    cluster = await supervisor.json("/v1-k3s/config")
    headers = {"k3s-Node-Name": node, "k3s-Node-Password": nodepassword.own()}
    pair = json.loads(await supervisor.text("/v1-k3s/client-kubelet.crt", headers=headers))
    write(paths.agent / "client-kubelet.crt", pair["certificate"], 0o644)
    write(paths.agent / "client-kubelet.key", pair["key"])
    write(paths.agent / "server-ca.crt", supervisor.ca_pem, 0o644)
    return NodeIdentity(node, cluster, supervisor)
