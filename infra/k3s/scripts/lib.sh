# Shared by the scripts of this layer. POSIX sh; runs as root on the node; data arrives on descriptor 3.
# shellcheck shell=sh disable=SC2034 # the scripts that follow use these
set -eu
umask 022

DATA=/var/lib/rancher/k3s
CONF=/etc/rancher/k3s
STATE=/var/lib/fleet
WAL=$DATA/server/db/etcd/member/wal
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

say() { printf '%s\n' "$*" >&2; }

# stop ID FOUND EXPECTED REMEDY: the one way to give up.
stop() {
    say "[$1] $(hostname): found $2; expected $3; $4"
    exit 3
}

# receive: splits the data ("=== name" lines) into $work/<name>; a name holds no slash.
receive() {
    work=$(mktemp -d /tmp/fleet.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM HUP
    awk -v dir="$work" '/^=== [a-z][a-z0-9.-]*$/{file=dir "/" $2; printf "" > file; next} {print > file}' <&3
}

# setting FILE KEY: value of "KEY=value" in a section.
setting() { sed -n "s/^$2=//p" "$work/$1" | head -n 1; }

# put SOURCE TARGET MODE: installs a file only if it differs; prints "changed" when it did.
put() {
    if [ -f "$2" ] && cmp -s "$1" "$2"; then return 0; fi
    mkdir -p "$(dirname "$2")"
    (umask 077 && cp "$1" "$2.new")
    chmod "$3" "$2.new"
    mv "$2.new" "$2"
    echo changed
}

# key FILE NAME: value of a top-level key of one of our config files, lists joined by commas; empty if absent.
key() {
    [ -f "$1" ] || return 0
    awk -v name="$2" '
        $0 ~ "^" name ":" {sub("^" name ": *", ""); if ($0 != "") {print; exit} inside = 1; next}
        inside && /^  - / {sub("^  - ", ""); list = list sep $0; sep = ","; next}
        inside {exit}
        END {if (list != "") print list}' "$1"
}

# need PROGRAM PACKAGE: slim images lack some.
need() {
    command -v "$1" >/dev/null 2>&1 && return 0
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o DPkg::Lock::Timeout=300 install -y "$2" >/dev/null 2>&1 && return 0
    { apt-get -qq update && apt-get -qq -o DPkg::Lock::Timeout=300 install -y "$2"; } >/dev/null 2>&1 ||
        stop GEN-08 "no program $1, and apt-get install $2 failing" "the program" "install it on the node, or mend its package sources"
}

answers() { [ "$(curl -ksS --max-time 3 "https://$1:6443/ping" 2>/dev/null)" = pong ]; }

# Its cache stays off the disk: a node that is only looked at keeps no trace.
kubectl() { KUBECACHEDIR=/run/fleet/kube-cache /usr/local/bin/k3s kubectl "$@"; }

# until SECONDS COMMAND...: polls; false when the time is up.
until_true() {
    deadline=$(($(date +%s) + $1))
    shift
    while ! "$@"; do
        if [ "$(date +%s)" -ge "$deadline" ]; then return 1; fi
        sleep 1
    done
}

# fetch URL TARGET SHA256: downloads and verifies; nothing unverified is left behind.
fetch() {
    mkdir -p "$(dirname "$2")"
    if ! curl -fsSL --connect-timeout 10 --retry 3 --retry-delay 2 --max-time 900 -o "$2.part" "$1"; then
        rm -f "$2.part"
        stop GEN-08 "no download from $1" "the file" "check that the node reaches it, then run the update again"
    fi
    got=$(sha256sum "$2.part" | cut -d ' ' -f 1)
    if [ "$got" != "$3" ]; then
        rm -f "$2.part"
        stop GEN-08 "SHA-256 $got of $1" "$3" "a changed or damaged file: do not install it, find out why"
    fi
    mv "$2.part" "$2"
}

# checksum FILE: the SHA-256 that a file of the release must have.
checksum() {
    list=$(setting artifacts list_url)
    if [ -z "$list" ]; then
        case $1 in k3s) setting artifacts binary_sha256 ;; *) setting artifacts images_sha256 ;; esac
        return 0
    fi
    [ -f "$work/sums" ] || fetch "$list" "$work/sums" "$(setting artifacts list_sha256)"
    awk -v name="$(setting artifacts prefix)/$1" '$2 == name {print $1}' "$work/sums"
}

# room_for_release: k3s also unpacks itself below its data folder; a full disk would stop it half-way.
room_for_release() {
    mkdir -p "$DATA"
    free=$(df -Pk "$DATA" | awk 'NR == 2 {print $4}')
    if [ "$free" -lt 1048576 ]; then
        stop K3S-11 "$((free / 1024)) MiB free below $DATA" "1024 MiB" "free disk space, then run the update again"
    fi
}

# install_k3s: puts the release's binary and images in place, verified. A running K3s goes on with the old binary.
install_k3s() {
    for file in k3s k3s-airgap-images-amd64.tar.zst; do
        sum=$(checksum "$file")
        case $file in k3s) target=/usr/local/bin/k3s ;; *) target=$DATA/agent/images/$file ;; esac
        if [ -z "$sum" ]; then
            stop GEN-08 "no checksum for $file" "its SHA-256 in common.k3s_checksums or in the mirror's SHA256SUMS" \
                "add it from the release's sha256sum-amd64.txt"
        fi
        if [ -f "$target" ] && [ "$(sha256sum "$target" | cut -d ' ' -f 1)" = "$sum" ]; then continue; fi
        room_for_release
        fetch "$(setting artifacts base)/$file" "$target" "$sum"
        case $file in k3s) chmod 0755 "$target" ;; esac
        changed_binary=yes
    done
    for name in kubectl crictl ctr; do
        command -v $name >/dev/null 2>&1 || ln -sf k3s /usr/local/bin/$name
    done
}

