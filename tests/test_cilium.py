"""Cilium and its peering: chart values and custom resources of the shipped sites and of an invented one."""

import base64
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from cli.plan import Declared, plan
from cli.stand_in_inputs import placeholders
from infra.addresses import (
    FIXED_LABELS,
    address_annotations,
    metallb_pool_specs,
    metallb_values,
    pool_specs,
    service_class,
)
from infra.bgp import advertisement_spec, cluster_spec, override_specs, peer_spec
from infra.cilium import chart_values
from infra.config import Cluster, Site
from infra.config.base import AddressRange
from infra.config.network import BgpNode
from infra.site import Inputs
from infra.versions import bgp_api_version
from tests.rules.documents import faults_of, patched, shipped
from tests.sites import SITES, Documents, Record, changed, declared, of_type, plan_of, three_sites

MAIN = {
    site_id: next(c.name for c in three_sites().sites[site_id].clusters.values() if c.role == "main")
    for site_id in SITES
}
VIPS = ("192.168.0.240", "192.168.0.241", "192.168.0.242")  # of Franca
GPU = {"sp": "gpu-sp", "norte": "north-gpu"}
KINDS = {"CiliumLoadBalancerIPPool", "CiliumBGPPeerConfig", "CiliumBGPAdvertisement", "CiliumBGPClusterConfig"}


