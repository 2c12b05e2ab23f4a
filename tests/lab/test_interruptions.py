"""Ctrl-C during the first update of an empty lab: nothing is left. A killed engine is the drill's."""

import signal

import pytest

from tests.lab.conftest import Checkout, eventually, machine, processes_of, without_a_lab

pytestmark = pytest.mark.lab


def test_ctrl_c_takes_the_lab_down(checkout: Checkout) -> None:
    without_a_lab(checkout)
    with checkout.start("lab", "up", "--empty", "sp") as running:
        eventually(lambda: "guest-vm-sp-01-vm creating" in checkout.log("up", "sp"), 60, lambda: running.out)
        running.signal(signal.SIGINT)
        ran = running.ended(90)
    assert ran.code == 130, ran.out
    assert "Traceback" not in ran.out
    assert "taken down" in ran.out, ran.out
    eventually(lambda: not processes_of(checkout.place), 10, lambda: processes_of(checkout.place))
    assert machine() == checkout.machine
    checkout.ok("lab", "down")
    assert not checkout.place.root.exists()
