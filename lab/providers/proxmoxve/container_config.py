"""The inputs of a container as parameters of the PVE API, and a container's config as inputs again."""

from collections.abc import Callable
from typing import Any, Final

from lab.providers.proxmoxve.notation import flag, is_set, joined, parted, size_gib
from lab.providers.proxmoxve.vm_config import Parameters, numbered, startup_seen
from lab.providers.values import Properties


def devices(p: Properties) -> Parameters:
    return {
        f"dev{at}": joined(
            {
                "path": device["path"],
                "deny-write": flag(device["denyWrite"]),
                "gid": device["gid"],
                "mode": device["mode"],
                "uid": device["uid"],
            }
        )
        for at, device in enumerate(p.get("devicePassthroughs", []))
    }


def _cpu(p: Properties) -> Parameters:
    cpu = p["cpu"]
    optional = {"cpulimit": cpu["limit"], "cpuunits": cpu["units"]}
    return {"arch": cpu["architecture"], "cores": str(cpu["cores"])} | {
        name: str(value) for name, value in optional.items() if value
    }


def _features(p: Properties) -> Parameters:
    if "features" not in p:
        return {}
    features = p["features"]
    values: dict[str, Any] = {name: "1" for name in ("fuse", "keyctl") if features[name]}
    values["mount"] = ";".join(features.get("mounts", [])) or None
    values["nesting"] = flag(features["nesting"])
    return {"features": joined(values)}


def _network(p: Properties) -> Parameters:
    ips = p.get("initialization", {}).get("ipConfigs", [])
    found = {}
    for at, nic in enumerate(p.get("networkInterfaces", [])):
        ip = ips[at] if at < len(ips) else {}
        v4, v6 = ip.get("ipv4", {}), ip.get("ipv6", {})
        found[f"net{at}"] = joined(
            {
                "name": nic["name"],
                "bridge": nic["bridge"],
                "firewall": "1" if nic["firewall"] else None,
                "hwaddr": nic.get("macAddress") or None,
                "ip": v4.get("address") or None,
                "gw": v4.get("gateway") or None,
                "ip6": v6.get("address") or None,
                "gw6": v6.get("gateway") or None,
                "mtu": nic.get("mtu") or None,
                "rate": nic.get("rateLimit") or None,
                "tag": nic.get("vlanId") or None,
            }
        )
    return found


def _initialization(p: Properties) -> Parameters:
    init = p.get("initialization", {})
    dns = init.get("dns", {})
    servers = " ".join(dns.get("servers", [])) or dns.get("server", "")
    found = {"hostname": init.get("hostname", ""), "nameserver": servers, "searchdomain": dns.get("domain", "")}
    # The addresses are kept in the network interfaces.
    return {key: value for key, value in found.items() if value} | _network(p)


def _mounts(p: Properties) -> Parameters:
    found = {}
    for at, mount in enumerate(p.get("mountPoints", [])):
        size = mount.get("size", "").removesuffix("G")
        volume = f"{mount['volume']}:{size}" if size and ":" not in mount["volume"] else mount["volume"]
        found[f"mp{at}"] = joined(
            {
                "volume": volume,
                "mp": mount["path"],
                "acl": "1" if mount["acl"] else None,
                "backup": "1" if mount["backup"] else None,
                "mountoptions": ";".join(mount.get("mountOptions", [])) or None,
                "quota": "1" if mount["quota"] else None,
                "replicate": None if mount["replicate"] else "0",
                "ro": "1" if mount["readOnly"] else None,
                "shared": "1" if mount["shared"] else None,
            }
        )
    return found


def _startup(p: Properties) -> Parameters:
    startup = p.get("startup")
    if startup is None:
        return {}
    values = {"order": startup.get("order", -1), "up": startup.get("upDelay", -1), "down": startup.get("downDelay", -1)}
    return {"startup": joined({name: value for name, value in values.items() if value >= 0})}


