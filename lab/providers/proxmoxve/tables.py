"""What the real provider's schema says and the SDK classes do not: defaults, replacements, restarts, root-only inputs.

From the Terraform provider bpg/proxmox, resources `virtual_environment_vm`, `_container`, `_file`, `download_file`,
in the wire names of the Pulumi SDK 8.6.0.
"""

from typing import Any, Final

VM_DEFAULTS: Final[dict[str, Any]] = {
    "acpi": True,
    "agent": {"enabled": False, "timeout": "15m", "trim": False, "type": "virtio"},
    "bios": "seabios",
    "cpu": {"cores": 1, "sockets": 1, "type": "qemu64", "hotplugged": 0, "limit": 0, "numa": False, "units": 0},
    "deleteUnreferencedDisksOnDestroy": True,
    "description": "",
    "keyboardLayout": "en-us",
    "memory": {"dedicated": 512, "floating": 0, "shared": 0, "keepHugepages": False},
    "onBoot": True,
    "operatingSystem": {"type": "other"},
    "protection": False,
    "purgeOnDestroy": True,
    "reboot": False,
    "rebootAfterUpdate": True,
    "scsiHardware": "virtio-scsi-pci",
    "started": True,
    "stopOnDestroy": False,
    "tabletDevice": True,
    "template": False,
    "timeoutShutdownVm": 1800,
    "timeoutStartVm": 1800,
    "timeoutStopVm": 300,
}
VM_ITEM_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "disks": {
        "aio": "io_uring",
        "backup": True,
        "cache": "none",
        "datastoreId": "local-lvm",
        "discard": "ignore",
        "fileFormat": "raw",
        "iothread": False,
        "replicate": True,
        "size": 8,
        "ssd": False,
    },
    "networkDevices": {"bridge": "vmbr0", "disconnected": False, "enabled": True, "firewall": False, "model": "virtio"},
    "serialDevices": {"device": "socket"},
    "hostpcis": {"pcie": False, "rombar": True, "xvga": False},
}
STARTUP_DEFAULTS: Final = {"order": -1, "upDelay": -1, "downDelay": -1}
VM_INITIALIZATION_DEFAULTS: Final = {"datastoreId": "local-lvm", "interface": "ide2"}

VM_REPLACES: Final = frozenset(
    {
        "nodeName",
        "vmId",
        "disks.fileId",
        "efiDisk.type",
        "initialization.userDataFileId",
        "initialization.vendorDataFileId",
        "initialization.networkDataFileId",
        "initialization.metaDataFileId",
        "initialization.type",
    }
)
VM_RESTARTS: Final = frozenset(
    {
        "acpi",
        "agent",
        "bios",
        "bootOrders",
        "cpu",
        "efiDisk",
        "hostpcis",
        "initialization",
        "keyboardLayout",
        "kvmArguments",
        "machine",
        "memory",
        "numas",
        "operatingSystem",
        "scsiHardware",
        "serialDevices",
        "tabletDevice",
        "vga",
    }
)
"""Properties whose change stops and starts a running VM. Disks are beside it: their growth does not."""

VM_NOT_ACTED_OUT: Final = frozenset(
    {"amdSev", "audioDevice", "clone", "hotplug", "macAddresses", "migrate", "rngs", "smbios", "tpmState", "usbs",
     "virtiofs", "watchdog"}
)  # fmt: skip
"""Known to the real provider, unused by the program: refused by name, so that nothing is silently ignored."""

CT_DEFAULTS: Final[dict[str, Any]] = {
    "console": {"enabled": True, "type": "tty", "ttyCount": 2},
    "cpu": {"architecture": "amd64", "cores": 1, "limit": 0, "units": 0},
    "description": "",
    "disk": {"acl": False, "datastoreId": "local", "quota": False, "replicate": False, "size": 4},
    "memory": {"dedicated": 512, "swap": 0},
    "protection": False,
    "startOnBoot": True,
    "started": True,
    "template": False,
    "timeoutDelete": 60,
    "unprivileged": False,
}
CT_FEATURE_DEFAULTS: Final = {"fuse": False, "keyctl": False, "nesting": False}
CT_ITEM_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "networkInterfaces": {"bridge": "vmbr0", "enabled": True, "firewall": False},
    "devicePassthroughs": {"denyWrite": False, "gid": 0, "mode": "0660", "uid": 0},
    "mountPoints": {"acl": False, "backup": False, "quota": False, "readOnly": False, "replicate": True,
                    "shared": False},
}  # fmt: skip
CT_REPLACES: Final = frozenset(
    {
        "disk.datastoreId",
        "initialization.userAccount",
        "mountPoints",
        "nodeName",
        "operatingSystem",
        "poolId",
        "template",
        "unprivileged",
        "vmId",
    }
)
CT_REBOOTS: Final = frozenset(
    {"console", "devicePassthroughs", "initialization", "memory", "networkInterfaces", "operatingSystem"}
)
CT_UNREAD: Final = ("timeoutClone", "timeoutCreate", "timeoutDelete", "timeoutStart", "timeoutUpdate", "vmId")
"""What the provider's read of a container leaves unset, so that after an import each is a change: the timeouts have
defaults, and the program gives the id. A VM's read sets its own.
"""
CT_NOT_ACTED_OUT: Final = frozenset({"clone", "environmentVariables", "idmaps", "waitForIp"})

DOWNLOAD_DEFAULTS: Final[dict[str, Any]] = {
    "overwrite": True,
    "overwriteUnmanaged": False,
    "uploadTimeout": 600,
    "verify": True,
}
DOWNLOAD_REPLACES: Final = frozenset(
    {"checksum", "checksumAlgorithm", "contentType", "datastoreId", "decompressionAlgorithm", "fileName", "nodeName",
     "url"}
)  # fmt: skip

FILE_DEFAULTS: Final[dict[str, Any]] = {"overwrite": True, "timeoutUpload": 1800, "uploadMode": "stream"}
FILE_REPLACES: Final = frozenset({"contentType", "datastoreId", "fileMode", "nodeName", "sourceFile", "sourceRaw"})
