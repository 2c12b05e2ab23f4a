"""Clusters of the shipped sites and of an invented one: what each node is told, in which order, and how secretly."""

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import yaml

from cli.plan import Declared, plan
from cli.stand_in_inputs import placeholders
from infra.config import Cluster, Lxc, Site, Vm
from infra.k3s import Mirror, artifacts, kube_vip, settings
from infra.k3s.cluster import full_token, kubeconfig
from infra.names import KUBE_SYSTEM
from infra.remote import END
from infra.site import Inputs
from tests.sites import SITES, Documents, Record, changed, declared, of_type, plan_of, three_sites

CLUSTERS = [(site_id, name) for site_id in SITES for name in three_sites().sites[site_id].clusters]
MAIN = [(site_id, name) for site_id, name in CLUSTERS if three_sites().sites[site_id].clusters[name].role == "main"]
GPU = [(site_id, name) for site_id, name in CLUSTERS if three_sites().sites[site_id].clusters[name].role == "gpu"]
SERVER_KEYS = {"cluster-cidr", "service-cidr", "tls-san", "disable", "cluster-init", "secrets-encryption"}


class K3s:
    """What is declared for one cluster."""

    def __init__(self, site_id: str, name: str, record: Record | None = None) -> None:
        self.record = record or declared(site_id)
        self.site: Site = three_sites().sites[site_id]
        self.cluster: Cluster = self.site.clusters[name]
        self.name = f"k3s-{name}"
        self.commands = of_type(self.record, "command:remote:Command")

    def command(self, role: str) -> Declared:
        return self.commands[f"{self.name}-{role}"]

    @property
    def servers(self) -> list[Declared]:
        return [self.command(f"server-{node}") for node in self.cluster.servers]

    @property
    def bootstrap(self) -> Declared:
        return self.command(f"bootstrap-{self.cluster.servers[0]}")

    @property
    def agents(self) -> list[Declared]:
        return [self.command(f"agent-{node}") for node in self.cluster.agents]

    @property
    def api_host(self) -> str:
        return str(self.cluster.api.vip or self.site.guests[self.cluster.servers[0]].address)

    def nodes(self) -> Iterator[tuple[Declared, Vm | Lxc]]:
        """The command of every server and agent with its guest."""
        for role, names in (("server", self.cluster.servers), ("agent", self.cluster.agents)):
            for node in names:
                yield self.command(f"{role}-{node}"), self.site.guests[node]

    def mine(self) -> Iterator[Declared]:
        return (made for made in self.record.values() if made.parent == self.name)


@pytest.fixture(params=CLUSTERS, ids=[name for _, name in CLUSTERS])
def k3s(request: pytest.FixtureRequest) -> K3s:
    return K3s(*request.param)


@pytest.fixture(params=MAIN, ids=[name for _, name in MAIN])
def main(request: pytest.FixtureRequest) -> K3s:
    return K3s(*request.param)


@pytest.fixture(params=GPU, ids=[name for _, name in GPU])
def gpu(request: pytest.FixtureRequest) -> K3s:
    return K3s(*request.param)


def script(command: Declared) -> str:
    return str(command.inputs["stdin"]).split(f"}} 3<<'{END}'")[0]


def sections(command: Declared) -> dict[str, str]:
    found: dict[str, str] = {}
    data = str(command.inputs["stdin"]).split(f"}} 3<<'{END}' </dev/null\n")[1].removesuffix(f"{END}\n")
    for line in data.splitlines(keepends=True):
        if line.startswith("=== "):
            name = line[4:].strip()
            found[name] = ""
        else:
            found[name] += line
    return found


def config(command: Declared) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(sections(command)["config.yaml"])
    return parsed


def values(command: Declared, section: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in sections(command)[section].splitlines())


# What every server is told


def test_k3s_01_main_servers_leave_network_policies_and_load_balancing_to_cilium(main: K3s) -> None:
    for server in main.servers:
        told = config(server)
        assert told["flannel-backend"] == "none"
        assert told["disable-network-policy"] is True
        assert "servicelb" in told["disable"]
        assert told["cluster-cidr"] == str(main.cluster.pod_cidr)
        assert told["service-cidr"] == str(main.cluster.service_cidr)


