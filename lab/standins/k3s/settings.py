"""Flags of `server`, `agent` and `etcd-snapshot`, merged from config files, command line and environment as K3s does.

Every flag of the 1.32 line that a configuration is likely to name is known, so that an unknown one is treated as K3s
treats it; most of them have no effect here. K3s, "Configuration Options".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

from . import log
from .log import Fatal

Role = Literal["server", "agent", "etcd-snapshot"]

# name | kind (b bool, s string, l list) | roles (Server, Agent, Etcd-snapshot) | default | environment variable
_TABLE = """
config s SAE /etc/rancher/k3s/config.yaml K3S_CONFIG_FILE
debug b SAE - K3S_DEBUG
v s SA
vmodule s SA
log s SAE
alsologtostderr b SA
data-dir s SAE /var/lib/rancher/k3s K3S_DATA_DIR
token s SAE - K3S_TOKEN
token-file s SA - K3S_TOKEN_FILE
agent-token s S - K3S_AGENT_TOKEN
agent-token-file s S - K3S_AGENT_TOKEN_FILE
server s SAE - K3S_URL
cluster-init b S - K3S_CLUSTER_INIT
cluster-reset b S - K3S_CLUSTER_RESET
cluster-reset-restore-path s S
bind-address s SA
https-listen-port s S 6443
advertise-address s S
advertise-port s S
tls-san l S
tls-san-security b S true
node-name s SAE - K3S_NODE_NAME
with-node-id b SA
node-ip l SA
node-external-ip l SA
node-internal-dns l SA
node-external-dns l SA
node-label l SA
node-taint l SA
cluster-cidr l S 10.42.0.0/16
service-cidr l S 10.43.0.0/16
cluster-dns l S
cluster-domain s S cluster.local
service-node-port-range s S 30000-32767
flannel-backend s S vxlan
flannel-iface s SA
flannel-conf s SA
flannel-cni-conf s SA
flannel-external-ip b S
flannel-ipv6-masq b S
egress-selector-mode s S agent
servicelb-namespace s S kube-system
multus b S
helm-job-image s S
disable l S
disable-network-policy b S
disable-kube-proxy b S
disable-helm-controller b S
disable-cloud-controller b S
disable-scheduler b S
disable-agent b S
disable-apiserver b S
disable-controller-manager b S
disable-etcd b S
disable-apiserver-lb b A
disable-default-registry-endpoint b SA
kube-apiserver-arg l S
kube-controller-manager-arg l S
kube-cloud-controller-manager-arg l S
kube-scheduler-arg l S
etcd-arg l S
kubelet-arg l SA
kube-proxy-arg l SA
protect-kernel-defaults b SA
secrets-encryption b S
secrets-encryption-provider s S aescbc
write-kubeconfig s S /etc/rancher/k3s/k3s.yaml K3S_KUBECONFIG_OUTPUT
write-kubeconfig-mode s S 0600 K3S_KUBECONFIG_MODE
write-kubeconfig-group s S - K3S_KUBECONFIG_GROUP
default-runtime s SA
snapshotter s SA overlayfs
pause-image s SA
private-registry s SA /etc/rancher/k3s/registries.yaml
system-default-registry s S
embedded-registry b S
airgap-extra-registry l SA
image-service-endpoint s SA
nonroot-devices b SA
container-runtime-endpoint s SA
default-local-storage-path s S
docker b SA
selinux b SA - K3S_SELINUX
prefer-bundled-bin b SA
resolv-conf s SA - K3S_RESOLV_CONF
lb-server-port s SA 6444
rootless b SA
enable-pprof b SA
supervisor-metrics b S
vpn-auth s SA
vpn-auth-file s SA
kine-tls b S
datastore-endpoint s S - K3S_DATASTORE_ENDPOINT
datastore-cafile s S
datastore-certfile s S
datastore-keyfile s S
etcd-expose-metrics b S
etcd-disable-snapshots b S
etcd-snapshot-schedule-cron s S
etcd-snapshot-retention s S 5
etcd-snapshot-dir s SE
etcd-snapshot-name s S etcd-snapshot
etcd-snapshot-compress b S
etcd-snapshot-reconcile-interval s S
etcd-s3 b SE
etcd-s3-endpoint s SE
etcd-s3-endpoint-ca s SE
etcd-s3-skip-ssl-verify b SE
etcd-s3-insecure b SE
etcd-s3-access-key s SE
etcd-s3-secret-key s SE
etcd-s3-bucket s SE
etcd-s3-region s SE
etcd-s3-folder s SE
etcd-s3-proxy s SE
etcd-s3-timeout s SE
etcd-s3-retention s SE
etcd-s3-config-secret s SE
etcd-s3-bucket-lookup-type s SE
etcd-s3-session-token s SE
name s E on-demand
dir s E
compress b E
snapshot-compress b E
snapshot-retention s E 5
output s E
"""
_SHORT = {"c": "config", "d": "data-dir", "t": "token", "s": "server", "o": "output"}
_COMMA_LISTS = {"disable", "tls-san", "node-ip", "node-external-ip", "cluster-cidr", "service-cidr", "cluster-dns"}


@dataclass(frozen=True)
class Flag:
    name: str
    kind: Literal["b", "s", "l"]
    roles: str
    default: str
    env: str


def _parse_table() -> dict[str, Flag]:
    flags: dict[str, Flag] = {}
    for line in _TABLE.split("\n"):
        words = line.split()
        if words:
            name, kind, roles, default, env = [*words, "-", "-"][:5]
            assert kind in ("b", "s", "l")
            flags[name] = Flag(name, kind, roles, "" if default == "-" else default, "" if env == "-" else env)  # type: ignore[arg-type]  # narrowed by the assert, which mypy does not carry over
    return flags


FLAGS = _parse_table()


@dataclass
class Settings:
    """What one command was told; a name that its role does not know is a programming error and raises KeyError."""

    values: dict[str, list[str]]
    rest: list[str] = field(default_factory=list)  # words that are no flags: names of snapshots
    explicit: set[str] = field(default_factory=set)  # flags that somebody set

    def on(self, name: str) -> bool:
        return bool(self.values[name]) and self.values[name][-1].lower() in ("true", "1", "t")

    def text(self, name: str) -> str:
        values = self.values[name]
        return values[-1] if values else ""

    def items(self, name: str) -> list[str]:
        values = self.values[name]
        if name in _COMMA_LISTS:
            return [part.strip() for value in values for part in value.split(",") if part.strip()]
        return list(values)


def load(role: Role, argv: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Raises Fatal on an unknown flag, and for an agent on an unknown key of its file."""
    known = {name: flag for name, flag in FLAGS.items() if role[0].upper() in flag.roles}
    given, rest = _command_line(argv, known)
    path = (given.get("config") or [env.get("K3S_CONFIG_FILE", "")])[-1] or known["config"].default
    values: dict[str, list[str]] = {}
    for key, found in _config_files(Path(path)).items():
        if key in known:
            values[key] = found
        elif role == "agent":
            raise Fatal(f"flag provided but not defined: -{key}")
        else:
            log.warning(f"Unknown flag --{key} found in config.yaml, skipping")
    values.update(given)
    for flag in known.values():
        if flag.name not in values and flag.env and env.get(flag.env):
            values[flag.name] = [env[flag.env]]
    settings = Settings(values, rest, set(values))
    for flag in known.values():
        if flag.name not in values or (flag.kind == "s" and not values[flag.name][-1]):
            values[flag.name] = [flag.default] if flag.default else []
        if flag.kind == "b" and values[flag.name] and values[flag.name][-1].lower() not in _BOOLEANS:
            raise Fatal(f'invalid boolean value "{values[flag.name][-1]}" for -{flag.name}: parse error')
    return settings


