"""`fleet diff`: two plans compared, how that reads, and revisions that have no plan."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli import revision
from cli.diff import SiteDiff, compared
from cli.diff_text import LIMIT, MARKER, TEXT_LINES, document, lines, markdown, summary
from cli.plan import MASK, plan
from cli.revision import Revision, SitePlan, plan_in, understood
from cli.stand_in_inputs import placeholders
from infra.config import Fleet
from tests.cli import project
from tests.cli.project import ROOT, fleet_process
from tests.rules.documents import fleet_of, patched, shipped


def resource(name: str, inputs: dict[str, Any], after: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {
        "type": "t:i:Thing",
        "name": name,
        "parent": "site",
        "provider": "p",
        "dependencies": list(after),
        "protect": False,
        "inputs": inputs,
    } | more


def side(name: str, **sites: list[dict[str, Any]]) -> Revision:
    plans = {
        site: SitePlan(resources={(one["type"], one["name"]): one for one in resources})
        for site, resources in sites.items()
    }
    return Revision(name=name, sites=plans)


def one_site(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> SiteDiff:
    (found,) = compared(side("old", sp=old), side("new", sp=new))
    return found


def shown(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return list(lines(one_site([resource("a", old)], [resource("a", new)])))


def test_equal_plans_differ_in_nothing() -> None:
    found = one_site([resource("a", {"x": [1, {"y": None}]})], [resource("a", {"x": [1, {"y": None}]})])
    assert not found.differs
    assert (summary(found), list(lines(found))) == ("no difference", [])


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"cpu": {"cores": 8}}, {"cpu": {"cores": 16}}, ["-     cpu.cores: 8", "+     cpu.cores: 16"]),
        ({"d": [{"size": 1}]}, {"d": [{"size": 2}]}, ["-     d[0].size: 1", "+     d[0].size: 2"]),
        ({"d": [1]}, {"d": [1, 2]}, ["+     d[1]: 2"]),
        ({"d": [1, 2]}, {"d": [1]}, ["-     d[1]: 2"]),
        ({}, {"x": "a"}, ['+     x: "a"']),
        ({"x": {"y": 1}}, {}, ['-     x: {"y": 1}']),
        ({"a.b/c": 1}, {"a.b/c": 2}, ['-     ["a.b/c"]: 1', '+     ["a.b/c"]: 2']),
        ({"l": {"a.b": 1}}, {"l": {"a.b": 2}}, ['-     l["a.b"]: 1', '+     l["a.b"]: 2']),
        ({"x": 1}, {"x": "1"}, ["-     x: 1", '+     x: "1"']),
        ({"x": 1}, {"x": True}, ["-     x: 1", "+     x: true"]),
        ({"x": None}, {}, ["-     x: null"]),
    ],
)
def test_a_field_is_told_by_its_path_with_both_values(old: Any, new: Any, told: list[str]) -> None:
    assert shown(old, new) == ["! Thing a", *told]


def test_a_script_is_told_by_its_changed_lines_once_for_all_that_run_it() -> None:
    old, new = (("\n".join([*"abcdefgh", word, *"ijklmnop"])) for word in ("before", "after"))
    found = one_site(
        [resource(name, {"stdin": f"{name}\n{old}"}) for name in ("one", "two")],
        [resource(name, {"stdin": f"{name}\n{new}"}) for name in ("one", "two")],
    )
    told = list(lines(found))
    assert [line.strip() for line in told if "stdin" in line] == ["stdin: a text", "stdin: a text, changed as in one"]
    assert "-         before" in told
    assert "+         after" in told
    assert not [line for line in told if line.endswith(" a")], "far context is left out"


def test_a_long_text_is_trimmed() -> None:
    new = "\n".join(map(str, range(500)))
    told = shown({"stdin": "a\nb"}, {"stdin": new})
    assert len(told) < TEXT_LINES + 5
    assert "more lines of this text]" in told[-1]


def test_secrets_are_masked_and_said_to_be_not_comparable() -> None:
    assert shown({"s": MASK}, {"s": MASK, "x": 1})[-1].startswith("# 1 secret values are masked in both plans")
    for old, new in (("hunter2", MASK), (MASK, "hunter2"), ("hunter2", {"v": [MASK]}), ([MASK], {"v": "hunter2"})):
        told = "\n".join(shown({"s": old}, {"s": new}))
        assert "(not secret)" in told
        assert MASK in told
        assert "hunter2" not in told


def test_dependencies_alone_are_told_apart_and_last() -> None:
    found = one_site(
        [resource("a", {}, ("x",)), resource("b", {"v": 1})], [resource("a", {}, ("y",)), resource("b", {"v": 2})]
    )
    assert summary(found) == "1 changed, 1 with other dependencies only"
    assert list(lines(found))[-3:] == ["! Thing a", "-     after: x", "+     after: y"]


def test_protection_parent_and_provider_count_as_fields() -> None:
    told = list(lines(one_site([resource("a", {}, protect=True)], [resource("a", {}, provider="q")])))
    assert "-     protect: true" in told
    assert '+     provider: "q"' in told


def test_whole_sites_come_and_go() -> None:
    came, went = compared(side("old", zz=[resource("a", {})]), side("new", aa=[resource("a", {}), resource("b", {})]))
    assert (came.site, summary(came)) == ("aa", "the whole site is added: 2 resources")
    assert (went.site, summary(went)) == ("zz", "the whole site is removed: 1 resources")


def test_a_comment_has_marker_summary_and_folded_details() -> None:
    base, head = side("old", sp=[resource("a", {"x": 1})], b=[]), side("new", sp=[resource("a", {"x": 2})], b=[])
    text = markdown(base, head, compared(base, head))
    assert text.startswith(f"{MARKER}\n")
    assert "- **sp**: 1 changed" in text
    assert "- **b**: no difference" in text
    assert text.count("<details>") == text.count("</details>") == 1


def test_a_comment_is_never_longer_than_its_limit_and_says_what_was_cut() -> None:
    many = [resource(f"thing-{number}", {"x": "y" * 150}) for number in range(2000)]
    other = [{**one, "inputs": {"x": "z" * 150}} for one in many]
    small = ([resource("small", {"v": 1})], [resource("small", {"v": 2})])
    base, head = side("old", big=many, other=small[0]), side("new", big=other, other=small[1])
    text = markdown(base, head, compared(base, head))
    assert LIMIT / 3 < len(text) <= LIMIT
    assert "more lines; all of it: ./fleet diff old new]" in text
    assert "! Thing small" in text, "a large site does not push the others out"
    assert text.count("<details>") == text.count("</details>") == 2


def test_no_value_can_leave_its_block() -> None:
    base = side("old", sp=[resource("a", {"x": 1})])
    head = side("new", sp=[resource("a", {"x": "```\n</details> @everyone ````"})])
    text = markdown(base, head, compared(base, head))
    assert text.count("`````") == 2
    assert "\n```\n" not in text


def test_json_is_the_whole_difference() -> None:
    base, head = side("old", sp=[resource("a", {"x": 1})]), side("new", sp=[resource("a", {"x": 2}, ("y",))])
    plain = json.loads(json.dumps(document(base, head, compared(base, head))))
    assert plain["sites"]["sp"]["changed"] == [
        {
            "type": "t:i:Thing",
            "name": "a",
            "fields": [{"path": "x", "old": 1, "new": 2}],
            "dependencies": {"added": ["y"], "removed": []},
        }
    ]


@pytest.mark.parametrize(
    ("code", "out", "err", "fault"),
    [
        (
            1,
            json.dumps({"violations": [{"id": "X-01", "path": "p", "found": "f", "expected": "e", "remedy": "r"}]}),
            "",
            "[X-01] p",
        ),
        (1, "", "Traceback ...\nValueError: x", "exit code 1: ValueError: x"),
        (2, "", "╭─ Error ─╮\n│ No such command 'plan'. │\n╰──╯", "No such command 'plan'."),
        (0, "{}", "", "exit code 0: no message"),
        (0, '[{"name": "a"}]', "", "exit code 0: no message"),
        (0, '["a", 1]', "", "exit code 0: no message"),
        (1, '{"violations": [{"id": "X-01"}]}', "it broke", "exit code 1: it broke"),
        (0, "[" * 100_000, "", "exit code 0: no message"),
    ],
)
def test_a_revision_without_a_plan_says_why(code: int, out: str, err: str, fault: str) -> None:
    found = understood(code, out, err)
    assert found.resources is None
    assert fault in found.faults[0]


def test_a_faulty_side_is_told_and_nothing_compared() -> None:
    base = Revision(name="old", sites={"sp": SitePlan(faults=("[X-01] p: found f",))})
    (found,) = compared(base, side("new", sp=[resource("a", {})]))
    assert not found.differs
    assert "! old: [X-01] p: found f" in list(lines(found))
    assert "not comparable" in summary(found)


def test_a_revision_older_than_the_command_says_so(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.sp.yaml").write_text("config: {}\n")
    assert plan_in(tmp_path, "sp").faults == ("this revision is older than `fleet plan`",)


def test_a_real_change_of_a_document_is_seen_where_it_lands(fleet: Fleet) -> None:
    changed, faults = fleet_of(patched(shipped(), {"franca.guests.vm-cpps-04.cores": 12}))
    assert changed is not None, faults
    base, head = (
        Revision(
            name=name,
            sites={
                "franca": SitePlan(
                    resources={key: one.masked() for key, one in plan(of, "franca", placeholders).items()}
                )
            },
        )
        for name, of in (("old", fleet), ("new", changed))
    )
    (found,) = compared(base, head)
    assert [(one.name, [field.path for field in one.fields]) for one in found.changed] == [
        ("guest-vm-cpps-04-vm", ["cpu.cores"])
    ]
    assert found.secrets > 0


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose program plans what a file says, and leaks what its environment holds."""
    root = tmp_path / "repository"
    (root / "cli").mkdir(parents=True)
    for name in ("__init__", "plan"):
        (root / f"cli/{name}.py").write_text("")
    (root / "cli/__main__.py").write_text(
        "import json, os, sys\n"
        "assert sys.argv[1:] == ['plan', 'sp', '--json'], sys.argv\n"
        "inputs = {'x': open('value').read().strip(), 'env': sorted(k for k in os.environ if 'SECRET' in k)}\n"
        "if inputs['x'] == 'bad': sys.exit('it broke')\n"
        "base = {'type': 't:i:T', 'name': 'a', 'parent': '', 'provider': '', 'dependencies': [], 'protect': False}\n"
        "print(json.dumps([base | {'inputs': inputs}]))\n"
    )
    (root / "Pulumi.sp.yaml").write_text("config: {}\n")
    environment = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": os.environ["PATH"]}

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True, env=environment)

    git("init", "-q", "-b", "main")
    for value in ("one", "two"):
        (root / "value").write_text(f"{value}\n")
        git("add", ".")
        git("commit", "-q", "-m", value)
    git("checkout", "-q", "-b", "branch")
    (root / "value").write_text("edited\n")
    monkeypatch.setattr(revision, "ROOT", root)
    monkeypatch.setenv("MY_SECRET", "hunter2")
    return root


