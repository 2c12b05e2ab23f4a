"""The inputs of a VM as parameters of the PVE API, and a VM's config as inputs again."""

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, unquote

from lab.providers.proxmoxve.notation import flag, is_set, joined, parted, size_gib
from lab.providers.values import Properties

Parameters = dict[str, str]

SPEEDS: Final = {
    "read": "mbps_rd",
    "readBurstable": "mbps_rd_max",
    "write": "mbps_wr",
    "writeBurstable": "mbps_wr_max",
    "iopsRead": "iops_rd",
    "iopsReadBurstable": "iops_rd_max",
    "iopsWrite": "iops_wr",
    "iopsWriteBurstable": "iops_wr_max",
}
BOOT_DISKS: Final = ("ide0", "sata0", "scsi0", "virtio0")
CDROM: Final = "ide3"  # an empty drive that the provider adds to every VM
USER_FILES: Final = {"userDataFileId": "user", "vendorDataFileId": "vendor", "networkDataFileId": "network",
                     "metaDataFileId": "meta"}  # fmt: skip


def disk_options(disk: Properties) -> dict[str, Any]:
    """The options of a drive, without its volume and size."""
    speed = disk.get("speed", {})
    options: dict[str, Any] = {
        "aio": disk["aio"],
        "backup": flag(disk["backup"]),
        "cache": disk["cache"],
        "discard": disk["discard"],
        "iothread": flag(disk["iothread"]),
        "replicate": flag(disk["replicate"]),
        "serial": disk.get("serial") or None,
    }
    if not disk["interface"].startswith("virtio"):
        options["ssd"] = flag(disk["ssd"])
    return options | {wire: speed[name] for name, wire in SPEEDS.items() if speed.get(name)}


def new_disk(disk: Properties) -> str:
    """A drive whose volume is made by the call: empty of the given size, or a copy of an image."""
    imported = disk.get("importFrom")
    volume = f"{disk['datastoreId']}:{0 if imported else disk['size']}"
    return joined({"file": volume, "import-from": imported, "format": disk["fileFormat"], **disk_options(disk)})


def _agent(p: Properties) -> Parameters:
    agent = p["agent"]
    enabled, trim = flag(agent["enabled"]), flag(agent["trim"])
    return {"agent": joined({"enabled": enabled, "fstrim_cloned_disks": trim, "type": agent["type"]})}


def _cpu(p: Properties) -> Parameters:
    cpu = p["cpu"]
    flags = ";".join(cpu.get("flags", []))
    optional = {"cpulimit": cpu["limit"], "cpuunits": cpu["units"], "vcpus": cpu["hotplugged"],
                "arch": cpu.get("architecture"), "affinity": cpu.get("affinity")}  # fmt: skip
    return {
        "cores": str(cpu["cores"]),
        "sockets": str(cpu["sockets"]),
        "numa": flag(cpu["numa"]),
        "cpu": joined({"cputype": cpu["type"], "flags": flags or None}),
    } | {name: str(value) for name, value in optional.items() if value}


def _memory(p: Properties) -> Parameters:
    memory = p["memory"]
    return {"memory": str(memory["dedicated"]), "balloon": str(memory["floating"])} | (
        {"hugepages": memory["hugepages"]} if memory.get("hugepages") else {}
    )


def _network(p: Properties) -> Parameters:
    return {
        f"net{at}": joined(
            {
                "model": nic["model"],
                "bridge": nic["bridge"],
                "firewall": flag(nic["firewall"]),
                "macaddr": nic.get("macAddress") or None,
                "mtu": nic.get("mtu") or None,
                "queues": nic.get("queues") or None,
                "rate": nic.get("rateLimit") or None,
                "tag": nic.get("vlanId") or None,
                "trunks": nic.get("trunks") or None,
            }
        )
        for at, nic in enumerate(p.get("networkDevices", []))
        if nic["enabled"]
    }