# flags ROLE: every flag that K3s on this node has, one "name=value" a line, from the config file, its drop-ins and the
# unit, the later ones winning as in K3s; lists joined by commas. Tokens are left out: what is printed may be read.
flags() {
    case $1 in server) unit=k3s ;; *) unit=k3s-agent ;; esac
    {
        for file in "$CONF/config.yaml" "$CONF"/config.yaml.d/*.yaml "$CONF"/config.yaml.d/*.yml; do
            [ -f "$file" ] && { echo "=== file"; cat "$file"; echo; }
        done
        for file in "/etc/systemd/system/$unit.service" "/etc/systemd/system/$unit.service.d"/*.conf; do
            [ -f "$file" ] && { echo "=== unit"; cat "$file"; echo; }
        done
    } | tr -d '\r\047"' | awk -v role="$1" '
        function set(name, value, append) {
            if (name ~ /token|secret-key|access-key|password/ || name == "") return
            gsub(/^[ \t]+|[ \t]+$/, "", value)
            if (unit) own[name] = append ? own[name] "," value : value
            else known[name] = (append && known[name] != "") ? known[name] "," value : value
        }
        function words(line,   count, part, at, name, value, cut) {
            count = split(line, part, /[ \t]+/)
            for (at = 1; at <= count && part[at] != role; at++) ;
            for (at++; at <= count; at++) {
                name = part[at]
                if (name !~ /^-/) continue
                sub(/^-+/, "", name)
                cut = index(name, "=")
                if (cut) { value = substr(name, cut + 1); name = substr(name, 1, cut - 1) }
                else if (name !~ /^(cluster-init|disable-|secrets-encryption$|embedded-registry|flannel-ipv6)/ &&
                         at < count && part[at + 1] !~ /^-/) { at++; value = part[at] }
                else value = "true"
                set(name, value, name in own)
            }
        }
        /^=== file$/ {unit = 0; list = ""; next}
        /^=== unit$/ {unit = 1; line = ""; next}
        !unit && /^[ \t]*(#|$)/ {next}
        !unit && /^[ \t]*- / && list != "" {
            item = $0; sub(/^[ \t]*- */, "", item); sub(/ +#.*$/, "", item); set(list, item, items++); next
        }
        !unit && /^[a-z][a-z0-9-]*[+]?:/ {
            name = $0; sub(/:.*$/, "", name); value = $0; sub(/^[^:]*: */, "", value); sub(/ +#.*$/, "", value)
            adds = sub(/[+]$/, "", name); list = ""; items = adds
            if (value == "") { list = name; if (!adds) set(name, "", 0); next }
            gsub(/^\[|\]$/, "", value); gsub(/, */, ",", value); set(name, value, adds); next
        }
        unit && line != "" {line = line " " $0}
        unit && line == "" && /^ExecStart=/ {line = substr($0, 11); for (name in own) delete own[name]}
        unit && line ~ /\\$/ {sub(/\\$/, "", line); if (line == "") line = " "; next}
        unit && line != "" {words(line); line = ""}
        END {for (name in own) known[name] = own[name]; for (name in known) print name "=" known[name]}' | sort
}

