"""What reaches Proxmox, of the shipped sites and of an invented one."""

import json
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from cli.plan import Declared
from infra.config import Lxc, Site, Vm
from infra.k3s import lxc_host
from infra.violation import Level
from tests.rules.documents import faults_of, patched, shipped
from tests.sites import ROOT, SITES, Documents, Record, changed, declared, of_type, plan_of, three_sites

VM, CT, IMAGE = "VmLegacy", "ContainerLegacy", "FileLegacy"
MANAGED_TYPES = {  # PVE-01: guests, and the images they are made from
    "proxmoxve:index/vmLegacy:VmLegacy",
    "proxmoxve:index/containerLegacy:ContainerLegacy",
    "proxmoxve:download/fileLegacy:FileLegacy",
}


@pytest.fixture(params=SITES)
def site_id(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def site(site_id: str) -> Site:
    return three_sites().sites[site_id]


@pytest.fixture
def record(site_id: str) -> Record:
    return declared(site_id)


def vms(site: Site, record: Record) -> list[tuple[Vm, Declared]]:
    found = of_type(record, VM)
    return [(vm, found[f"guest-{vm.name}-vm"]) for vm in site.vms]


def containers(site: Site, record: Record) -> list[tuple[Lxc, Declared]]:
    found = of_type(record, CT)
    return [(ct, found[f"guest-{ct.name}-ct"]) for ct in site.containers]


def guests(site: Site, record: Record) -> list[tuple[Vm | Lxc, Declared]]:
    return [*vms(site, record), *containers(site, record)]


def test_every_guest_of_the_document_is_declared_once_and_nothing_else(site: Site, record: Record) -> None:
    made = {*of_type(record, VM), *of_type(record, CT)}
    assert made == {f"guest-{g.name}-{'vm' if g.kind == 'vm' else 'ct'}" for g in site.guests.values()}


def test_name_host_and_vmid_are_the_documents(site: Site, record: Record) -> None:
    for vm, made in vms(site, record):
        assert (made.inputs["name"], made.inputs["nodeName"], made.inputs["vmId"]) == (vm.name, vm.host, vm.vmid)
    for ct, made in containers(site, record):
        assert (made.inputs["nodeName"], made.inputs["vmId"]) == (ct.host, ct.vmid)
        assert made.inputs["initialization"]["hostname"] == ct.name


def test_tags_are_sorted_and_name_owner_and_site(site_id: str, site: Site, record: Record) -> None:
    for guest, made in guests(site, record):
        tags = made.inputs["tags"]
        assert tags == sorted(tags)  # as Proxmox gives them back, else they differ on each update
        assert {"fleet", f"site-{site_id}", *guest.tags} == set(tags)


def test_further_tags_of_the_document_reach_the_guest() -> None:
    made = of_type(declared("norte"), VM)["guest-north-a-vm"]
    assert made.inputs["tags"] == ["audited", "fleet", "site-norte", "zone-b"]


def test_guests_boot_with_their_host_in_the_documents_order(site: Site, record: Record) -> None:
    for guest, made in guests(site, record):
        assert made.inputs["startup"]["order"] == guest.start_order
        assert made.inputs["onBoot" if guest.kind == "vm" else "startOnBoot"] is True
        assert made.inputs["started"] is True


def test_gen_10_state_is_protected_in_proxmox_and_in_pulumi_and_the_rest_in_neither(site: Site, record: Record) -> None:
    for guest, made in guests(site, record):
        assert made.protect is guest.stateful
        assert made.inputs["protection"] is guest.stateful


def test_gen_10_bkp_02_nothing_but_guests_is_protected(record: Record) -> None:
    protected = {kind for (kind, _), made in record.items() if made.protect}
    assert protected <= {"proxmoxve:index/vmLegacy:VmLegacy", "proxmoxve:index/containerLegacy:ContainerLegacy"}
    assert not any(release.protect for release in of_type(record, ":Release").values())


def test_disks_are_the_documents_and_the_first_one_holds_the_image(site: Site, record: Record) -> None:
    for vm, made in vms(site, record):
        disks = made.inputs["disks"]
        assert [(d["interface"], d["datastoreId"], d["size"]) for d in disks] == [
            (f"scsi{index}", disk.storage, disk.size_gib) for index, disk in enumerate(vm.disks)
        ]
        assert ["importFrom" in disk for disk in disks] == [index == 0 for index in range(len(disks))]
        assert made.inputs["bootOrders"] == ["scsi0"]


def test_each_disk_has_its_own_entry_that_ignores_its_speed(site: Site, record: Record) -> None:
    """The provider never settles on a speed, and a wildcard does not match."""
    for vm, made in vms(site, record):
        speeds = [entry for entry in made.ignore_changes if entry.endswith(".speed")]
        assert speeds == [f"disks[{index}].speed" for index in range(len(vm.disks))]
        assert "*" not in "".join(made.ignore_changes)


def test_lxc_10_what_only_a_first_boot_reads_never_changes_a_guest(site: Site, record: Record) -> None:
    for _, made in vms(site, record):
        assert {"disks[0].importFrom", "initialization.userAccount"} <= set(made.ignore_changes)
    for _, made in containers(site, record):
        assert {"operatingSystem.templateFileId", "initialization.userAccount"} <= set(made.ignore_changes)


def test_ignored_properties_are_ones_that_the_resource_has(site: Site, record: Record) -> None:
    """A misspelt entry would be ignored itself."""
    for _, made in guests(site, record):
        for entry in made.ignore_changes:
            value: Any = made.inputs
            parts = entry.replace("[", ".").replace("]", "").split(".")
            for part in parts[:-1]:
                value = value[int(part)] if part.isdecimal() else value[part]
            assert parts[-1] == "speed" or parts[-1] in value, entry


def test_no_update_restarts_a_vm_by_itself(site: Site, record: Record) -> None:
    assert all(made.inputs["rebootAfterUpdate"] is False for _, made in vms(site, record))


def test_guests_sit_on_the_sites_bridge_and_vlan_with_their_own_mac(site: Site, record: Record) -> None:
    for guest, made in guests(site, record):
        wire = made.inputs["networkDevices" if guest.kind == "vm" else "networkInterfaces"]
        assert len(wire) == 1
        assert wire[0]["bridge"] == site.network.bridge
        assert wire[0].get("vlanId") == site.network.vlan
        assert wire[0].get("macAddress") == guest.mac


def test_the_first_boot_sets_address_gateway_and_resolvers(site: Site, record: Record) -> None:
    lan = IPv4Network(site.network.lan_cidr)
    for guest, made in guests(site, record):
        first = made.inputs["initialization"]
        assert first["ipConfigs"] == [
            {"ipv4": {"address": f"{guest.address}/{lan.prefixlen}", "gateway": str(site.vyos.lan_address)}}
        ]
        assert first["dns"] == {
            "servers": [str(server) for server in site.network.dns_servers],
            "domain": site.network.dns_search,
        }


def test_the_first_boot_lets_the_program_in_by_key_alone(site: Site, record: Record) -> None:
    key = "ssh-ed25519 <sshPublicKey>"
    for _, made in vms(site, record):
        assert made.inputs["initialization"]["userAccount"] == {"username": "fleet", "keys": [key]}
    for _, made in containers(site, record):
        assert made.inputs["initialization"]["userAccount"] == {"keys": [key]}


def test_sizes_are_the_documents(site: Site, record: Record) -> None:
    for guest, made in guests(site, record):
        assert (made.inputs["cpu"]["cores"], made.inputs["memory"]["dedicated"]) == (guest.cores, guest.memory_mib)
    for vm, made in vms(site, record):
        assert made.inputs["cpu"]["type"] == vm.cpu_type
    for ct, made in containers(site, record):
        assert (made.inputs["disk"]["datastoreId"], made.inputs["disk"]["size"]) == (ct.disk.storage, ct.disk.size_gib)
        assert made.inputs["memory"]["swap"] == 0


@pytest.mark.parametrize("site_id", ["sp", "norte"], indirect=False)
def test_lxc_01_to_03_the_gpu_container_is_privileged_with_nesting_and_keyctl(site_id: str) -> None:
    found = containers(three_sites().sites[site_id], declared(site_id))
    assert found
    for _, made in found:
        assert made.inputs["unprivileged"] is False
        assert made.inputs["features"] == {"nesting": True, "keyctl": True}


@pytest.mark.parametrize("site_id", ["sp", "norte"])
def test_lxc_04_the_gpu_arrives_as_device_nodes_by_name_with_kmsg_and_never_as_pci_device(site_id: str) -> None:
    for guest, made in containers(three_sites().sites[site_id], declared(site_id)):
        paths = [device["path"] for device in made.inputs["devicePassthroughs"]]
        assert paths == list(guest.devices)
        assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/kmsg"} <= set(paths)
        assert not any("pci" in key.lower() for key in made.inputs)


def test_lxc_08_no_guest_but_the_gpu_nodes_is_privileged(site: Site, record: Record) -> None:
    gpu_nodes = {node for c in site.clusters.values() if c.role == "gpu" for node in (*c.servers, *c.agents)}
    privileged = {ct.name for ct, made in containers(site, record) if made.inputs["unprivileged"] is False}
    assert privileged <= gpu_nodes


def test_an_unprivileged_container_is_made_with_the_token() -> None:
    def edit(documents: Documents) -> None:
        documents["norte"]["guests"]["north-gpu"]["privileged"] = False

    record = plan_of(changed(edit), "norte")
    made = of_type(record, CT)["guest-north-gpu-ct"]
    assert made.inputs["unprivileged"] is True
    assert made.provider == "proxmox-norte-token"
    assert "proxmox-norte-root" not in of_type(record, "providers:proxmoxve")


def test_tier_02_no_vm_of_the_shipped_sites_holds_a_pci_device() -> None:
    for site_id in ("franca", "sp"):
        for _, made in vms(three_sites().sites[site_id], declared(site_id)):
            assert not made.inputs.get("hostpcis")


def test_a_mapped_pci_device_reaches_its_vm() -> None:
    def edit(documents: Documents) -> None:
        documents["franca"]["guests"]["vm-cpps-04"]["pci_mappings"] = ["gpu-a", "gpu-b"]

    made = of_type(plan_of(changed(edit), "franca"), VM)["guest-vm-cpps-04-vm"]
    assert made.inputs["hostpcis"] == [
        {"device": "hostpci0", "mapping": "gpu-a", "pcie": True},
        {"device": "hostpci1", "mapping": "gpu-b", "pcie": True},
    ]
    assert made.inputs["machine"] == "q35"


def test_lxc_12_containers_with_devices_log_in_as_root_and_vms_with_the_token(
    site_id: str, site: Site, record: Record
) -> None:
    assert {made.provider for _, made in vms(site, record)} == {f"proxmox-{site_id}-token"}
    assert {made.provider for _, made in containers(site, record)} <= {f"proxmox-{site_id}-root"}


def test_there_is_one_proxmox_provider_per_credential(site_id: str, site: Site, record: Record) -> None:
    providers = of_type(record, "providers:proxmoxve")
    has_privileged = any(ct.privileged for ct in site.containers)
    assert set(providers) == {f"proxmox-{site_id}-token", *([f"proxmox-{site_id}-root"] if has_privileged else [])}
    for name, provider in providers.items():
        assert provider.inputs["endpoint"] == site.proxmox.endpoint
        assert provider.inputs["insecure"] == json.dumps(not site.proxmox.verify_tls)  # providers take text
        logins = {"apiToken", "username", "password"} & set(provider.inputs)
        assert logins == ({"apiToken"} if name.endswith("-token") else {"username", "password"})
        assert provider.secret >= logins - {"username"}


def test_every_proxmox_and_kubernetes_resource_names_its_provider(record: Record) -> None:
    packages = ("proxmoxve:", "kubernetes:")
    bare = [key for key, made in record.items() if key[0].startswith(packages) and not made.provider]
    assert not bare


def test_pve_01_only_guests_and_their_images_are_managed(record: Record) -> None:
    kinds = {kind for kind, _ in record if kind.startswith("proxmoxve:")}
    assert kinds <= MANAGED_TYPES


def test_pve_10_the_gpu_container_keeps_its_kind_and_lxc_09_its_host() -> None:
    made = of_type(declared("sp"), CT)["guest-gpu-sp-01-ct"]
    assert made.type == "proxmoxve:index/containerLegacy:ContainerLegacy"
    assert made.inputs["nodeName"] == "pve-ippri-31"


def test_pve_02_the_main_nodes_of_franca_are_the_three_named_vms() -> None:
    assert set(of_type(declared("franca"), VM)) == {f"guest-vm-cpps-0{number}-vm" for number in (2, 3, 4)}


def test_each_host_downloads_an_image_once_under_a_fixed_name(site: Site, record: Record) -> None:
    images = of_type(record, IMAGE).values()
    wanted = {
        (g.host, (site.proxmox.vm_image if g.kind == "vm" else site.proxmox.container_template))
        for g in site.guests.values()
    }
    assert sorted((i.inputs["nodeName"], i.inputs["fileName"]) for i in images) == sorted(
        (host, f"fleet-{image.file_name}") for host, image in wanted if image
    )
    assert all(image.inputs["overwrite"] is False for image in images)


def test_images_are_checked_against_the_documents_checksum(site: Site, record: Record) -> None:
    for made in of_type(record, IMAGE).values():
        vm_image = made.inputs["contentType"] == "import"
        image = site.proxmox.vm_image if vm_image else site.proxmox.container_template
        assert image is not None
        assert (made.inputs["url"], made.inputs["datastoreId"]) == (image.url, image.storage)
        assert made.inputs.get("checksum") == image.sha256
        assert made.inputs.get("checksumAlgorithm") == ("sha256" if image.sha256 else None)


def test_a_guest_waits_for_the_image_on_its_own_host(site_id: str, site: Site, record: Record) -> None:
    for guest, made in guests(site, record):
        assert made.after == (f"proxmox-{site_id}-{guest.kind}-image-{guest.host}",)


def test_a_guest_is_spoken_to_only_once_it_is_made(site: Site, record: Record) -> None:
    for guest in site.guests.values():
        contact = of_type(record, ":Command")[f"guest-{guest.name}-contact"]
        assert contact.after == (f"guest-{guest.name}-{'vm' if guest.kind == 'vm' else 'ct'}",)
        assert contact.inputs["connection"]["host"] == str(guest.address)
        assert contact.inputs["connection"]["user"] == ("fleet" if guest.kind == "vm" else "root")


def test_a_known_host_key_is_pinned_from_the_first_contact_on() -> None:
    record = of_type(declared("norte"), ":Command")
    known = three_sites().sites["norte"].guests["north-a"].ssh_host_key
    assert record["guest-north-a-contact"].inputs["connection"]["hostKey"] == known
    assert record["k3s-north-base-north-a"].inputs["connection"]["hostKey"] == known
    assert "hostKey" not in record["guest-north-b-contact"].inputs["connection"]
    assert record["k3s-north-base-north-b"].inputs["connection"]["hostKey"]


def test_lxc_06_no_script_names_a_file_below_etc_pve() -> None:
    """Raw `lxc.*` lines are root's on the host: printed in a runbook, never written."""
    scripts = [path for path in Path(ROOT, "infra").rglob("*.sh") if "/etc/pve" in path.read_text()]
    commands = [
        name
        for site_id in SITES
        for name, made in of_type(declared(site_id), ":Command").items()
        if "/etc/pve" in f"{made.inputs.get('create')}{made.inputs.get('stdin')}{made.inputs.get('delete')}"
    ]
    assert (scripts, commands) == ([], [])


def test_lxc_06_the_runbook_never_allows_all_devices() -> None:
    guest = three_sites().sites["norte"].guests["north-gpu"]
    assert isinstance(guest, Lxc)
    text = lxc_host.runbook(guest)
    assert "/etc/pve/lxc/9100.conf" in text
    assert all(line in text for line in lxc_host.RAW_LINES)
    assert all(device in text for device in guest.devices)
    allowed = [line.strip() for line in text.splitlines() if line.strip().startswith("lxc.cgroup2.devices.allow")]
    assert not allowed


def test_bkp_03_every_server_is_a_guest_with_state_that_nothing_deletes_in_one_step(
    site_id: str, site: Site, record: Record
) -> None:
    """Its protection goes first, in an update of its own: Pulumi and Proxmox both refuse until then."""
    servers = {node for cluster in site.clusters.values() for node in cluster.servers}
    made = {guest.name: resource for guest, resource in guests(site, record)}
    assert servers
    assert all(made[server].protect and made[server].inputs["protection"] for server in servers)


def test_gen_10_a_guest_without_state_may_be_replaced() -> None:
    assert not of_type(declared("norte"), VM)["guest-north-d-vm"].protect


@pytest.mark.parametrize(
    "path",
    [
        "guests.vm-sp-01.host",
        "guests.vm-sp-01.vmid",
        "guests.vm-sp-01.address",
        "guests.vm-sp-01.cores",
        "guests.vm-sp-01.memory_mib",
        "guests.vm-sp-01.disks",
        "guests.gpu-sp-01.disk",
        "network.bridge",
        "proxmox.vm_image",
        "proxmox.endpoint",
    ],
)
def test_pve_07_nothing_about_a_guest_has_a_default(path: str) -> None:
    faults = {(fault.id, fault.path) for fault in faults_of(patched(shipped(), delete=[f"sp.{path}"]))}
    assert ("GEN-07", f"sp.{path}") in faults


def test_tier_03_a_gpu_of_a_2a_host_may_go_to_a_vm_outside_the_main_cluster() -> None:
    """Its host keeps a display. The same VM on a Tier 3 host is refused."""
    host = "franca.proxmox.hosts.pve-labri-31"
    vm = {**shipped()["franca"]["guests"]["vm-cpps-04"], "host": "pve-labri-31", "vmid": 9999}
    vm |= {"address": "192.168.0.99", "pci_mappings": ["gpu"], "stateful": False}
    given = {
        "franca.guests.vm-gpu": vm,
        f"{host}.gpus.0.owner": "vfio",
        "franca.accept.TIER-09": "an experiment",
    }
    found = [fault for fault in faults_of(patched(shipped(), given)) if fault.level is not Level.WARN]
    assert not [str(fault) for fault in found if "vm-gpu" in fault.path or host in fault.path]
    on_tier_3 = patched(shipped(), given | {f"{host}.hardware_tier": "3", "franca.accept.TIER-05": "an experiment"})
    assert "TIER-02" in {fault.id for fault in faults_of(on_tier_3)}


@pytest.mark.parametrize("host", ["pve-ippri-33", "pve-ippri-34"])
def test_tier_06_the_tier_of_the_other_gpu_hosts_of_sao_paulo_is_3_and_assumed(host: str) -> None:
    site = three_sites().sites["sp"]
    assert site.proxmox.hosts[host].hardware_tier == "3"
    without = patched(shipped(), delete=[f"sp.proxmox.hosts.{host}.hardware_tier"])
    assert ("GEN-07", f"sp.proxmox.hosts.{host}.hardware_tier") in {(f.id, f.path) for f in faults_of(without)}
