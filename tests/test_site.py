"""A site as a whole: which layers it has, what belongs to whom, and that it stands alone."""

import ast
import copy
import importlib
import json
import pkgutil
import re
from dataclasses import replace
from typing import Any

import pulumi
import pytest

import cli.plan
import infra
from cli.plan import Declared
from cli.stand_in_inputs import placeholders
from infra.config import Fleet, Site
from infra.site import SiteStack
from tests.sites import ROOT, SITES, THIRD, Documents, Record, changed, declared, plan_of, three_sites


@pytest.fixture(params=SITES)
def site_id(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def components(record: Record) -> dict[str, Declared]:
    return {name: made for (kind, name), made in record.items() if kind.startswith("fleet:")}


def test_gen_01_each_site_has_its_layers_whatever_its_name(site_id: str) -> None:
    site = three_sites().sites[site_id]
    kinds = {name: made.type for name, made in components(declared(site_id)).items()}
    expected = {site_id: "fleet:site:SiteStack", f"proxmox-{site_id}": "fleet:proxmox:Hypervisor"}
    for guest in site.guests.values():
        expected[f"guest-{guest.name}"] = (
            "fleet:proxmox:VirtualMachine" if guest.kind == "vm" else "fleet:proxmox:GpuContainer"
        )
    for cluster in site.clusters.values():
        expected[f"k3s-{cluster.name}"] = "fleet:k3s:K3s"
        if cluster.cni == "cilium":
            expected[f"cilium-{cluster.name}"] = "fleet:cilium:Cilium"
        if cluster.in_mesh:
            expected[f"mesh-certificates-{cluster.name}"] = "fleet:clustermesh:MeshCertificates"
            expected[f"clustermesh-{cluster.name}"] = "fleet:clustermesh:ClusterMesh"
        if cluster.managed_namespaces or (cluster.role == "main" and site.traefik.main):
            expected[f"policies-{cluster.name}"] = "fleet:policies:Policies"
    assert kinds == expected


def test_layers_belong_to_the_site_and_the_rest_to_a_layer(site_id: str) -> None:
    record = declared(site_id)
    layers = components(record)
    for (kind, name), made in record.items():
        if kind == "pulumi:pulumi:Stack":
            continue
        if name == site_id:
            assert made.parent == f"fleet-{site_id}"
        elif name in layers:
            assert made.parent == site_id
        else:
            assert made.parent in layers, name
            assert made.parent != site_id, name


def test_children_are_named_after_their_layer(site_id: str) -> None:
    record = declared(site_id)
    layers = components(record)
    for (_, name), made in record.items():
        if name not in layers and made.parent in layers:
            assert name.startswith(f"{made.parent}-")


def test_a_type_token_says_module_and_class() -> None:
    """It is part of every child's URN: a renamed one would replace live machines."""
    found: dict[str, str] = {}
    for module in pkgutil.walk_packages(infra.__path__, "infra."):
        loaded = importlib.import_module(module.name)
        for name, value in vars(loaded).items():
            ours = isinstance(value, type) and issubclass(value, pulumi.ComponentResource)
            if ours and value.__module__ == module.name:
                found[f"fleet:{module.name.split('.')[1]}:{name}"] = module.name
    declared_tokens = {kind for site in SITES for kind, _ in declared(site) if kind.startswith("fleet:")}
    assert declared_tokens == set(found)


def test_gen_05_k3s_waits_for_its_guests_and_cilium_for_k3s(site_id: str) -> None:
    record = declared(site_id)
    by_name = {name: made for (_, name), made in record.items()}

    def before(name: str, seen: set[str]) -> set[str]:
        for earlier in (*by_name[name].after, by_name[name].parent, by_name[name].provider):
            if earlier in by_name and earlier not in seen:
                seen.add(earlier)
                before(earlier, seen)
        return seen

    for cluster in three_sites().sites[site_id].clusters.values():
        for node in cluster.servers:
            contact = f"guest-{node}-contact"
            assert contact in before(f"k3s-{cluster.name}-server-{node}", set())
        if cluster.cni == "cilium":
            nodes = {f"guest-{node}-contact" for node in (*cluster.servers, *cluster.agents)}
            assert nodes <= before(f"cilium-{cluster.name}-chart", set())


def test_nothing_waits_for_what_is_not_there(site_id: str) -> None:
    record = declared(site_id)
    names = {name for _, name in record}
    for made in record.values():
        assert {*made.after} <= names
        assert {made.parent, made.provider} - {""} <= names


def plain(record: Record) -> dict[str, Any]:
    return {f"{kind} {name}": made for (kind, name), made in record.items()}


def test_gen_02_a_site_declares_the_same_alone_as_among_its_siblings(site_id: str) -> None:
    fleet = three_sites()
    alone = Fleet(fleet.common, {site_id: fleet.sites[site_id]})
    assert plain(without_peers(plan_of(alone, site_id))) == plain(without_peers(declared(site_id)))


def without_peers(record: Record) -> Record:
    """The same but for the peers of the mesh, which are the one thing that siblings tell a site."""

    def left(made: Declared) -> Declared:
        inputs, shown = copy.deepcopy(made.inputs), copy.deepcopy(made.shown)
        for values in (inputs.get("values"), shown.get("values")):
            if values and "clustermesh" in values:
                values["clustermesh"]["config"]["clusters"] = []
        return replace(made, inputs=inputs, shown=shown)

    return {key: left(made) for key, made in record.items()}


def test_gen_02_no_site_names_a_guest_an_address_or_a_range_of_another(site_id: str) -> None:
    record = without_peers(declared(site_id))
    text = json.dumps([made.masked() for made in record.values()]) + json.dumps(
        [made.inputs for made in record.values()]
    )
    for other, site in three_sites().sites.items():
        if other != site_id:
            found = [value for value in facts(site) if re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w.-])", text)]
            assert not found, other