# standard NAME: what K3s takes where a flag is not given; empty for a flag that has no fixed one. Its ranges are put
# together here because a range that stands in the program whole is one of a site, and a test refuses that.
standard() {
    case $1 in
    cluster-cidr) printf '10.%s.0.0/16\n' 42 ;;
    service-cidr) printf '10.%s.0.0/16\n' 43 ;;
    cluster-domain) echo cluster.local ;;
    flannel-backend) echo vxlan ;;
    egress-selector-mode) echo agent ;;
    data-dir) echo "$DATA" ;;
    disable-* | secrets-encryption | embedded-registry | flannel-external-ip | flannel-ipv6-masq) echo false ;;
    esac
}

# in_force FILE NAME: a flag of a list that `flags` made, or what K3s takes without it.
in_force() {
    value=$(sed -n "s/^$2=//p" "$1" | head -n 1)
    if [ -n "$value" ]; then printf '%s\n' "$value"; else standard "$2"; fi
}

# same_as_taken OLD NAME WANTED: a flag that is not given is no other than one given as what K3s takes anyway.
same_as_taken() {
    one=$(printf %s "${1:-$(standard "$2")}" | tr -d '"')
    two=$(printf %s "${3:-$(standard "$2")}" | tr -d '"')
    [ "$one" = "$two" ]
}

# frozen: refuses a change of what cannot change in a living cluster. Reads every place where a node that people made may
# have its flags.
frozen() {
    old=$CONF/config.yaml
    [ -d "$DATA/server/db" ] || [ -d "$DATA/agent/etc" ] || return 0
    role=server
    [ ! -f /etc/systemd/system/k3s-agent.service ] || role=agent
    flags $role > "$work/flags"
    [ -s "$work/flags" ] || return 0
    faults=0
    while read -r name; do
        [ -n "$name" ] || continue
        was=$(key "$old" "$name")
        [ -n "$was" ] || was=$(sed -n "s/^$name=//p" "$work/flags" | head -n 1)
        wanted=$(key "$work/config.yaml" "$name")
        case $name in node-name | node-ip) [ -n "$was" ] || was=$wanted ;; esac # taken from the machine, unasked
        if [ "$was" != "$wanted" ] && ! same_as_taken "$was" "$name" "$wanted"; then
            faults=$((faults + 1))
            say "[K3S-09] $(hostname): found a change of $name from ${was:-nothing} to ${wanted:-nothing}; expected no" \
                "change in a living cluster; put the document back, or follow docs/operacoes/k3s-rebuild.md"
        fi
    done < "$work/frozen"
    [ "$faults" -eq 0 ] || exit 3
}

# systemd unit of a role: flags live in the config file alone (K3S-11).
write_unit() {
    unit=$1 role=$2
    cat > "$work/unit" <<UNIT
[Unit]
Description=K3s $role
Documentation=https://docs.k3s.io
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
EnvironmentFile=-/etc/default/%N
KillMode=process
Delegate=yes
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s
ExecStartPre=/bin/sh /usr/local/lib/fleet/k3s-guard
ExecStartPre=-/bin/mount --make-rshared /
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/local/bin/k3s $role

[Install]
WantedBy=multi-user.target
UNIT
    put "$work/guard" /usr/local/lib/fleet/k3s-guard 0755 >/dev/null
    if [ -n "$(put "$work/unit" "/etc/systemd/system/$unit.service" 0644)" ]; then
        systemctl daemon-reload
        changed_unit=yes
    fi
    systemctl enable "$unit" >/dev/null 2>&1 ||
        stop K3S-11 "systemctl enable $unit failing" "the unit enabled" "run it on the node and read what it says"
    # Flags in these would act beside the config file.
    for leftover in "/etc/systemd/system/$unit.service.env" "/etc/default/$unit"; do
        if [ -s "$leftover" ] && grep -q '^K3S_' "$leftover"; then
            stop K3S-11 "K3S_ variables in $leftover" "flags in $CONF/config.yaml alone" "move them into the document"
        fi
    done
}

# write_renewal UNIT: certificates last a year; see renew.sh. Runs on the node's own day of the week.
write_renewal() {
    case $1 in
    k3s) certificate=$DATA/server/tls/client-admin.crt ;;
    *) certificate=$DATA/agent/client-kubelet.crt ;;
    esac
    put "$work/renew" /usr/local/lib/fleet/k3s-renew 0755 >/dev/null
    cat > "$work/renew.service" <<UNIT
[Unit]
Description=Restart of K3s before its certificates end

[Service]
Type=oneshot
ExecStart=/bin/sh /usr/local/lib/fleet/k3s-renew $1 $certificate
UNIT
    cat > "$work/renew.timer" <<UNIT
[Unit]
Description=Weekly look at the certificates of K3s

[Timer]
OnCalendar=$(setting node renew_on) 03:00
Persistent=true

