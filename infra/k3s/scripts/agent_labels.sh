# Run on a server: waits for an agent to register, then sets its labels, which an agent may not set itself.
receive
node=$(setting node name)
limit=$(setting node timeout_s)
registered() { kubectl get node "$node" >/dev/null 2>&1; }
until_true "$limit" registered ||
    stop K3S-10 "no node $node after $limit s" "the agent registered" "journalctl -u k3s-agent on $node: an agent with a wrong token retries for ever"
STATE=$STATE/agents/$node
reconcile_labels "$node"
