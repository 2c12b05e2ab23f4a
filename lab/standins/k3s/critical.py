"""Settings that all servers of a cluster must agree on, and what a node learns of them."""

from . import log
from .join import Refused, Supervisor, Unreachable
from .kubeapi import Json
from .log import Fatal
from .network import first_address
from .settings import Settings

_TEXTS = ("cluster-domain", "egress-selector-mode", "flannel-backend")
_LISTS = ("cluster-cidr", "service-cidr")
_SWITCHES = (
    "disable-cloud-controller",
    "disable-helm-controller",
    "disable-network-policy",
    "embedded-registry",
    "flannel-external-ip",
    "flannel-ipv6-masq",
    "secrets-encryption",
)


def published(settings: Settings) -> Json:
    """Answer of /v1-k3s/config: by flag, where K3s has the names of its Go fields."""
    dns = settings.items("cluster-dns") or [first_address(settings.items("service-cidr")[0], 10)]
    values: Json = {name: settings.text(name) for name in _TEXTS}
    values |= {name: ",".join(settings.items(name)) for name in _LISTS}
    values |= {name: settings.on(name) for name in (*_SWITCHES, "disable-kube-proxy")}
    return values | {"cluster-dns": ",".join(dns), "disable servicelb": "servicelb" in settings.items("disable")}


async def compare(settings: Settings, supervisor: Supervisor) -> None:
    """Raises Fatal on any difference from the server that is joined; disable-kube-proxy isn't compared, as in K3s."""
    try:
        theirs = await supervisor.json("/v1-k3s/config")
    except (Refused, Unreachable) as problem:
        log.warning(f"Skipping cluster configuration validation: {problem}")
        return
    ours = published(settings)
    differing = [name for name in ours if name != "disable-kube-proxy" and ours[name] != theirs.get(name)]
    for name in differing:
        log.warning(f"critical configuration mismatched: {name}")
    if differing:
        raise Fatal(
            "Error: preparing server: failed to bootstrap cluster data: failed to validate server configuration: "
            "critical configuration value mismatch between servers"
        )