def test_net_07_net_08_the_shipped_main_clusters_have_the_decided_ranges() -> None:
    decided = {"cluster-fca": ("10.41.0.0/16", "10.141.0.0/16"), "cluster-sp": ("10.42.0.0/16", "10.142.0.0/16")}
    for site_id, name in MAIN:
        if name in decided:
            told = config(K3s(site_id, name).servers[0])
            assert (told["cluster-cidr"], told["service-cidr"]) == decided[name]


def test_k3s_02_gpu_servers_keep_flannel_its_policies_and_kube_proxy(gpu: K3s) -> None:
    for server in gpu.servers:
        assert not {"flannel-backend", "disable-network-policy", "disable-kube-proxy"} & set(config(server))


def test_k3s_03_franca_has_three_servers_on_the_decided_guests() -> None:
    franca = K3s("franca", "cluster-fca")
    assert [server.name.split("-server-")[1] for server in franca.servers] == ["vm-cpps-02", "vm-cpps-03", "vm-cpps-04"]


def test_k3s_07_cilium_and_k3s_agree_that_there_is_no_kube_proxy(main: K3s) -> None:
    chart = of_type(main.record, ":Release")[f"cilium-{main.cluster.name}-chart"].inputs["values"]
    assert all(config(server)["disable-kube-proxy"] is True for server in main.servers)
    assert (chart["kubeProxyReplacement"], chart["k8sServiceHost"], chart["k8sServicePort"]) == (
        True,
        "127.0.0.1",
        6444,
    )


def test_k3s_08_the_bundled_traefik_is_off(k3s: K3s) -> None:
    assert all("traefik" in config(server)["disable"] for server in k3s.servers)


def test_k3s_10_servers_differ_in_name_address_and_labels_alone(k3s: K3s) -> None:
    own = {"node-name", "node-ip", "node-label"}
    told = [{key: value for key, value in config(server).items() if key not in own} for server in k3s.servers]
    assert all(other == told[0] for other in told)
    assert {frozenset(config(server)) for server in k3s.servers} == {frozenset(config(k3s.servers[0]))}
    apart = {"config.yaml", "node", "labels"}
    rest = [{name: text for name, text in sections(server).items() if name not in apart} for server in k3s.servers]
    assert all(other == rest[0] for other in rest)


def test_each_node_has_its_own_name_and_address(k3s: K3s) -> None:
    for command, node in k3s.nodes():
        told = config(command)
        assert (told["node-name"], told["node-ip"]) == (node.name, str(node.address))
        assert command.inputs["connection"]["host"] == str(node.address)


def test_k3s_11_flags_stand_in_the_config_file_alone(k3s: K3s) -> None:
    for command in [k3s.bootstrap, *k3s.servers, *k3s.agents]:
        starts = [line for line in script(command).splitlines() if line.startswith("ExecStart=")]
        assert [start for start in starts if "/usr/local/bin/k3s" in start] == ["ExecStart=/usr/local/bin/k3s $role"]
        assert "K3S_TOKEN" not in script(command)
        assert "INSTALL_K3S" not in script(command)
        assert not any(line.startswith("--") for line in sections(command)["config.yaml"].splitlines())


def test_k3s_14_the_ranges_of_a_gpu_cluster_are_explicit_and_not_those_of_k3s(gpu: K3s) -> None:
    told = config(gpu.servers[0])
    assert (told["cluster-cidr"], told["service-cidr"]) == (str(gpu.cluster.pod_cidr), str(gpu.cluster.service_cidr))
    assert told["cluster-cidr"] != "10.42.0.0/16"
    assert told["service-cidr"] != "10.43.0.0/16"


def test_the_api_address_and_further_names_are_in_the_certificate(k3s: K3s) -> None:
    api = k3s.cluster.api
    wanted = {*map(str, api.tls_sans), *([str(api.vip)] if api.vip else [])}
    for server in k3s.servers:
        assert config(server)["tls-san"] == sorted(wanted)


