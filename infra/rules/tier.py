"""TIER: hardware tiers of the hosts. That every host has one is a matter of shape; differing sites are intended."""

import re
from collections import Counter
from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.config.proxmox import Lxc, Vm
from infra.rules.nodes import CPPS, nodes, uses_gpu
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ADR_005, ADR_009
from infra.violation import Level

_NVIDIA_GPU = re.compile(r"^/dev/nvidia(\d{1,3})$")


@rule("TIER-02", source=ADR_005, profile=CPPS)
def display_gpu_stays_with_the_host(fleet: Fleet) -> Iterator[Finding]:
    """On a Tier 3 host the GPU is the display as well: it is never passed into a VM."""
    for path, site, guest in fleet.guests():
        host = site.proxmox.hosts.get(guest.host)
        if "GPU-16" in site.accept or host is None or host.hardware_tier != "3":
            continue  # GPU-16 judges the trigger that the site names
        if isinstance(guest, Vm) and guest.pci_mappings:
            yield Finding(
                f"{path}.pci_mappings",
                f"{', '.join(guest.pci_mappings)} from the Tier 3 host {host.name}",
                "no PCI device in a VM there",
                "use a container (kind: lxc), or name a review trigger under accept.GPU-16",
            )


@rule("TIER-07", level=Level.ACK, source=ADR_005, profile=CPPS)
def main_nodes_avoid_tier_3(fleet: Fleet) -> Iterator[Finding]:
    """Nodes of a main cluster run on hosts of Tier 1, 2A or 2B."""
    for node in nodes(fleet, "main"):
        if node.host is not None and node.host.hardware_tier == "3":
            yield Finding(
                f"{node.path}.host",
                f"the Tier 3 host {node.host.name} for a node of {node.cluster.name}",
                "a host of Tier 1, 2A or 2B",
                "move the guest, or accept it under accept.TIER-07",
            )


@rule("TIER-08", source=ADR_005, profile=CPPS)
def gpus_have_one_owner(fleet: Fleet) -> Iterator[Finding]:
    """A GPU belongs to one VM through vfio or to the host's driver, never to both."""
    passed: Counter[tuple[str, str]] = Counter()
    for path, site, guest in fleet.guests():
        host = site.proxmox.hosts.get(guest.host)
        if host is None:
            continue
        if isinstance(guest, Lxc):
            owned = sum(gpu.owner == "host" for gpu in host.gpus)
            for index, device in enumerate(guest.devices):
                number = _NVIDIA_GPU.match(device)
                if number and int(number.group(1)) >= owned:
                    yield Finding(
                        f"{path}.devices.{index}",
                        f"{device}, where the driver of {host.name} owns {owned} GPUs",
                        "device nodes of GPUs with owner: host",
                        "correct the device or the owner of the GPU",
                    )
        elif guest.pci_mappings:
            key = (path.split(".", 1)[0], host.name)
            passed[key] += len(guest.pci_mappings)
            owned = sum(gpu.owner == "vfio" for gpu in host.gpus)
            if passed[key] > owned:
                yield Finding(
                    f"{path}.pci_mappings",
                    f"{passed[key]} devices passed into VMs of {host.name}, which has {owned} GPUs for them",
                    "one VM for each GPU with owner: vfio",
                    "drop the mapping or set the owner of the GPU",
                )


@rule("TIER-09", level=Level.ACK, source=ADR_009, profile=CPPS)
def gpu_guests_avoid_storage_nodes(fleet: Fleet) -> Iterator[Finding]:
    """A guest with a GPU does not run on a host that is part of LINSTOR."""
    for path, site, guest in fleet.guests():
        host = site.proxmox.hosts.get(guest.host)
        if host is not None and host.linstor is not None and uses_gpu(guest):
            yield Finding(
                f"{path}.host",
                f"{host.name}, also a LINSTOR {host.linstor}",
                "a host without LINSTOR for a guest with a GPU",
                "move the guest, or accept it under accept.TIER-09",
            )