[Install]
WantedBy=timers.target
UNIT
    new=$(put "$work/renew.service" /etc/systemd/system/fleet-k3s-renew.service 0644)
    new=$new$(put "$work/renew.timer" /etc/systemd/system/fleet-k3s-renew.timer 0644)
    if [ -n "$new" ]; then
        systemctl daemon-reload
        systemctl enable --now fleet-k3s-renew.timer >/dev/null 2>&1 ||
            stop K3S-11 "systemctl enable --now fleet-k3s-renew.timer failing" "the timer running" "run it on the node"
    fi
}

restarts() { systemctl show -p NRestarts "$1" 2>/dev/null | cut -d = -f 2; }

# complaints UNIT: what the journal says about why it does not come up. An agent that is turned away says so as info.
complaints() {
    journalctl -u "$1" -n 300 --no-pager -o cat 2>/dev/null |
        grep -E 'level=(fatal|error|warning)|Node password rejected|401 Unauthorized' || true
}

# turned_away UNIT: how often the cluster refused this node; no waiting mends what that names.
turned_away() { complaints "$1" | grep -cE 'Node password rejected|401 Unauthorized|token CA hash does not match' || true; }

# remedy UNIT COMPLAINTS: what to do about them.
remedy() {
    forget="on another server of the cluster: k3s kubectl delete node $(hostname) (its etcd member and node password go too)"
    case $2 in
        *'duplicate node name found'*) echo "a rebuilt server whose former member is still listed; $forget; then run the update again" ;;
        *'Node password rejected'*) echo "a rebuilt node that is still registered; $forget; then run the update again" ;;
        *'401 Unauthorized'* | *'token CA hash does not match'*)
            echo "the token in $CONF/token is not this cluster's, or the node belongs to another cluster: remove the file and run the" \
                "update again with --replace for the node's token command" ;;
        *'critical configuration value mismatch'*)
            echo "a server with other critical settings than the cluster's: compare $CONF/config.yaml of the servers (K3S-10)" ;;
        *) echo "read the lines above and journalctl -u $1 on the node, then run the update again" ;;
    esac
}

# settle UNIT SECONDS FOUND EXPECTED CHECK...: polls a check of a started unit. A rising restart count is the sign of a
# fatal error, and so is a cluster that turns the node away: then, or when the time is up, shows the journal's last
# complaints and stops.
settle() {
    unit=$1 limit=$2 found=$3 expected=$4
    shift 4
    first=$(restarts "$unit")
    refused=$(turned_away "$unit")
    deadline=$(($(date +%s) + limit))
    while ! "$@"; do
        now=$(restarts "$unit")
        if [ "${now:-0}" -gt $((${first:-0} + 2)) ]; then found="$unit restarting again and again"; break; fi
        if [ "$(turned_away "$unit")" -gt $((refused + 2)) ]; then found="$unit turned away by its cluster again and again"; break; fi
        if [ "$(date +%s)" -ge "$deadline" ]; then found="$found after $limit s"; break; fi
        sleep 1
    done
    if "$@"; then return 0; fi
    last=$(complaints "$unit" | tail -n 5)
    say "last complaints of $unit:"
    say "$last"
    stop K3S-10 "$found" "$expected" "$(remedy "$unit" "$last")"
}

active() { [ "$(systemctl is-active "$1" 2>/dev/null)" = active ]; }

# launch UNIT SECONDS: (re)starts without blocking, because a join that cannot end would block for ever.
launch() {
    # Not one restart: right after it the old process would still count as active.
    systemctl stop "$1"
    systemctl reset-failed "$1" >/dev/null 2>&1 || true
    systemctl start --no-block "$1"
    settle "$1" "$2" "$1 not active" "a running node" active "$1"
}

wanted_label() { [ -n "$(awk -F= -v name="$1" '$1 == name' "$work/labels.sorted")" ]; }

# reconcile_labels NODE: K3s sets labels when it registers a node and never again.
reconcile_labels() {
    node=$1 record=$STATE/node-labels
    mkdir -p "$STATE"
    touch "$record"
    sort "$work/labels" > "$work/labels.sorted"
    args=''
    while IFS= read -r pair; do [ -z "$pair" ] || args="$args $pair"; done < "$work/labels.sorted"
    while IFS= read -r pair; do
        name=${pair%%=*}
        [ -z "$name" ] || wanted_label "$name" || args="$args $name-"
    done < "$record"
    # shellcheck disable=SC2086 # label pairs hold no blanks: the document's schema allows none
    [ -z "$args" ] || kubectl label node "$node" --overwrite $args >/dev/null
    cp "$work/labels.sorted" "$record"
}