def facts(site: Site) -> set[str]:
    """What belongs to one site alone."""
    values = {str(site.network.lan_cidr), str(site.vyos.lan_address), site.proxmox.endpoint, str(site.bgp.site_asn)}
    values |= {str(site.lb.pool.start), str(site.lb.pool.stop)}
    values |= {*site.guests, *site.proxmox.hosts, *site.clusters}
    values |= {str(guest.address) for guest in site.guests.values()}
    values |= {str(host.address) for host in site.proxmox.hosts.values()}
    for cluster in site.clusters.values():
        values |= {str(cluster.pod_cidr), str(cluster.service_cidr), str(cluster.api.vip or "-")}
    return values - {"-"}


def test_gen_01_nothing_of_the_shipped_sites_is_written_into_the_program() -> None:
    """The table of decided values is the one place that may name them."""
    shipped = {"franca", "sp"} | set().union(*(facts(three_sites().sites[site]) for site in ("franca", "sp")))
    for path in (ROOT / "infra").rglob("*.py"):
        if path.name == "seeds.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not texts & shipped, path
    for path in (ROOT / "infra").rglob("*.sh"):
        text = path.read_text(encoding="utf-8")
        assert not [value for value in shipped if re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w.-])", text)], path


def test_gen_01_a_renamed_site_is_the_same_site() -> None:
    def edit(documents: Documents) -> None:
        documents["elsewhere"] = documents.pop("sp")

    renamed = plan_of(changed(edit), "elsewhere")
    before = {(kind, name) for kind, name in declared("sp")}
    after = {(kind, re.sub(r"\belsewhere\b", "sp", name)) for kind, name in renamed}
    assert after == before


def without_cilium() -> Record:
    def edit(documents: Documents) -> None:
        documents["franca"]["clusters"]["cluster-fca"]["cni"] = "flannel"

    return plan_of(changed(edit), "franca")


def test_gen_04_without_cilium_its_resources_are_gone_and_nothing_else() -> None:
    gone = {name for _, name in declared("franca")} - {name for _, name in without_cilium()}
    cilium = {
        f"cilium-cluster-fca{part}"
        for part in ("", "-chart", "-pool", "-pool-fixed", "-peer", "-advertisement", "-bgp")
    }
    mesh = {f"mesh-certificates-cluster-fca{part}" for part in ("", "-server", "-admin", "-remote", "-local")}
    above = {
        "clustermesh-cluster-fca",
        "clustermesh-cluster-fca-api",
        "policies-cluster-fca",
        "policies-cluster-fca-traefik",
    }
    assert gone == cilium | mesh | above
    assert not {name for _, name in without_cilium()} - {name for _, name in declared("franca")}


