"""The engine killed in every phase of a first update of both sites, beside guests that were there before."""

import json
import re

import pytest

from tests.lab.conftest import summaries
from tests.lab.drill import PHASES, Drill

pytestmark = pytest.mark.lab


def test_every_kill_is_told_and_followed_by_a_plain_run(drill: Drill) -> None:
    assert [kill.phase for kill in drill.kills] == list(PHASES)
    assert len(PHASES) >= 10
    for kill in drill.kills:
        assert kill.ran.code == 1, f"{kill}\n{kill.ran.out}"
        assert "pulumi was ended by SIGKILL; run the update again" in kill.ran.text, f"{kill}\n{kill.ran.out}"
        assert "Traceback" not in kill.ran.out, f"{kill}\n{kill.ran.out}"


def test_the_run_after_the_last_kill_converges_and_the_next_changes_nothing(drill: Drill) -> None:
    assert drill.last.code == 0, drill.last.out
    assert drill.again.code == 0, drill.again.out
    found = summaries(drill.again.out)
    assert found.keys() == {"franca", "sp"}, drill.again.out
    assert all(re.fullmatch(r"\d+ unchanged", summary) for summary in found.values()), drill.again.out


def test_the_state_holds_nothing_that_a_person_must_repair(drill: Drill) -> None:
    for site in ("franca", "sp"):
        state = json.loads((drill.checkout.place.state / f".pulumi/stacks/fleet/{site}.json").read_text())
        latest = state["checkpoint"]["latest"]
        assert latest["resources"], site
        assert not latest.get("pending_operations"), (site, latest["pending_operations"])
        assert [one["urn"] for one in latest["resources"] if one.get("delete") or one.get("initErrors")] == []
    assert not list((drill.checkout.place.state / ".pulumi/locks").glob("**/*.json"))


def test_no_guest_was_made_twice_or_left_behind(drill: Drill) -> None:
    guests = [node["name"] for node in drill.checkout.ask("status")["nodes"]]
    expected = ["gpu-sp-01", "vm-cpps-02", "vm-cpps-03", "vm-cpps-04", "vm-sp-01", "vm-sp-02"]
    assert sorted(guests) == expected
    assert sorted(drill.checkout.nodes("cluster-fca")) == expected[1:4]
    assert sorted(drill.checkout.nodes("cluster-sp")) == expected[4:]
