"""Helm releases that an engine was installing when it was killed: told apart from those that the state knows."""

from typing import Any

from operations.releases import RELEASE, cut_off, waiting

PROVIDER = "urn:pulumi:sp::fleet::pulumi:providers:kubernetes::api"
CHART = f"urn:pulumi:sp::fleet::{RELEASE}::chart"


def exported(kind: str = "creating", *, known: bool = False) -> dict[str, Any]:
    release = {
        "urn": CHART,
        "type": RELEASE,
        "provider": f"{PROVIDER}::0f1e",
        "inputs": {"name": "cilium", "namespace": "kube-system"},
    }
    provider = {"urn": PROVIDER, "type": "pulumi:providers:kubernetes", "inputs": {"kubeconfig": {"plaintext": '"K"'}}}
    return {
        "deployment": {
            "resources": [provider, *([release] if known else [])],
            "pending_operations": [{"type": kind, "resource": release}],
        }
    }


def test_a_release_that_was_being_installed_is_found_with_its_cluster() -> None:
    assert waiting(exported())
    assert [(one.name, one.namespace, one.kubeconfig) for one in cut_off(exported())] == [
        ("cilium", "kube-system", "K")
    ]


def test_a_release_that_the_state_knows_or_another_operation_is_left_alone() -> None:
    for state in (exported(known=True), exported("updating"), exported("deleting"), {"deployment": None}):
        assert not waiting(state)
        assert cut_off(state) == []


def test_without_the_kubeconfig_there_is_nothing_to_do() -> None:
    state = exported()
    state["deployment"]["resources"][0]["inputs"]["kubeconfig"] = {"ciphertext": "v1:x"}
    assert waiting(state)
    assert cut_off(state) == []
