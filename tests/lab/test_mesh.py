"""The two halves of the ClusterMesh: what each cluster holds of the other, and that neither needs the other to update.

The mesh API is an etcd; here a real one answers with the certificates that the program put into the cluster, behind the
routes that the routers have from each other. What Cilium does with what it reads there is not shown.
"""

import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from infra.certificates import DOMAIN, secret_name
from infra.names import KUBE_SYSTEM, MESH_API_PORT, MESH_KEYS
from lab import control
from lab.made_up import private_file
from operations.authority import new_authority, new_leaves
from tests.lab.conftest import Checkout, eventually, summaries
from tests.lab.routes import CLUSTERS, ENDS, UP_S, Sites

pytestmark = pytest.mark.lab

CUT_S = 60.0  # the routers' hold time is 30 s
SECRETS = sorted(secret_name(role) for role in MESH_KEYS)
MINE = {f"mesh-certificates-cluster-sp{part}" for part in ("", *(f"-{role}" for role in MESH_KEYS))}
MINE |= {"clustermesh-cluster-sp", "clustermesh-cluster-sp-api"}


@dataclass(frozen=True)
class Files:
    """A certificate with its key and the CA that checks the other side, as files."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def written(cls, folder: Path, ca: str, certificate: str, key: str) -> "Files":
        folder.mkdir(mode=0o700)
        made = cls(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
        for path, text in zip((made.ca, made.certificate, made.key), (ca, certificate, key), strict=True):
            private_file(path, text)
        return made


def of_cluster(lab: Checkout, cluster: str, role: str, folder: Path) -> Files:
    """What Cilium's pods mount."""
    data = lab.get(cluster, "secret", secret_name(role), "-n", KUBE_SYSTEM)["data"]
    return Files.written(folder, *(base64.b64decode(data[key]).decode() for key in ("ca.crt", "tls.crt", "tls.key")))


def held(lab: Checkout, cluster: str) -> list[str]:
    """Names of the mesh's Secrets and of its Service in a cluster."""
    found = lab.get(cluster, "secrets,services", "-n", KUBE_SYSTEM)["items"]
    names = {one["metadata"]["name"] for one in found}
    return sorted(names & {*SECRETS, "clustermesh-api"})


def known_peers(lab: Checkout, cluster: str) -> dict[str, Any]:
    """By name of the peer, the address at which KVStoreMesh dials it; empty without a mesh."""
    deployments = lab.get(cluster, "deployments", "-n", KUBE_SYSTEM, "-l", "k8s-app=clustermesh-apiserver")["items"]
    aliases = [alias for one in deployments for alias in one["spec"]["template"]["spec"].get("hostAliases") or ()]
    return {name.removesuffix(f".{DOMAIN}"): alias["ip"] for alias in aliases for name in alias["hostnames"]}


def test_msh_01_each_cluster_dials_the_address_that_the_other_has(sites: Sites) -> None:
    for name in ENDS:
        other = sites.other(name)
        address = str(sites.site(other)[0].lb.vips.clustermesh_api)
        assert known_peers(sites.lab, CLUSTERS[name]) == {CLUSTERS[other]: address}
        given = sites.lab.get(CLUSTERS[other], "service", "clustermesh-api", "-n", KUBE_SYSTEM)
        assert given["status"]["loadBalancer"]["ingress"] == [{"ip": address, "ipMode": "VIP"}]
        assert held(sites.lab, CLUSTERS[name]) == sorted([*SECRETS, "clustermesh-api"])


def test_msh_04_bgp_07_the_other_site_enters_the_mesh_api_through_the_tunnel_and_by_its_certificate_alone(
    sites: Sites, tmp_path: Path
) -> None:
    eventually(sites.settled, UP_S, sites.exchange.state)
    sites.exchange.install_routes()
    server = of_cluster(sites.lab, CLUSTERS["franca"], "server", tmp_path / "server")
    remote = of_cluster(sites.lab, CLUSTERS["sp"], "remote", tmp_path / "remote")
    authority = new_authority()
    stranger = Files.written(
        tmp_path / "stranger", remote.ca.read_text(), *new_leaves(authority, CLUSTERS["sp"])["remote"]
    )
    assert asked(sites, remote) != "", "nobody answers yet"
    with mesh_api(sites, server, tmp_path):
        eventually(lambda: asked(sites, remote) == "", 20, lambda: asked(sites, remote))
        # What the server turned down, its client learns as a connection that ends: etcd says why.
        for files, reason in ((None, "client didn't provide a certificate"), (stranger, "unknown authority")):
            assert reason not in said(tmp_path)
            assert asked(sites, files, remote.ca) != ""
            eventually(partial(logged, tmp_path, reason), 5, partial(said, tmp_path))
        assert "certificate" in asked(sites, remote, private(tmp_path / "other.crt", authority[0]))
        with sites.cut():
            assert asked(sites, remote).startswith(("curl: (7)", "curl: (28)"))  # no connection, no answer


def said(folder: Path) -> str:
    """What the servers logged."""
    return "".join(log.read_text() for log in folder.glob("g-franca-*.log"))


def logged(folder: Path, reason: str) -> bool:
    return reason in said(folder)


def private(path: Path, text: str) -> Path:
    private_file(path, text)
    return path


