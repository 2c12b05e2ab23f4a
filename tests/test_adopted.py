"""Guests and clusters that were there before the program: what is declared for them, and what is not."""

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_proxmoxve as pve
import pytest

import cli.plan
from cli.plan import Declared
from cli.runbooks import text as runbook
from cli.stand_in_inputs import placeholders
from infra.site import SiteStack
from tests.sites import Documents, Record, adopted, declared, of_type, plan_of
from tests.test_k3s import config, script, sections, values

FCA = "k3s-cluster-fca"
OLD = ("vm-cpps-02", "vm-cpps-03")


def plan(site_id: str, edit: Callable[[Documents], object] = lambda _: None) -> Record:
    return plan_of(adopted(edit), site_id)


@pytest.fixture(scope="module")
def franca() -> Record:
    return plan("franca")


@pytest.fixture(scope="module")
def sp() -> Record:
    return plan("sp")


def current(site_id: str, guest: str, **changes: Any) -> Callable[[Documents], object]:
    """Changes what runs on one guest."""
    return lambda documents: documents[site_id]["guests"][guest]["current"].update(changes)


def both(**changes: Any) -> Callable[[Documents], object]:
    """Changes what runs on both old servers of Franca."""
    return lambda documents: [current("franca", guest, **changes)(documents) for guest in OLD]


def commands(record: Record) -> dict[str, Declared]:
    """Commands of the cluster by what they are for."""
    return {name.removeprefix(f"{FCA}-"): made for name, made in of_type(record, ":Command").items() if FCA in name}


def old_guests(record: Record) -> list[Declared]:
    return [made for made in record.values() if made.imported]


# Proxmox


def test_pve_02_pve_03_lxc_10_what_exists_is_imported_by_host_and_vmid(franca: Record, sp: Record) -> None:
    assert {made.name: made.imported for made in old_guests(franca)} == {
        "guest-vm-cpps-02-vm": "pve-labri-31/102",
        "guest-vm-cpps-03-vm": "pve-labri-32/103",
    }
    assert {made.name: made.imported for made in old_guests(sp)} == {"guest-gpu-sp-01-ct": "pve-ippri-31/301"}


def test_pve_10_the_gpu_container_is_adopted_as_the_kind_it_is(sp: Record) -> None:
    (made,) = old_guests(sp)
    assert made.type == "proxmoxve:index/containerLegacy:ContainerLegacy"


def test_a_guest_keeps_its_name_in_the_state_whether_it_is_made_or_adopted(franca: Record) -> None:
    assert {*of_type(franca, "VmLegacy")} == {*of_type(declared("franca"), "VmLegacy")}
    assert {name for name in franca if name[0].startswith("fleet:proxmox:")} == {
        name for name in declared("franca") if name[0].startswith("fleet:proxmox:")
    }


@pytest.mark.parametrize("stateful", [True, False])
def test_bkp_03_lxc_10_an_adopted_guest_is_protected_and_outlives_its_resource(stateful: bool) -> None:
    """Moved to another host it has another import id, and the engine deletes what it knew under the old one."""

    def edit(documents: Documents) -> None:
        documents["franca"]["guests"]["vm-cpps-02"]["stateful"] = stateful

    for made in old_guests(plan("franca", edit)):
        assert (made.protect, made.retained) == (True, True)
    assert not any(made.retained for made in declared("franca").values())


def test_the_document_alone_is_stated_of_an_adopted_vm(franca: Record) -> None:
    assert of_type(franca, "VmLegacy")["guest-vm-cpps-02-vm"].inputs == {
        "nodeName": "pve-labri-31",
        "vmId": 102,
        "name": "vm-cpps-02",
        "cpu": {"cores": 8},
        "memory": {"dedicated": 16384},
        "startup": {"order": 10},
        "disks": [{"interface": "scsi0", "datastoreId": "linstor-ssd", "size": 100}],
    }


def test_lxc_12_the_document_alone_is_stated_of_an_adopted_container(sp: Record) -> None:
    made = of_type(sp, "ContainerLegacy")["guest-gpu-sp-01-ct"]
    devices = made.inputs.pop("devicePassthroughs")
    assert [list(device) for device in devices] == [["path"]] * 6
    assert made.inputs == {
        "nodeName": "pve-ippri-31",
        "vmId": 301,
        "cpu": {"cores": 16},
        "memory": {"dedicated": 65536},
        "startup": {"order": 30},
        "disk": {"datastoreId": "linstor-ssd", "size": 200},
        "unprivileged": False,
        "features": {"nesting": True, "keyctl": True},
        "operatingSystem": {"templateFileId": ""},
    }
    assert made.provider == "proxmox-sp-root"


