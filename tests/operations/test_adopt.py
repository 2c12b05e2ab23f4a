"""`fleet adopt` against a Proxmox in this process: what it finds, what it prints, what it says when it cannot."""

import asyncio
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import adopt as command
from infra.config import Site
from infra.violation import InvariantError
from lab.pve import SitePve
from operations import adopt
from operations.access import Access, connect
from tests.lab.test_pve import Client, serving
from tests.sites import Documents, adopted

TOKEN = "fleet@pve!lab=t0ken"
Change = Callable[[dict[str, Any]], object]

VM_CONFIG = {
    "name": "vm-cpps-02",
    "cores": "8",
    "memory": "16384",
    "startup": "order=10,up=30",
    "tags": "producao;k3s",
    "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr1",
    "net1": "virtio=BC:24:11:00:00:02,bridge=vmbr0",
    "ide2": "none,media=cdrom",
    "scsi0": "linstor-ssd:vm-102-disk-0,size=100G,ssd=1",
    "efidisk0": "linstor-ssd:vm-102-disk-9,size=4M",
}
CT_CONFIG = {
    "hostname": "gpu-sp-01",
    "cores": "16",
    "memory": "65536",
    "startup": "order=30",
    "features": "keyctl=1,nesting=1",
    "rootfs": "linstor-ssd:vm-301-disk-0,size=200G",
    "net0": "name=eth1,bridge=vmbr1",
    "net1": "name=eth0,bridge=vmbr0,ip=192.168.10.51/24",
    **{
        f"dev{index}": f"path={path},mode=0666"
        for index, path in enumerate(
            (
                "/dev/nvidia0",
                "/dev/nvidiactl",
                "/dev/nvidia-uvm",
                "/dev/nvidia-uvm-tools",
                "/dev/nvidia-modeset",
                "/dev/kmsg",
            )
        )
    },
}


def facts(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**config, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "key", "real"),
    [
        ({"cores": "12"}, "cores", 12),
        ({"cores": None}, "cores", 1),
        ({"memory": "32768"}, "memory_mib", 32768),
        ({"memory": "current=32768"}, "memory_mib", 32768),
        ({"startup": "order=20"}, "start_order", 20),
        ({"startup": "7"}, "start_order", 7),
        ({"startup": "up=30"}, "start_order", None),
        ({"startup": None}, "start_order", None),
        ({"scsi0": "linstor-ssd:vm-102-disk-0,size=120G"}, "disks", [{"storage": "linstor-ssd", "size_gib": 120}]),
        ({"scsi0": "local:102/vm-102-disk-0.qcow2,size=102400M"}, "disks", [{"storage": "local", "size_gib": 100}]),
        ({"scsi0": "linstor-ssd:x,size=1T"}, "disks", [{"storage": "linstor-ssd", "size_gib": 1024}]),
        (
            {"virtio1": "a:x,size=2G", "scsi10": "b:x,size=3G", "scsi2": "c:x,size=4G", "scsi0": None},
            "disks",
            [{"storage": "c", "size_gib": 4}, {"storage": "b", "size_gib": 3}, {"storage": "a", "size_gib": 2}],
        ),
        ({"ide2": "linstor-ssd:vm-102-cloudinit,media=cdrom"}, "disks", [{"storage": "linstor-ssd", "size_gib": 100}]),
        ({"tags": "b;a"}, "tags", ["a", "b"]),
        ({"hostpci0": "mapping=gpu-a,pcie=1"}, "pci_mappings", ["gpu-a"]),
        ({"ipconfig0": "ip=dhcp", "ipconfig1": "ip=192.168.0.12/23,gw=192.168.0.1"}, "address", "192.168.0.12"),
        ({"net1": None}, "mac", "BC:24:11:00:00:01"),
    ],
)
def test_a_vms_config_is_read_in_the_terms_of_a_document(changes: dict[str, Any], key: str, real: Any) -> None:
    assert adopt.vm_facts(facts(VM_CONFIG, **changes))[key] == real


