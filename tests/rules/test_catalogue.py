"""Every invariant has a home and a test, and docs/rules.md says which."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from cli import rulebook
from infra.rules import RULES
from infra.rules.catalogue import Entry, entries, families
from tests.rules.documents import ROOT

COUNTS = {
    "GEN": 10,
    "PVE": 10,
    "TIER": 10,
    "LXC": 14,
    "GPU": 21,
    "K3S": 15,
    "NET": 21,
    "BGP": 14,
    "MET": 11,
    "CIL": 18,
    "MSH": 16,
    "KAR": 27,
    "KUE": 17,
    "ARG": 14,
    "TRF": 14,
    "SEC": 9,
    "STO": 13,
    "BKP": 16,
    "MIG": 10,
    "PHA": 7,
    "OBS": 3,
    "AI": 3,
    "APP": 4,
    "DCP": 14,
    "OPS": 5,
}
STOPPING = ("error", "ack", "warn")
SOURCES = {
    "CPPS-ADR-005",
    "CPPS-ADR-009",
    "CPPS architecture",
    "CPPS integration plan",
    "DC-ADR-0001",
    "upstream",
    "engineering guard",
}
ALL = {entry.id: entry for entry in entries()}
DECIDED = [entry for entry in ALL.values() if not entry.own]


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_invariant_is_listed_once_and_no_other() -> None:
    assert sum(COUNTS.values()) == 316
    wanted = {f"{family}-{number:02}" for family, count in COUNTS.items() for number in range(1, count + 1)}
    assert {entry.id for entry in DECIDED} == wanted
    assert len(entries()) == len(ALL)


def test_families_are_listed_in_order_with_a_title_each() -> None:
    assert list(families()) == [*COUNTS, "DOC"]
    assert all(families().values())


def test_the_ids_of_the_documents_own_format_have_no_holes() -> None:
    own = [entry.id for entry in ALL.values() if entry.own]
    assert own == [f"DOC-{number:02}" for number in range(1, len(own) + 1)]


def test_every_rule_is_listed_with_its_own_words() -> None:
    assert set(RULES) <= set(ALL)
    for id, rule in RULES.items():
        assert (ALL[id].level, ALL[id].statement) == (str(rule.level), rule.statement)
        assert rule.source in (ALL[id].source, "")
    assert {entry.id for entry in ALL.values() if entry.rule} == set(RULES)


def test_every_entry_says_what_it_means() -> None:
    for entry in ALL.values():
        assert entry.level in (*STOPPING, "allow", "none"), entry.id
        assert entry.statement.endswith("."), entry.id
        assert "\n" not in entry.statement
        assert len(entry.statement) <= 140, entry.id
        assert entry.own or set(entry.source.split(", ")) <= SOURCES, entry.id


def test_every_entry_has_a_home_that_exists() -> None:
    for entry in ALL.values():
        assert entry.homes, entry.id
        paths = [home for home in rulebook.homes(entry) if not home.startswith(("same as ", "pending: "))]
        assert not [path for path in paths if not (ROOT / path).is_file()], entry.id
        assert set(entry.homes) <= set(rulebook.homes(entry))


def test_a_policy_is_a_home_of_its_invariant() -> None:
    assert "policy/federation.py" in rulebook.homes(ALL["KAR-03"])
    assert rulebook.POLICY_TEST in rulebook.tests(ALL["KAR-03"])
    assert rulebook.POLICY_TEST not in rulebook.tests(ALL["NET-09"])


def test_the_page_is_a_home_only_for_what_stops_nothing() -> None:
    told = [entry for entry in ALL.values() if entry.behaviour and not entry.rule]
    assert {entry.level for entry in told} == {"allow", "none"}


def test_every_test_that_an_entry_names_exists() -> None:
    for entry in ALL.values():
        assert len(set(entry.tests)) == len(entry.tests), entry.id
        for test in rulebook.tests(entry):
            path, _, name = test.partition("::")
            assert (ROOT / path).is_file(), test
            assert name in functions(ROOT / path) if name else path.startswith(rulebook.INVALID), test


def test_what_stops_a_run_is_tested_unless_its_layer_is_not_built() -> None:
    def open_rest(entry: Entry) -> bool:
        return bool(entry.pending or (entry.same_as and ALL[entry.same_as].pending))

    stopping = [entry for entry in ALL.values() if entry.level in STOPPING]
    assert not [entry.id for entry in stopping if not rulebook.tests(entry) and not open_rest(entry)]


def test_every_rule_is_tested_by_a_violating_document() -> None:
    for entry in ALL.values():
        if entry.rule:
            assert any(test.startswith(rulebook.INVALID) for test in rulebook.tests(entry)), entry.id


def test_an_entry_that_repeats_another_shares_its_test() -> None:
    repeats = [entry for entry in ALL.values() if entry.same_as]
    assert repeats
    for entry in repeats:
        other = ALL[entry.same_as]
        assert not other.same_as
        assert rulebook.tests(other) or other.pending, entry.id
        assert set(rulebook.tests(entry)) & set(rulebook.tests(other)) or entry.rule or not rulebook.tests(other)


def test_no_layer_that_has_a_module_is_pending() -> None:
    """Whoever builds a layer says for each of its rows which test asserts it."""
    built = {path.stem for path in (ROOT / "infra").iterdir()}
    assert not [entry.id for entry in ALL.values() if set(entry.pending) & built]


def test_the_program_finds_the_catalogue_wherever_it_runs(tmp_path: Path) -> None:
    """A run may begin in a folder of its own that holds the documents alone."""
    probe = "from infra.rules.catalogue import entries; print(len(entries()))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", probe],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == str(len(ALL))


def test_the_page_is_the_one_that_is_generated() -> None:
    assert (ROOT / rulebook.PAGE).read_text(encoding="utf-8") == rulebook.page(), "run: ./fleet rules --write"


def test_the_page_differs_when_any_rule_is_gone() -> None:
    whole = rulebook.page()
    for gone in RULES:
        assert rulebook.page({id: rule for id, rule in RULES.items() if id != gone}) != whole, gone


def test_the_page_lists_every_id_once_and_its_links_lead_somewhere() -> None:
    page = rulebook.page()
    assert re.findall(r'^\| <a id="[a-z0-9-]+"></a>([A-Z0-9-]+) ', page, re.MULTILINE) == list(ALL)
    headings = {rulebook.anchor(line.lstrip("# ")) for line in page.splitlines() if line.startswith("#")}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= headings | {id.lower() for id in ALL}
    assert all((ROOT / "docs" / path).exists() for path in re.findall(r"\]\((\.\./[^)#]+)\)", page))