def _initialization(p: Properties) -> Parameters:
    if "initialization" not in p:
        return {}
    init = p["initialization"]
    dns, account = init.get("dns", {}), init.get("userAccount", {})
    files = {wire: f"{init[name]}" for name, wire in USER_FILES.items() if init.get(name)}
    found = {
        "nameserver": " ".join(dns.get("servers", [])),
        "searchdomain": dns.get("domain", ""),
        "ciuser": account.get("username", ""),
        "cipassword": account.get("password", ""),
        # PVE wants the keys URL-encoded inside the form, which encodes them once more.
        "sshkeys": quote("\n".join(key.strip() for key in account.get("keys", [])), safe=""),
        "cicustom": joined(files),
        "citype": init.get("type", ""),
        "ciupgrade": flag(init["upgrade"]) if "upgrade" in init else "",
    }
    for at, ip in enumerate(init.get("ipConfigs", [])):
        v4, v6 = ip.get("ipv4", {}), ip.get("ipv6", {})
        found[f"ipconfig{at}"] = joined(
            {"ip": v4.get("address"), "gw": v4.get("gateway"), "ip6": v6.get("address"), "gw6": v6.get("gateway")}
        )
    return {key: value for key, value in found.items() if value}


def _hostpci(p: Properties) -> Parameters:
    return {
        device["device"]: joined(
            {
                "host": device.get("id") or None,
                "mapping": device.get("mapping") or None,
                "mdev": device.get("mdev") or None,
                "pcie": flag(device["pcie"]),
                "rombar": flag(device["rombar"]),
                "x-vga": flag(device["xvga"]),
            }
        )
        for device in p.get("hostpcis", [])
    }


def _numa(p: Properties) -> Parameters:
    return {
        node["device"]: joined(
            {"cpus": node["cpus"], "hostnodes": node.get("hostnodes"), "memory": node["memory"],
             "policy": node.get("policy", "preferred")}
        )
        for node in p.get("numas", [])
    }  # fmt: skip


def _boot(p: Properties) -> Parameters:
    cdrom = p.get("cdrom", {}).get("interface", CDROM)
    disks = {disk["interface"] for disk in p["disks"]}
    order = p.get("bootOrders") or [cdrom, *(name for name in BOOT_DISKS if name in disks)] + (
        ["net0"] if p.get("networkDevices") else []
    )
    return {"boot": f"order={';'.join(order)}"}


def _cdrom(p: Properties) -> Parameters:
    drive = p.get("cdrom", {})
    return {drive.get("interface", CDROM): f"file={drive.get('fileId') or 'cdrom'},media=cdrom"}


def _startup(p: Properties) -> Parameters:
    startup = p.get("startup")
    if startup is None:
        return {}
    values = {"order": startup.get("order", -1), "up": startup.get("upDelay", -1), "down": startup.get("downDelay", -1)}
    return {"startup": joined({name: value for name, value in values.items() if value >= 0})}


BLOCKS: Final[dict[str, Callable[[Properties], Parameters]]] = {
    "acpi": lambda p: {"acpi": flag(p["acpi"])},
    "agent": _agent,
    "bios": lambda p: {"bios": p["bios"]},
    "bootOrders": _boot,
    "cdrom": _cdrom,
    "cpu": _cpu,
    "description": lambda p: {"description": p["description"]} if p["description"] else {},
    "hookScriptFileId": lambda p: {"hookscript": p["hookScriptFileId"]} if p.get("hookScriptFileId") else {},
    "hostpcis": _hostpci,
    "initialization": _initialization,
    "keyboardLayout": lambda p: {"keyboard": p["keyboardLayout"]},
    "kvmArguments": lambda p: {"args": p["kvmArguments"]} if p.get("kvmArguments") else {},
    "machine": lambda p: {"machine": p["machine"]} if p.get("machine") else {},
    "memory": _memory,
    "name": lambda p: {"name": p["name"]} if p.get("name") else {},
    "networkDevices": _network,
    "numas": _numa,
    "onBoot": lambda p: {"onboot": flag(p["onBoot"])},
    "operatingSystem": lambda p: {"ostype": p["operatingSystem"]["type"]},
    "protection": lambda p: {"protection": flag(p["protection"])},
    "scsiHardware": lambda p: {"scsihw": p["scsiHardware"]},
    "serialDevices": lambda p: {f"serial{n}": item["device"] for n, item in enumerate(p.get("serialDevices", []))},
    "startup": _startup,
    "tabletDevice": lambda p: {"tablet": flag(p["tabletDevice"])},
    "tags": lambda p: {"tags": ";".join(p.get("tags", []))},
    "vga": lambda p: (
        {"vga": joined({"type": p["vga"].get("type", "std"), "memory": p["vga"].get("memory")})} if "vga" in p else {}
    ),
}
"""Input property to the parameters that it sets. Disks are apart: they are made, grown and removed."""


