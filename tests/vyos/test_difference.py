"""The difference between a router and the documents: minimal, inside what is ours, and without any secret."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.vyos.ownership import Difference, difference, is_open, rule_of
from infra.vyos.paths import template_of
from infra.vyos.statements import Statement, read
from tests.vyos import SITES, VARIANTS, rendered, version_of
from tests.vyos.foreign import FOREIGN

ALL = [(name, site) for name in VARIANTS for site in SITES]
every = pytest.mark.parametrize(("name", "site"), ALL)
THEIRS = read(FOREIGN)
FRANCA = rendered("as shipped", "franca")


# A router without the rule that stands in our band.
FITTING = [one for one in THEIRS if "5010" not in one]


def applied(running: Iterable[Statement], found: Difference, version: str) -> list[Statement]:
    """What a router has after these commands. A value that a router keeps one of is replaced."""
    kept = [one for one in running if not any(one[: len(cut)] == cut for cut in found.delete)]
    paths = ((one, template_of(one, version)) for one in found.set)
    replaced = {one[:-1] for one, path in paths if path is not None and path.kind == "value"}
    return [one for one in kept if one[:-1] not in replaced] + list(found.set)


def franca(running: Iterable[Statement]) -> tuple[list[Statement], list[Statement]]:
    found = difference(running, FRANCA, "1.4")
    return list(found.delete), list(found.set)


@every
def test_nothing_differs_from_itself(name: str, site: str) -> None:
    found = difference(rendered(name, site), rendered(name, site), version_of(name, site))
    assert (found.delete, found.set) == ((), ())


def test_beside_a_foreign_configuration_everything_is_set_and_nothing_deleted() -> None:
    found = difference(THEIRS, FRANCA, "1.4")
    assert found.delete == ()
    assert set(found.set) == set(FRANCA) - set(THEIRS)
    assert found.obstacles == ()
    assert difference([*THEIRS, *found.set], FRANCA, "1.4").set == ()


def test_a_rule_of_the_site_with_a_number_of_ours_is_in_the_way_and_stays() -> None:
    found = difference(THEIRS, rendered("chains", "franca"), "1.4")
    assert any("firewall ipv4 forward filter rule 5010" in one for one in found.obstacles)
    assert found.delete == ()
    assert not [one for one in found.set if "5010" in one and "forward" in one]
    assert [one for one in found.set if "5000" in one and "forward" in one]


def test_zones_and_chains_that_a_router_lacks_are_named() -> None:
    without = [one for one in THEIRS if "WAN-LOCAL" not in one and one[:3] != ("firewall", "zone", "LAN")]
    found = difference(without, FRANCA, "1.4")
    assert sorted(found.obstacles) == [
        "there is no chain WAN-LOCAL: correct vyos.zones",
        "there is no zone LAN: correct vyos.zones",
    ]


def test_zones_on_a_router_that_the_document_says_has_none_are_named() -> None:
    found = difference(THEIRS, rendered("chains", "franca"), "1.4")
    assert [one for one in found.obstacles if "vyos.firewall" in one] == [
        "there are zones (LAN, LOCAL), which judge packets as well: set vyos.firewall to zones"
    ]
    without = [one for one in THEIRS if one[:2] != ("firewall", "zone")]
    assert "vyos.firewall" not in str(difference(without, rendered("chains", "franca"), "1.4").obstacles)
    # Zones of an earlier document of ours are deleted, and are no fault of the router.
    ours = ("firewall", "zone", "FLEET", "interface", "wg0")
    assert "vyos.firewall" not in str(difference([*without, ours], rendered("chains", "franca"), "1.4").obstacles)


def test_a_changed_single_value_is_set_without_a_deletion() -> None:
    running = [(*one[:-1], "1380") if one[-2] == "mtu" else one for one in FRANCA]
    mtus = [("interfaces", "wireguard", name, "mtu", "1420") for name in ("wg0", "wg1")]
    assert franca(running) == ([], mtus)


def test_one_of_several_values_is_deleted_alone() -> None:
    stale = ("interfaces", "wireguard", "wg0", "peer", "sp", "allowed-ips", "192.168.2.0/23")
    assert franca([*FRANCA, stale]) == ([stale], [])


def test_a_rule_is_deleted_as_a_whole_and_never_left_empty() -> None:
    base = ("policy", "prefix-list", "FLEET-VIP", "rule", "40")
    assert franca([*FRANCA, (*base, "action", "permit"), (*base, "prefix", "10.0.0.0/8")]) == ([base], [])


def test_a_site_that_is_gone_goes_with_its_tunnel_neighbor_and_names() -> None:
    running = [*THEIRS, *FRANCA]
    after = applied(running, difference(running, rendered("no tunnel", "franca"), "1.4"), "1.4")
    assert not [one for one in after if any("FLEET-SITE" in word for word in one)]
    assert not [one for one in after if one[:2] == ("interfaces", "wireguard") and one[2] != "wg9"]
    assert not [one for one in after if "10.255.0.2" in one and "neighbor" in one]
    assert set(THEIRS) <= set(after)


@every
def test_from_any_rendered_state_to_any_other_the_site_s_own_stays(name: str, site: str) -> None:
    version = version_of(name, site)
    before = [*FITTING, *rendered("as shipped", site)]
    after = applied(before, difference(before, rendered(name, site), version), version)
    changed = {("protocols", "bgp", "system-as", "65001")}
    assert set(FITTING) - changed <= set(after)
    assert set(rendered(name, site)) <= set(after)
    again = difference(after, rendered(name, site), version)
    assert (again.delete, again.set) == ((), ())


def test_keys_and_passwords_of_the_router_stay_and_are_never_told() -> None:
    key = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I="
    running = [(*one[:-1], key) if is_open(one) else one for one in FRANCA]
    shared = ("interfaces", "wireguard", "wg0", "peer", "sp", "preshared-key", key)
    assert franca([*running, shared]) == ([], [])
    password = ("protocols", "bgp", "peer-group", "FLEET-CILIUM", "password", key)
    assert franca([*running, password]) == ([password[:-1]], [])
    gone = difference([*running, shared, password], rendered("no tunnel", "franca"), "1.4")
    assert not [one for one in (*gone.delete, *gone.set) if key in one]


def test_what_a_person_puts_in_is_named() -> None:
    found = difference(THEIRS, FRANCA, "1.4")
    assert {one[-1] for one in found.open} == {"@@WG0_PRIVATE_KEY@@", "@@WG1_PRIVATE_KEY@@", "@@SP_PUBLIC_KEY@@"}


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(range(len(FRANCA))), max_size=40))
def test_what_was_taken_away_is_set_again_and_nothing_else(missing: set[int]) -> None:
    running = [one for place, one in enumerate(FRANCA) if place not in missing]
    starts = {one[:length] for one in running for length in range(len(one) + 1)}
    delete, set_again = franca([*THEIRS, *running])
    # A rule whose mark went is not ours any more: a person looks at it, and no command does.
    unmarked = {rule for one in FRANCA if (rule := rule_of(one)) and (*rule, "description") not in starts}
    lost = {FRANCA[place] for place in missing} - set(THEIRS) - starts
    assert delete == []
    assert set(set_again) == {one for one in lost if rule_of(one) not in unmarked & starts}
