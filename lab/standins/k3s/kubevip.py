"""Acts out a kube-vip static Pod: elects a holder over the real API and puts the address on the real interface.

Only what a control-plane address by ARP needs; anything else in its environment is refused, so that a wrong manifest
shows. It ends with K3s here, whereas real containers outlive the service. kube-vip, "Flags and Environment Variables".
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from . import log, vipaddress
from .kubeapi import ApiError, Json, KubeApi
from .leases import Election
from .network import default_interface
from .vipaddress import VipError

IMAGE = "ghcr.io/kube-vip/kube-vip"


class BadManifest(Exception):
    """The Pod would not do what it is here for."""


@dataclass(frozen=True)
class VipSettings:
    address: str
    interface: str
    namespace: str
    lease: str
    identity: str
    duration_s: float
    renew_deadline_s: float
    retry_s: float
    kubeconfig: Path

    @classmethod
    def of(cls, pod: Json, node: str, default_kubeconfig: Path) -> "VipSettings":
        """Raises BadManifest."""
        container = pod["spec"]["containers"][0]
        env = {e["name"]: str(e.get("value", "")) for e in container.get("env") or []}
        for entry in container.get("env") or []:
            path = ((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
            if path == "spec.nodeName":
                env[entry["name"]] = node
        if (container.get("args") or ["manager"])[0] != "manager":
            raise BadManifest(f"args: found {container['args']}, expected manager")
        if not pod["spec"].get("hostNetwork"):
            raise BadManifest(
                "hostNetwork: found false, expected true: the address would be put on the Pod's interface"
            )
        capabilities = ((container.get("securityContext") or {}).get("capabilities") or {}).get("add") or []
        if not (container.get("securityContext") or {}).get("privileged") and not {"NET_ADMIN", "NET_RAW"} <= set(
            capabilities
        ):
            raise BadManifest(f"capabilities: found {capabilities}, expected NET_ADMIN and NET_RAW")
        expected = {
            "vip_arp": "true",
            "cp_enable": "true",
            "svc_enable": "false",
            "vip_leaderelection": "true",
            "port": "6443",
        }
        defaults = {"svc_enable": "false", "port": "6443"}
        for name, value in expected.items():
            found = env.get(name, defaults.get(name, "unset"))
            if found.lower() != value:
                raise BadManifest(f"{name}: found {found}, expected {value}")
        prefix = env.get("vip_subnet") or env.get("vip_cidr") or "32"
        if prefix.lstrip("/") != "32":
            raise BadManifest(f"vip_subnet: found {prefix}, expected 32")
        if not env.get("address"):
            raise BadManifest("address: not set")
        duration, renew, retry = (
            float(env.get(name) or default)
            for name, default in (("vip_leaseduration", 15), ("vip_renewdeadline", 10), ("vip_retryperiod", 2))
        )
        if not duration > renew > retry:
            raise BadManifest(f"lease times: found {duration}, {renew}, {retry}; expected duration > deadline > retry")
        return cls(
            env["address"],
            env.get("vip_interface") or default_interface(),
            env.get("cp_namespace") or "kube-vip",
            env.get("vip_leasename") or "plndr-cp-lock",
            env.get("vip_nodename") or node,
            duration,
            renew,
            retry,
            _kubeconfig(pod, container, env.get("k8s_config_file", ""), default_kubeconfig),
        )


def _kubeconfig(pod: Json, container: Json, inside: str, default: Path) -> Path:
    """Where the file that the container sees is on the node."""
    if not inside:
        return default
    volumes = {v["name"]: (v.get("hostPath") or {}).get("path") for v in pod["spec"].get("volumes") or []}
    for mount in container.get("volumeMounts") or []:
        base, host = str(mount["mountPath"]).rstrip("/"), volumes.get(mount["name"])
        if host and (inside == base or inside.startswith(base + "/")):
            return Path(str(host).rstrip("/") + inside[len(base) :])
    raise BadManifest(f"k8s_config_file: {inside} is not in any hostPath volume of the Pod")


async def act(settings: VipSettings) -> None:
    """Never returns; holds the address while it holds the lease."""
    while True:
        try:
            api = KubeApi.from_kubeconfig(settings.kubeconfig)
            break
        except ApiError as failure:
            log.error(f"kube-vip: {failure}")
            await asyncio.sleep(settings.retry_s)
    async with api:
        election = Election(
            api,
            settings.namespace,
            settings.lease,
            settings.identity,
            duration_s=settings.duration_s,
            renew_deadline_s=settings.renew_deadline_s,
        )
        holding, complaint = False, ""
        try:
            while True:
                if await election.held():
                    if not holding:
                        problem = await asyncio.to_thread(_take, settings)
                        holding = not problem
                        if problem != complaint:
                            complaint = problem
                            if problem:
                                log.warning(f"kube-vip: {problem}")
                    if holding:
                        vipaddress.hold(settings.interface, settings.address, _lifetime(settings))
                elif holding:
                    log.info(f"kube-vip: lost the lease, dropping {settings.address}")
                    vipaddress.drop(settings.interface, settings.address)
                    holding = False
                await asyncio.sleep(settings.retry_s)
        finally:
            if holding:
                vipaddress.drop(settings.interface, settings.address)
            await election.release()


def _take(settings: VipSettings) -> str:
    """Empty, or why the address was not taken."""
    try:
        if vipaddress.held_elsewhere(settings.interface, settings.address):
            return f"{settings.address} is answered for by another machine on {settings.interface}, not taking it"
        vipaddress.hold(settings.interface, settings.address, _lifetime(settings))
        vipaddress.announce(settings.interface, settings.address)
    except (VipError, OSError) as problem:
        return str(problem)
    log.info(f"kube-vip: holding {settings.address} on {settings.interface}")
    return ""


def _lifetime(settings: VipSettings) -> int:
    return max(2, int(settings.duration_s + settings.retry_s))
