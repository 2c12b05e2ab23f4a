"""Both sites brought up by the real engine: what is there, that it stays, and where no secret may be."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.addresses import pool_specs
from infra.bgp import cluster_spec, peer_spec
from infra.config import Cluster, Fleet
from infra.k3s import settings
from infra.k3s.cluster import read_script
from lab.documents import load_or_refuse
from tests.lab.conftest import PLANTED, Lab

pytestmark = pytest.mark.lab

READY = {"cluster-fca": "3/3", "cluster-sp": "2/2", "gpu-sp": "1/1"}
MEMORY_LIMIT_MIB = 5 * 1024
# Of the lab's folder only these may hold secrets: what it made up, the machines' disks and Proxmox's own state.
VAULTS = ("secrets.json", "passphrase", "kubeconfigs", "nodes", "pve")


def with_clusters(fleet: Fleet) -> list[tuple[Any, Cluster]]:
    return [(site, cluster) for _, site, cluster in fleet.clusters()]


def test_the_first_run_ends_with_a_table_of_what_is_there(lab: Lab) -> None:
    table = " ".join(lab.first.split())
    for site, cluster in with_clusters(load_or_refuse(lab.checkout.place.work)):
        row = next((line for line in lab.first.splitlines() if f" {cluster.name} " in line and "/" in line), "")
        assert READY[cluster.name] in row, lab.first
        assert ("cilium deployed" in row) == (cluster.cni == "cilium"), lab.first
        assert settings.api_host(cluster, [site.guests[name] for name in cluster.servers]) in table, lab.first
    for vip in ("192.168.0.240", "192.168.0.241", "192.168.0.242", "192.168.10.241"):
        assert vip in table, lab.first
    assert str(lab.checkout.place.kubeconfigs) in table
    assert {path.stem for path in lab.checkout.place.kubeconfigs.glob("*")} == READY.keys()


def test_status_agrees_with_the_clusters(lab: Lab) -> None:
    status = json.loads(lab.checkout.ok("lab", "status", "--json"))
    assert status["running"] is True
    assert {guest["name"] for guest in status["guests"] if guest["running"]} == {
        "vm-cpps-02", "vm-cpps-03", "vm-cpps-04", "vm-sp-01", "vm-sp-02", "gpu-sp-01",
    }  # fmt: skip
    assert status["clusters"].keys() == READY.keys()
    for name, cluster in status["clusters"].items():
        nodes = lab.checkout.nodes(name)
        assert sorted(cluster["ready"]) == sorted(nodes), (cluster, nodes.keys())
        assert f"{len(cluster['ready'])}/{cluster['nodes']}" == READY[name]
        assert (
            yaml.safe_load(Path(cluster["kubeconfig"]).read_text())["clusters"][0]["cluster"]["server"]
            == cluster["api"]
        )


def test_kubectl_and_ssh_reach_clusters_and_nodes(lab: Lab) -> None:
    assert "vm-cpps-03" in lab.checkout.ok("lab", "kubectl", "cluster-fca", "--", "get", "nodes")
    assert lab.checkout.ok("lab", "ssh", "gpu-sp-01", "--", "hostname").strip() == "gpu-sp-01"
    assert lab.checkout.fleet("lab", "ssh", "vm-sp-01", "--", "exit 7").code == 7


def test_the_working_tree_is_byte_for_byte_as_before(lab: Lab) -> None:
    assert "Pulumi.sp.yaml" in lab.checkout.original
    after = lab.checkout.files()
    assert after.keys() == lab.checkout.original.keys(), after.keys() ^ lab.checkout.original.keys()
    assert [name for name, content in after.items() if content != lab.checkout.original[name]] == []


def test_nothing_of_a_production_stack_reaches_the_lab(lab: Lab) -> None:
    assert all(text in lab.checkout.original["Pulumi.sp.yaml"].decode() for text in PLANTED.values())
    planted = [text.encode() for text in PLANTED.values()]
    assert holding(lab.checkout.place.root, planted, leaving_out=("nodes", "mirror")) == []


def test_the_release_is_deployed_and_the_nodes_work(lab: Lab, fleet: Fleet) -> None:
    for _, cluster in with_clusters(fleet):
        releases = lab.checkout.get(cluster.name, "secrets", "-A", "-l", "owner=helm")["items"]
        labels = [release["metadata"]["labels"] for release in releases]
        expected = [("cilium", "deployed")] if cluster.cni == "cilium" else []
        assert [(one["name"], one["status"]) for one in labels] == expected
        nodes = lab.checkout.nodes(cluster.name)
        assert sorted(nodes) == sorted([*cluster.servers, *cluster.agents])
        for name, node in nodes.items():
            assert condition(node, "Ready") == "True", node["status"]
            if name in cluster.servers:
                assert condition(node, "EtcdIsVoter") == "True", node["status"]
            wanted = settings.labels(cluster, fleet_guest(fleet, name))
            assert wanted.items() <= node["metadata"]["labels"].items()
        pods = lab.checkout.get(cluster.name, "pods", "-n", "kube-system")["items"]
        assert pods
        assert [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] != "Running"] == []


def test_the_api_server_accepted_pool_and_peering_of_the_documents(lab: Lab, fleet: Fleet) -> None:
    for site, cluster in with_clusters(fleet):
        if cluster.cni != "cilium":
            continue

        def only(kind: str, cluster: str = cluster.name) -> Any:
            items = lab.checkout.get(cluster, f"{kind}.cilium.io")["items"]
            assert len(items) == 1, items
            return items[0]["spec"]

        pools = lab.checkout.get(cluster.name, "ciliumloadbalancerippools.cilium.io")["items"]
        assert {one["metadata"]["name"]: one["spec"]["blocks"] for one in pools} == {
            name: spec["blocks"] for name, spec in pool_specs(site.lb).items()
        }
        bgp = only("ciliumbgpclusterconfigs")["bgpInstances"]
        assert bgp[0]["localASN"] == site.bgp.cilium_asn
        wanted = cluster_spec(site.bgp, str(site.vyos.lan_address))["bgpInstances"][0]["peers"][0]
        peer = bgp[0]["peers"][0]
        assert peer | {"peerConfigRef": {"name": peer["peerConfigRef"]["name"]}} == wanted, bgp
        timers = peer_spec(site.bgp)["timers"]
        assert timers.items() <= only("ciliumbgppeerconfigs")["timers"].items()
        kinds = [one["advertisementType"] for one in only("ciliumbgpadvertisements")["advertisements"]]
        assert sorted(kinds) == ["PodCIDR", "Service"]


def test_the_gpu_cluster_has_flannel_and_no_cilium(lab: Lab) -> None:
    assert lab.checkout.kubectl("gpu-sp", "api-resources", "--api-group=cilium.io", "-o", "name") == ""
    assert "flannel-backend" not in lab.checkout.ssh("gpu-sp-01", "cat /etc/rancher/k3s/config.yaml")
    node = lab.checkout.nodes("gpu-sp")["gpu-sp-01"]
    assert node["metadata"]["labels"]["gpu.model"] == "a5000"


def test_every_node_holds_the_settings_that_its_document_means(lab: Lab, fleet: Fleet) -> None:
    for site, cluster in with_clusters(fleet):
        api = settings.api_host(cluster, [site.guests[name] for name in cluster.servers])
        for name in [*cluster.servers, *cluster.agents]:
            node, server = site.guests[name], name in cluster.servers
            wanted = settings.server_config(cluster, node) if server else settings.agent_config(cluster, node, api)
            config = lab.checkout.ssh(name, "cat /etc/rancher/k3s/config.yaml")
            assert config == settings.text(wanted), name
            unit = "k3s" if server else "k3s-agent"
            found = lab.checkout.ssh(
                name,
                f"cd /etc/rancher/k3s; stat -c '%n %a %U' config.yaml token; ls config.yaml.d 2>/dev/null;"
                f"grep -h ^ExecStart= /etc/systemd/system/{unit}.service; systemctl is-active {unit}",
            ).splitlines()
            role = "server" if server else "agent"
            assert found == [
                "config.yaml 600 root", "token 600 root", f"ExecStart=/usr/local/bin/k3s {role}", "active",
            ], name  # fmt: skip
            assert lab.checkout.ssh(name, "cat /usr/local/lib/fleet/k3s-guard") == read_script("guard"), name
            assert "ExecStartPre=/bin/sh /usr/local/lib/fleet/k3s-guard" in lab.checkout.ssh(
                name, f"cat /etc/systemd/system/{unit}.service"
            )


def test_no_secret_is_in_plain_text_in_state_logs_output_or_arguments(lab: Lab) -> None:
    secrets = generated(lab)
    place = lab.checkout.place
    vault = b"".join(path.read_bytes() for path in files(place.root, ("nodes", "mirror", "pve", "logs")))
    assert sum(secret in vault for secret in secrets) >= 10  # the search finds what is there
    searched = files(place.root, leaving_out=(*VAULTS, "mirror", "toolchain"))
    assert {"stacks", "logs", "work"} <= {part for path in searched for part in path.parts}
    found = [str(path) for path in searched if any(secret in path.read_bytes() for secret in secrets)]
    journals = [path for path in (place.root / "nodes").glob("*/*/var/log/**/*") if path.is_file()]
    assert journals
    found += [str(path) for path in journals if any(secret in path.read_bytes() for secret in secrets)]
    found += [str(path) for path in lab.checkout.runs if any(secret in path.read_bytes() for secret in secrets)]
    assert found == []
    assert any(b"/pulumi\0up" in arguments for arguments in lab.arguments)
    assert [arguments for arguments in lab.arguments if any(secret in arguments for secret in secrets)] == []


def test_the_whole_lab_fits_into_memory(lab: Lab) -> None:
    script = "cat /proc/[0-9]*/smaps_rollup 2>/dev/null | awk '/^Pss:/ {sum += $2} END {print int(sum / 1024)}'"
    mib = int(lab.checkout.inside(["sh", "-c", script]))
    assert 300 < mib < MEMORY_LIMIT_MIB, f"{mib} MiB"


def generated(lab: Lab) -> list[bytes]:
    """Every secret value that the lab made up or a cluster generated."""
    known = json.loads(lab.checkout.place.secrets.read_text())
    values = {lab.checkout.place.passphrase.read_text().strip()}
    for site in ("franca", "sp"):
        values |= {known[site][key] for key in ("root_password", "api_token_secret", "bgp_password")}
        values |= set(known[site]["ssh_private_key"].splitlines()[1:-1])
        values |= {line for _, key in known[site]["mesh"].values() for line in key.splitlines()[1:-1]}
    values |= set(known["_fleet"]["ca_key"].splitlines()[1:-1])
    for kubeconfig in lab.checkout.place.kubeconfigs.glob("*.yaml"):
        values.add(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"])
    for node in ("vm-cpps-02", "vm-cpps-03", "vm-sp-01", "vm-sp-02", "gpu-sp-01"):
        values.add(lab.checkout.ssh(node, "cat /etc/rancher/k3s/token").strip().rpartition(":")[2])
    # Of a key's lines only the long ones, and not the first of an OpenSSH key, which all such keys share.
    found = [value.encode() for value in values if len(value) >= 20 and not value.startswith("b3BlbnNzaC1rZXktdjE")]
    assert len(found) >= 15, len(found)
    return found


def files(folder: Path, leaving_out: tuple[str, ...] = ()) -> list[Path]:
    kept = (top for top in folder.iterdir() if top.name not in leaving_out and top.name != "run")
    return [
        path
        for top in kept
        for path in ([top] if top.is_file() else top.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 8 << 20
    ]


def holding(folder: Path, texts: list[bytes], leaving_out: tuple[str, ...]) -> list[str]:
    return [str(path) for path in files(folder, leaving_out) if any(text in path.read_bytes() for text in texts)]


def condition(node: dict[str, Any], kind: str) -> str:
    return next((str(one["status"]) for one in node["status"]["conditions"] if one["type"] == kind), "none")


def fleet_guest(fleet: Fleet, name: str) -> Any:
    return next(guest for _, _, guest in fleet.guests() if guest.name == name)
