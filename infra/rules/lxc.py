"""LXC: settings of the containers. Who may change them at Proxmox (root@pam) no document shows."""

import re
from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.nodes import CPPS, gpu_containers, nodes, nvidia_devices
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_005, ADR_009
from infra.violation import Level

CONTROL_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
KUBELET_DEVICE = "/dev/kmsg"
_NVIDIA_GPU = re.compile(r"^/dev/nvidia\d+$")
# What a node needs of its host. Any other device, a disk for one, would hand the host to the container.
_OF_A_NODE = re.compile(
    r"^/dev/(nvidia\d{1,3}|nvidiactl|nvidia-uvm|nvidia-uvm-tools|nvidia-modeset|nvidia-caps/nvidia-cap\d{1,3}|kmsg|net/tun)$"
)


@rule("LXC-01", source=ADR_005, profile=CPPS)
def gpu_container_is_privileged(fleet: Fleet) -> Iterator[Finding]:
    """A container of the GPU cluster is privileged."""
    return _setting(fleet, "privileged")


@rule("LXC-02", source=ADR_005, profile=CPPS)
def gpu_container_nests(fleet: Fleet) -> Iterator[Finding]:
    """A container of the GPU cluster has the feature nesting."""
    return _setting(fleet, "nesting")


@rule("LXC-03", source=ADR_005, profile=CPPS)
def gpu_container_keeps_keyctl(fleet: Fleet) -> Iterator[Finding]:
    """A container of the GPU cluster keeps the feature keyctl that it has in production."""
    return _setting(fleet, "keyctl")


@rule("LXC-04", source=ADR_005, profile=CPPS)
def gpu_arrives_as_device_nodes(fleet: Fleet) -> Iterator[Finding]:
    """A container of the GPU cluster gets its GPU as device nodes."""
    for node, container in gpu_containers(fleet):
        if not nvidia_devices(container):
            yield Finding(
                f"{node.path}.devices", "no NVIDIA device", "the /dev/nvidia* nodes", "list each node by name"
            )


@rule("LXC-05", source=ADR_005, profile=CPPS)
def device_list_is_complete(fleet: Fleet) -> Iterator[Finding]:
    """The device list names a GPU and the control nodes that the driver needs."""
    for node, container in gpu_containers(fleet):
        devices = nvidia_devices(container)
        missing = [device for device in CONTROL_DEVICES if device not in devices]
        if not any(_NVIDIA_GPU.match(device) for device in devices):
            missing.append("/dev/nvidia0 (one for each GPU)")
        if devices and missing:
            yield Finding(
                f"{node.path}.devices", f"a list without {', '.join(missing)}", "all of them", "add what is missing"
            )


@rule("LXC-06", source=ADR_005, profile=CPPS)
def kubelet_gets_its_device(fleet: Fleet) -> Iterator[Finding]:
    """A container gets GPU nodes, /dev/net/tun and /dev/kmsg, which the kubelet reads, and no other device."""
    for node in nodes(fleet):
        if node.guest.kind == "lxc" and KUBELET_DEVICE not in node.guest.devices:
            yield Finding(
                f"{node.path}.devices", f"a list without {KUBELET_DEVICE}", KUBELET_DEVICE, "add it to the list"
            )
    for path, _, guest in fleet.guests():
        seen = set[str]()
        for index, device in enumerate(guest.devices if guest.kind == "lxc" else ()):
            where = f"{path}.devices.{index}"
            if not _OF_A_NODE.match(device):
                expected = f"an NVIDIA device node, {KUBELET_DEVICE} or /dev/net/tun"
                yield Finding(where, device, expected, "remove it: it would hand the host to the container")
            elif device in seen:
                yield Finding(where, f"{device} a second time", "each device once", "remove it")
            seen.add(device)


@rule("LXC-07", source=ADR_005, profile=CPPS)
def privileged_containers_have_one_tenant(fleet: Fleet) -> Iterator[Finding]:
    """A cluster of privileged containers serves one tenant."""
    for path, site, cluster in fleet.clusters():
        privileged = [node.name for node in site.nodes(cluster) if node.kind == "lxc" and node.privileged]
        if cluster.gpu is None or not privileged:
            continue
        if not cluster.gpu.single_tenant:
            found = f"false with the privileged {', '.join(privileged)}"
            yield Finding(
                f"{path}.gpu.single_tenant", found, "true", "declare the single tenant, or leave the container"
            )
        if cluster.gpu.multi_tenant:
            found = f"true with the privileged {', '.join(privileged)}"
            yield Finding(f"{path}.gpu.multi_tenant", found, "false", "serve several tenants from a VM")


@rule("LXC-08", level=Level.ACK, source=ADR_005, profile=CPPS)
def other_containers_are_unprivileged(fleet: Fleet) -> Iterator[Finding]:
    """No container outside the K3s clusters is privileged."""
    known = {node.path for node in nodes(fleet)}
    for path, _, guest in fleet.guests():
        if guest.kind == "lxc" and guest.privileged and path not in known:
            remedy = "set it to false, or accept it under accept.LXC-08"
            yield Finding(f"{path}.privileged", "true, and no cluster has it as a node", "false", remedy)


@rule("LXC-10", source=ADR_005, profile=CPPS)
def gpu_container_is_protected(fleet: Fleet) -> Iterator[Finding]:
    """A container of the GPU cluster is protected: no update recreates it."""
    for node, container in gpu_containers(fleet):
        if not container.stateful:
            yield Finding(f"{node.path}.stateful", "false", "true, which protects it", "set it to true")


@rule("LXC-11", source=ADR_009, profile=CPPS)
def gpu_container_is_replicated_and_backed_up(fleet: Fleet) -> Iterator[Finding]:
    """A container of the GPU cluster lies on LINSTOR and Proxmox Backup Server covers it."""
    for node, container in gpu_containers(fleet):
        storage = node.site.proxmox.storages.get(container.disk.storage)
        if storage is not None and storage.type != "drbd":
            found = f"{storage.name}, of type {storage.type}"
            yield Finding(f"{node.path}.disk.storage", found, "LINSTOR storage (type drbd)", "name a LINSTOR storage")
        if not container.backup.pbs:
            yield Finding(f"{node.path}.backup.pbs", "false", "true", "add the guest to a backup job")


@rule("LXC-13", level=Level.WARN, source=ADR_005, profile=CPPS)
def containers_move_by_restart(fleet: Fleet) -> Iterator[Finding]:
    """A container moves between hosts with a restart only."""
    for path, _, guest in fleet.guests():
        if guest.kind == "lxc" and guest.live_migration:
            yield Finding(f"{path}.live_migration", "true", "false for a container", "plan a move with a restart")


def _setting(fleet: Fleet, key: str) -> Iterator[Finding]:
    for node, container in gpu_containers(fleet):
        if not getattr(container, key):
            yield Finding(f"{node.path}.{key}", "false", f"true on a node of {node.cluster.name}", "set it to true")
