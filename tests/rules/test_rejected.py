"""Every system that the decisions turned down is refused, whatever the profile of the site that asks for it."""

import pytest

from infra.config.platform import Rejected
from tests.rules.documents import faults_of, patched, shipped


@pytest.mark.parametrize("system", Rejected.model_fields)
@pytest.mark.parametrize("profile", ["cpps", "datacenter"])
def test_asking_for_a_rejected_system_is_a_fault(system: str, profile: str) -> None:
    documents = patched(shipped(), {"sp.profile": profile, f"sp.rejected.{system}": True})
    assert f"sp.rejected.{system}" in {fault.path for fault in faults_of(documents)}
