"""The lab's engine, as far as it needs no engine."""

from pathlib import Path

import pytest

from lab.engine import Engine
from lab.place import Place


@pytest.mark.parametrize(
    ("state", "backup", "left"),
    [("", "{}", "{}"), ('{"half', "{}", "{}"), ('{"whole": 1}', "{}", '{"whole": 1}'), ("", "", "")],
)
def test_half_a_state_gives_way_to_the_one_before(tmp_path: Path, state: str, backup: str, left: str) -> None:
    folder = tmp_path / "state/.pulumi/stacks/fleet"
    folder.mkdir(parents=True)
    (folder / "sp.json").write_text(state)
    (folder / "sp.json.bak").write_text(backup)
    Engine(Place(tmp_path), tmp_path)._mend_cut_off_state("sp")
    assert (folder / "sp.json").read_text() == left