def test_only_a_cluster_with_an_api_address_tells_its_servers_whom_to_join(k3s: K3s) -> None:
    vip = k3s.cluster.api.vip
    for server in k3s.servers:
        assert config(server).get("server") == (f"https://{vip}:6443" if vip else None)


def test_no_config_asks_for_a_new_cluster(k3s: K3s) -> None:
    """`cluster-init` on an empty disk makes a second cluster: only the script of the first start may say it."""
    for command in [k3s.bootstrap, *k3s.servers, *k3s.agents]:
        assert "cluster-init" not in config(command)


def test_an_agent_gets_no_key_of_a_server() -> None:
    """An agent dies of a key it does not know."""
    agents = [agent for site_id, name in CLUSTERS for agent in K3s(site_id, name).agents]
    assert agents
    for agent in agents:
        assert set(config(agent)) == {"node-name", "node-ip", "node-label", "kubelet-arg", "token-file", "server"}
        assert not SERVER_KEYS & set(config(agent))


def test_an_agent_joins_through_the_api_address() -> None:
    for site_id, name in CLUSTERS:
        k3s = K3s(site_id, name)
        for agent in k3s.agents:
            assert config(agent)["server"] == f"https://{k3s.api_host}:6443"


def test_labels_of_cluster_and_node_are_merged_and_the_node_wins() -> None:
    north = K3s("norte", "north")
    assert values(north.command("server-north-a"), "labels") == {"rack": "r1", "zone": "north"}
    assert values(north.command("server-north-b"), "labels") == {"rack": "none", "zone": "north"}
    agent = values(north.command("labels-north-d"), "labels")
    assert agent == {"pool": "spare", "rack": "r9", "zone": "north"}
    assert config(north.command("agent-north-d"))["node-label"] == [f"{k}={v}" for k, v in sorted(agent.items())]


def test_gpu_nodes_carry_the_model_of_their_gpu(gpu: K3s) -> None:
    assert gpu.cluster.gpu is not None
    assert f"gpu.model={gpu.cluster.gpu.model}" in config(gpu.servers[0])["node-label"]


def test_log_limits_and_further_kubelet_arguments_reach_every_node() -> None:
    north = K3s("norte", "north")
    for command in [*north.servers, *north.agents]:
        assert config(command)["kubelet-arg"] == [
            "container-log-max-files=3",
            "container-log-max-size=7Mi",
            "max-pods=60",
        ]


def test_snapshots_of_etcd_follow_the_document(k3s: K3s) -> None:
    told = config(k3s.servers[0])
    wanted = k3s.cluster.etcd_snapshots
    assert (told["etcd-snapshot-schedule-cron"], told["etcd-snapshot-retention"]) == (wanted.schedule, wanted.retention)


def test_secrets_are_encrypted_and_the_kubeconfig_of_root_is_roots(k3s: K3s) -> None:
    told = config(k3s.servers[0])
    assert told["secrets-encryption"] is True
    assert told["write-kubeconfig-mode"] == "0600"
    assert 'write-kubeconfig-mode: "0600"' in sections(k3s.servers[0])["config.yaml"], "unquoted it is an octal number"


def test_the_config_file_quotes_every_text() -> None:
    text = settings.text({"cron": "0 */6 * * *", "mode": "0644", "name": "on", "none": [], "some": True, "n": 5})
    assert text == 'cron: "0 */6 * * *"\nmode: "0644"\nn: 5\nname: "on"\nnone: []\nsome: true\n'


def test_frozen_names_the_keys_that_k3s_never_changes(k3s: K3s) -> None:
    """K3S-09, and what K3s compares when a server joins."""
    frozen = sections(k3s.servers[0])["frozen"].split()
    critical = {
        "cluster-cidr",
        "service-cidr",
        "cluster-dns",
        "cluster-domain",
        "flannel-backend",
        "disable-network-policy",
        "disable-kube-proxy",
        "secrets-encryption",
        "egress-selector-mode",
        "datastore-endpoint",
        "node-name",
    }
    assert critical <= set(frozen)
    rolling = {"tls-san", "node-label", "kubelet-arg", "disable", "token-file", "server"}
    assert not rolling & set(frozen)


