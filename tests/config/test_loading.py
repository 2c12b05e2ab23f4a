"""A folder of documents becomes a fleet, or every fault of shape of every document."""

import shutil
from pathlib import Path

import pytest

from infra.config.loading import MOST_FAULTS, PROJECT_FILE, load, stack_files
from infra.violation import Violation

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (PROJECT_FILE, "Pulumi.franca.yaml", "Pulumi.sp.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def edit(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def faults(folder: Path) -> list[Violation]:
    fleet, found = load(folder)
    assert (fleet is None) == bool(found)
    return found


def test_the_shipped_folder_is_a_fleet() -> None:
    fleet, found = load(ROOT)
    assert found == []
    assert fleet is not None
    assert list(fleet.sites) == ["franca", "sp"]


def test_entries_know_their_names(folder: Path) -> None:
    fleet, _ = load(folder)
    assert fleet is not None
    assert [path for path, _, _ in fleet.clusters()] == [
        "franca.clusters.cluster-fca",
        "sp.clusters.cluster-sp",
        "sp.clusters.gpu-sp",
    ]
    assert {guest.name for _, _, guest in fleet.guests()} >= {"vm-cpps-02", "gpu-sp-01"}


def test_a_new_stack_file_is_a_new_site(folder: Path) -> None:
    shutil.copy(ROOT / "tests" / "sites" / "Pulumi.norte.yaml", folder)
    fleet, found = load(folder)
    assert found == []
    assert fleet is not None
    assert "norte" in fleet.sites


def test_other_files_are_no_stack_files(folder: Path) -> None:
    for name in ("Pulumi.SP.yaml", "Pulumi.a.b.yaml", "Pulumi.sp.yml", "Pulumi.sp.yaml.orig", "Pulumi..yaml"):
        (folder / name).write_text("broken: [", encoding="utf-8")
    assert list(stack_files(folder)) == ["franca", "sp"]


@pytest.mark.parametrize(
    "name",
    [
        "Pulumi.SP.yaml",
        "Pulumi.a.b.yaml",
        "Pulumi.sp.yml",
        "Pulumi.sp-.yaml",
        "Pulumi..yaml",
        "pulumi.sp.YAML",
        "Pulumi.yml",
    ],
)
def test_a_file_that_looks_like_a_document_and_is_none_is_a_fault(folder: Path, name: str) -> None:
    (folder / name).write_text("config: {}\n", encoding="utf-8")
    (fault,) = faults(folder)
    assert (fault.id, fault.path) == ("DOC-01", name)
    assert "Pulumi.<site>.yaml" in fault.expected


@pytest.mark.parametrize("name", ["Pulumi.sp.yaml.orig", "Pulumi.sp.yaml~", "notes.yaml", "Pulumi.md"])
def test_any_other_file_may_lie_beside_the_documents(folder: Path, name: str) -> None:
    (folder / name).write_text("config: [", encoding="utf-8")
    assert faults(folder) == []


def test_an_unknown_key_suggests_the_near_one(folder: Path) -> None:
    edit(folder, "Pulumi.sp.yaml", "lan_cidr:", "lan_cdir:")
    found = {fault.id: fault for fault in faults(folder)}
    assert found["DOC-02"].path == "sp.network.lan_cdir"
    assert "lan_cidr" in found["DOC-02"].remedy
    assert found["GEN-07"].path == "sp.network.lan_cidr"


def test_an_unknown_key_of_a_guest_suggests_keys_of_guests(folder: Path) -> None:
    edit(folder, "Pulumi.sp.yaml", "memory_mib: 65536", "memory_mb: 65536")
    found = {fault.id: fault for fault in faults(folder)}
    assert found["DOC-02"].path == "sp.guests.gpu-sp-01.memory_mb"
    assert "memory_mib" in found["DOC-02"].remedy


def test_missing_values_of_all_documents_are_reported_together(folder: Path) -> None:
    edit(folder, "Pulumi.sp.yaml", "      site_asn: 65002\n", "")
    edit(folder, "Pulumi.sp.yaml", "      lan_address: 192.168.10.1\n", "")
    edit(folder, "Pulumi.franca.yaml", "      pool: {start: 192.168.0.240, stop: 192.168.0.250}\n", "")
    edit(folder, PROJECT_FILE, "      dns_zone: colabh.org\n", "")
    assert {(fault.id, fault.path) for fault in faults(folder)} == {
        ("GEN-07", "sp.bgp.site_asn"),
        ("GEN-07", "sp.vyos.lan_address"),
        ("GEN-07", "franca.lb.pool"),
        ("GEN-07", "common.dns_zone"),
    }


def test_an_empty_site_lists_everything_it_needs(folder: Path) -> None:
    (folder / "Pulumi.sp.yaml").write_text("config:\n  fleet:site: {schema_version: 1}\n", encoding="utf-8")
    missing = {fault.path for fault in faults(folder)}
    assert {fault.id for fault in faults(folder)} == {"GEN-07"}
    assert missing >= {f"sp.{key}" for key in ("network", "vyos", "wireguard", "bgp", "lb", "proxmox", "guests")}


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("site_asn: 65002", 'site_asn: "65002"', "sp.bgp.site_asn"),
        ("site_asn: 65002", "site_asn: 65002.0", "sp.bgp.site_asn"),
        ("cilium_asn: 65002", "cilium_asn: 4294967295", "sp.bgp.cilium_asn"),
        ("vmid: 201", "vmid: true", "sp.guests.vm-sp-01.vmid"),
        ("lan_cidr: 192.168.10.0/24", "lan_cidr: 192.168.10.1/24", "sp.network.lan_cidr"),
        ("lan_cidr: 192.168.10.0/24", "lan_cidr: 10", "sp.network.lan_cidr"),
        ("address: 192.168.10.21", "address: 192.168.10.256", "sp.guests.vm-sp-01.address"),
        ("in_mesh: true", 'in_mesh: "true"', "sp.clusters.cluster-sp.in_mesh"),
        ('hardware_tier: "3"', "hardware_tier: 3", "sp.proxmox.hosts.pve-ippri-31.hardware_tier"),
        ("kind: lxc", "kind: jail", "sp.guests.gpu-sp-01"),
        ("cluster_id: 2", "cluster_id: 256", "sp.clusters.cluster-sp.cluster_id"),
        ("    guests:", "    guests: 5\n    other:", "sp.guests"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_named(folder: Path, old: str, new: str, path: str) -> None:
    edit(folder, "Pulumi.sp.yaml", old, new)
    found = [fault for fault in faults(folder) if fault.path.startswith(path)]
    assert [fault.id for fault in found] == ["DOC-03"]


@pytest.mark.parametrize("address", ["0.0.0.0", "224.0.0.5", "127.0.0.1"])
def test_peers_dial_an_address_that_a_machine_can_have(folder: Path, address: str) -> None:
    edit(folder, "Pulumi.sp.yaml", "endpoint: null", f"endpoint: {address}")
    assert {(fault.id, fault.path) for fault in faults(folder)} == {("DOC-03", "sp.wireguard.endpoint")}


def test_a_name_that_kubernetes_refuses_is_a_fault(folder: Path) -> None:
    edit(folder, "Pulumi.sp.yaml", "      vm-sp-02:\n", "      VM_sp_02:\n")
    assert "DOC-03" in {fault.id for fault in faults(folder)}


def test_a_broken_file_does_not_hide_the_faults_of_the_others(folder: Path) -> None:
    (folder / "Pulumi.franca.yaml").write_text("config: [\n", encoding="utf-8")
    edit(folder, "Pulumi.sp.yaml", "      site_asn: 65002\n", "")
    assert {fault.id for fault in faults(folder)} == {"DOC-01", "GEN-07"}


@pytest.mark.parametrize(
    "text",
    ["name: fleet\n", "config: 5\n", "config: {}\n", "config:\n  fleet:site: text\n", "config:\n  fleet:site: []\n"],
)
def test_a_stack_file_without_a_site_says_where_it_belongs(folder: Path, text: str) -> None:
    (folder / "Pulumi.sp.yaml").write_text(text, encoding="utf-8")
    (fault,) = faults(folder)
    assert (fault.id, fault.path) == ("GEN-07", "sp")
    assert "fleet:site" in fault.found


def test_no_stack_file_at_all_is_a_fault(tmp_path: Path) -> None:
    shutil.copy(ROOT / PROJECT_FILE, tmp_path)
    assert [fault.id for fault in faults(tmp_path)] == ["GEN-01"]


def test_a_missing_project_file_is_a_fault(folder: Path) -> None:
    (folder / PROJECT_FILE).unlink()
    assert [(fault.id, fault.path) for fault in faults(folder)] == [("DOC-01", PROJECT_FILE)]


def test_encrypted_values_are_never_read(folder: Path) -> None:
    path = folder / "Pulumi.sp.yaml"
    secret = "encryptionsalt: v1:abc\n" + path.read_text(encoding="utf-8")
    path.write_text(secret + "  fleet:token:\n    secure: v1:DEADBEEF\n", encoding="utf-8")
    fleet, found = load(folder)
    assert found == []
    assert "DEADBEEF" not in repr(fleet)


def test_a_value_is_shown_short_and_printable(folder: Path) -> None:
    edit(folder, "Pulumi.sp.yaml", "bridge: vmbr0", 'bridge: "' + "x" * 5000 + '\\e[31m"')
    (fault,) = faults(folder)
    assert len(str(fault)) < 400
    assert str(fault).isprintable()


@pytest.mark.parametrize("key", ["network[0]", "guests (old)", "\\e[2J\\nfake", "[key]"])
def test_an_unknown_key_is_named_however_it_looks(folder: Path, key: str) -> None:
    edit(folder, "Pulumi.sp.yaml", "    schema_version: 1\n", f'    schema_version: 1\n    "{key}": 1\n')
    (fault,) = faults(folder)
    assert (fault.id, fault.path.split(".", 1)[0]) == ("DOC-02", "sp")
    assert fault.path != "sp"
    assert str(fault).isprintable()


CONTROL = [r"a\nb", r"a\0b", r"\e[2J", r"\x7f", r"\u202e", r"a\rb"]


@pytest.mark.parametrize("value", CONTROL)
@pytest.mark.parametrize(
    "old",
    [
        "name: ArgoCD-sp",
        "context: gpu-sp-context",
        "      - network.lan_cidr",
        "recovery: dump of its database, manifests from Git",
        "K3S-05: one server until a second host outside Tier 3 is free; snapshots leave the etcd restore path open",
    ],
)
def test_text_is_one_line_that_prints_as_it_is(folder: Path, old: str, value: str) -> None:
    start = old[: old.index(": ") + 2] if ": " in old else "      - "
    edit(folder, "Pulumi.sp.yaml", old, f'{start}"{value}"')
    assert {fault.id for fault in faults(folder)} == {"DOC-03"}
    assert "one line of text without control characters" in str(faults(folder)[0])


@pytest.mark.parametrize("value", [*CONTROL, "a b", "=== guard", "$(reboot)", "`id`", "-x", "ntp;x", "é", "::1"])
def test_a_time_server_is_a_host_name_or_an_address(folder: Path, value: str) -> None:
    edit(folder, "Pulumi.sp.yaml", "[a.st1.ntp.br, b.st1.ntp.br]", f'["{value}"]')
    assert [(fault.id, fault.path) for fault in faults(folder)] == [("DOC-03", "sp.network.ntp_servers.0")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("https://192.168.10.11:8006/", "https://root:PASSWORD@192.168.10.11:8006/"),
        ("https://192.168.10.11:8006/", '"https://$(id)/"'),
        ("https://192.168.10.11:8006/", r'"https://h/\0"'),
        ('"0 */6 * * *"', "a b c d e"),
        ('"0 */6 * * *"', r'"0 0 * *\n*"'),
        ('"0 */6 * * *"', '"60 * * * *"'),
        ('"0 */6 * * *"', '"0 24 * * *"'),
        ('"0 */6 * * *"', '"0 0 0 * *"'),
        ('"0 */6 * * *"', '"0 0 * 13 *"'),
        ('"0 */6 * * *"', '"0 0 * * 7"'),
        ('"0 */6 * * *"', '"0 0 * * monday"'),
        ('"0 */6 * * *"', '"*/0 * * * *"'),
        ('"0 */6 * * *"', '"30-10 * * * *"'),
        ('"0 */6 * * *"', '"1,,2 * * * *"'),
        ('"0 */6 * * *"', '"0 0 * *"'),
        ('"0 */6 * * *"', '"@daily"'),
        ("agents: [vm-sp-02]", 'agents: [vm-sp-02]\n        kubelet_args: ["a=\\x7f"]'),
        ("agents: [vm-sp-02]", 'agents: [vm-sp-02]\n        kubelet_args: ["a=\\0"]'),
        ("agents: [vm-sp-02]", "agents: [vm-sp-02]\n        kubelet_args: [a=\U0001f600]"),
        ("agents: [vm-sp-02]", "agents: [vm-sp-02]\n        node_labels: {node-role.kubernetes.io/etcd: x}"),
        ("agents: [vm-sp-02]", "agents: [vm-sp-02]\n        node_labels: {kubernetes.io/hostname: x}"),
        ("k3s_version: v1.32.13+k3s1", "k3s_version: v1.٣٢.13+k3s1"),
        ("memory_mib: 16384", f"memory_mib: 1{'0' * 400}"),
        ("start_order: 10", "start_order: 1000000000000000000000"),
        ("cores: 8", 'cores: 8\n        cpu_type: "host,hidden=1"'),
    ],
)
def test_what_a_machine_would_choke_on_is_a_fault_of_shape(folder: Path, old: str, new: str) -> None:
    edit(folder, "Pulumi.sp.yaml", old, new)
    (fault,) = faults(folder)
    assert fault.id == "DOC-03"
    assert "PASSWORD" not in str(fault)
    assert len(str(fault)) < 700


def test_a_cron_field_out_of_range_is_told_what_it_may_hold(folder: Path) -> None:
    edit(folder, "Pulumi.sp.yaml", '"0 */6 * * *"', '"0 24 * * *"')
    (fault,) = faults(folder)
    assert fault.found == "0 24 * * *"
    assert fault.expected.startswith("0 to 23 as hour")


@pytest.mark.parametrize(
    "cron", ["0 */6 * * *", "5,35 8-18/2 1 jan-MAR Sun,6", "59 23 31 12 0", "? ? ? ? ?", "7/15 * * * *"]
)
def test_cron_expressions_of_k3s_are_taken(folder: Path, cron: str) -> None:
    edit(folder, "Pulumi.sp.yaml", '"0 */6 * * *"', f'"{cron}"')
    assert faults(folder) == []


def test_a_document_with_countless_faults_names_the_first_ones(folder: Path) -> None:
    edit(folder, "Pulumi.sp.yaml", "dns_servers: [192.168.10.1]", f"dns_servers: [{', '.join(['x'] * 5000)}]")
    found = faults(folder)
    assert len(found) == MOST_FAULTS + 1
    assert found[-1].found == f"{5000 - MOST_FAULTS} further faults of shape"


def test_an_empty_kind_is_told_as_empty_text(folder: Path) -> None:
    edit(folder, "Pulumi.sp.yaml", "kind: lxc", 'kind: ""')
    assert [(fault.path, fault.found) for fault in faults(folder)] == [("sp.guests.gpu-sp-01.kind", "empty text")]


def test_a_password_in_a_key_is_not_shown_either(folder: Path) -> None:
    edit(
        folder,
        "Pulumi.sp.yaml",
        "    schema_version: 1\n",
        '    schema_version: 1\n    "https://root:PASSWORD@host/": 1\n',
    )
    (fault,) = faults(folder)
    assert fault.id == "DOC-02"
    assert "PASSWORD" not in str(fault)


def test_labels_that_a_kubelet_may_set_are_taken(folder: Path) -> None:
    labels = "{topology.kubernetes.io/zone: a, node.kubernetes.io/x: b, example.org/c: d}"
    edit(folder, "Pulumi.sp.yaml", "agents: [vm-sp-02]", f"agents: [vm-sp-02]\n        node_labels: {labels}")
    assert faults(folder) == []
