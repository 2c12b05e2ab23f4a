"""Proxmox layer: the site's providers, the images its hosts download, and the guests.

Leaves out everything of Proxmox itself: cluster, host networking, storages and files below /etc/pve are never touched.
What the real provider does, and why options below look as they do: provider 8.6, bpg 0.111.
"""

from dataclasses import dataclass

import pulumi
import pulumi_proxmoxve as pve

from infra import adopted, remote
from infra.config import Image, Lxc, Site, Vm
from infra.config.proxmox import Disk
from infra.names import FILE_PREFIX, tags

BOOT_TIMEOUT_S = 900


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What opens Proxmox and the guests."""

    api_token: pulumi.Input[str]  # user@realm!name=uuid, secret
    root_password: pulumi.Input[str] | None  # of root@pam, secret; None where no privileged container is made
    ssh_private_key: pulumi.Input[str]  # OpenSSH, secret
    ssh_public_key: pulumi.Input[str]


@dataclass(frozen=True, kw_only=True)
class HypervisorArgs:
    site_id: str
    site: Site
    credentials: Credentials


class Hypervisor(pulumi.ComponentResource):
    """The site's Proxmox cluster: one provider per credential, and the images on every host that needs them."""

    token: pve.Provider
    root: (
        pve.Provider | None
    )  # logged in as root@pam: Proxmox keeps devices and features of privileged containers to it
    images: dict[str, pulumi.Output[str]]  # volume id by guest; none of one that exists already

    def __init__(self, name: str, args: HypervisorArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__("fleet:proxmox:Hypervisor", name, None, opts)
        site, login = args.site, args.credentials
        proxmox = site.proxmox
        child = pulumi.ResourceOptions(parent=self)
        self.token = pve.Provider(
            f"{name}-token",
            endpoint=proxmox.endpoint,
            insecure=not proxmox.verify_tls,
            api_token=pulumi.Output.secret(login.api_token),
            opts=child,
        )
        self.root = None
        if needs_root(site) and login.root_password is not None:
            self.root = pve.Provider(
                f"{name}-root",
                endpoint=proxmox.endpoint,
                insecure=not proxmox.verify_tls,
                username="root@pam",
                password=pulumi.Output.secret(login.root_password),
                opts=child,
            )
        downloads: dict[tuple[str, str], pve.download.FileLegacy] = {}
        self.images = {}
        for guest in site.guests.values():
            image = proxmox.vm_image if isinstance(guest, Vm) else proxmox.container_template
            if image is None or guest.existing:
                continue
            key = (image.file_name, guest.host)
            if key not in downloads:
                downloads[key] = self._download(f"{name}-{guest.kind}-image-{guest.host}", image, guest.host)
            self.images[guest.name] = downloads[key].id
        self.register_outputs({})

    def _download(self, name: str, image: Image, host: str) -> pve.download.FileLegacy:
        return pve.download.FileLegacy(
            name,
            node_name=host,
            datastore_id=image.storage,
            content_type="vztmpl" if ".tar." in image.file_name else "import",
            # Without a name the plugin asks the URL, and crashes where that has none. The prefix says whose file it is.
            file_name=f"{FILE_PREFIX}{image.file_name}",
            url=image.url,
            checksum=image.sha256,
            checksum_algorithm="sha256" if image.sha256 else None,
            overwrite=False,  # True replaces the file whenever the URL's size changes
            overwrite_unmanaged=True,  # what an interrupted update left under our prefix is in nobody's way
            opts=pulumi.ResourceOptions(parent=self, provider=self.token),
        )


def needs_root(site: Site) -> bool:
    """Proxmox lets root@pam alone set devices and features of a privileged container (LXC-12)."""
    return any(container.privileged for container in site.containers)


@dataclass(frozen=True, kw_only=True)
class GuestArgs:
    site_id: str
    site: Site
    image: pulumi.Input[str] | None  # volume id; None for a guest that exists already
    credentials: Credentials


class VirtualMachine(pulumi.ComponentResource):
    """One VM, made from the cloud image or adopted, and reachable. Needs the token provider in `opts.providers`."""

    machine: remote.Machine

    def __init__(self, name: str, guest: Vm, args: GuestArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__("fleet:proxmox:VirtualMachine", name, None, opts)
        vm = self._adopted(name, guest) if guest.existing else self._made(name, guest, args)
        self.machine = _introduced(name, guest, args, self, vm)
        self.register_outputs({})

    def _adopted(self, name: str, guest: Vm) -> pve.VmLegacy:
        inputs = adopted.vm_inputs(guest)
        return pve.VmLegacy(f"{name}-vm", **inputs, opts=adopted.options(guest, self, adopted.vm_ignored(guest)))

    def _made(self, name: str, guest: Vm, args: GuestArgs) -> pve.VmLegacy:
        disks = [_disk(index, disk, args.image) for index, disk in enumerate(guest.disks)]
        network, gateway = args.site.network, str(args.site.vyos.lan_address)
        return pve.VmLegacy(
            f"{name}-vm",
            node_name=guest.host,
            vm_id=guest.vmid,
            name=guest.name,
            description=_description(args.site_id),
            tags=tags(args.site_id, *guest.tags),
            on_boot=True,
            started=True,
            startup={"order": guest.start_order},
            protection=guest.stateful,
            reboot_after_update=False,  # a server restarts when its turn comes, not because its memory was edited
            stop_on_destroy=True,  # an orderly shutdown needs the guest agent
            boot_orders=["scsi0"],
            scsi_hardware="virtio-scsi-single",
            cpu={"cores": guest.cores, "type": guest.cpu_type},
            memory={"dedicated": guest.memory_mib},
            disks=disks,
            network_devices=[_vm_link(args.site, guest)],
            hostpcis=_pci_devices(guest) or None,
            machine="q35" if guest.pci_mappings else None,
            operating_system={"type": "l26"},
            serial_devices=[{}],  # cloud images log to the serial console
            initialization={
                "datastore_id": guest.disks[0].storage,
                "interface": "ide2",
                "dns": {"servers": [str(server) for server in network.dns_servers], "domain": network.dns_search},
                "ip_configs": [{"ipv4": {"address": _address(args.site, guest), "gateway": gateway}}],
                "user_account": {"username": guest.login, "keys": [args.credentials.ssh_public_key]},
            },
            opts=pulumi.ResourceOptions(
                parent=self,
                protect=guest.stateful,
                ignore_changes=[
                    # Proxmox's disks never settle on a speed (pulumi-proxmoxve issue 664); a wildcard does not match.
                    *(f"disks[{index}].speed" for index in range(len(disks))),
                    "disks[0].importFrom",  # a newer image is for new guests
                    "initialization.userAccount",  # first boot alone; a change would rebuild the VM
                ],
            ),
        )


class GpuContainer(pulumi.ComponentResource):
    """One container with the host's devices, made or adopted, and reachable. Needs its login's provider."""

    machine: remote.Machine

    def __init__(self, name: str, guest: Lxc, args: GuestArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__("fleet:proxmox:GpuContainer", name, None, opts)
        container = self._adopted(name, guest) if guest.existing else self._made(name, guest, args)
        self.machine = _introduced(name, guest, args, self, container)
        self.register_outputs({})

    def _adopted(self, name: str, guest: Lxc) -> pve.ContainerLegacy:
        inputs, ignored = adopted.container_inputs(guest), adopted.container_ignored(guest)
        return pve.ContainerLegacy(f"{name}-ct", **inputs, opts=adopted.options(guest, self, ignored))

    def _made(self, name: str, guest: Lxc, args: GuestArgs) -> pve.ContainerLegacy:
        network, gateway = args.site.network, str(args.site.vyos.lan_address)
        assert args.image is not None, "the document of a site with containers names their template"
        return pve.ContainerLegacy(
            f"{name}-ct",
            node_name=guest.host,
            vm_id=guest.vmid,
            description=_description(args.site_id),
            tags=tags(args.site_id, *guest.tags),
            start_on_boot=True,
            started=True,
            startup={"order": guest.start_order},
            protection=guest.stateful,
            unprivileged=not guest.privileged,
            features={"nesting": guest.nesting, "keyctl": guest.keyctl},
            # Devices by name: Proxmox opens their current major and minor at each start. No PCI device (LXC-04).
            device_passthroughs=_devices(guest) or None,
            cpu={"cores": guest.cores},
            memory={"dedicated": guest.memory_mib, "swap": 0},
            disk={"datastore_id": guest.disk.storage, "size": guest.disk.size_gib},
            operating_system={"template_file_id": args.image, "type": "debian"},
            network_interfaces=[_container_link(args.site, guest)],
            initialization={
                "hostname": guest.name,
                "dns": {"servers": [str(server) for server in network.dns_servers], "domain": network.dns_search},
                "ip_configs": [{"ipv4": {"address": _address(args.site, guest), "gateway": gateway}}],
                "user_account": {"keys": [args.credentials.ssh_public_key]},
            },
            opts=pulumi.ResourceOptions(
                parent=self,
                protect=guest.stateful,
                ignore_changes=["operatingSystem.templateFileId", "initialization.userAccount"],
            ),
        )


def _introduced(
    name: str, guest: Vm | Lxc, args: GuestArgs, parent: pulumi.Resource, made: pulumi.CustomResource
) -> remote.Machine:
    machine = remote.Machine(
        address=str(guest.address),
        user=guest.login,
        private_key=args.credentials.ssh_private_key,
        host_key=guest.ssh_host_key,
    )
    opts = pulumi.ResourceOptions(
        parent=parent,
        depends_on=[made],  # nothing of the guest flows into the connection: its address is the document's
        replace_with=[made],  # a rebuilt guest has a new host key
        deleted_with=made,
        custom_timeouts=pulumi.CustomTimeouts(create=f"{BOOT_TIMEOUT_S}s"),
    )
    host_key = remote.introduce(f"{name}-contact", machine, opts)
    # A key of the document flows through the contact too: else nothing that uses the guest would wait for it.
    return machine.pinned(host_key.apply(lambda seen: guest.ssh_host_key or seen))


def _disk(index: int, disk: Disk, image: pulumi.Input[str] | None) -> pve.VmLegacyDiskArgsDict:
    made: pve.VmLegacyDiskArgsDict = {
        "interface": f"scsi{index}",
        "datastore_id": disk.storage,
        "size": disk.size_gib,
        "discard": "on",
        "iothread": True,
    }
    if index == 0 and image is not None:
        made["import_from"] = image
    return made


def _pci_devices(guest: Vm) -> list[pve.VmLegacyHostpciArgsDict]:
    return [{"device": f"hostpci{i}", "mapping": name, "pcie": True} for i, name in enumerate(guest.pci_mappings)]


def _devices(guest: Lxc) -> list[pve.ContainerLegacyDevicePassthroughArgsDict]:
    return [{"path": device, "mode": "0666"} for device in guest.devices]


def _vm_link(site: Site, guest: Vm) -> pve.VmLegacyNetworkDeviceArgsDict:
    link: pve.VmLegacyNetworkDeviceArgsDict = {"bridge": site.network.bridge, "model": "virtio"}
    if site.network.vlan:
        link["vlan_id"] = site.network.vlan
    if guest.mac:
        link["mac_address"] = guest.mac
    return link


def _container_link(site: Site, guest: Lxc) -> pve.ContainerLegacyNetworkInterfaceArgsDict:
    link: pve.ContainerLegacyNetworkInterfaceArgsDict = {"name": "eth0", "bridge": site.network.bridge}
    if site.network.vlan:
        link["vlan_id"] = site.network.vlan
    if guest.mac:
        link["mac_address"] = guest.mac
    return link


def _address(site: Site, guest: Vm | Lxc) -> str:
    return f"{guest.address}/{site.network.lan_cidr.prefixlen}"


def _description(site_id: str) -> str:
    return f"Made by the Pulumi project fleet, stack {site_id}. Edit Pulumi.{site_id}.yaml, not this guest."