# Tokens


def test_k3s_13_the_token_is_secret_wherever_it_flows_and_each_cluster_has_its_own() -> None:
    tokens: set[str] = set()
    for site_id, name in CLUSTERS:
        k3s = K3s(site_id, name)
        for node in (*k3s.cluster.servers, *k3s.cluster.agents):
            command = k3s.command(f"token-{node}")
            assert command.shown["stdin"] == "[secret]"
            assert set(sections(command)) == {"token"}
        tokens.add(sections(k3s.command(f"token-{k3s.cluster.servers[0]}"))["token"].strip())
    assert len(tokens) == len(CLUSTERS)
    assert all(tokens)


def test_what_is_no_secret_is_readable_in_a_preview(k3s: K3s) -> None:
    for command in [k3s.bootstrap, *k3s.servers, *k3s.agents]:
        assert "stdin" not in command.secret
        assert "token" not in sections(command)


def test_the_first_server_gets_the_bare_token_and_joining_nodes_the_one_that_pins_the_ca(k3s: K3s) -> None:
    first, *others = (*k3s.cluster.servers, *k3s.cluster.agents)
    bare = sections(k3s.command(f"token-{first}"))["token"].strip()
    assert not bare.startswith("K10")
    for node in others:
        assert sections(k3s.command(f"token-{node}"))["token"].strip() == f"K10{'0' * 64}::server:{bare}"
    assert full_token("t", "a" * 64) == f"K10{'a' * 64}::server:t"


def test_a_node_has_its_token_before_k3s_starts_there(k3s: K3s) -> None:
    first, *others = k3s.cluster.servers
    assert k3s.command(f"token-{first}").name in k3s.bootstrap.after
    for node in others:
        assert k3s.command(f"token-{node}").name in k3s.command(f"server-{node}").after
    for node in k3s.cluster.agents:
        assert k3s.command(f"token-{node}").name in k3s.command(f"agent-{node}").after


def test_the_token_is_long_and_plain_text(k3s: K3s) -> None:
    token = k3s.record[("random:index/randomPassword:RandomPassword", f"{k3s.name}-token")]
    assert token.inputs["length"] >= 32
    assert token.inputs["special"] is False, "a colon would end the token early"


# Order


def test_k3s_15_servers_come_one_after_another_and_the_first_start_before_all(k3s: K3s) -> None:
    chain = [k3s.bootstrap, *k3s.servers]
    for before, after in pairwise(chain):
        assert before.name in after.after


def test_every_node_is_prepared_before_k3s_reaches_it(k3s: K3s) -> None:
    first = (k3s.bootstrap, k3s.site.guests[k3s.cluster.servers[0]])
    for command, node in [first, *k3s.nodes()]:
        role = "host" if node.kind == "lxc" else "base"
        assert f"{k3s.name}-{role}-{node.name}" in command.after


def test_agents_come_after_every_server_and_their_labels_after_them() -> None:
    north = K3s("norte", "north")
    assert north.servers[-1].name in north.command("agent-north-d").after
    assert "k3s-north-agent-north-d" in north.command("labels-north-d").after
    host = north.command("labels-north-d").inputs["connection"]["host"]
    assert host == "172.22.64.21", "an agent may not set its own"


def test_credentials_and_provider_come_after_every_server(k3s: K3s) -> None:
    credentials = k3s.command(f"credentials-{k3s.cluster.name}")
    assert k3s.servers[-1].name in credentials.after
    provider = k3s.record[("pulumi:providers:kubernetes", f"{k3s.name}-api")]
    assert credentials.name in provider.after


def test_the_bootstrap_of_a_cluster_ignores_whatever_changes_later(k3s: K3s) -> None:
    inputs = set(k3s.bootstrap.inputs) - {"addPreviousOutputInEnv"}
    assert inputs <= set(k3s.bootstrap.ignore_changes), "a changed input would run it again"