class Network:
    """What is declared for the main cluster of a site."""

    def __init__(self, site_id: str, record: Record | None = None) -> None:
        self.record = record or declared(site_id)
        self.site: Site = three_sites().sites[site_id]
        self.cluster: Cluster = self.site.clusters[MAIN[site_id]]
        self.name = f"cilium-{self.cluster.name}"

    @property
    def chart(self) -> Declared:
        return self.record[("kubernetes:helm.sh/v3:Release", f"{self.name}-chart")]

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = self.chart.inputs["values"]
        return found

    def objects(self) -> dict[str, Declared]:
        mine = [(key, made) for key, made in self.record.items() if made.parent == self.name]
        return {kind.rsplit(":", 1)[1]: made for (kind, _), made in mine if "cilium.io" in kind}

    def spec(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = self.objects()[kind].inputs["spec"]
        return found


@pytest.fixture(params=SITES)
def network(request: pytest.FixtureRequest) -> Network:
    return Network(request.param)


# Chart


def test_cil_01_every_main_cluster_has_the_same_pinned_line_of_1_17() -> None:
    versions = {Network(site_id).chart.inputs["version"] for site_id in SITES}
    assert versions == {three_sites().common.cilium.version}
    assert versions.pop().startswith("1.17.")


def test_cil_02_the_shipped_clusters_have_the_decided_names_and_ids() -> None:
    assert Network("franca").values["cluster"] == {"name": "cluster-fca", "id": 1}
    assert Network("sp").values["cluster"] == {"name": "cluster-sp", "id": 2}


def test_name_and_id_are_the_documents(network: Network) -> None:
    assert network.values["cluster"] == {"name": network.cluster.name, "id": network.cluster.cluster_id}


def test_a_cluster_outside_the_mesh_has_the_id_that_means_none() -> None:
    site = three_sites().sites["franca"]
    cluster = site.clusters["cluster-fca"].model_copy(update={"cluster_id": None})
    assert chart_values(cluster, three_sites().common.cilium, site.lb)["cluster"] == {"name": "cluster-fca", "id": 0}


def test_cil_04_pod_addresses_come_from_k3s_and_have_no_second_home(network: Network) -> None:
    assert network.values["ipam"] == {"mode": "kubernetes"}
    assert network.values["k8s"]["requireIPv4PodCIDR"] is True
    assert str(network.cluster.pod_cidr) not in str(network.values)


def test_cil_05_cilium_takes_the_place_of_kube_proxy(network: Network) -> None:
    assert network.values["kubeProxyReplacement"] is True


def test_cil_06_the_chart_is_upstreams_in_kube_system_under_its_own_name(network: Network) -> None:
    chart = network.chart.inputs
    assert (chart["chart"], chart["name"], chart["namespace"]) == ("cilium", "cilium", "kube-system")
    assert chart["repositoryOpts"] == {"repo": "https://helm.cilium.io"}


def test_cil_07_hubble_is_on_with_its_relay(network: Network) -> None:
    hubble = network.values["hubble"]
    assert (hubble["enabled"], hubble["relay"]["enabled"]) == (True, True)
    assert hubble["tls"]["auto"]["method"] == "helm", "a cron job would make the first install wait for itself"


def test_cil_12_the_datapath_is_the_fleets(network: Network) -> None:
    assert network.values["routingMode"] == three_sites().common.cilium.datapath
    assert network.values.get("tunnelProtocol") == "vxlan"


def test_native_routing_names_no_tunnel() -> None:
    site = three_sites().sites["franca"]
    line = three_sites().common.cilium.model_copy(update={"datapath": "native"})
    values = chart_values(site.clusters["cluster-fca"], line, site.lb)
    assert values["routingMode"] == "native"
    assert "tunnelProtocol" not in values


def test_cilium_asks_the_api_on_its_own_node_and_never_the_api_address(network: Network) -> None:
    """The address that kube-vip keeps would wait for the network that Cilium brings up."""
    assert (network.values["k8sServiceHost"], network.values["k8sServicePort"]) == ("127.0.0.1", 6444)
    assert str(network.cluster.api.vip) not in str(network.values)


@pytest.mark.parametrize(("servers", "agents", "replicas"), [(1, 0, 1), (1, 1, 2), (3, 0, 2), (3, 4, 2)])
def test_operators_never_outnumber_the_nodes(servers: int, agents: int, replicas: int) -> None:
    """They refuse to share a node: one of two would stay pending, and with it the release."""
    site = three_sites().sites["franca"]
    nodes = {"servers": ("a",) * servers, "agents": ("b",) * agents}
    cluster = site.clusters["cluster-fca"].model_copy(update=nodes)
    values: dict[str, Any] = chart_values(cluster, three_sites().common.cilium, site.lb)
    assert values["operator"]["replicas"] == replicas


def test_sec_07_the_ca_reaches_the_chart_as_base64_and_secret(network: Network) -> None:
    ca = network.values["tls"]["ca"]
    assert base64.b64decode(ca["cert"]) == b"<ciliumCaCert>"
    assert base64.b64decode(ca["key"]) == b"<ciliumCaKey>"
    assert "values" in network.chart.secret
    assert network.chart.shown["values"]["tls"]["ca"] == {"cert": "[secret]", "key": "[secret]"}


def test_a_failed_release_stays_and_a_good_one_is_waited_for(network: Network) -> None:
    chart = network.chart.inputs
    assert (chart["atomic"], chart["skipAwait"]) == (False, False)
    assert chart["timeout"] > 0


def test_a_chart_directory_takes_the_place_of_the_repository() -> None:
    def inputs() -> Inputs:
        return replace(placeholders(), charts="/mirror/")

    chart = Network("sp", plan(three_sites(), "sp", inputs)).chart.inputs
    assert (chart["chart"], chart["version"]) == ("/mirror/cilium-1.17.18.tgz", "1.17.18")
    assert "repositoryOpts" not in chart


# BGP and addresses


def test_bgp_01_cilium_speaks_with_the_asn_of_its_site() -> None:
    asn = {site_id: Network(site_id).spec("CiliumBGPClusterConfig")["bgpInstances"][0]["localASN"] for site_id in SITES}
    assert (asn["franca"], asn["sp"], asn["norte"]) == (65001, 65002, 65103)


def test_bgp_02_cilium_peers_with_the_router_of_its_own_lan_alone(network: Network) -> None:
    (instance,) = network.spec("CiliumBGPClusterConfig")["bgpInstances"]
    (peer,) = instance["peers"]
    assert peer["peerAddress"] == str(network.site.vyos.lan_address)
    assert network.site.vyos.lan_address in IPv4Network(network.site.network.lan_cidr)


def test_bgp_03_pod_range_and_load_balancer_addresses_are_announced(network: Network) -> None:
    kinds = {entry["advertisementType"] for entry in network.spec("CiliumBGPAdvertisement")["advertisements"]}
    assert kinds == {"PodCIDR", "Service"}


def test_bgp_04_no_cluster_ip_is_ever_announced(network: Network) -> None:
    for entry in network.spec("CiliumBGPAdvertisement")["advertisements"]:
        assert entry.get("service", {"addresses": ["LoadBalancerIP"]})["addresses"] == ["LoadBalancerIP"]


def test_bgp_09_both_ends_of_the_peering_have_their_own_asn(network: Network) -> None:
    (instance,) = network.spec("CiliumBGPClusterConfig")["bgpInstances"]
    bgp = network.site.bgp
    assert (instance["localASN"], instance["peers"][0]["peerASN"]) == (bgp.cilium_asn, bgp.vyos_asn)


def test_bgp_11_kinds_and_version_are_those_of_the_pinned_cilium(network: Network) -> None:
    assert set(network.objects()) == KINDS
    assert {made.inputs["apiVersion"] for made in network.objects().values()} == {"cilium.io/v2alpha1"}


@pytest.mark.parametrize(
    ("version", "api"),
    [
        ("1.16.9", "cilium.io/v2alpha1"),
        ("1.17.18", "cilium.io/v2alpha1"),
        ("1.18.0", "cilium.io/v2"),
        ("1.20.1", "cilium.io/v2"),
        ("2.0.0", "cilium.io/v2"),
    ],
)
def test_bgp_11_the_api_version_follows_the_minor(version: str, api: str) -> None:
    assert bgp_api_version(version) == api


def test_bgp_11_every_object_moves_with_the_version() -> None:
    def edit(documents: Documents) -> None:
        documents["common"]["cilium"]["version"] = "1.18.2"

    objects = Network("sp", plan_of(changed(edit), "sp")).objects()
    assert {made.inputs["apiVersion"] for made in objects.values()} == {"cilium.io/v2"}


def test_bgp_13_there_is_one_speaker(network: Network) -> None:
    assert len([kind for kind, _ in network.record if kind.endswith(":CiliumBGPClusterConfig")]) == 1
    names = " ".join(name for _, name in network.record).lower()
    assert not [word for word in ("metallb", "speaker", "frr", "bird") if word in names]


def test_bgp_14_every_reference_of_the_peering_leads_somewhere(network: Network) -> None:
    objects = network.objects()
    (instance,) = network.spec("CiliumBGPClusterConfig")["bgpInstances"]
    assert instance["peers"][0]["peerConfigRef"]["name"] == objects["CiliumBGPPeerConfig"].inputs["metadata"]["name"]
    wanted = network.spec("CiliumBGPPeerConfig")["families"][0]["advertisements"]["matchLabels"]
    assert wanted
    assert wanted.items() <= objects["CiliumBGPAdvertisement"].inputs["metadata"]["labels"].items()


def test_bgp_14_the_announcement_of_services_selects_every_service_that_does_not_opt_out() -> None:
    (service,) = [entry for entry in advertisement_spec()["advertisements"] if entry["advertisementType"] == "Service"]
    (term,) = service["selector"]["matchExpressions"]
    assert (term["operator"], term["values"]) == ("NotIn", ["false"])


def test_timers_and_graceful_restart_are_the_documents() -> None:
    franca, norte = (three_sites().sites[site_id].bgp for site_id in ("franca", "norte"))
    retry = franca.connect_retry_s
    assert retry < 120, "Cilium alone dials: upstream's two minutes would be added to every outage"
    assert peer_spec(franca)["timers"] == {
        "connectRetryTimeSeconds": retry,
        "holdTimeSeconds": 90,
        "keepAliveTimeSeconds": 30,
    }
    assert peer_spec(franca)["gracefulRestart"] == {"enabled": True, "restartTimeSeconds": 120}
    other = norte.model_copy(update={"connect_retry_s": 7})
    assert peer_spec(other)["timers"] == {
        "connectRetryTimeSeconds": 7,
        "holdTimeSeconds": 30,
        "keepAliveTimeSeconds": 10,
    }
    assert peer_spec(norte)["gracefulRestart"] == {"enabled": False}


def test_only_an_external_peer_behind_a_router_needs_more_than_one_hop() -> None:
    internal, external = (three_sites().sites[site_id].bgp for site_id in ("franca", "norte"))
    assert peer_spec(external, on_link=False)["ebgpMultihop"] == 2
    assert "ebgpMultihop" not in peer_spec(external)
    assert "ebgpMultihop" not in peer_spec(internal, on_link=False)


def test_the_routers_of_all_sites_are_neighbours_of_their_nodes(network: Network) -> None:
    assert "ebgpMultihop" not in network.spec("CiliumBGPPeerConfig")


def passwords(network: Network) -> list[Declared]:
    return [one for one in of_type(network.record, ":Secret").values() if "password" in one.inputs["stringData"]]


def authenticated(documents: Documents) -> None:
    documents["sp"]["bgp"]["authenticated"] = True


def test_sec_07_the_password_of_the_peering_is_a_secret_that_comes_before_the_peer() -> None:
    network = Network("sp", plan_of(changed(authenticated), "sp"))
    (secret,) = passwords(network)
    metadata = secret.inputs["metadata"]
    assert metadata["namespace"] == network.values.get("bgpControlPlane", {}).get("secretsNamespace", {}).get(
        "name", "kube-system"
    )
    assert network.spec("CiliumBGPPeerConfig")["authSecretRef"] == metadata["name"]
    assert secret.inputs["stringData"] == {"password": "<bgpPassword>"}
    assert "<bgpPassword>" not in str(secret.shown)
    assert secret.provider == f"k3s-{network.cluster.name}-api"
    name = next(name for (kind, name), made in network.record.items() if made is secret)
    assert name in network.objects()["CiliumBGPPeerConfig"].after


def test_without_authentication_there_is_no_password(network: Network) -> None:
    assert "authSecretRef" not in network.spec("CiliumBGPPeerConfig")
    assert passwords(network) == []


def test_bgp_14_what_differs_at_a_node_reaches_that_node_and_the_instance() -> None:
    def edit(documents: Documents) -> None:
        documents["sp"]["bgp"]["node_overrides"] = {"vm-sp-02": {"router_id": "192.0.2.7", "local_port": 1790}}

    network = Network("sp", plan_of(changed(edit), "sp"))
    override = network.objects()["CiliumBGPNodeConfigOverride"].inputs
    assert override["metadata"]["name"] == "vm-sp-02" and "vm-sp-02" in network.cluster.agents
    assert override["apiVersion"] == bgp_api_version("1.17.18")
    (instance,) = network.spec("CiliumBGPClusterConfig")["bgpInstances"]
    assert override["spec"] == {
        "bgpInstances": [{"name": instance["name"], "routerID": "192.0.2.7", "localPort": 1790}]
    }


def test_a_node_without_a_difference_has_no_override() -> None:
    assert override_specs({"a": BgpNode()}) == {}
    assert list(override_specs({"a": BgpNode(), "b": BgpNode(local_port=1790)})) == ["b"]
    assert not [kind for site_id in SITES for kind in Network(site_id).objects() if "Override" in kind]


@pytest.mark.parametrize(
    ("site_id", "start", "stop"),
    [
        ("franca", "192.168.0.240", "192.168.0.250"),
        ("sp", "192.168.10.240", "192.168.10.250"),
        ("norte", "172.22.67.1", "172.22.67.30"),
    ],
)
def test_met_05_met_06_the_pool_is_the_documents(site_id: str, start: str, stop: str) -> None:
    found = [block for spec in pools_of(plan_of(changed(lambda _: None), site_id)).values() for block in spec["blocks"]]
    assert sorted(addresses(found)) == list(range(int(IPv4Address(start)), int(IPv4Address(stop)) + 1))


def pools_of(record: Record) -> dict[str, Any]:
    pools = [made for (kind, _), made in record.items() if kind.endswith("Pool")]
    return {made.inputs["metadata"]["name"]: made.inputs["spec"] for made in pools}


def addresses(blocks: list[dict[str, str]]) -> list[int]:
    """Each address of each block: one that stands in two of them twice."""
    return [
        number
        for block in blocks
        for number in range(int(IPv4Address(block["start"])), int(IPv4Address(block["stop"])) + 1)
    ]


@pytest.mark.parametrize("site_id", ["franca", "sp", "norte"])
def test_met_08_fixed_addresses_are_kept_for_services_with_the_label(site_id: str) -> None:
    record, lb = plan_of(changed(lambda _: None), site_id), three_sites().sites[site_id].lb
    pools = pools_of(record)
    vips = {int(vip) for _, vip in lb.vips if vip}
    assert set(addresses(pools["fixed"]["blocks"])) == vips
    assert not vips & set(addresses(pools["site"]["blocks"]))
    assert pools["fixed"]["serviceSelector"] == {"matchLabels": {"fleet.colabh.org/fixed-address": "true"}}
    assert "serviceSelector" not in pools["site"]
    services = [made.inputs["metadata"] for (kind, _), made in record.items() if kind == "kubernetes:core/v1:Service"]
    asking = [one for one in services if one.get("annotations", {}).get("lbipam.cilium.io/ips")]
    assert asking
    assert all(FIXED_LABELS.items() <= one["labels"].items() for one in asking)


def test_met_08_the_fixed_pool_waits_until_the_other_one_has_let_go() -> None:
    for documents, name in ((changed(lambda _: None), "pool"), (changed(with_metallb), "metallb-pool")):
        made = {one: entry for (_, one), entry in plan_of(documents, "franca").items()}
        assert f"cilium-cluster-fca-{name}" in made[f"cilium-cluster-fca-{name}-fixed"].after


def test_a_pool_of_fixed_addresses_alone_leaves_none_for_others() -> None:
    lb = three_sites().sites["norte"].lb
    small = lb.model_copy(update={"pool": AddressRange(start=lb.vips.clustermesh_api, stop=lb.vips.clustermesh_api)})
    assert set(pool_specs(small)) == set(metallb_pool_specs(small)) == {"fixed"}


def test_met_01_cilium_alone_hands_out_addresses(network: Network) -> None:
    assert network.values["enableLBIPAM"] is True
    assert {kind.split(":")[1] for kind, _ in network.record if "Pool" in kind} == {"cilium.io/v2alpha1"}


def with_metallb(documents: Documents) -> None:
    documents["franca"]["lb"]["mode"] = "metallb"


def test_met_03_with_metallb_cilium_announces_and_hands_out_nothing() -> None:
    network = Network("franca", plan_of(changed(with_metallb), "franca"))
    assert set(network.objects()) == KINDS - {"CiliumLoadBalancerIPPool"}
    assert network.values["enableLBIPAM"] is False
    assert network.values["defaultLBServiceIPAM"] == "none"


def test_met_03_metallb_is_its_controller_alone_with_the_pool_of_the_document() -> None:
    record = plan_of(changed(with_metallb), "franca")
    network = Network("franca", record)
    release = record[("kubernetes:helm.sh/v3:Release", f"{network.name}-metallb")]
    values = release.inputs["values"]
    assert (release.inputs["chart"], release.inputs["version"]) == ("metallb", "0.16.1")
    assert values["controller"]["enabled"] is True
    assert [values["speaker"]["enabled"], values["speaker"]["frr"]["enabled"], values["frrk8s"]["enabled"]] == [
        False
    ] * 3
    pools = {name: made for (kind, name), made in record.items() if kind.startswith("kubernetes:metallb.io/")}
    assert {pool.type.rpartition(":")[2] for pool in pools.values()} == {"IPAddressPool"}, "any other would announce"
    assert {pool.inputs["metadata"]["name"]: pool.inputs["spec"] for pool in pools.values()} == {
        "site": {"addresses": ["192.168.0.243-192.168.0.250"]},
        "fixed": {"addresses": [f"{vip}-{vip}" for vip in VIPS], "autoAssign": False},
    }
    assert {pool.inputs["metadata"]["namespace"] for pool in pools.values()} == {release.inputs["namespace"]}
    namespace = record[("kubernetes:core/v1:Namespace", f"{network.name}-metallb-namespace")]
    assert release.inputs["namespace"] == namespace.inputs["metadata"]["name"]
    assert f"{network.name}-chart" in namespace.after, "the controller's Pod needs the network"
    assert namespace.name in release.after
    assert all(release.name in pool.after for pool in pools.values())
    assert {release.provider, *(pool.provider for pool in pools.values())} == {f"k3s-{network.cluster.name}-api"}


def test_met_01_a_site_without_metallb_has_nothing_of_it(network: Network) -> None:
    assert "metallb" not in str(list(network.record)).lower()


@pytest.mark.parametrize(("binding", "name"), [("class", "io.cilium/bgp-control-plane"), ("default", "")])
def test_met_09_metallb_takes_the_services_that_cilium_announces(binding: str, name: str) -> None:
    lb = three_sites().sites["franca"].lb.model_copy(update={"binding": binding, "mode": "metallb"})
    assert metallb_values(lb)["loadBalancerClass"] == name == (service_class(lb) or "")


def test_met_08_a_fixed_address_is_asked_of_the_one_who_hands_them_out() -> None:
    lb = three_sites().sites["franca"].lb
    vip = lb.vips.clustermesh_api
    assert address_annotations(lb, vip) == {"lbipam.cilium.io/ips": "192.168.0.241"}
    other = lb.model_copy(update={"mode": "metallb"})
    assert address_annotations(other, vip) == {"metallb.io/loadBalancerIPs": "192.168.0.241"}


@pytest.mark.parametrize(("binding", "allocator"), [("class", "none"), ("default", "lbipam")])
def test_met_09_services_are_bound_by_their_class_or_by_default_and_never_by_both(binding: str, allocator: str) -> None:
    site = three_sites().sites["franca"]
    lb = site.lb.model_copy(update={"binding": binding})
    values = chart_values(site.clusters["cluster-fca"], three_sites().common.cilium, lb)
    assert values["defaultLBServiceIPAM"] == allocator
    assert service_class(lb) == ("io.cilium/bgp-control-plane" if binding == "class" else None)


def test_bgp_12_l2_announcements_are_off_unless_the_document_asks() -> None:
    assert Network("franca").values["l2announcements"] == {"enabled": False}
    assert Network("norte").values["l2announcements"] == {"enabled": True}


def test_specs_are_plain_functions_of_the_document() -> None:
    site = three_sites().sites["norte"]
    assert pool_specs(site.lb)["site"]["blocks"][0]["start"] == "172.22.67.1"
    assert cluster_spec(site.bgp, "192.0.2.1")["bgpInstances"][0]["peers"][0]["peerAddress"] == "192.0.2.1"


# Place and order


def test_gen_05_objects_wait_for_the_chart_that_brings_their_kinds(network: Network) -> None:
    for kind, made in network.objects().items():
        before = f"{network.name}-peer" if kind == "CiliumBGPClusterConfig" else f"{network.name}-chart"
        assert before in made.after
    assert f"{network.name}-chart" in network.objects()["CiliumBGPPeerConfig"].after


def test_gen_05_cilium_waits_for_every_node_of_its_cluster(network: Network) -> None:
    after = network.record[("fleet:cilium:Cilium", network.name)].after
    nodes = [f"k3s-{network.cluster.name}-server-{node}" for node in network.cluster.servers]
    nodes += [f"k3s-{network.cluster.name}-agent-{node}" for node in network.cluster.agents]
    assert set(nodes) <= set(after)


def test_everything_of_cilium_goes_to_its_own_cluster(network: Network) -> None:
    mine = [made for made in network.record.values() if made.parent == network.name]
    assert len(mine) == 2 + len(KINDS), "of one kind there are two"
    assert {made.provider for made in mine} == {f"k3s-{network.cluster.name}-api"}


@pytest.mark.parametrize(("site_id", "gpu"), GPU.items())
def test_cil_17_nothing_of_cilium_reaches_a_gpu_cluster(site_id: str, gpu: str) -> None:
    record = declared(site_id)
    sent = [key for key, made in record.items() if made.provider == f"k3s-{gpu}-api"]
    assert not [kind for kind, name in sent if "cilium" in f"{kind}{name}".lower()]
    assert ("fleet:cilium:Cilium", f"cilium-{gpu}") not in record


@pytest.mark.parametrize("site_id", SITES)
def test_cil_09_a_cluster_has_cilium_or_flannel(site_id: str) -> None:
    record = declared(site_id)
    for cluster in three_sites().sites[site_id].clusters.values():
        with_cilium = ("fleet:cilium:Cilium", f"cilium-{cluster.name}") in record
        script_data = of_type(record, ":Command")[f"k3s-{cluster.name}-server-{cluster.servers[0]}"].inputs["stdin"]
        assert ('flannel-backend: "none"' in script_data) is with_cilium


def test_met_02_cilium_hands_out_addresses_unless_a_document_says_otherwise() -> None:
    def edit(documents: Documents) -> None:
        documents["sp"]["lb"].pop("mode", None)

    assert Network("sp", plan_of(changed(edit), "sp")).values["enableLBIPAM"] is True


def test_msh_05_the_ca_comes_with_the_chart_and_no_command_sets_one(network: Network) -> None:
    """The CLI has no such subcommand; and a CA that a command set would be lost with the next release."""
    assert set(network.values["tls"]["ca"]) == {"cert", "key"}
    for name, command in of_type(network.record, ":Command").items():
        told = " ".join(str(command.inputs.get(key)) for key in ("create", "update", "delete", "stdin"))
        assert "cilium clustermesh" not in told, name
        assert "cilium-ca" not in told, name


def test_bgp_10_the_router_that_cilium_peers_with_has_no_default() -> None:
    faults = faults_of(patched(shipped(), delete=["sp.vyos.lan_address", "franca.vyos.lan_address"]))
    assert {(fault.id, fault.path) for fault in faults} == {
        ("GEN-07", "franca.vyos.lan_address"),
        ("GEN-07", "sp.vyos.lan_address"),
    }


def test_bgp_02_a_router_that_moves_is_the_one_that_cilium_peers_with() -> None:
    def edit(documents: Documents) -> None:
        documents["sp"]["vyos"]["lan_address"] = "192.168.10.2"

    (instance,) = Network("sp", plan_of(changed(edit), "sp")).spec("CiliumBGPClusterConfig")["bgpInstances"]
    assert [peer["peerAddress"] for peer in instance["peers"]] == ["192.168.10.2"]


def test_cil_12_every_main_cluster_moves_with_the_datapath_of_the_fleet() -> None:
    def edit(documents: Documents) -> None:
        documents["common"]["cilium"]["datapath"] = "native"

    fleet = changed(edit)
    assert {Network(site_id, plan_of(fleet, site_id)).values["routingMode"] for site_id in SITES} == {"native"}