_BOOLEANS = ("true", "false", "1", "0", "t", "f")


def _command_line(argv: Sequence[str], known: Mapping[str, Flag]) -> tuple[dict[str, list[str]], list[str]]:
    given: dict[str, list[str]] = {}
    rest: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = _SHORT.get(name, name)
        if name not in known:
            raise Fatal(f"flag provided but not defined: -{name}")
        if not equals:
            if known[name].kind == "b":
                value = "true"
            elif words:
                value = words.pop(0)
            else:
                raise Fatal(f"flag needs an argument: -{name}")
        if known[name].kind == "l":
            given.setdefault(name, []).append(value)
        else:
            given[name] = [value]
    return given, rest


def _config_files(main: Path) -> dict[str, list[str]]:
    """A later file replaces a key as a whole, except `key+`, which adds to what earlier files gave."""
    folder = main.with_name(main.name + ".d")
    dropins = sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml")) if folder.is_dir() else []
    merged: dict[str, list[str]] = {}
    for path in [p for p in [main] if p.is_file()] + dropins:
        try:
            document = yaml.safe_load(path.read_text())
        except (yaml.YAMLError, UnicodeDecodeError) as problem:
            raise Fatal(f"failed to read {path}: {problem}") from None
        if document is None:
            continue
        if not isinstance(document, dict):
            raise Fatal(f"failed to read {path}: found {type(document).__name__}, expected a mapping of flag names")
        for key, value in document.items():
            name, adds = str(key).removesuffix("+"), str(key).endswith("+")
            found = [_text(v) for v in value] if isinstance(value, list) else [_text(value)]
            merged[name] = merged.get(name, []) + found if adds else found
    return merged


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def component_args(own: Mapping[str, str], user: Sequence[str]) -> list[str]:
    """Own arguments of a component overlaid with `name=value`, `name+=value` (append) and `name-=value` (prepend)."""
    merged = dict(own)
    for argument in user:
        name, _, value = argument.lstrip("-").partition("=")
        if name.endswith("+") and name[:-1] in merged:
            merged[name[:-1]] += "," + value
        elif name.endswith("-") and name[:-1] in merged:
            merged[name[:-1]] = value + "," + merged[name[:-1]]
        else:
            merged[name.rstrip("+-")] = value
    return [f"--{name}={value}" for name, value in merged.items()]
