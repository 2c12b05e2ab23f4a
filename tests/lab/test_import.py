"""What an import reads of guests that people made, and what then counts as a difference: the real provider's habits.

From the read functions of the Terraform provider bpg/proxmox, resources `virtual_environment_vm` and `_container`.
"""

import asyncio
from typing import Any

import pytest
from pulumi.provider.experimental.provider import ReadRequest

from infra.config import Fleet
from lab.existing import existing_guests, installation
from lab.providers.difference import Change
from lab.providers.proxmoxve import tables
from lab.providers.proxmoxve.container import Container
from lab.providers.proxmoxve.provider import Proxmox
from lab.providers.proxmoxve.vm import Vm
from lab.providers.serving import Refused
from lab.topology import ExistingGuest


class Answers:
    """An API that has one guest."""

    config: dict[str, Any] = {"endpoint": "https://192.0.2.1:8006/"}  # as the real one's

    def __init__(self, guest: ExistingGuest, agent: str = "403") -> None:
        self.guest, self.agent = guest, agent

    async def get(self, path: str, **_: Any) -> Any:
        guest = self.guest
        kind = "qemu" if guest.kind == "vm" else "lxc"
        if path == "cluster/resources":
            return [{"vmid": guest.vmid, "type": kind, "node": guest.host}]
        assert path.startswith(f"nodes/{guest.host}/{kind}/{guest.vmid}/")
        if path.endswith("/config"):
            return dict(guest.config)
        if path.endswith("/status/current"):
            return {"status": "running"}
        if "agent" in path:
            raise Refused(f"received an HTTP {self.agent} response - Reason: Permission check failed")
        return []


@pytest.fixture
def guests(fleet: Fleet) -> dict[str, ExistingGuest]:
    return {guest.name: guest for site in ("franca", "sp") for guest in existing_guests(fleet, site)}


def imported(guest: ExistingGuest) -> dict[str, Any]:
    kind: Any = (Vm if guest.kind == "vm" else Container)(Answers(guest))  # type: ignore[arg-type]
    found = asyncio.run(kind.read(f"{guest.host}/{guest.vmid}", {}))
    assert found is not None
    assert found[0] == str(guest.vmid)
    inputs: dict[str, Any] = found[1]
    return inputs


def test_an_import_reads_what_the_program_never_wrote(guests: dict[str, ExistingGuest]) -> None:
    seen = imported(guests["vm-cpps-02"])
    assert seen["bootOrders"] == ["scsi0", "ide2", "net0"]
    assert seen["startup"] == {"order": 10, "upDelay": 30, "downDelay": -1}
    assert seen["cpu"]["type"] == "host"
    assert [nic["bridge"] for nic in seen["networkDevices"]] == ["vmbr1", "vmbr0"]
    assert seen["tags"] == ["k3s", "producao"]
    assert seen["agent"]["enabled"] is True
    assert "initialization" not in seen  # installed from an ISO image
    other = imported(guests["vm-cpps-03"])
    assert other["efiDisk"]["type"] == "4m"
    assert other["bios"] == "ovmf"
    assert "agent" not in other or other["agent"]["enabled"] is False


def test_an_agent_that_the_login_may_not_ask_is_not_waited_for(guests: dict[str, ExistingGuest]) -> None:
    kind: Any = Vm(Answers(guests["vm-cpps-02"]))  # type: ignore[arg-type]
    outputs = asyncio.run(asyncio.wait_for(kind.read("x/102", {}), 5))[2]
    assert outputs["ipv4Addresses"] == []


def test_addresses_of_a_container_are_those_of_interfaces_that_have_one(guests: dict[str, ExistingGuest]) -> None:
    seen = imported(guests["gpu-sp-01"])
    assert [nic["name"] for nic in seen["networkInterfaces"]] == ["eth1", "eth0"]
    assert [ip["ipv4"]["address"] for ip in seen["initialization"]["ipConfigs"]] == ["192.168.10.51/24"]
    assert "dns" not in seen["initialization"] or not seen["initialization"]["dns"]
    assert "templateFileId" not in seen["operatingSystem"]