BLOCKS: Final[dict[str, Callable[[Properties], Parameters]]] = {
    "console": lambda p: {"console": flag(p["console"]["enabled"]), "cmode": p["console"]["type"],
                          "tty": str(p["console"]["ttyCount"])},
    "cpu": _cpu,
    "description": lambda p: {"description": p["description"]} if p["description"] else {},
    "devicePassthroughs": devices,
    "features": _features,
    "hookScriptFileId": lambda p: {"hookscript": p["hookScriptFileId"]} if p.get("hookScriptFileId") else {},
    "initialization": _initialization,
    "memory": lambda p: {"memory": str(p["memory"]["dedicated"]), "swap": str(p["memory"]["swap"])},
    "mountPoints": _mounts,
    "networkInterfaces": _network,
    "protection": lambda p: {"protection": flag(p["protection"])},
    "startOnBoot": lambda p: {"onboot": flag(p["startOnBoot"])},
    "startup": _startup,
    "tags": lambda p: {"tags": ";".join(p.get("tags", []))},
}  # fmt: skip
"""Input property to the parameters that it sets."""


def parameters(inputs: Properties) -> Parameters:
    """Everything that creates the container."""
    found: Parameters = {}
    for block in BLOCKS.values():
        found |= block(inputs)
    disk, account = inputs["disk"], inputs.get("initialization", {}).get("userAccount", {})
    found |= {
        "ostemplate": inputs["operatingSystem"].get("templateFileId", ""),
        "ostype": inputs["operatingSystem"].get("type", "unmanaged"),
        "pool": inputs.get("poolId", ""),
        "rootfs": joined(
            {"volume": f"{disk['datastoreId']}:{disk['size']}", "acl": "1" if disk["acl"] else None,
             "mountoptions": ";".join(disk.get("mountOptions", [])) or None, "quota": "1" if disk["quota"] else None,
             "replicate": "1" if disk["replicate"] else None}
        ),
        "start": flag(inputs["started"]),
        "storage": disk["datastoreId"],
        "unprivileged": flag(inputs["unprivileged"]),
        "password": account.get("password", ""),
        "ssh-public-keys": "\n".join(key.strip() for key in account.get("keys", [])),
    }  # fmt: skip
    return {key: value for key, value in found.items() if value}


def observed(config: dict[str, Any]) -> Properties:
    """A container's config in the terms of the inputs, as far as it holds them."""
    features = parted(config["features"]) if config.get("features") else {}
    rootfs = parted(config.get("rootfs", ""), "volume")
    nets = [parted(config[key]) for key in numbered(config, "net")]
    return {
        "console": {"enabled": is_set(config.get("console", 1)), "type": config.get("cmode", "tty"),
                    "ttyCount": int(config.get("tty", 2))},
        "cpu": {"architecture": config.get("arch", "amd64"), "cores": int(config.get("cores", 1))},
        "description": str(config.get("description", "")).rstrip("\n"),
        "devicePassthroughs": [_device(config[key]) for key in numbered(config, "dev")],
        "disk": {"datastoreId": rootfs["volume"].partition(":")[0], "size": size_gib(rootfs.get("size"))},
        "features": {name: is_set(features.get(name, 0)) for name in ("fuse", "keyctl", "nesting")},
        "initialization": {
            "hostname": config.get("hostname", ""),
            "dns": {"servers": str(config.get("nameserver", "")).split(), "domain": config.get("searchdomain", "")},
            # Only of interfaces that have an address: the places of two lists differ where one has none.
            "ipConfigs": [{"ipv4": {"address": net.get("ip", ""), "gateway": net.get("gw", "")}}
                          for net in nets if "ip" in net or "gw" in net],
        },
        "memory": {"dedicated": int(config.get("memory", 512)), "swap": int(config.get("swap", 0))},
        "networkInterfaces": [
            {"name": net.get("name", ""), "bridge": net.get("bridge", ""), "macAddress": net.get("hwaddr", ""),
             "firewall": is_set(net.get("firewall", 0)), "mtu": int(net.get("mtu", 0)),
             "vlanId": int(net.get("tag", 0)), "rateLimit": float(net.get("rate", 0))}
            for net in nets
        ],
        "operatingSystem": {"type": config.get("ostype", "unmanaged")},
        "protection": is_set(config.get("protection", 0)),
        "startOnBoot": is_set(config.get("onboot", 0)),
        "startup": startup_seen(config),
        "tags": [tag for tag in str(config.get("tags", "")).split(";") if tag],
        "unprivileged": is_set(config.get("unprivileged", 0)),
    }  # fmt: skip


def _device(text: str) -> Properties:
    device = parted(text, "path")
    return {"path": device["path"], "mode": device.get("mode", "0660"), "uid": int(device.get("uid", 0)),
            "gid": int(device.get("gid", 0)), "denyWrite": is_set(device.get("deny-write", 0))}  # fmt: skip
