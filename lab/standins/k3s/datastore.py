"""What is below server/db: which datastore a disk holds, starting it, moving sqlite to etcd, resetting a cluster.

There is no kine here. A sqlite server runs a private etcd on the loopback address, in a folder of its own beside the
marker `state.db`, so that everybody who looks at the disk sees sqlite.
"""

import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from . import bootstrapdata, children, etcd, log, pki, tokens
from .children import Child, binary
from .etcd import EtcdClient
from .log import Fatal
from .paths import Paths, write
from .settings import Settings

_DONE = (
    "Managed etcd cluster membership has been reset, restart without --cluster-reset flag now. Backup and delete "
    "${datadir}/server/db on each peer etcd server and rejoin the nodes"
)


def is_member(paths: Paths) -> bool:
    return etcd.initialised(paths)


def clear_leftovers(paths: Paths) -> None:
    """A member that was removed from its cluster keeps a tombstone: its data moves away and it joins as a new one."""
    if (paths.etcd / etcd.TOMBSTONE).exists():
        log.info("tombstone file has been detected, removing data dir to rejoin the cluster")
        paths.etcd.rename(paths.db / f"etcd-backup-{int(time.time())}")


def name(paths: Paths, sqlite: bool, node: str) -> str:
    return "sqlite-standin" if sqlite else etcd.member_name(paths, node)


async def start(
    paths: Paths, settings: Settings, member: str, address: str, *, sqlite: bool, initial: Sequence[str]
) -> Child:
    data = paths.etcd
    if sqlite:
        data = paths.sqlite_content
        if not paths.sqlite.exists():
            write(paths.sqlite, "")
    elif paths.sqlite.exists():
        log.info("Migrating content from sqlite to etcd")
        shutil.move(paths.sqlite_content / "member", paths.etcd / "member")
        paths.sqlite.rename(paths.sqlite.with_name("state.db.migrated"))
        shutil.rmtree(paths.sqlite_content)
    user_args = settings.items("etcd-arg")
    return await etcd.start(
        paths,
        name=member,
        address=address,
        data=data,
        private=sqlite,
        initial=initial,
        join=bool(initial),
        user_args=user_args,
    )


async def wait(paths: Paths, child: Child, member: str) -> None:
    """Returns once it can be read and written; for ever if the cluster has no quorum, as in K3s."""
    await etcd.wait_until_voting(paths, child, member)
    if not child.running:
        await asyncio.Event().wait()  # must_run says what happened and ends the process


async def must_run(paths: Paths, child: Child) -> None:
    """Raises Fatal when etcd ends; leaves a tombstone when this member was removed."""
    await child.wait()
    if etcd.was_removed(child):
        write(paths.etcd / etcd.TOMBSTONE, "")
        raise Fatal("this server has been removed from the etcd cluster")
    await child.must_run()


async def reset(paths: Paths, settings: Settings, node: str, address: str, given: str) -> None:
    """`--cluster-reset`, with or without a snapshot: leaves a cluster of one member; raises Fatal."""
    flag, snapshot = paths.db / "reset-flag", settings.text("cluster-reset-restore-path")
    _check_reset(paths, settings, given)
    password = tokens.parse(given or (paths.server / "token").read_text()).password
    now = int(time.time())
    pki.create_authorities(paths, "")
    member = etcd.member_name(paths, node)
    if snapshot:
        if paths.etcd.exists():
            paths.etcd.rename(paths.db / f"etcd-old-{now}")
        member = etcd.member_name(paths, node)
        await _unpack(paths, Path(snapshot), member, address)
    own = [address, node, "127.0.0.1", "::1", "localhost"]
    pki.issue_all(paths, own, own)
    child = await etcd.start(
        paths,
        name=member,
        address=address,
        data=paths.etcd,
        private=True,
        initial=(),
        join=False,
        user_args=(),
        force_new=True,
    )
    try:
        await asyncio.wait_for(etcd.wait_until_voting(paths, child, member), 60)
        async with EtcdClient(paths) as client:
            await bootstrapdata.restore(paths, client, password)
            for found in await client.members():
                peer = f"https://{address}:{etcd.PEER_PORT}"
                if peer not in found.peer_urls:
                    await client.call("/v3/cluster/member/update", {"ID": found.id, "peerURLs": [peer]})
    except TimeoutError:
        raise Fatal(f"etcd did not start within 60 s: {' | '.join(child.tail(3))}") from None
    finally:
        await child.stop()
    for leaf in pki.leaf_names():  # of the authorities before the restore
        (paths.tls / f"{leaf}.crt").unlink(missing_ok=True)
    write(paths.server / "token", tokens.full(password, (paths.tls / "server-ca.crt").read_text()) + "\n")
    write(flag, "")
    log.info(_DONE)


def _check_reset(paths: Paths, settings: Settings, given: str) -> None:
    flag, snapshot = paths.db / "reset-flag", settings.text("cluster-reset-restore-path")
    if settings.text("server"):
        raise Fatal(
            "cannot perform cluster-reset while server URL is set - remove server from configuration before resetting"
        )
    if flag.exists():
        raise Fatal(
            "Managed etcd cluster membership was previously reset, please remove the cluster-reset flag and start k3s "
            f"normally. If you need to perform another cluster reset, you must first manually delete the {flag} file"
        )
    if snapshot and not Path(snapshot).exists():
        raise Fatal(f"etcd: snapshot path does not exist: {snapshot}")
    token_file = paths.server / "token"
    if snapshot and not given and not token_file.exists():
        raise Fatal(f"{token_file} does not exist, please pass --token to complete the restoration")
    if not snapshot and not is_member(paths):
        raise Fatal("starting kubernetes: cluster-reset: etcd datastore is not initialized")


async def _unpack(paths: Paths, snapshot: Path, member: str, address: str) -> None:
    target = paths.etcd / "restored"
    status, output = await children.run(
        [
            binary("etcdutl"),
            "snapshot",
            "restore",
            str(snapshot),
            f"--data-dir={target}",
            f"--name={member}",
            f"--initial-cluster={member}=https://{address}:{etcd.PEER_PORT}",
            f"--initial-advertise-peer-urls=https://{address}:{etcd.PEER_PORT}",
        ]
    )
    if status:
        raise Fatal(f"etcd: snapshot restore failed: {output.strip()[-400:]}")
    shutil.move(target / "member", paths.etcd / "member")
    shutil.rmtree(target)