def test_what_a_config_does_not_hold_is_not_compared() -> None:
    found = adopt.vm_facts(VM_CONFIG)
    assert "address" not in found, "a VM without cloud-init keeps its address to itself"
    assert "mac" not in found, "of two interfaces nobody can tell which one is meant"


@pytest.mark.parametrize(
    ("changes", "key", "real"),
    [
        ({}, "privileged", True),
        ({"unprivileged": 1}, "privileged", False),
        ({"features": "nesting=1"}, "keyctl", False),
        ({"features": None}, "nesting", False),
        ({}, "address", "192.168.10.51"),
        ({"rootfs": "local-lvm:vm-301-disk-0,size=256G"}, "disk", {"storage": "local-lvm", "size_gib": 256}),
        ({"cores": None}, "cores", None),
    ],
)
def test_a_containers_config_is_read_in_the_terms_of_a_document(changes: dict[str, Any], key: str, real: Any) -> None:
    assert adopt.container_facts(facts(CT_CONFIG, **changes))[key] == real


def test_devices_keep_their_order() -> None:
    assert adopt.container_facts(CT_CONFIG)["devices"][:2] == ["/dev/nvidia0", "/dev/nvidiactl"]


# The whole way


def site(endpoint: str, site_id: str = "franca", edit: Callable[[Documents], object] = lambda _: None) -> Site:
    """The shipped site, with its guests on the hosts and storages of the fake."""

    def here(documents: Documents) -> None:
        document = documents[site_id]
        document["proxmox"] |= {"endpoint": endpoint, "verify_tls": False}
        hosts = document["proxmox"]["hosts"]
        document["proxmox"]["hosts"] = {
            "pve-1": hosts[next(iter(hosts))],
            **dict(list(hosts.items())[1:]),
        }
        for guest in document["guests"].values():
            if guest.get("existing"):
                guest["host"] = "pve-1"
        document.setdefault("accept", {})["PVE-04"] = "a test"
        edit(documents)

    return adopted(here).sites[site_id]


async def put_there(pve: SitePve, client: Client, vmid: int, config: dict[str, Any], kind: str = "qemu") -> None:
    """A guest that people made: created as little as can be, then given the config that it has."""
    if kind == "qemu":
        assert await client.done("POST", "nodes/pve-1/qemu", vmid=str(vmid), name=config["name"]) == "OK"
        made: Any = pve.pve.vm(vmid)
    else:
        path = "nodes/pve-1/storage/local/download-url"
        name = "debian-12.tar.zst"
        assert await client.done("POST", path, content="vztmpl", filename=name, url="https://192.0.2.10/x") == "OK"
        body = {"vmid": str(vmid), "hostname": config["hostname"], "ostemplate": f"local:vztmpl/{name}",
                "rootfs": "local-lvm:4", "unprivileged": "0"}  # fmt: skip
        assert await client.done("POST", "nodes/pve-1/lxc", **body) == "OK"
        made = pve.pve.ct(vmid)
    made.config.clear()
    made.config.update(config)


def compared(tmp_path: Path, put: Callable[[SitePve, Client], Any], token: str = TOKEN, **kind: Any) -> Any:
    """What `compare` says of a cluster that `put` filled; also proves that nothing of it changed."""

    async def play() -> Any:
        async with serving(tmp_path / "pve") as (pve, _, client):
            await put(pve, client)
            before = json.dumps([dict(vm.config) for vm in pve.pve.vms] + [dict(ct.config) for ct in pve.pve.cts])
            one = site(f"{client.url}/", **kind)
            try:
                return await asyncio.to_thread(adopt.compare, kind.get("site_id", "franca"), one, token)
            finally:
                after = json.dumps([dict(vm.config) for vm in pve.pve.vms] + [dict(ct.config) for ct in pve.pve.cts])
                assert after == before

    return asyncio.run(play())


async def as_documented(pve: SitePve, client: Client, **changes: Any) -> None:
    await put_there(pve, client, 102, facts(VM_CONFIG, **changes))
    await put_there(
        pve, client, 103, VM_CONFIG | {"name": "vm-cpps-03", "scsi0": "linstor-ssd:vm-103-disk-0,size=100G"}
    )


