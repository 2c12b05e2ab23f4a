"""The end of a lab."""

import pytest

from tests.lab.conftest import Lab, eventually, machine, processes_of

pytestmark = pytest.mark.lab


def test_down_leaves_nothing_behind(lab: Lab) -> None:
    checkout = lab.checkout
    assert processes_of(checkout.place)
    assert "nothing is left" in checkout.ok("lab", "down")
    eventually(lambda: not processes_of(checkout.place), 10, lambda: processes_of(checkout.place))
    assert machine() == checkout.machine
    assert not checkout.place.root.exists()
    status = checkout.fleet("lab", "status")
    assert status.code == 1
    assert "no lab runs" in status.out
    checkout.ok("lab", "down")