def asked(sites: Sites, files: Files | None, ca: Path | None = None) -> str:
    """A read of Franca's mesh API from a node of São Paulo; empty if it was answered, else what curl says."""
    address = str(sites.site("franca")[0].lb.vips.clustermesh_api)
    name = f"{CLUSTERS['franca']}.{DOMAIN}"
    given = ["--cert", str(files.certificate), "--key", str(files.key)] if files else []
    authority = ca or (files.ca if files else None)
    command = [
        "curl", "-sS", "--max-time", "3", "--resolve", f"{name}:{MESH_API_PORT}:{address}",
        "--cacert", str(authority), *given,
        "-d", json.dumps({"key": base64.b64encode(b"cilium/").decode()}), f"https://{name}:{MESH_API_PORT}/v3/kv/range",
    ]  # fmt: skip
    client = f"g-sp-{sites.site('sp')[1].servers[0]}"
    done = sites.run(client, *command, check=False)
    if done.returncode == 0:
        assert "revision" in json.loads(done.stdout)["header"], done.stdout
    return done.stderr if done.returncode else ""


@contextmanager
def mesh_api(sites: Sites, files: Files, folder: Path) -> Iterator[None]:
    """An etcd on every node of Franca takes the address, as Cilium's datapath does for the one behind it."""
    address = str(sites.site("franca")[0].lb.vips.clustermesh_api)
    nodes = [f"g-franca-{name}" for name in sites.site("franca")[1].servers]
    processes = []
    try:
        for node in nodes:
            sites.run(node, "ip", "addr", "add", f"{address}/32", "dev", "lo")
            url = f"https://{address}:{MESH_API_PORT}"
            command = [
                "timeout", "180", str(sites.lab.toolchain / "etcd"), "--data-dir", str(folder / node),
                "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", "http://127.0.0.1:0",
                "--cert-file", str(files.certificate), "--key-file", str(files.key), "--client-cert-auth",
                "--trusted-ca-file", str(files.ca), "--logger", "zap", "--log-level", "warn",
            ]  # fmt: skip
            with (folder / f"{node}.log").open("w") as log:
                processes.append(
                    subprocess.Popen(
                        control.inside(sites.lab.place.root, command, netns=node),
                        stdout=log,
                        stderr=log,
                        process_group=0,
                    )
                )
        yield
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        for node in nodes:
            sites.run(node, "ip", "addr", "del", f"{address}/32", "dev", "lo")


def test_gen_02_a_second_run_changes_nothing_not_even_with_the_tunnel_cut(sites: Sites) -> None:
    """Meanwhile the other site's routes go and nothing else, and healing brings them back."""
    eventually(sites.settled, UP_S, sites.exchange.state)
    with sites.cut():
        done = summaries(sites.lab.ok("lab", "up"))
        assert done.keys() == set(ENDS)
        assert all(re.fullmatch(r"\d+ unchanged", one) for one in done.values()), done

        def apart() -> bool:
            return all(sites.routes(name) == sites.pods(name) | sites.vips(name) for name in ENDS)

        eventually(apart, CUT_S, sites.exchange.state)
        state = sites.exchange.state(wire=False)
        for name in ENDS:
            down = {address for address, one in state[f"r-{name}"].neighbors.items() if not one.established}
            assert down == {ENDS[sites.other(name)]}
    eventually(sites.settled, UP_S, sites.exchange.state)


@dataclass(frozen=True)
class Seen:
    """What the engine counted, and the inputs of all resources, before and after an update."""

    counted: str
    before: dict[str, Any]
    after: dict[str, Any]

    @property
    def gone(self) -> set[str]:
        return {urn.split("::")[-1] for urn in self.before.keys() - self.after.keys()}

    @property
    def changed(self) -> set[str]:
        return {urn.split("::")[-1] for urn, inputs in self.after.items() if self.before[urn] != inputs}


def updated(lab: Checkout, site: str) -> Seen:
    before = state(lab, site)
    counted = summaries(lab.ok("lab", "up", "--no-guard", site))[site]
    return Seen(counted, before, state(lab, site))


@pytest.mark.rehearsal
def test_gen_04_gen_02_a_site_leaves_alone_and_another_loses_the_peer_alone(sites: Sites) -> None:
    """São Paulo leaves the mesh; then its document is gone and Franca updates; then all is as before."""
    lab = sites.lab
    before = {name: state(lab, name) for name in ENDS}

    def leave(document: dict[str, Any]) -> None:
        document["clusters"]["cluster-sp"]["in_mesh"] = False

    sibling = lab.stack_file("sp")
    aside = sibling.with_suffix(".aside")
    with lab.edited("sp", leave):
        seen = updated(lab, "sp")
        assert seen.counted.startswith(f"~ 1 updated, - {len(MINE)} deleted, ")
        assert (seen.gone, seen.changed) == (MINE, {"cilium-cluster-sp-chart"})
        assert held(lab, "cluster-sp") == []
        assert known_peers(lab, "cluster-sp") == {}
        sibling.rename(aside)
        try:
            seen = updated(lab, "franca")
        finally:
            aside.rename(sibling)
        assert seen.counted.startswith("~ 1 updated, ")
        assert (seen.gone, seen.changed) == (set(), {"cilium-cluster-fca-chart"})
        assert held(lab, "cluster-fca") == sorted([*SECRETS, "clustermesh-api"])
        assert known_peers(lab, "cluster-fca") == {}
    lab.ok("lab", "up", "--no-guard")
    assert {name: state(lab, name) for name in ENDS} == before


def state(lab: Checkout, site: str) -> dict[str, Any]:
    """Inputs by URN, without the stack and its outputs. An engine that saves encrypts secrets anew: they are left out,
    and the engine's own count tells whether one of them changed."""
    file = lab.place.state / f".pulumi/stacks/fleet/{site}.json"
    resources = json.loads(file.read_text())["checkpoint"]["latest"]["resources"]
    return {one["urn"]: masked(one.get("inputs")) for one in resources if one["type"] != "pulumi:pulumi:Stack"}


def masked(value: Any) -> Any:
    if isinstance(value, dict):
        return "secret" if "ciphertext" in value else {key: masked(one) for key, one in value.items()}
    return [masked(one) for one in value] if isinstance(value, list) else value