def test_nothing_differs_where_the_guests_are_what_the_document_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(tmp_path, as_documented)
    assert found.guests == ("vm-cpps-02", "vm-cpps-03")
    assert found.differences == ()
    assert found.lines() == ""
    command.show(found)
    assert "Nothing differs: vm-cpps-02, vm-cpps-03" in capsys.readouterr().out


def test_every_difference_becomes_a_line_of_the_stack_file_that_removes_it(tmp_path: Path) -> None:
    async def put(pve: SitePve, client: Client) -> None:
        disk = "linstor-ssd:vm-102-disk-0,size=120G"
        await as_documented(pve, client, cores="12", memory="32768", scsi0=disk, startup="order=20")

    found = compared(tmp_path / "first", put)
    wanted = {
        "cores": 12,
        "memory_mib": 32768,
        "start_order": 20,
        "disks": [{"storage": "linstor-ssd", "size_gib": 120}],
    }
    lines = yaml.safe_load(found.lines())
    assert lines == {"config": {"fleet:site": {"guests": {"vm-cpps-02": wanted}}}}
    assert "disks:\n" in found.lines() or "disks: [" in found.lines()
    stated = {one.field: one.document for one in found.differences}
    assert (stated["cores"], stated["start_order"]) == (8, 10)

    def edit(documents: Documents) -> None:
        documents["franca"]["guests"]["vm-cpps-02"] |= lines["config"]["fleet:site"]["guests"]["vm-cpps-02"]

    assert compared(tmp_path / "second", put, edit=edit).differences == ()


def test_what_no_line_can_mend_says_what_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def put(pve: SitePve, client: Client) -> None:
        await as_documented(pve, client, startup="up=5", scsi0="linstor-ssd:x,size=102912M")

    found = compared(tmp_path, put)
    assert found.lines() == ""
    command.show(found)
    printed = capsys.readouterr().out
    assert "qm set 102 --startup order=10" in printed
    assert "grow the disk to whole GiB" in printed
    assert "100.5" in printed


def test_tags_and_mac_are_compared_once_the_document_has_them(tmp_path: Path) -> None:
    def edit(documents: Documents) -> None:
        documents["franca"]["guests"]["vm-cpps-02"] |= {"tags": ["k3s"], "mac": "BC:24:11:00:00:09"}

    async def put(pve: SitePve, client: Client) -> None:
        await as_documented(pve, client, net1=None)

    found = compared(tmp_path, put, edit=edit)
    assert {one.field: one.real for one in found.differences} == {
        "tags": ["k3s", "producao"],
        "mac": "BC:24:11:00:00:01",
    }


def test_a_container_is_compared_down_to_its_devices(tmp_path: Path) -> None:
    async def put(pve: SitePve, client: Client) -> None:
        await put_there(pve, client, 301, facts(CT_CONFIG, dev5=None, features="nesting=1"), "lxc")

    found = compared(tmp_path, put, site_id="sp")
    assert {one.field for one in found.differences} == {"devices", "keyctl"}
    lines = yaml.safe_load(found.lines())["config"]["fleet:site"]["guests"]["gpu-sp-01"]
    assert lines["keyctl"] is False
    assert lines["devices"][-1] == "/dev/nvidia-modeset"


def refused(tmp_path: Path, put: Callable[[SitePve, Client], Any], **kind: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvariantError) as error:
        compared(tmp_path, put, **kind)
    assert "t0ken" not in str(error.value)
    return [(one.path, f"{one.found}; {one.remedy}") for one in error.value.violations]


def test_a_missing_vmid_says_which_ones_have_the_name(tmp_path: Path) -> None:
    async def put(pve: SitePve, client: Client) -> None:
        await put_there(pve, client, 112, VM_CONFIG)
        await put_there(pve, client, 113, VM_CONFIG)

    (first, second) = refused(tmp_path, put)
    assert first[0] == "franca.guests.vm-cpps-02.vmid"
    assert "no guest with VMID 102; vm-cpps-02 has VMID 112 (a VM on pve-1), 113 (a VM on pve-1)" in first[1]
    assert second == ("franca.guests.vm-cpps-03.vmid", "no guest with VMID 103; no guest is called vm-cpps-03 either")