def leaves(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}.{key}" if path else key)]
    if isinstance(value, list):
        return [leaf for at, item in enumerate(value) for leaf in leaves(item, f"{path}[{at}]")]
    return [path]


@pytest.mark.parametrize(
    ("site_id", "arguments", "unread"),
    [
        ("franca", pve.VmLegacyArgs, {"disks[0].interface"}),  # required by the SDK, and ignored
        ("sp", pve.ContainerLegacyArgs, {"vmId"}),
    ],
)
def test_each_property_of_the_provider_is_either_stated_or_ignored(
    site_id: str, arguments: type, unread: set[str]
) -> None:
    """A property that is neither would be reset to a default by the update that follows an import."""
    for made in old_guests(plan(site_id)):
        ignored = set(made.ignore_changes)
        stated = set(leaves(made.inputs))
        assert stated & ignored == unread
        spelt = {word.replace("_", "").lower() for word in inspect.signature(arguments).parameters}
        assert spelt == {path.lower() for path in ignored | set(made.inputs) if "." not in path}
        assert "*" not in "".join(ignored)


@pytest.mark.parametrize(
    "path",
    [
        "description", "networkDevices", "agent", "bootOrders", "scsiHardware", "serialDevices", "machine", "bios",
        "efiDisk", "cpu.type", "cpu.sockets", "onBoot", "started", "protection", "initialization", "tags", "hostpcis",
        "memory.floating", "startup.upDelay", "disks[0].speed", "disks[0].importFrom", "disks[0].cache", "disks[0].ssd",
        "stopOnDestroy", "rebootAfterUpdate",
    ],
)  # fmt: skip
def test_what_people_chose_for_a_vm_stays(franca: Record, path: str) -> None:
    assert path in of_type(franca, "VmLegacy")["guest-vm-cpps-02-vm"].ignore_changes


@pytest.mark.parametrize(
    "path",
    [
        "description", "networkInterfaces", "initialization", "startOnBoot", "started", "protection", "tags", "console",
        "mountPoints", "memory.swap", "operatingSystem.type", "features.fuse", "devicePassthroughs[5].mode",
        "timeoutCreate", "timeoutDelete",
    ],
)  # fmt: skip
def test_what_people_chose_for_a_container_stays(sp: Record, path: str) -> None:
    assert path in of_type(sp, "ContainerLegacy")["guest-gpu-sp-01-ct"].ignore_changes


def test_tags_and_devices_are_stated_once_the_document_lists_them() -> None:
    def edit(documents: Documents) -> None:
        documents["franca"]["guests"]["vm-cpps-02"] |= {"tags": ["producao", "k3s"], "pci_mappings": ["gpu-a"]}

    made = of_type(plan("franca", edit), "VmLegacy")["guest-vm-cpps-02-vm"]
    assert made.inputs["tags"] == ["k3s", "producao"], "the program's own are for guests that it makes"
    assert made.inputs["hostpcis"] == [{"device": "hostpci0", "mapping": "gpu-a"}]
    assert not {"tags", "hostpcis"} & set(made.ignore_changes)
    assert "hostpcis[0].pcie" in made.ignore_changes


def test_no_host_downloads_an_image_for_guests_that_exist(franca: Record, sp: Record) -> None:
    hosts = {made.inputs["nodeName"] for made in of_type(franca, "FileLegacy").values()}
    assert hosts == {"pve-labri-33"}
    assert {made.inputs["contentType"] for made in of_type(sp, "FileLegacy").values()} == {"import"}


def test_the_program_enters_as_whom_the_document_says() -> None:
    def edit(documents: Documents) -> None:
        documents["franca"]["guests"]["vm-cpps-02"]["ssh_user"] = "debian"

    for record, user in ((plan("franca"), "fleet"), (plan("franca", edit), "debian")):
        contact = of_type(record, ":Command")["guest-vm-cpps-02-contact"]
        assert contact.inputs["connection"]["user"] == user
        assert contact.after == ("guest-vm-cpps-02-vm",)


# K3s that is there already


def test_an_old_node_is_recognised_and_nothing_else_runs_there_but_reading(franca: Record) -> None:
    addresses = {"192.168.0.12": "vm-cpps-02", "192.168.0.13": "vm-cpps-03"}
    there = {
        (role, addresses[made.inputs["connection"]["host"]])
        for role, made in commands(franca).items()
        if made.inputs["connection"]["host"] in addresses
    }
    assert there == {
        ("recognise-vm-cpps-02", "vm-cpps-02"),
        ("recognise-vm-cpps-03", "vm-cpps-03"),
        ("identity-vm-cpps-02", "vm-cpps-02"),
        ("join-token-vm-cpps-02", "vm-cpps-02"),
    }
    for role in ("recognise-vm-cpps-02", "identity-vm-cpps-02", "join-token-vm-cpps-02"):
        own = script(commands(franca)[role])
        own = own[own.rindex("\n}\n") :]  # behind the functions of the library
        own = re.sub(r'"[^"]*"|^#.*$', "", own, flags=re.MULTILINE)  # what is done, not what is said
        assert not re.search(r"\b(put|systemctl|mkdir|rm|cp|install_k3s|write_unit|launch|apply|delete)\b", own), role