def test_gen_04_without_cilium_the_servers_get_flannel_and_nothing_else_changes() -> None:
    after = without_cilium()
    touched = {name for key, made in after.items() if made != declared("franca")[key] for name in [key[1]]}
    assert touched == {
        "k3s-cluster-fca-bootstrap-vm-cpps-02",
        *(f"k3s-cluster-fca-server-vm-cpps-0{number}" for number in (2, 3, 4)),
    }
    lines = [
        set(str(record[("command:remote:Command", "k3s-cluster-fca-server-vm-cpps-02")].inputs["stdin"]).splitlines())
        for record in (declared("franca"), after)
    ]
    assert lines[1] < lines[0]
    assert lines[0] - lines[1] == {
        'flannel-backend: "none"',
        "disable-network-policy: true",
        "disable-kube-proxy: true",
    }


def test_a_cluster_that_leaves_the_document_takes_its_own_resources_along() -> None:
    def edit(documents: Documents) -> None:
        documents["sp"]["clusters"].pop("gpu-sp")

    after = plan_of(changed(edit), "sp")
    gone = {name for _, name in declared("sp")} - {name for _, name in after}
    assert gone
    assert all(name.startswith("k3s-gpu-sp") for name in gone)
    assert all(made == declared("sp")[key] for key, made in after.items())


def test_gen_03_arg_13_no_application_is_deployed(site_id: str) -> None:
    apps = three_sites().sites[site_id].apps
    for (kind, name), made in declared(site_id).items():
        assert (
            kind.endswith("NetworkPolicy") if made.parent.startswith("policies-") else not any(a in name for a in apps)
        )
        assert "Application" not in kind


def test_outputs_say_what_people_and_other_layers_ask_for(site_id: str) -> None:
    outputs: dict[str, Any] = {}

    def program() -> None:
        outputs.update(SiteStack(three_sites(), site_id, placeholders()).outputs)

    cli.plan.declare(program, stack=site_id)
    site = three_sites().sites[site_id]
    assert set(outputs) == set(site.clusters)
    for cluster in site.clusters.values():
        published = outputs[cluster.name]
        host = cluster.api.vip or site.guests[cluster.servers[0]].address
        assert published["api"] == f"https://{host}:6443"
        assert (published["pod_cidr"], published["service_cidr"]) == (str(cluster.pod_cidr), str(cluster.service_cidr))
        assert published["nodes"] == [*cluster.servers, *cluster.agents]
        assert ("cilium" in published) is (cluster.cni == "cilium")
        if cluster.cni == "cilium":
            assert (published["cilium"]["name"], published["cilium"]["id"]) == (cluster.name, cluster.cluster_id)
            assert published["asn"] == site.bgp.cilium_asn
            assert published["lb_pool"] == f"{site.lb.pool.start}-{site.lb.pool.stop}"
            assert set(published["vips"]) == {key for key, vip in site.lb.vips if vip}


