"""Stand-in for the `k3s` binary inside a lab node: real etcd, real kube-apiserver, no containers.

It accepts, ignores and refuses what K3s 1.32 does, so that configuration, scripts and joins are tested against the
behaviour that counts. Left out: containerd (kwok makes Pods ready), packets of a CNI, the helm controller, embedded
registry, scheduled snapshots, `crictl`, `ctr` and `secrets-encrypt`.
"""

VERSION = "v1.32.13+k3s1"
COMMIT = "00000000"  # K3s prints eight hex digits here; these are visibly nobody's commit