def test_a_node_is_compared_with_all_that_its_document_says_is_in_force() -> None:
    edit = current("franca", "vm-cpps-02", k3s_version="v1.31.9+k3s1", secrets_encryption=True, disable=["traefik"])
    told = values(commands(plan("franca", edit))["recognise-vm-cpps-02"], "expected")
    assert told == {
        "role": "server",
        "version": "v1.31.9+k3s1",
        "datastore": "etcd",
        "nodes": "vm-cpps-02 vm-cpps-03",
        "joining": "vm-cpps-04",
        "cluster-cidr": "10.41.0.0/16",
        "service-cidr": "10.141.0.0/16",
        "flannel-backend": "vxlan",
        "disable-network-policy": "false",
        "disable-kube-proxy": "false",
        "secrets-encryption": "true",
        "disable": "traefik",
    }


def test_k3s_13_the_token_of_an_old_cluster_is_read_and_stays_secret(franca: Record) -> None:
    assert not [name for kind, name in franca if kind.endswith("RandomPassword")]
    made = commands(franca)["token-vm-cpps-04"]
    assert made.shown["stdin"] == "[secret]"
    token = sections(made)["token"]
    assert token == f"K10{'0' * 64}::server:plan-only-join-token-of-{FCA}-join-token-vm-cpps-02\n"
    assert token.strip() not in json.dumps([made.masked() for made in franca.values()], default=str)
    assert f"{FCA}-join-token-vm-cpps-02" in made.after


def test_the_token_is_read_once_every_old_node_is_what_it_should_be(franca: Record) -> None:
    known = {f"{FCA}-recognise-{guest}" for guest in OLD}
    assert known <= set(commands(franca)["join-token-vm-cpps-02"].after)
    assert known <= set(commands(franca)["server-vm-cpps-04"].after)


def test_no_second_cluster_is_begun_beside_an_old_one(franca: Record) -> None:
    assert not [role for role in commands(franca) if "bootstrap" in role]
    told = values(commands(franca)["server-vm-cpps-04"], "node")
    assert told["mode"] == "member"
    assert told["peers"].split() == ["192.168.0.12", "192.168.0.13"]


def test_mig_03_a_new_server_joins_with_the_flags_in_force(franca: Record) -> None:
    told = config(commands(franca)["server-vm-cpps-04"])
    absent = {"flannel-backend", "disable-network-policy", "disable-kube-proxy", "secrets-encryption"}
    assert not absent & set(told)
    assert (told["cluster-cidr"], told["service-cidr"]) == ("10.41.0.0/16", "10.141.0.0/16")
    assert told["disable"] == ["servicelb", "traefik"]


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"flannel_backend": "host-gw"}, "flannel-backend", "host-gw"),
        ({"flannel_backend": "none"}, "flannel-backend", "none"),
        ({"flannel_backend": "none"}, "disable-kube-proxy", True),
        ({"secrets_encryption": True}, "secrets-encryption", True),
        ({"disable": ["traefik"]}, "disable", ["traefik"]),
    ],
)
def test_whatever_is_in_force_reaches_the_server_that_joins(changes: dict[str, Any], key: str, value: Any) -> None:
    assert config(commands(plan("franca", both(**changes)))["server-vm-cpps-04"])[key] == value


def test_a_new_server_gets_the_release_that_runs() -> None:
    made = commands(plan("franca", both(k3s_version="v1.31.9+k3s1")))["server-vm-cpps-04"]
    assert values(made, "artifacts")["base"].endswith("/v1.31.9%2Bk3s1")


def test_the_api_is_reached_through_a_server_that_runs_until_all_are_taken_over(franca: Record) -> None:
    assert values(commands(franca)["server-vm-cpps-04"], "node")["api"] == "192.168.0.12"
    taken = commands(plan("franca", both(managed=True)))["server-vm-cpps-04"]
    assert values(taken, "node")["api"] == "192.168.0.20"


def test_an_old_guest_where_nothing_runs_gets_k3s_like_a_new_one() -> None:
    def edit(documents: Documents) -> None:
        for guest in OLD:
            documents["franca"]["guests"][guest]["current"] = {"runs": "nothing"}

    assert set(commands(plan("franca", edit))) == {
        name.removeprefix(f"{FCA}-") for name in of_type(declared("franca"), ":Command") if FCA in name
    }


