"""The builder of global Services cannot write an annotation that Cilium or Kubernetes would not take."""

from typing import Any

import pytest

from infra.config import Cluster
from infra.global_services import global_service
from infra.violation import InvariantError
from tests.sites import SITES, declared, three_sites


def cluster(site_id: str, name: str) -> Cluster:
    return three_sites().sites[site_id].clusters[name]


def test_msh_08_a_global_service_prefers_its_own_cluster() -> None:
    assert global_service(cluster("sp", "cluster-sp")) == {
        "service.cilium.io/global": "true",
        "service.cilium.io/affinity": "local",
        "service.cilium.io/shared": "true",
    }


@pytest.mark.parametrize("affinity", ["local", "remote", "none"])
@pytest.mark.parametrize("shared", [True, False])
def test_msh_09_every_value_is_a_text(affinity: Any, shared: bool) -> None:
    found = global_service(cluster("sp", "cluster-sp"), affinity=affinity, shared=shared)
    assert all(type(value) is str for value in found.values())
    assert found["service.cilium.io/affinity"] == affinity
    assert found["service.cilium.io/shared"] == str(shared).lower()


@pytest.mark.parametrize("wrong", [{"affinity": "near"}, {"affinity": True}, {"shared": "true"}, {"shared": 1}])
def test_msh_09_what_cilium_does_not_know_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvariantError) as error:
        global_service(cluster("sp", "cluster-sp"), **wrong)
    assert [violation.id for violation in error.value.violations] == ["MSH-09"]


@pytest.mark.parametrize(
    "place", [cluster("sp", "gpu-sp"), cluster("sp", "cluster-sp").model_copy(update={"in_mesh": False})]
)
def test_msh_10_outside_the_mesh_it_is_refused(place: Cluster) -> None:
    with pytest.raises(InvariantError) as error:
        global_service(place)
    assert [violation.id for violation in error.value.violations] == ["MSH-10"]


@pytest.mark.parametrize("site_id", SITES)
def test_msh_07_nothing_is_global_by_itself(site_id: str) -> None:
    assert "service.cilium.io/" not in str([made.inputs for made in declared(site_id).values()])