def parameters(inputs: Properties) -> Parameters:
    """Everything that creates the VM."""
    found: Parameters = {}
    for block in BLOCKS.values():
        found |= block(inputs)
    found |= {disk["interface"]: new_disk(disk) for disk in inputs["disks"]}
    if "initialization" in inputs:
        found[inputs["initialization"]["interface"]] = f"file={inputs['initialization']['datastoreId']}:cloudinit"
    if "efiDisk" in inputs:
        efi = inputs["efiDisk"]
        found["efidisk0"] = joined(
            {"file": f"{efi.get('datastoreId', 'local-lvm')}:1", "efitype": efi.get("type", "2m"),
             "pre-enrolled-keys": flag(efi.get("preEnrolledKeys", False))}
        )  # fmt: skip
    return {key: value for key, value in found.items() if value}


def observed(config: dict[str, Any]) -> Properties:
    """A VM's config in the terms of the inputs, as far as it holds them."""
    agent, cpu = parted(config.get("agent", "0"), "enabled"), parted(config.get("cpu", "qemu64"), "cputype")
    found: Properties = {
        "acpi": is_set(config.get("acpi", 1)),
        "agent": {"enabled": is_set(agent.get("enabled")), "trim": is_set(agent.get("fstrim_cloned_disks")),
                  "type": agent.get("type", "virtio")},
        "bios": config.get("bios", "seabios"),
        "bootOrders": [one for one in parted(config.get("boot", ""), "legacy").get("order", "").split(";") if one],
        "cpu": {"cores": int(config.get("cores", 1)), "sockets": int(config.get("sockets", 1)),
                "type": cpu["cputype"], "numa": is_set(config.get("numa", 0)),
                "limit": float(config.get("cpulimit", 0)),
                "units": int(config.get("cpuunits", 0)), "hotplugged": int(config.get("vcpus", 0)),
                "affinity": config.get("affinity", ""),
                "flags": [one for one in cpu.get("flags", "").split(";") if one]},
        "description": config.get("description", ""),
        "disks": [_disk(key, str(config[key])) for key in disk_keys(config)],
        "hostpcis": [_pci(key, config[key]) for key in numbered(config, "hostpci")],
        "keyboardLayout": config.get("keyboard", "en-us"),
        "kvmArguments": config.get("args", ""),
        "machine": config.get("machine", ""),
        "memory": {"dedicated": int(config.get("memory", 512)), "floating": int(config.get("balloon", 0))},
        "name": config.get("name", ""),
        "networkDevices": [_nic(str(config[key])) for key in numbered(config, "net")],
        "onBoot": is_set(config.get("onboot", 0)),
        "operatingSystem": {"type": config.get("ostype", "other")},
        "protection": is_set(config.get("protection", 0)),
        "scsiHardware": config.get("scsihw", "lsi"),
        "serialDevices": [{"device": config[key]} for key in numbered(config, "serial")],
        "startup": startup_seen(config),
        "tabletDevice": is_set(config.get("tablet", 1)),
        "tags": [tag for tag in str(config.get("tags", "")).split(";") if tag],
    }  # fmt: skip
    if "efidisk0" in config:
        efi = parted(config["efidisk0"], "file")
        found["efiDisk"] = {"datastoreId": efi["file"].partition(":")[0], "type": efi.get("efitype", "2m"),
                            "fileFormat": efi.get("format", "raw"),
                            "preEnrolledKeys": is_set(efi.get("pre-enrolled-keys", 0))}  # fmt: skip
    drive = next((key for key in config if "-cloudinit" in str(config[key])), None)
    if drive is not None:
        found["initialization"] = _seen_initialization(config, drive)
    return found