def test_a_node_that_is_taken_over_gets_the_ordinary_command_with_the_token_of_its_cluster() -> None:
    record = commands(plan("franca", current("franca", "vm-cpps-03", managed=True)))
    assert "recognise-vm-cpps-03" not in record
    assert sections(record["token-vm-cpps-03"])["token"] == sections(record["token-vm-cpps-04"])["token"]
    assert f"{FCA}-server-vm-cpps-03" in record["server-vm-cpps-04"].after, "one after another"
    assert sections(record["server-vm-cpps-03"])["kube-vip.yaml"]
    assert "flannel-backend" not in config(record["server-vm-cpps-03"])
    assert values(record["recognise-vm-cpps-02"], "expected")["nodes"] == "vm-cpps-02 vm-cpps-03"


def test_an_old_agent_is_recognised_and_a_new_one_joins_the_old_cluster() -> None:
    def edit(documents: Documents) -> None:
        site = documents["franca"]
        site["guests"]["vm-cpps-04"] |= {"existing": True, "current": {
            "runs": "agent", "pod_cidr": "10.41.0.0/16", "service_cidr": "10.141.0.0/16"}}  # fmt: skip
        site["guests"]["vm-cpps-03"]["current"]["runs"] = "nothing"
        site["clusters"]["cluster-fca"] |= {"servers": ["vm-cpps-02"], "agents": ["vm-cpps-03", "vm-cpps-04"]}
        site.setdefault("accept", {}).update({"K3S-03": "a test", "PVE-02": "a test", "K3S-05": "a test"})

    record = commands(plan("franca", edit))
    assert values(record["recognise-vm-cpps-04"], "expected") == {
        "role": "agent",
        "version": "v1.32.13+k3s1",
        "nodes": "vm-cpps-02 vm-cpps-04",
        "joining": "vm-cpps-03",
    }
    assert "agent-vm-cpps-04" not in record
    assert config(record["agent-vm-cpps-03"])["server"] == "https://192.168.0.12:6443"
    assert f"{FCA}-join-token-vm-cpps-02" in record["agent-vm-cpps-03"].after


def test_mig_01_cilium_follows_the_migration(franca: Record) -> None:
    assert not of_type(franca, ":Release")
    assert not [name for _, name in franca if name.startswith("cilium-")]
    done = plan("franca", both(flannel_backend="none"))
    assert set(of_type(done, ":Release")) == {"cilium-cluster-fca-chart"}


def outputs(site_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    fleet = adopted()

    def keep(name: str) -> Callable[[Any], None]:
        return lambda value: found.update({name: value})

    def program() -> None:
        for name, value in SiteStack(fleet, site_id, placeholders()).outputs.items():
            seen = pulumi.Output.from_input(value).apply(keep(name))
            assert seen

    cli.plan.declare(program, stack=site_id)
    return found


def test_outputs_say_what_was_recognised_and_why_there_is_no_cilium() -> None:
    published = outputs("franca")["cluster-fca"]
    assert set(published["recognised"]) == set(OLD)
    assert published["recognised"]["vm-cpps-02"]["role"] == "server"
    assert "MIG-01" in published["cilium"]["status"]
    assert published["api"] == "https://192.168.0.12:6443"
    assert "recognised" not in outputs("sp")["cluster-sp"]


# The older project


def test_pve_10_the_hand_over_is_a_runbook_of_exact_commands_in_order() -> None:
    printed = runbook(adopted(), "sp", "hand-over")
    steps = [
        "pulumi stack export -s STACK --file gpu-sp-01-older.json",
        ".inputs.vmId == 301",
        "pulumi preview -s STACK --expect-no-changes",
        "./fleet adopt sp",
        "pulumi up -s sp",
        "pulumi preview -s sp --expect-no-changes",
        "pulumi state delete -s STACK 'URN'",
        "handed_over:",
    ]
    places = [printed.rindex(step) if step == "handed_over:" else printed.index(step) for step in steps]
    assert places == sorted(places)
    assert "[id=pve-ippri-31/301]" in printed
    assert "infra/proxmox-sp" in printed
    commands_of = [line for line in printed.splitlines() if line.startswith("    ")]
    assert not [line for line in commands_of if "destroy" in line]
    assert "Never `pulumi destroy`" in printed


def test_a_site_whose_guests_no_project_holds_has_no_hand_over() -> None:
    with pytest.raises(Exception, match="no guest of site franca names an older_project"):
        runbook(adopted(), "franca", "hand-over")
