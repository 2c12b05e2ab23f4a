#!/bin/sh
# Run weekly on each node, each on a day of its own. K3s renews its certificates when it starts with fewer than 120 days
# left of their year; a node that nobody restarts would run out. Restarts K3s in time, never at the cost of the quorum.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
unit=$1 certificate=$2
[ -n "$(find "$certificate" -mtime +265 2>/dev/null)" ] || exit 0
if [ "$unit" = k3s ]; then
    addresses=$(/usr/local/bin/k3s kubectl get nodes -l node-role.kubernetes.io/etcd=true \
        -o 'jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}') || {
        echo "certificates end in less than 100 days and the API does not answer: restart k3s by hand" >&2
        exit 1
    }
    for address in $addresses; do
        if [ "$(curl -ksS --max-time 3 "https://$address:6443/ping" 2>/dev/null)" != pong ]; then
            echo "certificates end in less than 100 days, but server $address is down: bring it back, then restart k3s" >&2
            exit 1
        fi
    done
fi
systemctl restart --no-block "$unit"