def test_each_revision_runs_its_own_program_without_the_callers_secrets(repository: Path) -> None:
    ran = project.fleet("diff", "main~1", "main", "--json")
    assert ran.code == 0, ran.text
    (changed,) = json.loads(ran.out)["sites"]["sp"]["changed"]
    assert changed["fields"] == [{"path": "x", "old": "one", "new": "two"}]
    assert "SECRET" not in ran.out


def test_by_default_the_working_tree_is_compared_with_where_the_branch_left_main(repository: Path) -> None:
    ran = project.fleet("diff")
    assert ran.code == 0, ran.text
    assert '-     x: "two"' in ran.out
    assert '+     x: "edited"' in ran.out
    assert ran.out.splitlines()[0].endswith("-> working tree")


def test_a_broken_revision_is_one_line_and_exit_code_1(repository: Path) -> None:
    (repository / "value").write_text("bad\n")
    ran = project.fleet("diff", "main")
    assert ran.code == 1
    assert "working tree: its plan ended with exit code 1: it broke" in ran.out
    assert project.fleet("diff", "main", "--markdown").out.startswith(MARKER)


def test_a_revision_whose_links_lead_out_of_it_is_not_unpacked(repository: Path) -> None:
    (repository / "outside").symlink_to("/etc/hostname")
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for arguments in (["add", "."], [*who, "commit", "-q", "-m", "link"]):
        subprocess.run(["git", *arguments], cwd=repository, check=True, capture_output=True)
    ran = project.fleet("diff", "main", "HEAD")
    assert ran.code == 1
    assert "HEAD:" in ran.text
    assert "no link that leads out of the folder" in ran.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "found no revision nowhere"),
        (("--upload-pack=x",), "No such option"),
        (("main", ".", "paris"), "found no site paris"),
        (("main", "--json", "--markdown"), "expected one of them"),
    ],
)
def test_what_cannot_be_compared_is_said(repository: Path, arguments: tuple[str, ...], words: str) -> None:
    ran = project.fleet("diff", *arguments)
    assert ran.code != 0
    assert words in ran.text


def test_the_commit_that_is_checked_out_has_plans_of_its_own() -> None:
    """The whole way, with the project's own program."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    ran = fleet_process("diff", "HEAD", "HEAD", "sp")
    assert ran.code == 0, ran.text
    assert "sp: no difference" in ran.out
