"""Karmada: what its policies may select."""

from collections.abc import Iterator

from policy.judging import Fault, Resource, each
from policy.objects import SECRET
from policy.reading import UNKNOWN, at, dotted, entries, keys

POLICY_GROUP = "kubernetes:policy.karmada.io/"
BY_NAME = "clusterNames"


@each("KAR-03")
def members_are_chosen_by_label(resource: Resource) -> Iterator[Fault]:
    """Policies of Karmada choose members by label, never by name."""
    if _is_policy(resource):
        for path in keys(resource.props):
            if path[-1] == BY_NAME:
                yield Fault(dotted(path), "labelSelector")


@each("KAR-09")
def weights_need_division(resource: Resource) -> Iterator[Fault]:
    """Replicas that are weighted are divided."""
    scheduling = at(resource.props, "spec", "placement", "replicaScheduling")
    weighted = _is_policy(resource) and at(scheduling, "weightPreference") is not None
    if weighted and at(scheduling, "replicaSchedulingType") not in ("Divided", UNKNOWN):
        yield Fault("spec.placement.replicaScheduling.replicaSchedulingType", "Divided")


@each("KAR-18")
def secrets_are_not_propagated(resource: Resource) -> Iterator[Fault]:
    """Karmada propagates no plain Secret."""
    if not _is_policy(resource):
        return
    if at(resource.props, "spec", "propagateDeps") is True:
        yield Fault("spec.propagateDeps", "false: with an application its Secrets would go along")
    for index, selector in entries(at(resource.props, "spec", "resourceSelectors")):
        if at(selector, "kind") == "Secret":
            yield Fault(f"spec.resourceSelectors[{index}].kind", "another kind; secrets are made in each member")


@each("SEC-01")
def federated_secrets_stay_out(resource: Resource) -> Iterator[Fault]:
    """No plain Secret goes to the API of Karmada."""
    if resource.type == SECRET and "karmada" in resource.provider.rsplit("::", 1)[-1]:
        yield Fault("kind", "a secret of each member, not one that Karmada propagates")


def _is_policy(resource: Resource) -> bool:
    return resource.type.startswith(POLICY_GROUP)