def test_a_changed_setting_of_a_server_is_no_business_of_the_bootstrap_and_reaches_its_own_command() -> None:
    def edit(documents: Documents) -> None:
        documents["norte"]["guests"]["north-a"]["node_labels"] = {"rack": "new"}

    after = K3s("norte", "north", plan_of(changed(edit), "norte"))
    before = K3s("norte", "north")
    assert not after.command("server-north-a").ignore_changes
    assert values(after.command("server-north-a"), "labels")["rack"] == "new"
    assert after.command("server-north-b").inputs == before.command("server-north-b").inputs


def test_servers_differ_in_nothing_but_whom_they_are_and_whom_they_ask(k3s: K3s) -> None:
    """No server is special after the first start: same script, same mode, every other server as peer."""
    assert len({script(command) for command in k3s.servers}) == 1
    for command in k3s.servers:
        node = values(command, "node")
        others = {str(k3s.site.guests[n].address) for n in k3s.cluster.servers if n != node["name"]}
        assert node["mode"] == "member"
        assert set(node["peers"].split()) == others
        assert node["vip"] == str(k3s.cluster.api.vip or "")
    assert values(k3s.bootstrap, "node")["mode"] == "bootstrap"


def test_every_wait_is_bounded(k3s: K3s) -> None:
    for command in [k3s.bootstrap, *k3s.servers, *k3s.agents]:
        assert 0 < int(values(command, "node")["timeout_s"]) <= 1200


def test_every_resource_of_a_cluster_belongs_to_its_component(k3s: K3s) -> None:
    own = {made.name for made in k3s.mine()}
    assert own >= {command.name for command in [k3s.bootstrap, *k3s.servers, *k3s.agents]}
    assert all(name.startswith(f"{k3s.name}-") for name in own)


# Kubeconfig and provider


def test_k3s_13_the_kubeconfig_is_secret_and_goes_through_the_api_address(k3s: K3s) -> None:
    provider = k3s.record[("pulumi:providers:kubernetes", f"{k3s.name}-api")]
    assert "kubeconfig" in provider.secret
    assert provider.shown["kubeconfig"] == "[secret]"
    known = yaml.safe_load(provider.inputs["kubeconfig"])
    assert known["clusters"][0]["cluster"]["server"] == f"https://{k3s.api_host}:6443"


def test_the_provider_is_told_which_cluster_it_is_by_an_identity_that_outlives_certificates(k3s: K3s) -> None:
    provider = k3s.record[("pulumi:providers:kubernetes", f"{k3s.name}-api")]
    assert provider.inputs["clusterIdentifier"] == "00000000-0000-0000-0000-000000000000"
    assert "clusterIdentifier" not in provider.secret


def test_a_kubeconfig_holds_a_token_and_no_client_certificate() -> None:
    cluster = three_sites().sites["sp"].clusters["gpu-sp"]
    token = base64.b64encode(b"TOKEN").decode()
    known = yaml.safe_load(kubeconfig(cluster, "192.0.2.9", {"ca": "Q0E=", "token": token}))
    assert known["users"] == [{"name": "gpu-sp-fleet", "user": {"token": "TOKEN"}}]
    assert known["clusters"][0]["cluster"]["certificate-authority-data"] == "Q0E="
    assert known["current-context"] == "gpu-sp-context"
    assert known["contexts"][0] == {"name": "gpu-sp-context", "context": {"cluster": "gpu-sp", "user": "gpu-sp-fleet"}}


def test_a_context_without_a_name_is_called_like_its_cluster() -> None:
    cluster = three_sites().sites["norte"].clusters["north"]
    assert yaml.safe_load(kubeconfig(cluster, "192.0.2.9", {"ca": "", "token": ""}))["current-context"] == "north"


# kube-vip


@pytest.mark.parametrize(("site_id", "name"), MAIN)
def test_kube_vip_keeps_the_api_address_and_nothing_else(site_id: str, name: str) -> None:
    cluster = three_sites().sites[site_id].clusters[name]
    pod = yaml.safe_load(kube_vip.manifest(cluster))
    container = pod["spec"]["containers"][0]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env["address"] == str(cluster.api.vip)
    assert env["vip_interface"] == cluster.api.vip_interface
    assert (env["vip_arp"], env["cp_enable"], env["svc_enable"], env["port"]) == ("true", "true", "false", "6443")
    assert env["vip_leaderelection"] == "true"
    assert not any(key.startswith(("bgp_", "lb_")) for key in env)