def test_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder refuses every call of a provider function; that it would is shown here."""

    def program() -> None:
        pulumi.runtime.invoke("any:index:lookup", {})

    with pytest.raises(Exception, match="must not look anything up"):
        cli.plan.declare(program)


def test_the_third_site_has_what_no_shipped_site_has() -> None:
    """Else it would prove little."""
    third = three_sites().sites[THIRD]
    others = [site for site_id, site in three_sites().sites.items() if site_id != THIRD]
    assert third.network.vlan
    assert third.bgp.cilium_asn != third.bgp.vyos_asn
    assert not facts(third) & set().union(*(facts(site) for site in others))


def reached(record: Record, start: str) -> set[str]:
    """Names of everything that must be there before a resource is."""
    by_name = {name: made for (_, name), made in record.items()}
    seen: set[str] = set()
    open_names = [start]
    while open_names:
        made = by_name[open_names.pop()]
        for earlier in {*made.after, made.parent, made.provider} & set(by_name) - seen:
            seen.add(earlier)
            open_names.append(earlier)
    return seen


def of_cluster(record: Record, cluster: str) -> set[str]:
    """Names of what one cluster consists of, its network included."""
    mine = {f"k3s-{cluster}", f"cilium-{cluster}"}
    return {name for (_, name), made in record.items() if name in mine or made.parent in mine}


WITH_GPU = [
    site_id for site_id in SITES if any(c.role == "gpu" for c in three_sites().sites[site_id].clusters.values())
]


@pytest.mark.parametrize("site_id", WITH_GPU)
def test_gpu_18_main_and_gpu_cluster_do_not_wait_for_each_other(site_id: str) -> None:
    record = declared(site_id)
    clusters = [of_cluster(record, name) for name in three_sites().sites[site_id].clusters]
    assert len(clusters) == 2
    for mine, others in (clusters, reversed(clusters)):
        assert mine
        for name in mine:
            assert not reached(record, name) & others, name


@pytest.mark.parametrize("site_id", WITH_GPU)
def test_gpu_01_main_and_gpu_cluster_share_no_node_no_token_and_no_api(site_id: str) -> None:
    record = declared(site_id)
    site = three_sites().sites[site_id]
    main, gpu = sorted(site.clusters.values(), key=lambda cluster: cluster.role, reverse=True)
    assert (main.role, gpu.role) == ("main", "gpu")
    assert not {*main.servers, *main.agents} & {*gpu.servers, *gpu.agents}
    of_token = {cluster.name: record[_token(cluster.name)].name for cluster in (main, gpu)}
    for one, other in ((main, gpu), (gpu, main)):
        before = reached(record, f"k3s-{one.name}-credentials-{one.name}")
        assert of_token[one.name] in before
        assert of_token[other.name] not in before
    by_name = {name: made for (_, name), made in record.items()}
    for node in (*main.servers, *main.agents):
        assert not by_name[f"guest-{node}-vm"].inputs.get("hostpcis")
    kubeconfigs = {by_name[f"k3s-{cluster.name}-api"].inputs["kubeconfig"] for cluster in (main, gpu)}
    servers = [re.search(r"server: (\S+)", text) for text in kubeconfigs]
    assert len({found[1] for found in servers if found}) == 2


def _token(cluster: str) -> tuple[str, str]:
    return ("random:index/randomPassword:RandomPassword", f"k3s-{cluster}-token")


def test_gpu_11_nothing_of_the_datacenter_profile_is_installed(site_id: str) -> None:
    assert three_sites().sites[site_id].profile == "cpps"
    for (kind, name), made in declared(site_id).items():
        told = f"{kind} {name} {made.inputs.get('chart')}".lower()
        assert not [word for word in ("gpu-operator", "kubevirt", "containerized-data", "kserve") if word in told]


def test_gen_08_every_release_and_every_node_has_an_exact_version(site_id: str) -> None:
    for (kind, name), made in declared(site_id).items():
        if kind.endswith(":Release"):
            assert re.fullmatch(r"\d+\.\d+\.\d+", made.inputs["version"]), name
        assert not re.search(r":latest\b", str(made.inputs)), name
    for cluster in three_sites().sites[site_id].clusters.values():
        assert re.fullmatch(r"v\d+\.\d+\.\d+\+k3s\d+", cluster.k3s_version)


DESTRUCTIVE = (
    r"rm -[a-z]*r[a-z]* (?!\"\$work\")",  # but for the folder of its own data
    r"\b(mkfs|wipefs|shred|blkdiscard|fdisk|parted|dd) ",
    r"\b(qm|pct) (destroy|stop|rollback)\b",
    r"\b(zfs|zpool) (destroy|rollback)\b",
    r"\bk3s-(agent-)?uninstall|k3s-killall",
    r"--cluster-reset\b",
    r"\betcdctl .*(member remove|del )",
    r"\bkubectl (drain|delete)\b",
    r"\bhelm (uninstall|delete)\b",
    r"\b(reboot|poweroff|shutdown)\b",
)


def test_mig_10_no_command_destroys_anything(site_id: str) -> None:
    """Such steps are text for a person; a message may tell them, a script may not run them."""
    for (kind, name), made in declared(site_id).items():
        if kind.endswith(":Command"):
            assert made.inputs.get("delete") is None, name
            lines = str(made.inputs.get("stdin", "")).splitlines() + str(made.inputs["create"]).splitlines()
            run = [line for line in lines if not re.match(r"\s*(#|forget=|stop |echo |say )", line)]
            found = [line for line in run for verb in DESTRUCTIVE if re.search(verb, line)]
            assert not found, name


@pytest.mark.parametrize(
    "line", ["rm -rf /var/lib/rancher", "k3s server --cluster-reset", "  qm destroy 101", "reboot"]
)
def test_mig_10_the_search_finds_what_destroys(line: str) -> None:
    assert any(re.search(verb, line) for verb in DESTRUCTIVE)
