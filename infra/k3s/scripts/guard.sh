#!/bin/sh
# Before each start of K3s: a node that was a member and lost its data must join again, never make a cluster of its own.
# K3s itself would: with an empty data folder and no `server` it starts a new cluster and says nothing.
[ -f /var/lib/fleet/member ] || exit 0
[ -d /var/lib/rancher/k3s/server/db/etcd/member/wal ] && exit 0
if grep -qs '^server:' /etc/rancher/k3s/config.yaml; then
    echo "this member has no etcd data: it joins again; if no other server is left, see docs/operacoes/etcd-restore.md" >&2
    exit 0
fi
grep -qs '^server:' /etc/rancher/k3s/config.yaml.d/*.yaml && exit 0
echo "[K3S-06] this node was the only server and its etcd data is gone: restore a snapshot (docs/operacoes/etcd-restore.md)" >&2
exit 1
