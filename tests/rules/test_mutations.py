"""Whatever a person does to a document, the answer is a fleet or a list of faults: never a traceback, never a secret.

Changes of the plain data go through the models and the rules, changes of the text through the reader as well. The runs
are derandomized: a failure comes back.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.config.fleet import Fleet
from infra.config.loading import PROJECT_FILE, load
from infra.rules import judge, ranges
from infra.rules.registry import RULES
from infra.violation import InvariantError, Level, Violation
from tests.rules.documents import Documents, fleet_of, shipped, with_third_site
from tests.rules.test_documents import many_sites

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "zz9-plural-alpha"
SECRET = f"v1:{PASSWORD}{PASSWORD}:c2VjcmV0"  # of a value that a stack file holds encrypted
LONGEST_LINE = 3000  # characters of a message: limits of infra.violation, with its fixed parts
BOUNDED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
Path_ = tuple[str | int, ...]


@functools.cache
def bases() -> tuple[Documents, Documents]:
    return shipped(), with_third_site()


@functools.cache
def places(base: int) -> tuple[Path_, ...]:
    """Every place of the documents, inner nodes and leaves."""
    return tuple(_walk(bases()[base], ()))


def _walk(node: Any, path: Path_) -> Iterator[Path_]:
    if path:
        yield path
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in entries:
        yield from _walk(value, (*path, key))


def _at(documents: Any, path: Path_) -> Any:
    for key in path:
        documents = documents[key]
    return documents


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        (
            *(
                "",
                " ",
                "-",
                ".",
                "../..",
                "\x00",
                "a\x00b",
                "\x1b[2J",
                "\u202etxt",
                "\u2066",
                "\u2028",
                "a\nb",
                "\ufeff",
            ),
            *(
                "é" * 300,
                "\U0001f600",
                "x" * 100_000,
                "9" * 5000,
                "null",
                "* * * * *",
                "/dev/sda",
                f"https://u:{PASSWORD}@h/",
            ),
            *("10.0.0.0/8", "0.0.0.0/0", "255.255.255.255", "::1", "127.0.0.1", "224.0.0.1"),
            *("cilium", "nowhere", "vm-sp-01", "franca", "common", "OPS-03"),
        )
    ),
)
VALUES = st.one_of(
    TEXTS,
    st.none(),
    st.booleans(),
    st.integers(min_value=-(10**30), max_value=10**30),
    st.sampled_from([0, -1, 1 << 31, 1 << 63, 10**400, 65536, 0.5, 1e308, float(2**60)]),
    st.just([]),
    st.just({}),
    st.builds(nested, st.sampled_from([1, 5, 60, 150])),
    st.builds(lambda value, count: [value] * count, TEXTS.filter(lambda text: len(text) < 400), st.integers(1, 300)),
    st.dictionaries(TEXTS, st.integers(), max_size=3),
)


class Changed:
    """Documents after a few changes; a failing example shows the changes alone."""

    def __init__(self, documents: Documents, changes: list[str]) -> None:
        self.documents, self.changes = documents, changes

    def __repr__(self) -> str:
        return "; ".join(self.changes)


@st.composite
def mutated(draw: Callable[[Any], Any]) -> Changed:
    """Valid documents after one to four changes of any place."""
    base = draw(st.integers(0, 1))
    documents, changes = copy.deepcopy(bases()[base]), list[str]()
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(places(base)))
        other = draw(st.sampled_from(places(base)))
        try:
            what = _change(draw, documents, path, other)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
        changes.append(f"{what} {path} {other} {_shown(documents, path)}")
    return Changed(documents, changes)


def _shown(documents: Documents, path: Path_) -> str:
    try:
        return repr(_at(documents, path))[:80]
    except (KeyError, IndexError, TypeError, RecursionError):
        return "gone"


def _change(draw: Callable[[Any], Any], documents: Documents, path: Path_, other: Path_) -> str:
    holder, key = _at(documents, path[:-1]), path[-1]
    value = holder[key]
    what = str(draw(st.sampled_from(["delete", "retype", "swap", "reorder", "repeat", "rename", "wrap"])))
    match what:
        case "delete" if len(path) > 1:
            del holder[key]
        case "swap" if len(path) > 1 and len(other) > 1:
            theirs = _at(documents, other[:-1])
            holder[key], theirs[other[-1]] = copy.deepcopy(theirs[other[-1]]), copy.deepcopy(value)
        case "reorder" if isinstance(value, list):
            holder[key] = draw(st.permutations(value))
        case "reorder" if isinstance(value, dict):
            holder[key] = dict(draw(st.permutations(list(value.items()))))
        case "repeat" if isinstance(value, list):
            holder[key] = value * draw(st.sampled_from([2, 3, 20]))
        case "rename" if len(path) > 1 and isinstance(holder, dict):
            holder[draw(TEXTS)] = holder.pop(key)
        case "wrap" if len(path) > 1:
            holder[key] = draw(st.sampled_from([[value], {"value": value}, [value, value]]))
        case _ if len(path) > 1:
            holder[key] = draw(VALUES)
    return what


def told_well(found: tuple[Violation, ...] | list[Violation]) -> None:
    for fault in found:
        assert fault.id
        assert fault.path
        assert fault.found
        assert fault.expected
        assert fault.remedy
        line = str(fault)
        assert line.isprintable(), repr(line)
        assert len(line) <= LONGEST_LINE
        assert f"{PASSWORD}@" not in line
        assert SECRET not in line


def answered(fleet: Fleet | None, faults: list[Violation]) -> None:
    """Checks the one property of every test here."""
    assert (fleet is None) == bool(faults)
    told_well(faults)
    if fleet is None:
        with pytest.raises(InvariantError):
            raise InvariantError(faults)
        return
    verdict = judge(fleet)
    told_well([*verdict.stops, *verdict.warnings, *(fault for fault, _ in verdict.accepted)])
    assert all(fault.level is not Level.WARN for fault in verdict.stops)


@settings(BOUNDED, max_examples=600)
@given(mutated())
def test_changed_documents_are_a_fleet_or_faults(changed: Changed) -> None:
    answered(*fleet_of(changed.documents))


LEAVES = st.sampled_from(
    [
        path
        for path in _walk(shipped(), ())
        if not isinstance(_at(shipped(), path), dict | list) and "assumed" not in path
    ]
)


@settings(BOUNDED, max_examples=250)
@given(st.lists(st.tuples(LEAVES, LEAVES), min_size=1, max_size=3))
def test_values_of_other_places_are_judged_and_not_choked_on(pairs: list[tuple[Path_, Path_]]) -> None:
    """A leaf takes the value of another that has its key or its type: most of these documents parse."""
    documents = shipped()
    for path, other in pairs:
        value = _at(shipped(), other)
        if type(value) is type(_at(shipped(), path)):
            _at(documents, path[:-1])[path[-1]] = value
    answered(*fleet_of(documents))


@functools.cache
def texts() -> dict[str, bytes]:
    found = {name: (ROOT / name).read_bytes() for name in (PROJECT_FILE, "Pulumi.franca.yaml", "Pulumi.sp.yaml")}
    found["Pulumi.sp.yaml"] += f"  fleet:token:\n    secure: {SECRET}\nencryptionsalt: {SECRET}\n".encode()
    return found


BYTES = st.one_of(
    st.binary(max_size=4),
    st.sampled_from(
        [b"\x00", b"\t", b"\n", b"\r", b": ", b"- ", b"#", b"&a ", b"*a", b"!!int ", b"!x ", b"%YAML 9.9\n"]
    )
    | st.sampled_from(
        [b"---\n", b"...\n", b"<<: ", b"? ", b"| ", b">", b"[", b"{", b"}", b'"', b"'", b"\xff", b"\xef\xbb\xbf"]
    )
    | st.sampled_from(
        ["\u202e".encode(), "\u2028".encode(), b"@", b"`", b"[" * 2000, b"{a: " * 500, b"9" * 5000, b"0o17"]
    ),
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from([PROJECT_FILE, "Pulumi.franca.yaml", "Pulumi.sp.yaml"]),
        st.floats(0, 1),
        st.integers(0, 40),
        BYTES,
    ),
    min_size=1,
    max_size=3,
)


@settings(BOUNDED, max_examples=250)
@given(EDITS)
def test_edited_files_are_a_fleet_or_faults(folder: Path, edits: list[tuple[str, float, int, bytes]]) -> None:
    content = dict(texts())
    for name, where, cut, put in edits:
        at = int(where * len(content[name]))
        content[name] = content[name][:at] + put + content[name][at + cut :]
    for name, text in content.items():
        (folder / name).write_bytes(text)
    fleet, faults = load(folder)
    answered(fleet, faults)
    if fleet is not None:
        assert SECRET not in repr(fleet)


@settings(BOUNDED, max_examples=100)
@given(st.sampled_from(["Pulumi.sp.yaml", PROJECT_FILE]), st.integers(0, 400), st.integers(0, 400), st.integers(-6, 6))
def test_moved_and_indented_lines_are_a_fleet_or_faults(
    folder: Path, name: str, one: int, other: int, indent: int
) -> None:
    lines = texts()[name].decode().splitlines()
    one, other = one % len(lines), other % len(lines)
    lines[one], lines[other] = lines[other], lines[one]
    lines[one] = " " * indent + lines[one] if indent >= 0 else lines[one][-indent:]
    for kept, text in texts().items():
        (folder / kept).write_bytes(text)
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    answered(*load(folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documents")


def test_every_rule_takes_a_fleet_of_no_site() -> None:
    fleet, _ = fleet_of({"common": shipped()["common"]})
    assert fleet is not None
    empty = Fleet(fleet.common, {})
    for entry in RULES.values():
        list(entry.check(empty))


def test_the_pairs_that_are_compared_grow_with_the_sites_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What costs time in a large fleet is comparing ranges: the sweep compares neighbours, not all of them."""
    compared: dict[int, int] = {}
    for count in (10, 20, 40):
        fleet, faults = fleet_of(many_sites(count))
        assert fleet is not None, faults
        compared[count] = _comparisons(fleet, monkeypatch)
    tunnels = {count: count * (count - 1) // 2 for count in compared}
    # A few for each range: the tunnels, one for each pair of sites, are the most of them.
    assert all(0 < compared[count] < 4 * (11 * count + tunnels[count]) for count in compared)


def _comparisons(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> int:
    count = 0

    class Counted(int):
        def __ge__(self, other: int) -> bool:
            nonlocal count
            count += 1
            return int(self) >= int(other)

    plain = list(ranges.all_ranges(fleet))
    counted = [ranges.Range(r.path, r.kind, r.first, Counted(r.last), r.text, r.owner) for r in plain]
    with monkeypatch.context() as patch:
        patch.setattr(ranges, "all_ranges", lambda _: iter(counted))
        ranges.overlaps(fleet)
    return count
