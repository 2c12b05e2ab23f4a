"""What the rules about the federation and about batch jobs over sites let pass, and who may accept what they stop."""

from typing import Any

from infra.rules.members import apps, selected
from tests.rules.documents import Documents, faults_of, fleet_of, known_warnings, patched, shipped, with_third_site

WEB: dict[str, Any] = {"kind": "web", "federated": True, "router": "traefik", "seals": ["franca", "sp", "gpu-sp"]}
STORE = {"kind": "seaweedfs", "endpoint": "https://s3.example.org", "bucket": "batch"}


def new_faults(documents: Documents) -> set[tuple[str, str]]:
    return {(fault.id, fault.path) for fault in faults_of(documents)} - known_warnings()


def placed(documents: Documents, name: str) -> set[str]:
    """Members that may get an app."""
    fleet, faults = fleet_of(documents)
    assert fleet is not None, faults
    return {member.name for entry in apps(fleet) if entry.name == name for member in selected(fleet, entry)}


def test_a_sealed_app_on_every_member_passes() -> None:
    documents = patched(shipped(), {"franca.apps.backstage": WEB})
    assert new_faults(documents) == set()
    assert placed(documents, "backstage") == {"franca", "sp", "gpu-sp"}


def test_a_further_member_needs_a_seal_of_its_own() -> None:
    labels = {"site": "norte", "provider": "onprem", "tier": "prod", "region": "norte-br"}
    joined = {"norte.clusters.north.karmada": {"member_name": "norte", "labels": labels}, "franca.apps.backstage": WEB}
    documents = patched(with_third_site(), joined)
    before = new_faults(with_third_site())
    assert new_faults(documents) - before == {("SEC-04", "franca.apps.backstage.seals")}
    assert new_faults(patched(documents, {"franca.apps.backstage.seals.3": "norte"})) == before


def test_an_app_goes_to_the_members_that_its_class_selects() -> None:
    documents = patched(
        shipped(),
        {
            "sp.apps.triton": {"kind": "inference", "router": "tensorzero"},
            "sp.apps.wiki": {"kind": "stateful", "site_pinned": True},
            "franca.apps.ocr": {"kind": "batch", "router": "kueue", "site_pinned": True},
        },
    )
    assert placed(documents, "triton") == {"gpu-sp"}
    assert placed(documents, "wiki") == {"sp", "gpu-sp"}
    assert placed(documents, "ocr") == set()  # Franca has no member with GPUs


def test_failover_of_an_app_without_state_passes_once_the_host_has_it_on() -> None:
    expected = {
        "franca.apps.backstage": WEB | {"failover": "automatic"},
        "franca.dns.failover_by": "gslb",
        "franca.karmada.failover": True,
    }
    assert new_faults(patched(shipped(), expected)) == set()


def test_multikueue_passes_with_two_gpu_clusters_of_the_same_labs_and_their_data() -> None:
    documents = patched(
        with_third_site(),
        {
            "common.multikueue.enabled": True,
            "norte.clusters.north-gpu.gpu.queues.labs": ["cpps"],
            **{f"{site}.object_store": STORE for site in ("franca", "sp", "norte")},
        },
    )
    assert not {id for id, _ in new_faults(documents) if id.startswith("KUE")}
    apart = patched(documents, {"norte.clusters.north-gpu.gpu.queues.labs": ["optics"]})
    assert ("KUE-09", "norte.clusters.north-gpu.gpu.queues.labs") in new_faults(apart)


def test_the_site_of_the_manager_accepts_its_queue_and_no_other() -> None:
    shared = {"common.multikueue.own_queue": "gpu-batch"}
    fault = ("KUE-07", "common.multikueue.own_queue")
    assert new_faults(patched(shipped(), {**shared, "franca.accept.KUE-07": "until the queues are split"})) == set()
    assert fault in new_faults(patched(shipped(), {**shared, "sp.accept.KUE-07": "not the manager"}))


def test_a_site_that_accepted_sops_may_have_the_plugin_for_it() -> None:
    sops = {"sp.secrets.backend": "sops", "sp.argocd.plugins": ["sops"], "sp.accept.SEC-06": "one team, one key"}
    assert new_faults(patched(shipped(), sops)) == set()
