"""Every violating document of tests/invalid yields its id at its path, and nothing that is not implied."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.rules import RULES
from tests.rules.documents import INVALID, faults_of, known_warnings, patched, shipped

FILES = sorted(INVALID.glob("*.yaml"))


def case_of(path: Path) -> dict[str, Any]:
    case = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(case) <= {"set", "delete", "rename", "expect", "implied"}
    return dict(case)


def rule_id(path: Path) -> str:
    return "-".join(path.stem.split("-")[:2])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_violating_document_yields_its_id_at_its_path(path: Path) -> None:
    case = case_of(path)
    documents = patched(shipped(), case.get("set"), case.get("delete", ()), case.get("rename"))
    found = faults_of(documents)
    faults = {(fault.id, fault.path) for fault in found}
    expected = {(entry["id"], entry["path"]) for entry in case["expect"]}
    assert {id for id, _ in expected} == {rule_id(path)}
    assert expected <= faults
    further = {id for id, _ in faults - expected - known_warnings()}
    assert further == set(case.get("implied", ()))
    for fault in found:
        assert fault.expected and fault.remedy, fault
        assert "\n" not in str(fault)


def test_every_rule_has_a_violating_document() -> None:
    assert set(RULES) <= {rule_id(path) for path in FILES}
