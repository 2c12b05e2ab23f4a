"""What the API servers hold of BGP and the mesh, in words for `fleet lab status`.

Objects alone: no agent of Cilium runs in a lab, so nothing here says that a session is up.
"""

from collections.abc import Callable
from typing import Any

Objects = list[dict[str, Any]]
KINDS = ("ciliumbgpclusterconfigs", "ciliumbgpadvertisements", "ciliumloadbalancerippools")
API_SERVICE = "clustermesh-api"  # of the program; the chart's own is for agents of the cluster
MESH_SECRET = "cilium-clustermesh"  # one entry for each remote cluster


def found(get: Callable[..., Objects]) -> dict[str, list[str]]:
    """Peers, advertisements, pools and remote clusters; `get` takes arguments of `kubectl get`."""
    configs, advertisements, pools = (get(kind) for kind in KINDS)
    secrets = get("secrets", "-n", "kube-system", "--field-selector", f"metadata.name={MESH_SECRET}")
    services = get("services", "-n", "kube-system", "--field-selector", f"metadata.name={API_SERVICE}")
    return {
        "bgp": [line for config in configs for line in _peers(config)],
        "advertised": [line for one in advertisements for line in _advertised(one)],
        "pools": [line for pool in pools for line in _pool(pool)],
        "mesh": [*(line for one in services for line in _mesh_api(one)), *_remotes(secrets)],
    }


def lines(peering: dict[str, list[str]]) -> str:
    """For a cell of a table."""
    return "\n".join(f"{kind} {line}" for kind, told in peering.items() for line in told) or "-"


def _peers(config: dict[str, Any]) -> list[str]:
    return [
        f"AS {instance.get('localASN')} to {peer.get('peerAddress')} AS {peer.get('peerASN')}"
        for instance in config["spec"].get("bgpInstances", [])
        for peer in instance.get("peers", [])
    ]


def _advertised(advertisement: dict[str, Any]) -> list[str]:
    return [
        ", ".join([entry["advertisementType"], *entry.get("service", {}).get("addresses", [])])
        for entry in advertisement["spec"].get("advertisements", [])
    ]


def _pool(pool: dict[str, Any]) -> list[str]:
    name = pool["metadata"]["name"]
    return [f"{name} {_block(block)}" for block in pool["spec"].get("blocks", [])]


def _block(block: dict[str, Any]) -> str:
    first, last = block.get("cidr") or block["start"], block.get("stop")
    return f"{first}{f' to {last}' if last and last != first else ''}"


def _mesh_api(service: dict[str, Any]) -> list[str]:
    given = (service.get("status") or {}).get("loadBalancer", {}).get("ingress") or []
    return [f"API {', '.join(entry['ip'] for entry in given) or 'without an address'}"]


def _remotes(secrets: Objects) -> list[str]:
    """Names of the entries; what they hold stays where it is."""
    keys = {key for secret in secrets for key in secret.get("data") or {}}
    return [f"remote {name}" for name in sorted(keys) if "." not in name]
