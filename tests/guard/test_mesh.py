"""What the guard says of plans that take the ClusterMesh from a cluster."""

import copy
from typing import Any

import pytest

from infra.names import MESH_KEYS
from operations.guard import AcceptError, Verdict, judge
from operations.guard.plan import types_of
from tests.guard.samples import Raw, found, plan, resource, step
from tests.rules.documents import fleet_of, patched, shipped
from tests.sites import declared
from tests.test_stack import MEMBERS

PROVIDER = "k3s-cluster-sp-api"
SERVICE = "clustermesh-cluster-sp-api"
SECRETS = tuple(f"mesh-certificates-cluster-sp-{role}" for role in MESH_KEYS)
KINDS = {
    SERVICE: ("fleet:clustermesh:ClusterMesh", "kubernetes:core/v1:Service"),
    **dict.fromkeys(SECRETS, ("fleet:clustermesh:MeshCertificates", "kubernetes:core/v1:Secret")),
}
STAYS_OUT = {"sp.clusters.cluster-sp.in_mesh": False}


def of_mesh(name: str, op: str = "delete", provider: str = PROVIDER, **new: Any) -> Raw:
    """A step on an object of the mesh, as the engine tells it; `new` are inputs of what comes instead."""
    component, kind = KINDS[name]
    urn = f"urn:pulumi:sp::fleet::fleet:site:SiteStack${component}${kind}::{name}"
    inputs = {"metadata": {"name": name, "namespace": "kube-system"}, "type": "kubernetes.io/tls"}
    of = f"{resource('sp', provider)['urn']}::00000000-0000-4000-8000-000000000000"
    old = {"urn": urn, "type": kind, "inputs": inputs, "outputs": {}, "provider": of}
    made: Raw = {"op": op, "urn": urn, "oldState": old, "detailedDiff": None}
    if op != "delete":
        made["newState"] = {**copy.deepcopy(old), "inputs": {**inputs, **new}}
    return made


def gone() -> list[Raw]:
    return [of_mesh(name) for name in KINDS]


def said(patch: dict[str, Any], *steps: Raw, accept: dict[str, str] | None = None) -> Verdict:
    documents, faults = fleet_of(patched(shipped(), patch))
    assert documents is not None, faults
    return judge(plan("sp", *steps), documents, "sp", accept)


def test_what_the_program_declares_is_what_the_guard_looks_for() -> None:
    made = {name: kind for (kind, name), one in declared("sp").items() if one.parent in
            (f"clustermesh-{MEMBERS['sp']}", f"mesh-certificates-{MEMBERS['sp']}")}  # fmt: skip
    assert made == {name: kind for name, (_, kind) in KINDS.items()}
    components = {name: kind for (kind, name), _ in declared("sp").items() if kind.startswith("fleet:clustermesh:")}
    assert set(components.values()) == {component for component, _ in KINDS.values()}


def test_grd_15_a_mesh_that_goes_against_the_document_is_one_stop() -> None:
    (stop,) = said({}, *gone()).stops
    assert (stop.rule, stop.name, stop.old, stop.new) == ("GRD-15", SERVICE, sorted(KINDS), None)
    assert "in_mesh: true" in stop.consequence
    assert "cluster-fca can no longer dial its mesh API 192.168.10.241" in stop.consequence
    assert "fleet credentials init sp" in stop.instead


@pytest.mark.parametrize("name", KINDS)
def test_grd_15_each_object_of_the_mesh_is_enough(name: str) -> None:
    assert found(said({}, of_mesh(name))) == {("GRD-15", name)}


def test_grd_15_a_ca_of_ones_own_leaves_the_mesh_out_as_well() -> None:
    assert found(said({"common.cilium.ca_mode": "separate"}, *gone())) == {("GRD-15", SERVICE)}


def test_grd_15_it_is_accepted_by_its_key_and_by_no_other() -> None:
    (stop,) = said({}, *gone()).stops
    accepted = said({}, *gone(), accept={stop.key: "the mesh rests for a week"})
    assert not accepted.stops
    assert [one.reason for one in accepted.accepted] == ["the mesh rests for a week"]
    with pytest.raises(AcceptError):
        said({}, *gone()[:-1], accept={stop.key: "fewer objects are another change"})


def test_leaving_as_the_document_says_is_noted_with_what_peers_lose() -> None:
    verdict = said(STAYS_OUT, *gone())
    assert not verdict.stops
    (note,) = verdict.notes
    assert note.startswith("cluster-sp leaves the mesh, as the document says (5 objects)")
    assert "cluster-fca can no longer dial its mesh API 192.168.10.241" in note


def test_the_last_member_that_leaves_costs_nobody_anything() -> None:
    (note,) = said({**STAYS_OUT, "franca.clusters.cluster-fca.in_mesh": False}, *gone()).notes
    assert "no other site has a member" in note


def test_a_former_member_may_go_when_another_cluster_is_in_the_mesh_now() -> None:
    steps = [of_mesh(name, provider="k3s-gpu-sp-api") for name in KINDS]
    verdict = said({}, *steps)
    assert not verdict.stops
    assert verdict.notes[0].startswith("gpu-sp leaves the mesh")


def test_a_cluster_that_leaves_altogether_has_its_stop_already() -> None:
    leaves = [step("sp", name, "delete") for name in ("k3s-cluster-sp", PROVIDER)]
    assert not {rule for rule, _ in found(said({}, *leaves, *gone()))} & {"GRD-13", "GRD-15"}


def test_a_certificate_that_is_issued_anew_is_no_loss() -> None:
    """The provider replaces a Secret whose content changes."""
    verdict = said({}, *(of_mesh(name, "replace", stringData="[new]") for name in SECRETS))
    assert not verdict.stops
    assert SECRETS[0] in verdict.notes[0]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (SECRETS[0], {"metadata": {"name": "elsewhere", "namespace": "kube-system"}}),
        (SECRETS[0], {"metadata": {"name": SECRETS[0], "namespace": "default"}}),
        (SECRETS[0], {"type": "Opaque"}),
        (SERVICE, {"spec": {"loadBalancerClass": "another"}}),
    ],
)
def test_a_replacement_that_pods_or_peers_would_notice_is_judged_by_a_person(name: str, change: Raw) -> None:
    assert found(said({}, of_mesh(name, "replace", **change))) == {("GRD-13", name)}


def test_other_secrets_and_services_are_none_of_the_mesh() -> None:
    other = of_mesh(SECRETS[0])
    for side in (other, other["oldState"]):
        side["urn"] = side["urn"].replace("$fleet:clustermesh:MeshCertificates", "$fleet:cilium:Cilium")
    assert types_of(other["urn"])[-1] == "kubernetes:core/v1:Secret"
    assert found(said({}, other)) == {("GRD-13", SECRETS[0])}


def test_a_provider_that_nothing_tells_of_excuses_nothing() -> None:
    steps = gone()
    for one in steps:
        one["oldState"]["provider"] = ""
    assert found(said({}, *steps)) == {("GRD-15", SERVICE)}
