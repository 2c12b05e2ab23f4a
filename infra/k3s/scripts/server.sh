# Brings one server to the state of its document: first start of a cluster (mode bootstrap), join, or a change of
# settings. Repeatable at any point; changes nothing where nothing differs.
receive
node=$(setting node name)
mode=$(setting node mode) # bootstrap, or member
vip=$(setting node vip)
peers=$(setting node peers)
limit=$(setting node timeout_s)
need curl curl
changed_binary='' changed_unit='' rolling=''
owed=$STATE/restart-owed # there from before the first change until K3s runs with it: an interrupted roll is taken up again
snapshots=$DATA/server/db/snapshots
kept=5 # snapshots of this script; scheduled ones have a retention of their own

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

# snapshot: what this script is about to do can be undone; K3s keeps on-demand snapshots until somebody prunes them.
snapshot() {
    made=''
    if said=$(timeout 300 /usr/local/bin/k3s etcd-snapshot save --name fleet-before-roll 2>&1); then
        # Its answer alone is not enough: an order to another server would leave nothing here.
        made=$(find "$snapshots" -type f -name 'fleet-before-roll-*' -newer "$work/node" -size +0 2>/dev/null | head -n 1)
    fi
    if [ -z "$made" ]; then
        say "k3s etcd-snapshot save said:"
        say "$(printf '%s\n' "$said" | grep -v 'Unknown flag' | tail -n 3)"
        stop BKP-01 "no etcd snapshot made in $snapshots" "one before this server restarts" \
            "mend what the lines above name (often a full disk), then run the update again"
    fi
    say "etcd snapshot before the restart: $made"
    timeout 60 /usr/local/bin/k3s etcd-snapshot prune --name fleet-before-roll --snapshot-retention $kept >/dev/null 2>&1 ||
        say "older snapshots of this kind could not be pruned; remove them from $snapshots"
}

# roll: what must be true before a running server restarts. Once in a run, and before anything of it changes.
roll() {
    if [ -n "$rolling" ] || ! running; then return 0; fi
    others_up
    snapshot
    rolling=yes
    mkdir -p "$STATE"
    touch "$owed"
}

# other_release: the files of the release differ from those in place. A missing checksum is install_k3s's to tell.
other_release() {
    for file in k3s k3s-airgap-images-amd64.tar.zst; do
        sum=$(checksum "$file")
        case $file in k3s) target=/usr/local/bin/k3s ;; *) target=$DATA/agent/images/$file ;; esac
        [ -n "$sum" ] || return 1
        [ -f "$target" ] && [ "$(sha256sum "$target" | cut -d ' ' -f 1)" = "$sum" ] || return 0
    done
    return 1
}

if [ -f "$DATA/server/db/state.db" ] && ! has_data; then
    stop K3S-03 "an SQLite datastore in $DATA" "embedded etcd" \
        "follow docs/operacoes/k3s-rebuild.md: the datastore of a living cluster is not changed by an update"
fi
if [ -f /etc/systemd/system/k3s-agent.service ]; then
    stop K3S-11 "a K3s agent on this node" "a server" "drain and remove the agent first"
fi
frozen
cp "$work/config.yaml" "$work/config.full"
# The address to join by is read at the first start alone: adding it restarts nothing.
settled() { grep -v '^server:' "$1" 2>/dev/null; }
changed_config=''
if ! has_data || [ "$(settled "$work/config.full")" != "$(settled "$CONF/config.yaml")" ]; then changed_config=yes; fi
if has_data && { [ -n "$changed_config" ] || [ -f "$owed" ] || other_release; }; then roll; fi
install_k3s

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
    if [ -n "$changed_config$changed_binary$rolling" ] || ! running; then restart=yes; fi
    write_files "$work/config.full"
    write_unit k3s server
    rm -f "$CONF/config.yaml.d/50-first-start.yaml"
    if [ -n "$changed_unit" ]; then
        mkdir -p "$STATE"
        touch "$owed" # the unit is written already: a roll that stops here is owed
        roll
    fi
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
rm -f "$owed"
write_renewal k3s
put "$work/config.full" "$CONF/config.yaml" 0600 >/dev/null
rm -f "$CONF/config.yaml.d/50-first-start.yaml"
reconcile_labels "$node"
