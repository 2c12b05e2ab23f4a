"""An update that is cut off, at an empty lab: what is left, and that the next run needs no repair."""

import re
import signal

import pytest

from tests.lab.conftest import Checkout, anew, eventually, machine, processes_of, summaries
from tests.lab.drill import kill_the_engine

pytestmark = pytest.mark.lab


def test_ctrl_c_takes_the_lab_down(checkout: Checkout) -> None:
    anew(checkout)
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


def test_a_killed_engine_needs_no_repair(checkout: Checkout) -> None:
    with checkout.start("lab", "up", "--empty", "sp") as running:
        eventually(lambda: "guest-vm-sp-01-vm creating" in checkout.log("up", "sp"), 60, lambda: running.out)
        kill_the_engine(checkout)
        ran = running.ended(60)
    assert ran.code == 1, ran.out
    assert "Traceback" not in ran.out, ran.out

    with checkout.start("lab", "up", "--empty", "sp") as running:
        eventually(
            lambda: (
                "k3s-cluster-sp-bootstrap-vm-sp-01 creating" in checkout.log("up", "sp")
                and (checkout.place.root / "nodes/sp/vm-sp-01/etc/systemd/system/k3s.service").exists()
            ),
            120,
            lambda: running.out,
        )
        kill_the_engine(checkout)
        ran = running.ended(60)
    assert ran.code == 1, ran.out

    checkout.ok("lab", "up", "sp")
    again = checkout.ok("lab", "up", "sp")
    assert list(summaries(again)) == ["sp"], again
    assert re.fullmatch(r"\d+ unchanged", summaries(again)["sp"]), again
