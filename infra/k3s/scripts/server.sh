# Brings one server to the state of its document: first start of a cluster (mode bootstrap), join, or a change of
# settings. Repeatable at any point; changes nothing where nothing differs.
receive
node=$(setting node name)
mode=$(setting node mode) # bootstrap, or member
vip=$(setting node vip)
peers=$(setting node peers)
limit=$(setting node timeout_s)
need curl curl
changed_binary='' changed_unit=''

has_data() { [ -d "$WAL" ]; }
running() { active k3s; }
ready() { [ "$(kubectl get --raw /readyz 2>/dev/null)" = ok ]; }
voter() {
    [ "$(kubectl get node "$node" -o 'jsonpath={.status.conditions[?(@.type=="EtcdIsVoter")].status}' 2>/dev/null)" = True ]
}

# others_up: before a member restarts, every other member must be there, or the restart takes the quorum with it.
others_up() {
    members=$(kubectl get nodes -l node-role.kubernetes.io/etcd=true \
        -o 'jsonpath={range .items[*]}{.metadata.name}{" "}{.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}') ||
        stop K3S-15 "an API server that does not answer on this node" "a healthy cluster before a restart" \
            "bring the other servers back first; for a lost quorum follow docs/operacoes/etcd-restore.md"
    printf '%s\n' "$members" > "$work/members"
    while read -r name address; do
        [ -n "$name" ] && [ "$name" != "$node" ] || continue
        until_true 60 answers "$address" ||
            stop K3S-15 "server $name ($address) not answering" "all other servers up before this one restarts" \
                "a restart would cost the etcd quorum: bring $name back, then run the update again"
    done < "$work/members"
}

if [ -f "$DATA/server/db/state.db" ] && ! has_data; then
    stop K3S-03 "an SQLite datastore in $DATA" "embedded etcd" \
        "follow docs/operacoes/k3s-rebuild.md: the datastore of a living cluster is not changed by an update"
fi
if [ -f /etc/systemd/system/k3s-agent.service ]; then
    stop K3S-11 "a K3s agent on this node" "a server" "drain and remove the agent first"
fi
frozen
install_k3s
cp "$work/config.yaml" "$work/config.full"
# The address to join by is read at the first start alone: adding it restarts nothing.
settled() { grep -v '^server:' "$1" 2>/dev/null; }
changed_config=''
if ! has_data || [ "$(settled "$work/config.full")" != "$(settled "$CONF/config.yaml")" ]; then changed_config=yes; fi

write_files() {
    mkdir -p "$CONF/config.yaml.d" "$DATA/agent/pod-manifests"
    put "$1" "$CONF/config.yaml" 0600 >/dev/null
    if [ -s "$work/kube-vip.yaml" ]; then
        put "$work/kube-vip.yaml" "$DATA/agent/pod-manifests/kube-vip.yaml" 0600 >/dev/null
    else
        rm -f "$DATA/agent/pod-manifests/kube-vip.yaml"
    fi
}

if has_data; then
    restart=''
    if [ -n "$changed_config$changed_binary" ] || ! running; then restart=yes; fi
    if [ -n "$restart" ] && running; then others_up; fi
    write_files "$work/config.full"
    write_unit k3s server
    rm -f "$CONF/config.yaml.d/50-first-start.yaml"
    if [ -n "$restart$changed_unit" ]; then launch k3s "$limit"; fi
else
    from=''
    for address in $vip $peers; do
        if answers "$address"; then from=$address; break; fi
    done
    if [ -z "$from" ] && [ "$mode" != bootstrap ]; then
        stop K3S-06 "no server of this cluster answering at ${vip:-no API address} or ${peers:-no peer}" \
            "a running server to join" \
            "start one of them; if all are lost restore a snapshot (docs/operacoes/etcd-restore.md): a second cluster is never made"
    fi
    settled "$work/config.full" > "$work/config.first"
    write_files "$work/config.first"
    if [ -n "$from" ]; then
        echo "server: \"https://$from:6443\"" > "$work/first-start"
    else
        echo "cluster-init: true" > "$work/first-start"
    fi
    put "$work/first-start" "$CONF/config.yaml.d/50-first-start.yaml" 0600 >/dev/null
    write_unit k3s server
    launch k3s "$limit"
fi

settle k3s "$limit" "/readyz not ok" "a ready API server" ready
settle k3s "$limit" "no vote in etcd" "EtcdIsVoter true" voter
if [ -n "$vip" ]; then
    settle k3s 60 "API address $vip not answering" \
        "kube-vip holding it: an address free in the LAN, and the interface of clusters.*.api.vip_interface" answers "$vip"
fi
mkdir -p "$STATE"
touch "$STATE/member"
write_renewal k3s
put "$work/config.full" "$CONF/config.yaml" 0600 >/dev/null
rm -f "$CONF/config.yaml.d/50-first-start.yaml"
reconcile_labels "$node"