def test_an_import_of_a_container_leaves_unset_what_only_the_program_knows(guests: dict[str, ExistingGuest]) -> None:
    kind: Any = Container(Answers(guests["gpu-sp-01"]))  # type: ignore[arg-type]
    found = asyncio.run(kind.read("pve-ippri-31/301", {}))
    assert found is not None
    state = {**found[1], **found[2]}
    changed = [change.path for change in kind.also_changed(state, kind.normal(found[1]), ())]
    assert changed == list(tables.CT_UNREAD)
    assert [change.path for change in kind.also_changed(state, kind.normal(found[1]), tables.CT_UNREAD)] == []


def test_an_empty_text_is_no_change(guests: dict[str, ExistingGuest]) -> None:
    kind: Any = Container(Answers(guests["gpu-sp-01"]))  # type: ignore[arg-type]
    given = {"nodeName": "x", "operatingSystem": {"type": "ubuntu", "templateFileId": ""}}
    assert kind.normal(given)["operatingSystem"] == {"type": "ubuntu"}


@pytest.mark.parametrize("wrong", ["102", "pve-labri-31/", "pve-labri-31/vm"])
def test_an_import_id_is_host_and_vmid(guests: dict[str, ExistingGuest], wrong: str) -> None:
    kind: Any = Vm(Answers(guests["vm-cpps-02"]))  # type: ignore[arg-type]
    with pytest.raises(Refused, match="expected node/id"):
        asyncio.run(kind.read(wrong, {}))


def test_a_container_is_looked_for_on_the_given_host_alone(guests: dict[str, ExistingGuest]) -> None:
    kind: Any = Container(Answers(guests["gpu-sp-01"]))  # type: ignore[arg-type]
    assert asyncio.run(kind.read("pve-ippri-33/301", {})) is None
    machine: Any = Vm(Answers(guests["vm-cpps-02"]))  # type: ignore[arg-type]
    assert asyncio.run(machine.read("another/102", {})) is not None


def test_what_is_not_there_is_an_empty_answer(guests: dict[str, ExistingGuest]) -> None:
    provider = Proxmox()
    provider.kinds[Vm.token] = Vm(Answers(guests["vm-cpps-02"]))  # type: ignore[arg-type]
    urn = f"urn:pulumi:s::p::{Vm.token}::name"
    assert asyncio.run(provider.read(ReadRequest(urn, "pve-labri-31/999", {}, {}))).resource_id == ""


def test_ignored_paths_cover_what_lies_below_them() -> None:
    from lab.providers.difference import Kind  # noqa: PLC0415
    from lab.providers.stand_in import ignored  # noqa: PLC0415

    change = Change("disks[0].speed.read", Kind.ADD)
    assert all(ignored(change, [path]) for path in ("disks", "disks[0]", "disks[0].speed", "disks[0].speed.read"))
    assert not any(ignored(change, [path]) for path in ("disks[1]", "disks[*].speed", "disk", "disks[0].spee"))


def test_the_first_server_founds_the_cluster_and_the_next_joins_it_another_way(
    guests: dict[str, ExistingGuest],
) -> None:
    first, second = guests["vm-cpps-02"].k3s, guests["vm-cpps-03"].k3s
    assert first is not None
    assert second is not None
    script = installation(first, "http://192.0.2.10", None)
    assert "'--cluster-init'" in script
    assert "'--cluster-cidr=10.41.0.0/16'" in script
    assert "config.yaml" not in script.partition("CONFIG")[2].partition("ENVIRONMENT")[0].replace("CONFIG", "")
    joining = installation(second, "http://192.0.2.10", ("https://192.168.0.12:6443", "K10x::server:y"))
    assert 'server: "https://192.168.0.12:6443"' in joining
    assert "cluster-init" not in joining
    assert "'--" not in joining
    assert first.joins is None
    assert second.joins == "vm-cpps-02"
