# Compares a node that was there before the program with what its document says is in force. Changes nothing on the node;
# reports every difference at once; prints what it found as JSON.
receive
node=$(setting node name)
site=$(setting node site)
document="guests.$node.current in Pulumi.$site.yaml"
role=$(setting expected role)
case $role in server) unit=k3s other=k3s-agent ;; *) unit=k3s-agent other=k3s ;; esac
faults=0
# differs ID FOUND EXPECTED REMEDY
differs() {
    faults=$((faults + 1))
    say "[$1] $(hostname): found $2; expected $3; $4"
}
plain() { printf %s "$1" | tr -cd 'A-Za-z0-9.,:/+_ -'; }
listed() { plain "$1" | tr ',' '\n' | tr ' ' '\n' | sed '/^$/d' | sort -u; }
quoted() { listed "$1" | sed 's/.*/"&"/' | paste -s -d , -; }
joined() { listed "$1" | paste -s -d , -; }

if [ -e "/etc/systemd/system/$other.service" ] || ! active $unit; then
    found="no running $unit"
    ! active $other || found="a running $other"
    [ ! -e "/etc/systemd/system/$other.service" ] || [ ! -e "/etc/systemd/system/$unit.service" ] || found="units of both roles"
    stop K3S-11 "$found" "a K3s $role that runs" "correct runs under $document, or start $unit on the node"
fi
flags "$role" > "$work/flags"

version=$(/usr/local/bin/k3s --version 2>/dev/null | awk 'NR == 1 {print $3}')
wanted=$(setting expected version)
[ "$version" = "$wanted" ] || differs K3S-10 "K3s ${version:-of no known version}" "$wanted" \
    "set k3s_version under $document to what runs; an upgrade is an operation of its own"

datastore=none
nodes=''
if [ "$role" = server ]; then
    external=$(in_force "$work/flags" datastore-endpoint)
    if [ -n "$external" ]; then
        datastore=external
    elif [ -d "$WAL" ]; then
        datastore=etcd
    elif [ -f "$DATA/server/db/state.db" ]; then
        datastore=sqlite
    fi
    wanted=$(setting expected datastore)
    [ "$datastore" = "$wanted" ] || differs K3S-03 "datastore $datastore" "$wanted" \
        "correct datastore under $document; the program runs clusters on embedded etcd: docs/operacoes/k3s-rebuild.md"

    for name in cluster-cidr service-cidr; do
        value=$(in_force "$work/flags" $name)
        wanted=$(setting expected $name)
        [ "$value" = "$wanted" ] || differs K3S-09 "$name $value" "$wanted" \
            "a range never changes: correct it under $document and in its cluster, or rebuild (docs/operacoes/k3s-rebuild.md)"
    done
    for name in flannel-backend disable-network-policy disable-kube-proxy secrets-encryption; do
        value=$(in_force "$work/flags" $name)
        wanted=$(setting expected $name)
        [ "$value" = "$wanted" ] || differs K3S-10 "$name $value" "$wanted" \
            "correct $document: servers that join must have the flags of those that run"
    done
    value=$(joined "$(sed -n 's/^disable=//p' "$work/flags" | head -n 1)")
    wanted=$(joined "$(setting expected disable)")
    [ "$value" = "$wanted" ] || differs K3S-10 "disable ${value:-nothing}" "${wanted:-nothing}" \
        "write what is off today as disable under $document"
    # The document has no key for these, so servers that join would not have them.
    for name in cluster-dns cluster-domain egress-selector-mode disable-cloud-controller disable-helm-controller \
        embedded-registry flannel-external-ip flannel-ipv6-masq data-dir; do
        value=$(in_force "$work/flags" $name)
        wanted=$(standard $name)
        [ "$value" = "$wanted" ] || differs K3S-10 "$name $value" "${wanted:-nothing}, as K3s takes it" \
            "a server of the program could not join this cluster: change the flag on the node, or rebuild (docs/operacoes/k3s-rebuild.md)"
    done

    if nodes=$(kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.name}{" "}{end}' 2>/dev/null); then
        listed "$nodes" > "$work/there"
        listed "$(setting expected nodes)" > "$work/known"
        listed "$(setting expected nodes) $(setting expected joining)" > "$work/may"
        while read -r name; do
            grep -qxF "$name" "$work/there" || differs K3S-03 "no node $name" "every node of the document in the cluster" \
                "correct runs under guests.$name.current, or bring the node back"
        done < "$work/known"
        while read -r name; do
            grep -qxF "$name" "$work/may" || differs K3S-03 "a node $name" "only nodes that the document names" \
                "add it to guests and to its cluster, or remove it from the cluster"
        done < "$work/there"
    else
        differs K3S-10 "an API server that does not answer" "a running server" "read journalctl -u k3s on the node"
    fi
fi
[ "$faults" -eq 0 ] || exit 3
printf '{"role": "%s", "version": "%s", "datastore": "%s"' "$role" "$(plain "$version")" "$datastore"
if [ "$role" = server ]; then
    for name in cluster-cidr service-cidr flannel-backend secrets-encryption; do
        printf ', "%s": "%s"' "$(echo $name | tr - _)" "$(plain "$(in_force "$work/flags" $name)")"
    done
    printf ', "disable": [%s], "nodes": [%s]' "$(quoted "$(sed -n 's/^disable=//p' "$work/flags")")" "$(quoted "$nodes")"
fi
printf '}\n'
