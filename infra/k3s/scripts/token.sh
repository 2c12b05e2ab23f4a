# Puts the join token where the config file says. K3s reads it at its start; a running node needs no restart.
receive
put "$work/token" "$CONF/token" 0600 >/dev/null