@pytest.mark.parametrize(("site_id", "name"), MAIN)
def test_kube_vip_needs_neither_service_network_nor_cni(site_id: str, name: str) -> None:
    """It speaks to the API server of its own machine, through the file that K3s keeps there."""
    pod = yaml.safe_load(kube_vip.manifest(three_sites().sites[site_id].clusters[name]))
    assert (pod["kind"], pod["metadata"]["namespace"]) == ("Pod", KUBE_SYSTEM)
    assert pod["spec"]["hostNetwork"] is True
    assert "serviceAccountName" not in pod["spec"]
    container = pod["spec"]["containers"][0]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    (mount,) = container["volumeMounts"]
    (volume,) = pod["spec"]["volumes"]
    assert env["k8s_config_file"] == mount["mountPath"]
    assert (volume["name"], volume["hostPath"]["path"]) == (mount["name"], "/etc/rancher/k3s/k3s.yaml")
    assert mount["readOnly"] is True
    assert {"operator": "Exists"} in pod["spec"]["tolerations"]


def test_gen_08_the_image_of_kube_vip_is_pinned() -> None:
    pod = yaml.safe_load(kube_vip.manifest(three_sites().sites["franca"].clusters["cluster-fca"]))
    image, _, tag = pod["spec"]["containers"][0]["image"].rpartition(":")
    assert image == "ghcr.io/kube-vip/kube-vip"
    assert tag.startswith("v")
    assert tag != "latest"


def test_every_server_of_a_cluster_with_an_api_address_gets_kube_vip_and_no_agent_does(k3s: K3s) -> None:
    wanted = kube_vip.manifest(k3s.cluster)
    assert bool(wanted) is (k3s.cluster.api.vip is not None)
    for server in [k3s.bootstrap, *k3s.servers]:
        assert sections(server)["kube-vip.yaml"] == wanted
    for agent in k3s.agents:
        assert "kube-vip.yaml" not in sections(agent)


# Artifacts


def test_from_upstream_the_checksums_of_the_document_travel_with_the_release() -> None:
    told = values(K3s("norte", "north").servers[0], "artifacts")
    assert told["base"] == "https://github.com/k3s-io/k3s/releases/download/v1.32.11%2Bk3s3"
    assert (told["binary_sha256"], told["images_sha256"]) == ("c" * 64, "d" * 64)
    assert (told["list_url"], told["list_sha256"]) == ("", "")


def test_gen_08_a_checksum_that_nobody_gave_is_empty_and_never_made_up() -> None:
    told = values(K3s("franca", "cluster-fca").servers[0], "artifacts")
    assert (told["binary_sha256"], told["images_sha256"]) == ("", "")
    unknown = artifacts.source("v1.99.0+k3s1", three_sites().common, None)
    assert (unknown.binary_sha256, unknown.images_sha256) == ("", "")


def test_from_a_mirror_the_pinned_list_vouches_for_every_file() -> None:
    mirror = Mirror(url="http://mirror.example/files/", sha256sums="e" * 64)

    def inputs() -> Inputs:
        return replace(placeholders(), artifacts=mirror)

    k3s = K3s("norte", "north", plan(three_sites(), "norte", inputs))
    for command in [k3s.bootstrap, *k3s.servers, *k3s.agents]:
        assert values(command, "artifacts") == {
            "base": "http://mirror.example/files/k3s/v1.32.11%2Bk3s3",
            "list_url": "http://mirror.example/files/SHA256SUMS",
            "list_sha256": "e" * 64,
            "prefix": "k3s/v1.32.11+k3s3",
            "binary_sha256": "",
            "images_sha256": "",
        }


