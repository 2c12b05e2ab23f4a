"""The policy pack: silent on what the program declares, one violating stack per policy, and no value in any report."""

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pulumi_policy import EnforcementLevel
from pulumi_policy.proxy import UNKNOWN_STRING_VALUE

from infra.rules.catalogue import entries
from infra.violation import Level
from policy import judging
from policy.judging import Fault, Resource, each
from policy.pack import POLICIES
from tests.policy.analyzer import SECRET, SIGNATURE, Asked, Report, reports, secret, stack
from tests.policy.violating import command, policy, violating
from tests.sites import SITES
from tests.test_secrets import MARKS, marked, spellings

NAMES = [one.name for one in POLICIES]
VIOLATING = violating()
MARK = "MARK-of-a-secret"
IMPLIED: dict[str, set[str]] = {}  # what a violating stack trips besides
MILDER = {"TIER-02": "the tier of a host stands in no input"}  # than its invariant
STRICTER = {"MIG-10": "the invariant binds the program, so that no document can be at fault"}
OF_OUR_OWN = {"NAMESPACES-say-their-pod-security"}  # no invariant asks for it


@pytest.mark.parametrize("site_id", SITES)
def test_what_the_program_declares_violates_nothing(site_id: str) -> None:
    assert [report for report in reports(stack(site_id)) if report.mandatory] == []


def test_every_policy_has_a_stack_that_violates_it() -> None:
    assert sorted(VIOLATING) == sorted(NAMES)
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_finds_its_violation_and_no_other_does(name: str) -> None:
    found = reports(VIOLATING[name])
    assert {report.policy for report in found} == {name} | IMPLIED.get(name, set()), found
    urns = {one.urn for one in VIOLATING[name]}
    assert {report.urn for report in found} <= urns
    (its,) = (one for one in POLICIES if one.name == name)
    assert all(report.mandatory is (its.enforcement_level != EnforcementLevel.ADVISORY) for report in found)


def test_policies_are_named_by_their_invariant_and_say_it() -> None:
    for one in POLICIES:
        assert re.fullmatch(r"([A-Z0-9]{2,4}-[0-9]{2}|NAMESPACES)(-[a-z0-9]+)+", one.name)
        assert one.description.endswith(".")


def test_a_policy_stops_what_its_rule_stops() -> None:
    """What a document may acknowledge, and a warning, must not stop here where nobody can acknowledge it."""
    levels = {entry.id: entry.level for entry in entries()}
    for one in POLICIES:
        id = "-".join(one.name.split("-")[:2])
        if one.name in OF_OUR_OWN or id in MILDER:
            continue
        stops = one.enforcement_level != EnforcementLevel.ADVISORY
        assert stops is (levels[id] == Level.ERROR or id in STRICTER), one.name


@pytest.mark.parametrize("site_id", SITES)
def test_what_is_known_after_the_update_alone_stops_no_preview(site_id: str) -> None:
    found = reports([with_leaves(one, lambda _: UNKNOWN_STRING_VALUE) for one in stack(site_id)])
    assert [report for report in found if report.mandatory or "can't run" in report.message] == []


@pytest.mark.parametrize("name", ["SEC-07-secrets-are-marked", "K3S-13-join-tokens-and-kubeconfigs-are-secret"])
def test_the_same_key_or_token_as_a_secret_is_in_order(name: str) -> None:
    assert reports([with_leaves(one, secret) for one in VIOLATING[name]]) == []


def test_sec_07_a_known_secret_input_is_a_secret_whatever_it_looks_like() -> None:
    faulty = command(connection={"host": "192.0.2.1", "privateKey": "x"})
    (found,) = reports([faulty])
    assert found.policy == "SEC-07-secrets-are-marked"
    assert "connection.privateKey:" in found.message
    assert reports([replace(faulty, props=faulty.props | {"connection": secret({"privateKey": "x"})})]) == []


@pytest.mark.parametrize(
    "text",
    [
        "rm -rf -- /var/lib/rancher",
        "rm -f /tmp/x /var/lib/rancher/k3s/server/db",
        "rm -rf '//etc/rancher/k3s'",
        'cd / && rm  -r   "/var/lib/kubelet"',
    ],
)
def test_mig_10_a_removal_is_found_wherever_it_stands_on_its_line(text: str) -> None:
    assert {one.policy for one in reports([command(create=text)])} == {"MIG-10-commands-destroy-nothing"}


@pytest.mark.parametrize(
    "text", ["rm -f /tmp/x; ls /var/lib/rancher", "rm -f /tmp/x\nls /var/lib/rancher", "rm /tmp/y"]
)
def test_mig_10_what_another_command_names_is_not_removed(text: str) -> None:
    assert reports([command(create=text)]) == []


@pytest.mark.parametrize("text", ["LS0tLS1CRUdJTiA=A=BBBBBBBBBBBBBBBB", "LS0tLS1CRUdJT=============="])
def test_what_only_looks_like_base64_makes_no_policy_fail(text: str) -> None:
    assert reports([command(create=text)]) == []


