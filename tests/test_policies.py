"""Default-deny for namespaces of applications, Traefik's isolation, and what a Flannel cluster gets instead."""

from typing import Any

import pytest

from cli.plan import Declared
from infra.names import PLATFORM_NAMESPACES
from infra.policies import default_deny, isolated_traefik
from tests.rules.documents import faults_of, patched, shipped
from tests.sites import SITES, Documents, Record, changed, declared, plan_of, three_sites

CLUSTERWIDE = "kubernetes:cilium.io/v2:CiliumClusterwideNetworkPolicy"
CORE = "kubernetes:networking.k8s.io/v1:NetworkPolicy"
NAMESPACE = "k8s:io.kubernetes.pod.namespace"


def policies(record: Record, kind: str = CLUSTERWIDE) -> dict[str, Declared]:
    return {made.inputs["metadata"]["name"]: made for (found, _), made in record.items() if found == kind}


def with_policies_on_gpu() -> Record:
    def edit(documents: Documents) -> None:
        documents["sp"]["clusters"]["gpu-sp"]["managed_namespaces"] = ["lab-a"]

    return plan_of(changed(edit), "sp")


@pytest.mark.parametrize("site_id", SITES)
def test_cil_11_every_managed_namespace_has_one_policy_and_no_other_has(site_id: str) -> None:
    main = next(one for one in three_sites().sites[site_id].clusters.values() if one.role == "main")
    found = policies(declared(site_id))
    found.pop("isolate-traefik", None)
    selected = [made.inputs["spec"]["endpointSelector"] for made in found.values()]
    wanted = [{"matchLabels": {NAMESPACE: namespace}} for namespace in main.managed_namespaces]
    assert sorted(selected, key=str) == sorted(wanted, key=str)


def test_cil_11_the_shipped_namespaces_are_covered() -> None:
    assert set(policies(declared("sp"))) == {"default-deny-authentik", "default-deny-openobserve"}


def test_cil_11_a_policy_denies_both_directions_but_dns_of_the_own_cluster() -> None:
    cluster = three_sites().sites["sp"].clusters["cluster-sp"]
    spec = default_deny(cluster, "authentik")
    assert spec["enableDefaultDeny"] == {"ingress": True, "egress": True}
    assert spec["ingress"] == [{}], "an empty rule allows nothing; no rule would deny nothing"
    (allowed,) = spec["egress"]
    assert allowed["toEndpoints"] == [
        {
            "matchLabels": {
                NAMESPACE: "kube-system",
                "k8s:k8s-app": "kube-dns",
                "k8s:io.cilium.k8s.policy.cluster": "cluster-sp",
            }
        }
    ]
    assert allowed["toPorts"] == [{"ports": [{"port": "53", "protocol": "ANY"}]}]


def test_no_namespace_of_an_application_is_made_or_owned_where_cilium_runs() -> None:
    for site_id in SITES:
        assert not [name for kind, name in declared(site_id) if kind.endswith("core/v1:Namespace")]
        assert all("namespace" not in made.inputs["metadata"] for made in policies(declared(site_id)).values())


@pytest.mark.parametrize("site_id", SITES)
def test_policies_wait_for_cilium_and_go_to_its_cluster(site_id: str) -> None:
    main = next(one for one in three_sites().sites[site_id].clusters.values() if one.role == "main")
    record = declared(site_id)
    mine = [made for made in record.values() if made.parent == f"policies-{main.name}"]
    assert mine
    assert {made.provider for made in mine} == {f"k3s-{main.name}-api"}
    assert f"cilium-{main.name}-chart" in record[("fleet:policies:Policies", f"policies-{main.name}")].after


@pytest.mark.parametrize("namespace", ["kube-system", "traefik-system", "argocd", "karmada-system"])
def test_cil_11_platform_namespaces_are_refused(namespace: str) -> None:
    assert namespace.startswith("kube-") or namespace in PLATFORM_NAMESPACES
    changed_value: dict[str, Any] = {"sp.clusters.cluster-sp.managed_namespaces": ["authentik", namespace]}
    found = [(one.id, one.path) for one in faults_of(patched(shipped(), changed_value))]
    assert ("CIL-11", "sp.clusters.cluster-sp.managed_namespaces.1") in found


@pytest.mark.parametrize("site_id", SITES)
def test_trf_04_traefik_is_isolated_where_it_runs_on_cilium(site_id: str) -> None:
    assert ("isolate-traefik" in policies(declared(site_id))) is three_sites().sites[site_id].traefik.main


def test_trf_04_traefik_is_entered_by_http_and_tls_alone_and_leaves_to_its_cluster_alone() -> None:
    spec = isolated_traefik(three_sites().sites["franca"].clusters["cluster-fca"])
    assert spec["endpointSelector"] == {"matchLabels": {NAMESPACE: "traefik-system"}}
    assert spec["enableDefaultDeny"] == {"ingress": True, "egress": True}
    (entry,) = spec["ingress"]
    assert entry["fromEntities"] == ["world", "cluster"]
    assert [port["port"] for rule in entry["toPorts"] for port in rule["ports"]] == ["8000", "8443"]
    assert entry["toPorts"][0]["rules"] == {"http": [{}]}, "layer 7: what is not HTTP does not get in"
    assert [rule.get("toEntities") for rule in spec["egress"]] == [None, ["kube-apiserver", "cluster"]]


def test_cil_17_a_flannel_cluster_gets_the_core_kind_and_nothing_of_cilium() -> None:
    record = with_policies_on_gpu()
    sent = {name: (kind, made) for (kind, name), made in record.items() if made.provider == "k3s-gpu-sp-api"}
    mine = {name: entry for name, entry in sent.items() if entry[1].parent == "policies-gpu-sp"}
    assert {kind for kind, _ in mine.values()} == {CORE, "kubernetes:core/v1:Namespace"}
    assert not [kind for kind, _ in sent.values() if "cilium" in kind]
    policy = policies(record, CORE)["default-deny"].inputs
    assert policy["metadata"]["namespace"] == "lab-a"
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["podSelector"] == {}
    assert not policy["spec"].get("ingress")
    (allowed,) = policy["spec"]["egress"]
    assert [(port["port"], port["protocol"]) for port in allowed["ports"]] == [(53, "UDP"), (53, "TCP")]


def test_a_namespace_outlives_its_policy() -> None:
    (namespace,) = [made for (kind, _), made in with_policies_on_gpu().items() if kind.endswith("core/v1:Namespace")]
    assert namespace.retained
    assert "policies-gpu-sp-lab-a-namespace" in policies(with_policies_on_gpu(), CORE)["default-deny"].after
