"""ClusterMesh: peers, values of the release, certificates, the address; and the layer switched off."""

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import cli.plan
from cli.plan import Declared, plan
from cli.stand_in_inputs import placeholders
from infra.certificates import common_name, faults
from infra.clustermesh import MAX_CLUSTERS, api_service, mesh_values, peers
from infra.config import Fleet
from infra.names import ADVERTISE_LABEL, FIXED_ADDRESS_LABEL, LB_CLASS, MESH_API_PORT, MESH_KEYS
from infra.site import NO_MESH, Inputs, SiteStack
from infra.violation import Level
from operations.authority import new_authority, new_leaf, new_leaves
from tests.rules.documents import faults_of, patched, shipped
from tests.sites import SITES, Documents, Record, authority, certified, changed, declared, of_type, plan_of, three_sites
from tests.test_stack import MEMBERS, Project, edited, project, sound  # noqa: F401  # fixtures

RELEASE = "kubernetes:helm.sh/v3:Release"
SECRET = "kubernetes:core/v1:Secret"
SERVICE = "kubernetes:core/v1:Service"


def values(record: Record, cluster: str) -> dict[str, Any]:
    found: dict[str, Any] = record[(RELEASE, f"cilium-{cluster}-chart")].inputs["values"]
    return found


def clusters(record: Record, cluster: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = values(record, cluster)["clustermesh"]["config"]["clusters"]
    return found


def service(record: Record, cluster: str) -> Declared:
    return record[(SERVICE, f"clustermesh-{cluster}-api")]


def without(documents: Documents, *sites: str) -> Fleet:
    fleet = changed(lambda _: None)
    return Fleet(fleet.common, {site: value for site, value in fleet.sites.items() if site not in sites})


def off(site_id: str) -> Fleet:
    def edit(documents: Documents) -> None:
        documents[site_id]["clusters"][MEMBERS[site_id]]["in_mesh"] = False

    return changed(edit)


def no_certificates() -> Inputs:
    return replace(placeholders(), mesh=None)


# Peers


@pytest.mark.parametrize("site_id", SITES)
def test_msh_01_peers_are_the_members_of_all_other_documents_and_nobody_else(site_id: str) -> None:
    fleet = three_sites()
    expected = [
        {"name": MEMBERS[other], "ips": [str(site.lb.vips.clustermesh_api)], "port": 2379}
        for other, site in fleet.sites.items()
        if other != site_id
    ]
    found = clusters(declared(site_id), MEMBERS[site_id])
    assert found == sorted(expected, key=lambda one: str(one["name"]))
    assert len(found) == 2
    gpu = {cluster.name for site in fleet.sites.values() for cluster in site.clusters.values() if cluster.role == "gpu"}
    assert gpu
    assert not {str(one["name"]) for one in found} & gpu


def test_gen_01_with_two_sites_each_has_the_other() -> None:
    fleet = without({}, "norte")
    assert [one["name"] for one in clusters(plan_of(fleet, "sp"), "cluster-sp")] == ["cluster-fca"]
    assert [one["name"] for one in clusters(plan_of(fleet, "franca"), "cluster-fca")] == ["cluster-sp"]


@pytest.mark.parametrize("gone", ["franca", "norte"])
def test_gen_02_a_sibling_that_is_gone_takes_its_entry_along_and_nothing_else(gone: str) -> None:
    after = plan_of(without({}, gone), "sp")
    before = declared("sp")
    assert set(after) == set(before)
    chart = (RELEASE, "cilium-cluster-sp-chart")
    assert {key for key in after if after[key] != before[key]} == {chart}
    left = [one for one in clusters(before, "cluster-sp") if one["name"] != MEMBERS[gone]]
    assert clusters(after, "cluster-sp") == left
    mesh = values(before, "cluster-sp")["clustermesh"]
    expected = mesh | {"config": mesh["config"] | {"clusters": left}}
    assert values(after, "cluster-sp") == values(before, "cluster-sp") | {"clustermesh": expected}


def test_a_sibling_that_leaves_the_mesh_is_no_peer() -> None:
    assert [peer.name for peer in peers(off("franca"), "sp")] == ["north"]


def test_a_site_alone_is_a_mesh_of_one_that_waits_for_peers() -> None:
    mesh = values(plan_of(without({}, "franca", "norte"), "sp"), "cluster-sp")["clustermesh"]
    assert (mesh["useAPIServer"], mesh["config"]["enabled"], mesh["config"]["clusters"]) == (True, True, [])


# Values


@pytest.mark.parametrize("site_id", SITES)
def test_msh_06_the_release_has_the_same_mesh_settings_on_every_site(site_id: str) -> None:
    mesh = values(declared(site_id), MEMBERS[site_id])["clustermesh"]
    assert mesh | {"config": mesh["config"] | {"clusters": []}} == mesh_values([])["clustermesh"]
    assert mesh["maxConnectedClusters"] == MAX_CLUSTERS == 255
    assert mesh["apiserver"]["kvstoremesh"] == {"enabled": True}


def test_msh_06_the_chart_makes_no_certificate_and_users_are_told_apart_by_cluster() -> None:
    tls = values(declared("sp"), "cluster-sp")["clustermesh"]["apiserver"]["tls"]
    assert tls == {"authMode": "cluster", "enableSecrets": False, "auto": {"enabled": False}}


def test_the_release_waits_for_no_address_that_comes_after_it() -> None:
    """Helm would wait for a LoadBalancer Service until the pool, which waits for the release."""
    record = declared("sp")
    assert values(record, "cluster-sp")["clustermesh"]["apiserver"]["service"]["type"] != "LoadBalancer"
    assert record[(RELEASE, "cilium-cluster-sp-chart")].inputs["skipAwait"] is False


# The address


@pytest.mark.parametrize("site_id", SITES)
def test_msh_06_met_07_the_mesh_api_is_a_load_balancer_with_the_pools_fixed_address(site_id: str) -> None:
    made, lb = service(declared(site_id), MEMBERS[site_id]), three_sites().sites[site_id].lb
    assert made.inputs["spec"]["type"] == "LoadBalancer"
    assert made.inputs["metadata"]["annotations"] == {"lbipam.cilium.io/ips": str(lb.vips.clustermesh_api)}
    assert lb.vips.clustermesh_api in lb.pool
    (port,) = made.inputs["spec"]["ports"]
    assert (port["port"], port["targetPort"], port["protocol"]) == (MESH_API_PORT, MESH_API_PORT, "TCP")
    assert made.inputs["spec"]["selector"] == {"k8s-app": "clustermesh-apiserver"}


@pytest.mark.parametrize(("binding", "by_class"), [("class", LB_CLASS), ("default", None)])
def test_met_09_the_mesh_api_is_bound_as_the_document_says(binding: str, by_class: str | None) -> None:
    def edit(documents: Documents) -> None:
        documents["sp"]["lb"]["binding"] = binding

    assert service(plan_of(changed(edit), "sp"), "cluster-sp").inputs["spec"].get("loadBalancerClass") == by_class


def test_with_metallb_its_own_annotation_asks_for_the_address() -> None:
    lb = three_sites().sites["sp"].lb.model_copy(update={"mode": "metallb"})
    assert api_service(lb)["metadata"]["annotations"] == {"metallb.io/loadBalancerIPs": str(lb.vips.clustermesh_api)}


def test_gen_05_with_metallb_the_address_comes_after_its_controller_and_pool() -> None:
    record = plan_of(changed(lambda found: found["sp"]["lb"].update(mode="metallb")), "sp")
    after = set(record[("fleet:clustermesh:ClusterMesh", "clustermesh-cluster-sp")].after)
    assert {"cilium-cluster-sp-metallb", "cilium-cluster-sp-metallb-pool"} <= after


def test_bgp_07_the_address_is_announced() -> None:
    assert service(declared("sp"), "cluster-sp").inputs["metadata"]["labels"] == {
        ADVERTISE_LABEL: "true",
        FIXED_ADDRESS_LABEL: "true",
    }


@pytest.mark.parametrize("site_id", SITES)
def test_gen_05_certificates_come_before_cilium_and_the_address_after_its_pool(site_id: str) -> None:
    record, cluster = declared(site_id), MEMBERS[site_id]
    before = set(record[("fleet:cilium:Cilium", f"cilium-{cluster}")].after)
    assert {f"mesh-certificates-{cluster}-{role}" for role in MESH_KEYS} <= before
    after = set(record[("fleet:clustermesh:ClusterMesh", f"clustermesh-{cluster}")].after)
    assert {f"cilium-{cluster}-chart", f"cilium-{cluster}-pool"} <= after
    for parent in (f"clustermesh-{cluster}", f"mesh-certificates-{cluster}"):
        providers = {made.provider for made in record.values() if made.parent == parent}
        assert providers == {f"k3s-{cluster}-api"}


def test_msh_16_nothing_of_the_mesh_waits_for_karmada() -> None:
    record = declared("franca")
    mine = [made for (_, name), made in record.items() if "mesh" in name]
    assert mine
    assert not [name for made in mine for name in made.after if "karmada" in name]


# Certificates in the cluster


@pytest.mark.parametrize("site_id", SITES)
def test_msh_04_every_certificate_is_a_secret_under_the_name_that_the_pods_mount(site_id: str) -> None:
    found = {made.inputs["metadata"]["name"]: made for (kind, _), made in declared(site_id).items() if kind == SECRET}
    assert set(found) == {f"clustermesh-apiserver-{role}-cert" for role in ("server", "admin", "remote", "local")}
    for name, made in found.items():
        role = name.removeprefix("clustermesh-apiserver-").removesuffix("-cert")
        assert (made.inputs["metadata"]["namespace"], made.inputs["type"]) == ("kube-system", "kubernetes.io/tls")
        title = f"mesh{role.title()}"
        expected = {"ca.crt": "<ciliumCaCert>", "tls.crt": f"<{title}Cert>", "tls.key": f"<{title}Key>"}
        assert made.inputs["stringData"] == expected
        assert made.shown["stringData"] in ("[secret]", dict.fromkeys(expected, "[secret]"))


def test_msh_04_no_certificate_is_in_the_values_of_the_release() -> None:
    assert "<mesh" not in json.dumps(values(declared("sp"), "cluster-sp"))


# Off


@pytest.mark.parametrize("site_id", SITES)
def test_gen_04_switched_off_its_resources_and_its_values_go_and_nothing_else(site_id: str) -> None:
    cluster = MEMBERS[site_id]
    before, after = declared(site_id), plan_of(off(site_id), site_id)
    only_mesh_is_gone(before, after, cluster)


@pytest.mark.parametrize("site_id", SITES)
def test_gen_04_without_certificates_it_is_the_same(site_id: str) -> None:
    only_mesh_is_gone(declared(site_id), plan(three_sites(), site_id, no_certificates), MEMBERS[site_id])


def only_mesh_is_gone(before: Record, after: Record, cluster: str) -> None:
    roles = ("", *(f"-{role}" for role in MESH_KEYS))
    mine = {f"mesh-certificates-{cluster}{part}" for part in roles} | {
        f"clustermesh-{cluster}",
        f"clustermesh-{cluster}-api",
    }
    assert {name for _, name in before} - {name for _, name in after} == mine
    assert not set(after) - set(before)
    chart = (RELEASE, f"cilium-{cluster}-chart")
    assert "clustermesh" not in values(after, cluster)
    assert {key: value for key, value in values(before, cluster).items() if key != "clustermesh"} == values(
        after, cluster
    )
    for key, made in after.items():
        if key != chart:
            left = replace(before[key], after=tuple(name for name in before[key].after if name not in mine))
            assert made == left, key


def test_outputs_say_where_the_mesh_is_who_is_in_it_and_how_to_check_it() -> None:
    told = outputs("sp", three_sites(), placeholders)["cluster-sp"]["mesh"]
    assert told["api"] == "192.168.10.241:2379"
    assert told["peers"] == ["cluster-fca", "north"]


def test_msh_15_outputs_list_the_commands_that_check_the_mesh() -> None:
    told = outputs("sp", three_sites(), placeholders)["cluster-sp"]["mesh"]["checks"]
    assert told[0].startswith("cilium clustermesh status --context cluster-sp")
    assert [line.split()[-1] for line in told[1:]] == ["cluster-fca", "north"]
    assert all(line.startswith("cilium connectivity test ") for line in told[1:])


def test_outputs_say_why_there_is_no_mesh() -> None:
    assert outputs("sp", three_sites(), no_certificates)["cluster-sp"]["mesh"] == {"status": NO_MESH}
    assert "mesh" not in outputs("sp", off("sp"), placeholders)["cluster-sp"]


def outputs(site_id: str, fleet: Fleet, inputs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def program() -> None:
        found.update(SiteStack(fleet, site_id, inputs()).outputs)

    cli.plan.declare(program, stack=site_id)
    return found


# Preconditions


@pytest.mark.parametrize(
    ("patch", "rename", "id", "path"),
    [
        ({"sp.clusters.cluster-sp.pod_cidr": "10.41.0.0/16"}, {}, "NET-09", "sp.clusters.cluster-sp.pod_cidr"),
        ({"sp.clusters.cluster-sp.service_cidr": "10.141.0.0/16"}, {}, "NET-09", "sp.clusters.cluster-sp.service_cidr"),
        ({"sp.wireguard.route_lans": False}, {}, "NET-11", "sp.wireguard.route_lans"),
        ({"common.tunnels": []}, {}, "MSH-02", "sp.clusters.cluster-sp.in_mesh"),
        ({"sp.datapath": "native"}, {}, "DOC-02", "sp.datapath"),
        ({"sp.clusters.cluster-sp.cluster_id": 1}, {}, "CIL-03", "sp.clusters.cluster-sp.cluster_id"),
        ({"sp.clusters.cluster-sp.cluster_id": None}, {}, "CIL-03", "sp.clusters.cluster-sp.cluster_id"),
        ({}, {"sp.clusters.cluster-sp": "cluster-fca"}, "CIL-03", "sp.clusters.cluster-fca"),
        # Routes of the Pods: a router drops what comes with its own ASN, and no list takes parts of a node's range.
        ({"sp.bgp.site_asn": 65001}, {}, "BGP-01", "sp.bgp.site_asn"),
        ({"sp.clusters.cluster-sp.pod_cidr": "10.42.0.0/26"}, {}, "DOC-07", "sp.clusters.cluster-sp.pod_cidr"),
        (
            {"sp.lb.pool": {"start": "172.30.0.1", "stop": "172.30.0.9"}, "sp.lb.vips.clustermesh_api": "172.30.0.2"},
            {},
            "BGP-07",
            "sp.lb.vips.clustermesh_api",
        ),
    ],
)
def test_msh_02_each_precondition_has_an_error_of_its_own(
    patch: dict[str, Any], rename: dict[str, str], id: str, path: str
) -> None:
    """But the firewall, which no document can close: the routers' configuration has it (tests/vyos)."""
    faults = {(one.id, one.path): one.level for one in faults_of(patched(shipped(), patch, rename=rename))}
    assert faults[id, path] == Level.ERROR
    assert (id, path) not in {(one.id, one.path) for one in faults_of(shipped())}


def test_msh_02_one_value_holds_the_datapath_of_all_members() -> None:
    """No document of a site has one, so two members cannot differ."""
    modes = {values(declared(site_id), MEMBERS[site_id])["routingMode"] for site_id in SITES}
    assert modes == {three_sites().common.cilium.datapath}


# What the stack's certificates must be, before anything is registered


def test_msh_03_a_ca_that_is_not_the_fleets_stops_a_run(sound: Project) -> None:  # noqa: F811
    other, key = new_authority()
    leaves = new_leaves((other, key), "cluster-sp")
    config = {name: text for role in MESH_KEYS for name, text in zip(MESH_KEYS[role], leaves[role], strict=True)}
    run = sound.run("sp", preview=True, plain=(), **config, ciliumCaCert=other, ciliumCaKey=key)
    assert run.faults() == [("MSH-03", "sp.fleet:ciliumCaCert")]
    assert run.registered == set()
    assert "PRIVATE KEY" not in str(run.error)


def test_msh_03_what_is_no_certificate_is_none_of_the_fleet(sound: Project) -> None:  # noqa: F811
    assert ("MSH-03", "sp.fleet:ciliumCaCert") in sound.run("sp", preview=True, ciliumCaCert="x").faults()


def test_msh_03_before_the_fleet_has_a_fingerprint_nothing_is_compared(project: Project) -> None:  # noqa: F811
    assert project.run("sp", preview=True).error is None


@pytest.mark.parametrize("role", MESH_KEYS)
def test_msh_06_a_certificate_of_another_cluster_or_ca_or_without_its_key_is_refused(role: str) -> None:
    mine = new_leaves(authority(), "cluster-sp")
    assert list(faults(authority()[0], "cluster-sp", mine)) == []
    foreign = new_leaf(new_authority(), role, "cluster-sp")
    assert [found for _, found, _ in faults(authority()[0], "cluster-sp", {role: foreign})] == [
        "a certificate of another CA"
    ]
    swapped = (mine[role][0], foreign[1])
    assert [found for _, found, _ in faults(authority()[0], "cluster-sp", {role: swapped})] == [
        "a certificate with the key of another"
    ]
    elsewhere = new_leaf(authority(), role, "cluster-fca")
    found = [expected for _, _, expected in faults(authority()[0], "cluster-sp", {role: elsewhere})]
    assert found == ([] if role == "server" else [f"{role}-cluster-sp"])


def test_msh_06_a_faulty_certificate_stops_a_run_and_half_a_set_is_named(sound: Project) -> None:  # noqa: F811
    wrong = certified("cluster-fca")
    run = sound.run(
        "sp", preview=True, meshAdminCert=wrong["fleet:meshAdminCert"], meshAdminKey=wrong["fleet:meshAdminKey"]
    )
    assert run.faults() == [("MSH-06", "sp.fleet:meshAdminCert")]
    assert sound.run("sp", preview=True, meshLocalKey=None).faults() == [("SEC-07", "sp.fleet:meshLocalKey")]


def test_without_certificates_one_line_says_that_the_mesh_is_left_out(
    sound: Project,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = dict.fromkeys(key for pair in MESH_KEYS.values() for key in pair)
    with caplog.at_level(logging.INFO, "engine"):
        run = sound.run("sp", preview=False, plain=(), **gone)
    assert run.error is None
    assert caplog.text.count("ClusterMesh is left out") == 1
    assert "fleet credentials init sp" in caplog.text
    assert not of_type(run.record, ":ClusterMesh")


def test_with_separate_cas_the_mesh_is_left_out(
    sound: Project,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    edited(sound, "common", lambda common: common["cilium"].update(ca_mode="separate"))
    edited(sound, "sp", lambda site: site.setdefault("accept", {}).update({"MSH-03": "a test"}))
    for site in ("franca", "norte"):
        edited(sound, site, lambda site: site.setdefault("accept", {}).update({"MSH-03": "a test"}))
    with caplog.at_level(logging.INFO, "engine"):
        run = sound.run("sp", preview=True)
    assert run.error is None
    assert not of_type(run.record, ":ClusterMesh")
    assert "ca_mode separate" in caplog.text


@pytest.mark.parametrize(("days", "warned"), [(59, True), (61, False), (-1, True)])
def test_msh_06_a_preview_warns_60_days_before_a_certificate_ends(
    sound: Project,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    days: int,
    warned: bool,
) -> None:
    begin = datetime.now(UTC) - timedelta(days=1095 - days, hours=-1)
    certificate, key = new_leaf(authority(), "admin", "cluster-sp", begin)
    with caplog.at_level(logging.INFO, "engine"):
        run = sound.run("sp", preview=True, meshAdminCert=certificate, meshAdminKey=key)
    assert run.error is None, "an old certificate must not stop the update that may mend it"
    assert ("[MSH-06] sp.fleet:meshAdminCert" in caplog.text) is warned
    assert ("fleet credentials rotate sp" in caplog.text) is warned


def test_names_of_certificates_are_those_that_cilium_checks() -> None:
    assert [common_name(role, "cluster-sp") for role in MESH_KEYS] == [
        "clustermesh-apiserver.cilium.io",
        "admin-cluster-sp",
        "remote-cluster-sp",
        "local-cluster-sp",
    ]
