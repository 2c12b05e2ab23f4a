"""What of a guest that exists already the program states, and what it leaves as it is.

An import that differs from the real guest is followed by an update of that guest in the same run. So a guest is
declared with what its document says and nothing else, and every other property that the provider knows is ignored by
name: those that a first boot reads, those that the program chooses for guests of its own, and those that nobody ever
wrote down.

Paths are the provider's (SDK 8.6). The lists are computed from its classes, so that a newer SDK brings no new property
in that would be reset to a default. Not in a document and not kept: `rebootAfterUpdate`, which an import sets to true.
A later change of cores or memory therefore restarts an adopted VM.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import pulumi
import pulumi_proxmoxve as pve

from infra.config import Lxc, Vm


def import_id(guest: Vm | Lxc) -> str:
    """The id by which the provider finds a guest, of either kind."""
    return f"{guest.host}/{guest.vmid}"


def options(guest: Vm | Lxc, parent: pulumi.Resource, ignored: list[str]) -> pulumi.ResourceOptions:
    """Imported, protected, and left in Proxmox even where its resource goes.

    The last one matters when a guest has moved to another host: the engine then imports it anew under its new id and
    deletes what it knew under the old one, which is the same guest, without asking for the protection.
    """
    return pulumi.ResourceOptions(
        parent=parent, import_=import_id(guest), protect=True, retain_on_delete=True, ignore_changes=ignored
    )


def vm_inputs(guest: Vm) -> dict[str, Any]:
    """What a document states of a VM."""
    return {
        "node_name": guest.host,
        "vm_id": guest.vmid,
        "name": guest.name,
        "cpu": {"cores": guest.cores},
        "memory": {"dedicated": guest.memory_mib},
        "startup": {"order": guest.start_order},
        "disks": [
            # The interface is required by the SDK, and ignored: the real one may be another.
            {"interface": f"scsi{index}", "datastore_id": disk.storage, "size": disk.size_gib}
            for index, disk in enumerate(guest.disks)
        ],
        **({"tags": sorted(guest.tags)} if guest.tags else {}),
        **({"hostpcis": vm_devices(guest)} if guest.pci_mappings else {}),
    }


def vm_devices(guest: Vm) -> list[dict[str, Any]]:
    return [{"device": f"hostpci{index}", "mapping": name} for index, name in enumerate(guest.pci_mappings)]


def vm_ignored(guest: Vm) -> list[str]:
    return [
        *_others(pve.VmLegacyArgs, vm_inputs(guest)),
        *_within("cpu", pve.VmLegacyCpuArgsDict, "cores"),
        *_within("memory", pve.VmLegacyMemoryArgsDict, "dedicated"),
        *_within("startup", pve.VmLegacyStartupArgsDict, "order"),
        *_items("disks", len(guest.disks), pve.VmLegacyDiskArgsDict, "datastore_id", "size"),
        *_items("hostpcis", len(guest.pci_mappings), pve.VmLegacyHostpciArgsDict, "device", "mapping"),
    ]


def container_inputs(guest: Lxc) -> dict[str, Any]:
    """What a document states of a container."""
    return {
        "node_name": guest.host,
        "vm_id": guest.vmid,
        "cpu": {"cores": guest.cores},
        "memory": {"dedicated": guest.memory_mib},
        "startup": {"order": guest.start_order},
        "disk": {"datastore_id": guest.disk.storage, "size": guest.disk.size_gib},
        "unprivileged": not guest.privileged,
        # Proxmox forgets the template of a container, but the provider wants one named: an empty name is no change.
        "operating_system": {"template_file_id": ""},
        **({"tags": sorted(guest.tags)} if guest.tags else {}),
        **({"features": {"nesting": guest.nesting, "keyctl": guest.keyctl}} if guest.nesting or guest.keyctl else {}),
        **({"device_passthroughs": [{"path": device} for device in guest.devices]} if guest.devices else {}),
    }


def container_ignored(guest: Lxc) -> list[str]:
    return [
        "vmId",  # the provider's read leaves it unset; the import id has it
        *_others(pve.ContainerLegacyArgs, container_inputs(guest)),
        *_within("cpu", pve.ContainerLegacyCpuArgsDict, "cores"),
        *_within("memory", pve.ContainerLegacyMemoryArgsDict, "dedicated"),
        *_within("startup", pve.ContainerLegacyStartupArgsDict, "order"),
        *_within("disk", pve.ContainerLegacyDiskArgsDict, "datastore_id", "size"),
        *_within("operatingSystem", pve.ContainerLegacyOperatingSystemArgsDict, "template_file_id"),
        *(
            _within("features", pve.ContainerLegacyFeaturesArgsDict, "nesting", "keyctl")
            if guest.nesting or guest.keyctl
            else ()
        ),
        *_items("devicePassthroughs", len(guest.devices), pve.ContainerLegacyDevicePassthroughArgsDict, "path"),
    ]


def _others(arguments: type, stated: dict[str, Any]) -> Iterator[str]:
    """Properties of a resource that are not stated."""
    names = list(inspect.signature(arguments).parameters)
    yield from (_wire(name) for name in names if name not in stated)


def _within(path: str, fields: type, *stated: str) -> Iterator[str]:
    """Properties of an object that are not stated."""
    yield from (f"{path}.{_wire(name)}" for name in fields.__annotations__ if name not in stated)


def _items(path: str, count: int, fields: type, *stated: str) -> Iterator[str]:
    """The same of each item of a list: a wildcard matches nothing."""
    for index in range(count):
        yield from _within(f"{path}[{index}]", fields, *stated)


def _wire(name: str) -> str:
    """`datastore_id` as the provider spells it."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
