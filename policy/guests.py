"""Guests on Proxmox: which kinds of resources may be there at all, protection, and the settings of containers."""

from collections.abc import Iterator
from typing import Any

from infra.rules.lxc import CONTROL_DEVICES, KUBELET_DEVICE
from policy.judging import ADVISORY, Fault, Resource, each, together
from policy.reading import UNKNOWN, at, entries, is_off, is_on, text

VM = "proxmoxve:index/vmLegacy:VmLegacy"
CONTAINER = "proxmoxve:index/containerLegacy:ContainerLegacy"
DOWNLOAD = "proxmoxve:download/fileLegacy:FileLegacy"
# First boot alone reads these; a change of them must not rebuild a container that runs.
FIRST_BOOT = ("operatingSystem", "initialization")


@each("PVE-01")
def guests_only(resource: Resource) -> Iterator[Fault]:
    """At Proxmox only guests and the images they start from are managed, never the cluster, its network or storage."""
    if resource.type.startswith("proxmoxve:") and resource.type not in (VM, CONTAINER, DOWNLOAD):
        yield Fault("type", "a VM, a container or the download of an image")


@together("PVE-08")
def guests_are_distinct(resources: list[Resource]) -> Iterator[Fault]:
    """No two guests of a site share a VMID, a name or an address."""
    taken: dict[tuple[str, Any], Resource] = {}
    for guest in resources:
        for path, value in _identity(guest):
            first = taken.setdefault((path, value), guest)
            if first is not guest:
                yield Fault(path, f"another value than that of {first.name}", guest)


@each("BKP-03")
def guests_with_state_are_protected(resource: Resource) -> Iterator[Fault]:
    """A guest that Proxmox protects against deletion is protected in Pulumi too, and the reverse."""
    if resource.type not in (VM, CONTAINER):
        return
    protection = at(resource.props, "protection")
    if is_on(protection) and protection is not UNKNOWN and not resource.protect:
        yield Fault("protect", "true, like the input protection")
    # Of an adopted guest Proxmox's own setting stays as it is, and stands among what is ignored.
    if resource.protect and not is_on(protection) and "protection" not in resource.ignore_changes:
        yield Fault("protection", "true, like the option protect")


@each("LXC-10")
def gpu_container_is_kept(resource: Resource) -> Iterator[Fault]:
    """A container with a GPU is protected, and no first-boot setting rebuilds it."""
    if not _has_gpu(resource):
        return
    if not resource.protect:
        yield Fault("protect", "true: no update recreates or deletes it")
    for setting in FIRST_BOOT:
        if not any(ignored.split(".")[0] == setting for ignored in resource.ignore_changes):
            yield Fault("ignore_changes", f"an entry below {setting}")


@each("LXC-01")
def gpu_container_is_privileged(resource: Resource) -> Iterator[Fault]:
    """A container with a GPU is privileged."""
    if _has_gpu(resource) and not is_off(at(resource.props, "unprivileged")):
        yield Fault("unprivileged", "false")


@each("LXC-02")
def gpu_container_nests(resource: Resource) -> Iterator[Fault]:
    """A container with a GPU has the feature nesting."""
    if _has_gpu(resource) and not is_on(at(resource.props, "features", "nesting")):
        yield Fault("features.nesting", "true")


@each("LXC-03")
def gpu_container_keeps_keyctl(resource: Resource) -> Iterator[Fault]:
    """A container with a GPU keeps the feature keyctl."""
    if _has_gpu(resource) and not is_on(at(resource.props, "features", "keyctl")):
        yield Fault("features.keyctl", "true")


@each("LXC-04")
def gpu_arrives_as_device_nodes(resource: Resource) -> Iterator[Fault]:
    """A container gets its GPU as device nodes of the host's driver, never as a PCI device."""
    if resource.type == CONTAINER:
        for index, device in entries(at(resource.props, "devicePassthroughs")):
            if text(at(device, "path")).startswith(("/dev/vfio", "/dev/bus", "/sys/")):
                yield Fault(f"devicePassthroughs[{index}].path", "a device node of the driver, such as /dev/nvidia0")


@each("LXC-05")
def device_list_is_complete(resource: Resource) -> Iterator[Fault]:
    """The devices of a container with a GPU name the GPU and the driver's control nodes."""
    if not _has_gpu(resource) or UNKNOWN in _devices(resource):
        return
    devices = [text(device) for device in _devices(resource)]
    for control in CONTROL_DEVICES:
        if control not in devices:
            yield Fault("devicePassthroughs", f"{control} among them")
    if not any(device.removeprefix("/dev/nvidia").isdigit() for device in devices):
        yield Fault("devicePassthroughs", "/dev/nvidia0, one for each GPU, among them")


@each("LXC-06")
def kubelet_gets_its_device(resource: Resource) -> Iterator[Fault]:
    """A container with a GPU runs a node, whose kubelet reads /dev/kmsg."""
    devices = _devices(resource)
    if _has_gpu(resource) and KUBELET_DEVICE not in devices and UNKNOWN not in devices:
        yield Fault("devicePassthroughs", f"{KUBELET_DEVICE} among them")


@each("LXC-08", level=ADVISORY)
def other_containers_are_unprivileged(resource: Resource) -> Iterator[Fault]:
    """No container without a GPU is privileged."""
    if resource.type == CONTAINER and not _has_gpu(resource) and not is_on(at(resource.props, "unprivileged")):
        yield Fault("unprivileged", "true")


@each("LXC-12")
def root_sets_up_privileged_containers(resource: Resource) -> Iterator[Fault]:
    """A privileged container goes through a provider that is logged in as root@pam: no token may set its features."""
    privileged = resource.type == CONTAINER and at(resource.props, "unprivileged") is False
    if privileged and at(resource.login, "username") not in ("root@pam", UNKNOWN):
        yield Fault("provider", "the provider of root@pam")


@each("TIER-02", level=ADVISORY)
def vms_have_no_pci_device(resource: Resource) -> Iterator[Fault]:
    """A VM with a GPU takes the display of a Tier 3 host away; the tier does not show here."""
    if resource.type == VM and at(resource.props, "hostpcis"):
        yield Fault("hostpcis", "none on a host of Tier 3: use a container")


def _devices(container: Resource) -> list[Any]:
    return [at(device, "path") for _, device in entries(at(container.props, "devicePassthroughs"))]


def _has_gpu(resource: Resource) -> bool:
    return resource.type == CONTAINER and any(text(path).startswith("/dev/nvidia") for path in _devices(resource))


def _identity(guest: Resource) -> Iterator[tuple[str, Any]]:
    if guest.type not in (VM, CONTAINER):
        return
    name = ("name",) if guest.type == VM else ("initialization", "hostname")
    for path in (("vmId",), name):
        value = at(guest.props, *path)
        if isinstance(value, str | int | float):
            yield "vmId" if path == ("vmId",) else "name", value
    for _, config in entries(at(guest.props, "initialization", "ipConfigs")):
        address = text(at(config, "ipv4", "address")).split("/")[0]
        if address and address != "dhcp":
            yield "initialization.ipConfigs", address
