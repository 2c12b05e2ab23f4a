"""Unit files are read as systemd reads them."""

from pathlib import Path

import pytest

from lab.standins import units


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(units, "SEARCH_PATH", (str(tmp_path),))
    return tmp_path


def load(etc: Path, text: str, name: str = "x.service") -> units.UnitFile:
    (etc / name).write_text(text)
    unit = units.load(name)
    assert unit is not None
    return unit


def test_a_drop_in_adds_to_lists_overrides_values_and_an_empty_value_clears(etc: Path) -> None:
    (etc / "x.service.d").mkdir()
    (etc / "x.service.d/10.conf").write_text("[Service]\nRestartSec=2min 5s\nExecStartPre=\nExecStartPre=-/bin/b\n")
    unit = load(etc, "[Service]\nRestartSec=1\nExecStartPre=/bin/a\nExecStart=/bin/x \\\n  y\n# no\n")
    assert unit.seconds("RestartSec", 0) == 125
    assert unit.all("Service", "ExecStartPre") == ["-/bin/b"]
    assert units.parse_command(unit, unit.last("Service", "ExecStart")).argv == ("/bin/x", "y")


def test_an_unknown_key_is_reported_and_ignored(etc: Path) -> None:
    unit = load(etc, "[Service]\nExecStrat=/bin/x\n[X-Own]\nAnything=1\n")
    assert unit.warnings == [f"{etc}/x.service: Unknown key name 'ExecStrat' in section 'Service', ignoring."]


def test_prefixes_quotes_and_specifiers_of_a_command(etc: Path) -> None:
    unit = load(etc, "[Service]\n", "k3s@sp.service")
    command = units.parse_command(unit, '-/bin/sh -c \'echo "%i" %%\' "a b" c\\ d')
    assert command.argv == ("/bin/sh", "-c", 'echo "sp" %', "a b", "c d")
    assert command.may_fail
    with pytest.raises(units.UnitError, match="Unbalanced quoting"):
        units.parse_command(unit, "/bin/sh 'open")


def test_variables_split_only_as_words_of_their_own() -> None:
    argv = ("/x", "$ARGS", "${ARGS}", "p-${A}", "$$HOME", "$NONE")
    assert units.expand_variables(argv, {"ARGS": "a b", "A": "1"}) == ["/x", "a", "b", "a b", "p-1", "$HOME"]


def test_only_a_marked_environment_file_may_be_absent(etc: Path) -> None:
    (etc / "env").write_text('# no\nA=1\nB="two words"\n')
    unit = load(etc, f"[Service]\nEnvironment=A=0 'C=3 4'\nEnvironmentFile=-/absent\nEnvironmentFile={etc}/env\n")
    assert units.read_environment(unit) == {"A": "1", "B": "two words", "C": "3 4"}
    with pytest.raises(units.UnitError, match="Failed to load environment files"):
        units.read_environment(load(etc, "[Service]\nEnvironmentFile=/absent\n"))


@pytest.mark.parametrize(("text", "seconds"), [("5", 5), ("500ms", 0.5), ("1min 30s", 90), ("infinity", float("inf"))])
def test_time_spans(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == seconds


def test_a_time_span_of_no_known_unit_is_refused() -> None:
    with pytest.raises(units.UnitError, match="Failed to parse time span"):
        units.parse_seconds("5 fortnights")