def test_a_new_release_reaches_every_node() -> None:
    def edit(documents: Documents) -> None:
        documents["norte"]["clusters"]["north"]["k3s_version"] = "v1.32.13+k3s1"

    k3s = K3s("norte", "north", plan_of(changed(edit), "norte"))
    for command in [*k3s.servers, *k3s.agents]:
        assert values(command, "artifacts")["base"].endswith("/v1.32.13%2Bk3s1")


# What else a node is told


def test_operators_and_time_servers_reach_every_vm() -> None:
    told = sections(K3s("norte", "north").command("base-north-a"))
    assert told["operators"] == "ssh-ed25519 AAAAana ana\nssh-ed25519 AAAAzoe zoe\n"
    assert told["timesyncd"] == "[Time]\nNTP=ntp.example.org\n"


def test_lxc_06_a_container_is_checked_for_what_its_host_must_give(gpu: K3s) -> None:
    for node in gpu.cluster.servers:
        told = sections(gpu.command(f"host-{node}"))
        guest = gpu.site.guests[node]
        assert guest.kind == "lxc"
        assert told["devices"].split() == list(guest.devices)
        assert {"overlay", "br_netfilter"} <= set(told["modules"].split())
        assert "fs.inotify.max_user_instances=8192" in told["minimums"].split()


def test_no_script_of_a_container_prepares_a_kernel_that_is_its_hosts(gpu: K3s) -> None:
    names = set(gpu.commands)
    assert not any(f"{gpu.name}-base-{node}" in names for node in gpu.cluster.servers)


def test_k3s_12_no_cluster_touches_a_guest_that_is_left_alone() -> None:
    for site_id in SITES:
        site = three_sites().sites[site_id]
        for name in of_type(declared(site_id), "command:remote:Command"):
            assert not any(name.endswith(f"-{guest}") for guest in site.unmanaged_guests)


def test_the_identity_of_a_cluster_is_read_once_at_its_first_start(k3s: K3s) -> None:
    assert "ca_hash" in script(k3s.bootstrap)
    assert all("ca_hash" not in script(server) for server in k3s.servers)


def test_gpu_02_no_node_of_a_gpu_cluster_is_told_of_a_main_cluster(gpu: K3s) -> None:
    mains = [K3s(site_id, name) for site_id, name in MAIN]
    theirs = {str(node.address) for main in mains for _, node in main.nodes()} | {main.api_host for main in mains}
    own = {str(node.address) for _, node in gpu.nodes()} | {gpu.api_host}
    for command in [gpu.bootstrap, *gpu.servers, *gpu.agents]:
        told = str(command.inputs["stdin"])
        assert config(command).get("server", f"https://{gpu.api_host}:6443") == f"https://{gpu.api_host}:6443"
        assert not [address for address in theirs - own if re.search(rf"(?<![\d.]){re.escape(address)}(?![\d.])", told)]


def test_gpu_21_no_node_has_a_taint(k3s: K3s) -> None:
    for command in [k3s.bootstrap, *k3s.servers, *k3s.agents]:
        assert "node-taint" not in config(command)
        assert not any("taint" in argument for argument in config(command)["kubelet-arg"])
        assert "kubectl taint" not in script(command)


def test_cil_14_a_main_cluster_never_starts_with_flannel(main: K3s) -> None:
    """Not even its very first start, which a later change would have to undo on every node."""
    for command in [main.bootstrap, *main.servers]:
        told = config(command)
        assert (told["flannel-backend"], told["disable-kube-proxy"]) == ("none", True)
    assert not [name for name in main.commands if "migrat" in name]


def test_k3s_13_no_two_clusters_share_the_resource_of_their_token() -> None:
    for site_id in SITES:
        names = {name for (kind, name) in declared(site_id) if kind.endswith(":RandomPassword")}
        assert names == {f"k3s-{cluster}-token" for cluster in three_sites().sites[site_id].clusters}


def test_met_10_no_cluster_whose_addresses_cilium_or_metallb_hands_out_runs_servicelb() -> None:
    def edit(documents: Documents) -> None:
        documents["norte"]["lb"]["mode"] = "metallb"

    for record in (declared("norte"), plan_of(changed(edit), "norte")):
        assert all("servicelb" in config(server)["disable"] for server in K3s("norte", "north", record).servers)
