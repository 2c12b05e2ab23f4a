"""The reader takes YAML as the engine does, and refuses what two readers could understand differently."""

import os
from pathlib import Path
from typing import Any

import pytest

from infra.config.reader import read
from infra.violation import Violation


def reading(tmp_path: Path, text: str | bytes) -> tuple[dict[str, Any], list[Violation]]:
    path = tmp_path / "Pulumi.x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path)


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "y", "n", "Yes", "ON"])
def test_words_that_yaml_1_1_takes_for_booleans_are_text(tmp_path: Path, word: str) -> None:
    assert reading(tmp_path, f"key: {word}\n") == ({"key": word}, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("0", 0),
        ("-7", -7),
        ("65001", 65001),
        ("0x1f", 31),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("1_000", "1_000"),
        ("192.168.0.1", "192.168.0.1"),
        ("10.41.0.0/16", "10.41.0.0/16"),
        ("v1.32.13+k3s1", "v1.32.13+k3s1"),
        ('"007"', "007"),
        ('"12:34:56"', "12:34:56"),
        ('"2026-05-02"', "2026-05-02"),
        ("BC:24:11:00:00:01", "BC:24:11:00:00:01"),
    ],
)
def test_a_plain_value_means_what_the_core_schema_says(tmp_path: Path, text: str, value: object) -> None:
    data, faults = reading(tmp_path, f"key: {text}\n")
    assert faults == []
    assert data == {"key": value}
    assert type(data["key"]) is type(value)


@pytest.mark.parametrize("text", ["12:34:56", "1:30", "2026-05-02", "2026-05-02T10:00:00Z", "007", "0123", "00"])
def test_what_other_readers_take_for_a_number_or_a_date_must_be_quoted(tmp_path: Path, text: str) -> None:
    data, faults = reading(tmp_path, f"a: 1\nkey: {text}\n")
    assert data == {}
    assert [(fault.id, fault.path) for fault in faults] == [("DOC-01", "Pulumi.x.yaml:2")]
    assert "quotes" in faults[0].expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: &x 1\nb: *x\n", 1),
        ("a:\n  b: &x {c: 1}\n", 2),
        ("base: &b {c: 1}\nd:\n  <<: *b\n", 1),
        ("a: 1\na: 2\n", 2),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", 4),
        ("1: a\n", 1),
        ("true: a\n", 1),
        ("? [a, b]\n: c\n", 1),
        ("a: [1, 2\nb: 3\n", 2),
        ("a:\n\t- b\n", 2),
        ("a: !!python/object/apply:os.system ['true']\n", 1),
    ],
)
def test_anchors_duplicates_and_broken_yaml_are_refused_with_their_line(tmp_path: Path, text: str, line: int) -> None:
    data, faults = reading(tmp_path, text)
    assert data == {}
    assert [(fault.id, fault.path) for fault in faults] == [("DOC-01", f"Pulumi.x.yaml:{line}")]


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "- a\n- b\n", "just text\n", "42\n", "null\n"])
def test_a_document_without_a_mapping_is_refused(tmp_path: Path, text: str) -> None:
    data, faults = reading(tmp_path, text)
    assert data == {}
    assert [(fault.id, fault.expected) for fault in faults] == [("DOC-01", "a mapping at the top")]


@pytest.mark.parametrize("content", [b"a: \xff\xfe\n", "a: é\n".encode("latin-1"), b"a: \x00\n", b"\x80"])
def test_bytes_that_are_no_utf_8_text_are_refused(tmp_path: Path, content: bytes) -> None:
    data, faults = reading(tmp_path, content)
    assert data == {}
    assert [fault.id for fault in faults] == ["DOC-01"]


def test_text_in_any_script_is_read(tmp_path: Path) -> None:
    assert reading(tmp_path, "nome: São Paulo\n") == ({"nome": "São Paulo"}, [])


def test_a_file_that_is_not_there_or_is_a_folder_is_a_fault(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path):
        data, faults = read(path)
        assert data == {}
        assert [fault.id for fault in faults] == ["DOC-01"]


@pytest.mark.parametrize(
    "text", ["[" * 5000, "{a: " * 3000, "a: " + "[" * 3000 + "]" * 3000], ids=["lists", "mappings", "closed"]
)
def test_nesting_without_end_is_a_fault_and_no_crash(tmp_path: Path, text: str) -> None:
    data, faults = reading(tmp_path, text)
    assert data == {}
    assert [fault.id for fault in faults] == ["DOC-01"]


def test_a_long_document_is_read(tmp_path: Path) -> None:
    data, faults = reading(tmp_path, "".join(f"key-{number}: [{number}, text]\n" for number in range(3000)))
    assert faults == []
    assert len(data) == 3000


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("9" * 5000, id="digits"),
        pytest.param("!!timestamp 2026"),
        pytest.param("!!bool x"),
        "!!int x",
        "!!float x",
    ],
)
def test_values_that_python_cannot_hold_are_faults(tmp_path: Path, text: str) -> None:
    data, faults = reading(tmp_path, f"a: {text}\n")
    assert data == {}
    assert [fault.id for fault in faults] == ["DOC-01"]


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    _, faults = reading(tmp_path, b"a: " + b"x" * 2 * 1024 * 1024)
    assert [fault.id for fault in faults] == ["DOC-01"]


def test_a_pipe_or_a_device_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        data, faults = read(tmp_path / name)
        assert data == {}
        assert [(fault.id, fault.found) for fault in faults] == [("DOC-01", "a pipe or a device")]


@pytest.mark.parametrize(
    "text", ['{"\\e[2J": 1, "\\e[2J": 2}', f"{{{'k' * 900}: 1, {'k' * 900}: 2}}", "a: 00" + "9" * 5000]
)
def test_the_fault_of_a_file_prints_on_one_short_line(tmp_path: Path, text: str) -> None:
    _, (fault,) = reading(tmp_path, text)
    assert fault.id == "DOC-01"
    assert str(fault).isprintable()
    assert len(str(fault)) < 700