def startup_seen(config: dict[str, Any]) -> Properties | None:
    """The real provider fills what is absent in with its defaults, but only where there is a startup at all."""
    if "startup" not in config:
        return None
    startup = parted(config["startup"], "order")
    names = {"order": "order", "upDelay": "up", "downDelay": "down"}
    return {name: int(startup.get(wire, -1)) for name, wire in names.items()}


def _seen_initialization(config: dict[str, Any], drive: str) -> Properties:
    ips = [parted(config[key], "ip") for key in numbered(config, "ipconfig")]
    keys = unquote(str(config.get("sshkeys", ""))).splitlines()
    found: Properties = {
        "datastoreId": str(config[drive]).partition(":")[0],
        "interface": drive,
        "dns": {"servers": str(config.get("nameserver", "")).split(), "domain": config.get("searchdomain", "")},
        "ipConfigs": [{"ipv4": {"address": ip.get("ip", ""), "gateway": ip.get("gw", "")}} for ip in ips],
        "userAccount": {"username": config.get("ciuser", ""), "keys": [key for key in keys if key]},
    }
    custom = parted(config["cicustom"]) if config.get("cicustom") else {}
    return found | {name: custom[wire] for name, wire in USER_FILES.items() if wire in custom}


def disk_keys(config: dict[str, Any]) -> list[str]:
    """The drives that are disks, in the order of their interfaces."""
    drives = [key for kind in ("ide", "sata", "scsi", "virtio") for key in numbered(config, kind)]
    return [key for key in drives if "media=cdrom" not in str(config[key]) and "-cloudinit" not in str(config[key])]


def numbered(config: dict[str, Any], name: str) -> list[str]:
    return sorted((key for key in config if re.fullmatch(rf"{name}\d+", key)), key=lambda key: int(key[len(name) :]))


def _disk(key: str, text: str) -> Properties:
    drive = parted(text, "file")
    store, _, path = drive["file"].partition(":")
    found: Properties = {
        "interface": key,
        "datastoreId": store,
        "pathInDatastore": path,
        "size": size_gib(drive.get("size")),
        "aio": drive.get("aio", "io_uring"),
        "backup": is_set(drive.get("backup", 1)),
        "cache": drive.get("cache", "none"),
        "discard": drive.get("discard", "ignore"),
        "iothread": is_set(drive.get("iothread", 0)),
        "replicate": is_set(drive.get("replicate", 1)),
        "ssd": is_set(drive.get("ssd", 0)),
    }
    speed = {name: int(drive.get(wire, 0)) for name, wire in SPEEDS.items()}
    return found | ({"speed": speed} if any(speed.values()) else {})


def _pci(key: str, text: str) -> Properties:
    device = parted(text, "host")
    return {"device": key, "id": device.get("host", ""), "mapping": device.get("mapping", ""),
            "pcie": is_set(device.get("pcie", 0)), "rombar": is_set(device.get("rombar", 1)),
            "xvga": is_set(device.get("x-vga", 0))}  # fmt: skip


def _nic(text: str) -> Properties:
    nic = parted(text)
    model, mac = next(iter(nic.items()))
    return {
        "model": nic.get("model", model),
        "macAddress": nic.get("macaddr", mac),
        "bridge": nic.get("bridge", ""),
        "enabled": True,
        "disconnected": is_set(nic.get("link_down", 0)),
        "firewall": is_set(nic.get("firewall", 0)),
        "mtu": int(nic.get("mtu", 0)),
        "vlanId": int(nic.get("tag", 0)),
        "rateLimit": float(nic.get("rate", 0)),
        "queues": int(nic.get("queues", 0)),
    }
