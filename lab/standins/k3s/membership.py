"""Membership of the etcd cluster: joining as a learner, promotion, removal; K3s' refusals in its words.

Promotion is tried every two seconds instead of every fifteen. The list of members comes from /db/info with the token
instead of a client certificate.
"""

import asyncio
import time

from . import log
from .etcd import PEER_PORT, EtcdClient, EtcdError, Member
from .join import Refused, Supervisor, Unreachable
from .log import Fatal
from .paths import Paths

_LEARNER_PATIENCE_S = 300
_PERIOD_S = 2.0


async def enter(paths: Paths, supervisor: Supervisor, name: str, node: str, address: str) -> list[str]:
    """Adds this server as a learner unless it is one already; returns the value of `initial-cluster`."""
    while True:
        try:
            info = await supervisor.json("/db/info")
        except (Refused, Unreachable) as problem:
            raise Fatal(f"starting kubernetes: preparing server: start managed database: {problem}") from None
        endpoints = [url for member in info["members"] for url in member["clientURLs"]]
        try:
            async with EtcdClient(paths, endpoints) as client:
                return await _enter(client, name, node, address)
        except EtcdError as problem:
            log.info(f"Waiting for other members to finish joining etcd cluster: {problem}")
            await asyncio.sleep(_PERIOD_S)


async def _enter(client: EtcdClient, name: str, node: str, address: str) -> list[str]:
    own_peer = f"https://{address}:{PEER_PORT}"
    initial, listed = [], False
    for member in await client.members():
        # a member that never started has no name yet: with our address it can only be our own earlier attempt
        known_as = name if not member.name and own_peer in member.peer_urls else member.name
        if known_as == name:
            listed = True
        elif member.node_name == node:
            raise Fatal(
                "starting kubernetes: preparing server: start managed database: joining etcd cluster: "
                "etcd cluster join failed: duplicate node name found, please use a unique name for this node"
            )
        if known_as:
            initial += [f"{known_as}={peer}" for peer in member.peer_urls]
    if not listed:
        log.info(f"Adding member {name}={own_peer} to etcd cluster {initial}")
        await client.add_learner(own_peer)
        initial.append(f"{name}={own_peer}")
    return initial


async def promote_learners(paths: Paths) -> None:
    """Never returns; acts only while the local member leads the cluster."""
    since: dict[str, float] = {}
    async with EtcdClient(paths) as client:
        while True:
            await asyncio.sleep(_PERIOD_S)
            try:
                status = await client.status()
                if str(status.get("leader")) != str(status["header"]["member_id"]):
                    continue
                learners = [m for m in await client.members() if m.learner]
                for learner in learners:
                    await _promote(client, learner, since.setdefault(learner.id, time.monotonic()))
                since = {m.id: since[m.id] for m in learners}
            except EtcdError:
                continue  # no leader just now


async def _promote(client: EtcdClient, learner: Member, since: float) -> None:
    try:
        await client.promote(learner.id)
        log.info(f"Promoted learner {learner.name} to voting member")
    except EtcdError:
        if time.monotonic() - since > _LEARNER_PATIENCE_S:
            log.warning(f"Removing learner {learner.name or learner.id} due to stalled progress")
            await client.remove(learner.id)