# No value in a report


@pytest.mark.parametrize("site_id", SITES)
def test_no_report_on_a_plan_quotes_a_secret(site_id: str) -> None:
    """Every secret of a site stands in the clear here, and reports are made by breaking every resource."""
    broken = [with_leaves(one, lambda value: f"{value} {MARK}") for one in stack(site_id, marked)]
    found = reports(broken)
    assert {report.policy for report in found if report.mandatory}
    told = " ".join(report.message for report in found)
    assert not [mark for mark in (MARK, *MARKS.values()) if any(word in told for word in spellings(mark))]


@pytest.mark.parametrize("site_id", SITES)
def test_no_report_on_a_plan_full_of_secrets_quotes_one(site_id: str) -> None:
    found = reports([with_leaves(one, lambda _: secret(MARK)) for one in stack(site_id)])
    assert found
    assert not [report for report in found if MARK in report.message]


@pytest.mark.parametrize("name", NAMES)
def test_no_report_of_a_violation_quotes_a_value(name: str) -> None:
    (its,) = (one for one in POLICIES if one.name == name)
    for faulty in one_leaf_each(VIOLATING[name]):
        assert not [report for report in reports(faulty, [its]) if MARK in report.message]


def test_no_report_quotes_a_key_of_a_secret_mapping() -> None:
    (found,) = reports([policy(secret({MARK: {"clusterNames": ["sp"]}}))])
    assert found.message.endswith("\nspec: expected labelSelector")
    (found,) = reports([policy({MARK: {"clusterNames": secret(["sp"])}})])
    assert found.message.endswith(f"\nspec.{MARK}.clusterNames: expected labelSelector")


def test_the_search_would_find_a_policy_that_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    def quotes(resource: Resource) -> Iterator[Fault]:
        """Quotes."""
        yield Fault("x", str(resource.props["x"]))

    (found,) = reports_of(quotes, monkeypatch)
    assert MARK in found.message


def test_a_policy_that_fails_stops_the_run_without_quoting(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(resource: Resource) -> Iterator[Fault]:
        """Fails."""
        yield Fault("x", str(int(resource.props["x"])))

    (found,) = reports_of(fails, monkeypatch)
    assert found.mandatory
    assert "not judged: ValueError at test_pack.py:" in found.message
    assert MARK not in found.message


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0.0, -1e300, "", "none", "ClusterIP", "é\x00", MARK, [], {}, [[]], [{}], {"": None}]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_no_shape_of_inputs_makes_a_policy_fail(data: st.DataObject, name: str) -> None:
    changed = []
    for one in VIOLATING[name]:
        props = plain(one)
        for place in data.draw(st.lists(st.sampled_from(places(props) or [()]), max_size=4)):
            put(props, place, copy.deepcopy(data.draw(ODD)))
        changed.append(replace(one, props=props))
    found = reports(changed)
    assert not [report for report in found if "not judged" in report.message or MARK in report.message]


def reports_of(check: judging.EachCheck, monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    registered: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(judging, "POLICIES", registered)
        each("DOC-99")(check)
    return reports([Asked(type="a:b:C", props={"x": secret(MARK)})], registered)


def plain(one: Asked) -> dict[str, Any]:
    return copy.deepcopy(json_format.MessageToDict(one.properties))


def with_leaves(one: Asked, change: Any) -> Asked:
    """The resource with every text of its inputs changed, secret ones too."""
    return replace(one, props=_with_leaves(plain(one), change))


def _with_leaves(value: Any, change: Any) -> Any:
    if isinstance(value, dict) and value.get(SIGNATURE) == SECRET:
        return value | {"value": _with_leaves(value["value"], change)}
    if isinstance(value, dict):
        return {key: _with_leaves(entry, change) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_leaves(entry, change) for entry in value]
    return change(value) if isinstance(value, str) else value


def one_leaf_each(resources: tuple[Asked, ...]) -> Iterator[list[Asked]]:
    """The stack once for each text of a made-up resource, and once for all texts of a planned one, with a secret there.

    A planned resource has dozens of texts, which the plans above cover.
    """
    for index, one in enumerate(resources):
        texts = [place for place in places(plain(one)) if isinstance(get(plain(one), place), str)]
        for place in texts if len(texts) < 8 else []:
            props = plain(one)
            put(props, place, secret(MARK))
            yield [*resources[:index], replace(one, props=props), *resources[index + 1 :]]
        marked_all = with_leaves(one, lambda value: f"{value} {MARK}")
        yield [*resources[:index], marked_all, *resources[index + 1 :]]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in the inputs something stands, outside of secrets."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict) and SIGNATURE in value:
        return []
    return [place for key, entry in inner for place in ((*path, key), *places(entry, (*path, key)))]


def get(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    """Nothing where the path is gone, or leads to the whole."""
    try:
        holder = get(value, path[:-1])
        if path and isinstance(holder, dict | list):
            holder[path[-1]] = new
    except (KeyError, IndexError, TypeError):
        return