def test_a_guest_elsewhere_or_of_another_name_is_not_taken_for_ours(tmp_path: Path) -> None:
    async def put(pve: SitePve, client: Client) -> None:
        await as_documented(pve, client, name="mail")
        pve.pve.vm(103).node = "pve-2"

    faults = refused(tmp_path, put)
    assert [path for path, _ in faults] == ["franca.guests.vm-cpps-02.vmid", "franca.guests.vm-cpps-03.host"]
    assert "mail, the name of VMID 102" in faults[0][1]
    assert "VMID 103 on pve-2; write host: pve-2" in faults[1][1]


def test_a_container_under_the_vmid_of_a_vm_is_refused(tmp_path: Path) -> None:
    async def put(pve: SitePve, client: Client) -> None:
        await put_there(pve, client, 102, CT_CONFIG | {"hostname": "vm-cpps-02"}, "lxc")
        await put_there(pve, client, 103, VM_CONFIG | {"name": "vm-cpps-03"})

    assert refused(tmp_path, put) == [
        ("franca.guests.vm-cpps-02.kind", "a container with VMID 102; correct kind or vmid")
    ]


# The fake leaves the connection of a client that it refused to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("token", ["fleet@pve!lab=wr0ng", "fleet@pve!gone=t0ken"])
def test_a_wrong_token_is_said_to_be_one(tmp_path: Path, token: str) -> None:
    ((path, text),) = refused(tmp_path, as_documented, token=token)
    assert path == "franca.fleet:proxmoxApiToken"
    assert "401" in text
    assert "wr0ng" not in text
    gc.collect()


def test_what_is_no_token_is_not_sent() -> None:
    with pytest.raises(InvariantError, match="no token") as error:
        adopt.compare("franca", site("https://127.0.0.1:1/"), "secret-word")
    assert "secret-word" not in str(error.value)


def test_an_api_that_does_not_answer_is_named() -> None:
    with pytest.raises(InvariantError, match=r"no answer of https://127\.0\.0\.1:1/") as error:
        adopt.compare("franca", site("https://127.0.0.1:1/"), TOKEN)
    assert "t0ken" not in str(error.value)


def test_an_unknown_authority_is_told_apart_from_silence(tmp_path: Path) -> None:
    def edit(documents: Documents) -> None:
        documents["franca"]["proxmox"]["verify_tls"] = True

    ((path, text),) = refused(tmp_path, as_documented, edit=edit)
    assert path == "franca.proxmox.verify_tls"
    assert "SSL_CERT_FILE" in text


def test_the_authority_of_ssl_cert_file_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", __file__)
    checked = connect(
        site("https://127.0.0.1:1/", edit=lambda d: d["franca"]["proxmox"].update(verify_tls=True)), TOKEN
    )
    assert checked._backend.auth.verify_ssl == __file__


# The command


@pytest.mark.parametrize(("cores", "code"), [("8", 0), ("9", 1)])
def test_the_exit_code_says_whether_anything_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cores: str, code: int
) -> None:
    async def put(pve: SitePve, client: Client) -> None:
        await as_documented(pve, client, cores=cores)

    found = compared(tmp_path, put)
    monkeypatch.setattr(adopt, "compare", lambda *_: found)
    monkeypatch.setattr(command, "opened", lambda *_: Access(api_token=TOKEN, private_key="", host_keys={}))
    root = Path(__file__).parents[2]
    assert command.run(root, "franca", as_json=True) == code
    printed = json.loads(capsys.readouterr().out)
    assert printed["guests"] == ["vm-cpps-02", "vm-cpps-03"]
    assert [one["field"] for one in printed["differences"]] == ["cores"] * code
    assert ("cores: 9" in printed["lines"]) is bool(code)
