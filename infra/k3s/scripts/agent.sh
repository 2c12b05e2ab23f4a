# Brings one agent to the state of its document. Repeatable; changes nothing where nothing differs.
receive
node=$(setting node name)
api=$(setting node api)
limit=$(setting node timeout_s)
need curl curl
changed_binary='' changed_unit=''
if [ -f /etc/systemd/system/k3s.service ]; then
    stop K3S-11 "a K3s server on this node" "an agent" "drain and remove the server first, one member at a time"
fi
until_true 60 answers "$api" || stop K3S-10 "no answer of the API at $api" "a running cluster to join" "start its servers first"
frozen
install_k3s
mkdir -p "$CONF"
changed_config=$(put "$work/config.yaml" "$CONF/config.yaml" 0600)
write_unit k3s-agent agent
if [ -n "$changed_config$changed_binary$changed_unit" ] || ! active k3s-agent; then
    launch k3s-agent "$limit"
fi
write_renewal k3s-agent
