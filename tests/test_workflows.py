"""The workflows: who may do what in them, that every command in them exists, and the commenting script on a fake gh."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from cli.app import app

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github" / "workflows"
SCRIPTS = ROOT / ".github" / "scripts"
FILES = sorted(FOLDER.glob("*.yaml"))
PINNED = re.compile(r"uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


def workflow(name: str) -> dict[str, Any]:
    """Every scalar as text: `on` is a key here, not a truth."""
    loaded: dict[str, Any] = yaml.load((FOLDER / name).read_text(), yaml.BaseLoader)
    return loaded


def steps(jobs: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in jobs.values() for step in job["steps"]]


def test_both_workflows_are_there() -> None:
    assert [path.name for path in FILES] == ["preview.yaml", "pull-request.yaml"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_permissions_are_read_alone_but_for_the_job_that_comments(path: Path) -> None:
    whole = workflow(path.name)
    assert list(whole["on"]) == ["pull_request"], "pull_request_target would run strangers' code with our token"
    assert whole["permissions"] == {"contents": "read"}
    for name, job in whole["jobs"].items():
        allowed = {"contents": "read", "pull-requests": "write"} if name == "comment" else None
        assert job.get("permissions") == allowed, name
        assert int(job["timeout-minutes"]) <= 45


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_job_that_may_write_runs_no_code_of_the_pull_request(path: Path) -> None:
    job = workflow(path.name)["jobs"]["comment"]
    checkouts = [step for step in job["steps"] if "actions/checkout" in step.get("uses", "")]
    assert [step["with"]["ref"] for step in checkouts] == ["${{ github.event.pull_request.base.sha }}"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".github/scripts/comment.sh text/comment.md"]


def test_what_runs_for_strangers_holds_no_secret() -> None:
    text = (FOLDER / "pull-request.yaml").read_text()
    assert "secrets." not in text
    assert "environment:" not in text
    jobs = workflow("pull-request.yaml")["jobs"]
    assert [name for name, job in jobs.items() if "github.token" in str(job)] == ["comment"]
    assert "head.repo.full_name == github.repository" in jobs["comment"]["if"]


def test_the_preview_is_off_by_default_never_for_forks_and_waits_for_a_reviewer() -> None:
    job = workflow("preview.yaml")["jobs"]["preview"]
    assert "vars.FLEET_PREVIEW == 'on'" in job["if"]
    assert "head.repo.full_name == github.repository" in job["if"]
    assert job["environment"] == "preview-${{ matrix.site }}"
    assert job["strategy"]["matrix"]["site"] == [path.name.split(".")[1] for path in sorted(ROOT.glob("Pulumi.*.yaml"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_pinned_and_keep_no_token_in_the_checkout(path: Path) -> None:
    lines = [line.strip().removeprefix("- ") for line in path.read_text().splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not PINNED.fullmatch(line)] == []
    for step in steps(workflow(path.name)["jobs"]):
        if "actions/checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] == "false"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_expression_reaches_a_shell(path: Path) -> None:
    """A branch may be called `$(rm -rf .)`: values go through the environment."""
    for step in steps(workflow(path.name)["jobs"]):
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_command_of_a_workflow_exists_with_its_options(path: Path) -> None:
    commands: Any = typer.main.get_command(app)
    runs = "\n".join(step.get("run", "") for step in steps(workflow(path.name)["jobs"]))
    called = re.findall(r"^\s*\./fleet ([\w-]+)([^\n>|]*)", runs, re.MULTILINE)
    assert called
    for name, rest in called:
        assert name in commands.commands, name
        known = {option for parameter in commands.commands[name].params for option in parameter.opts}
        assert {word for word in rest.split() if word.startswith("--")} <= known
    named = set(re.findall(r"\.github/scripts/\S+\.sh", runs))
    assert all((ROOT / script).stat().st_mode & 0o111 for script in named)


def test_the_pull_request_runs_check_plan_tests_and_diff() -> None:
    runs = "\n".join(step.get("run", "") for step in steps(workflow("pull-request.yaml")["jobs"]))
    for command in ("./fleet check", './fleet plan "${site%.yaml}"', "./fleet test --fast", "./fleet diff "):
        assert command in runs


def test_the_scripts_pass_shellcheck() -> None:
    program = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([program, *sorted(SCRIPTS.glob("*.sh"))], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# A GitHub that is a folder: comments are files called like their ids, the first line the author.
GH = r"""#!/bin/sh
echo "$*" >>@/calls
[ "$GH_TOKEN" = token ] && [ "$1" = api ] || exit 4
shift
method=GET body='' place=''
while [ $# -gt 0 ]; do
    case $1 in
    --method) method=$2; shift ;;
    --jq) shift ;;
    -F) body=${2#body=@}; shift ;;
    --paginate | --silent) ;;
    *) place=$1 ;;
    esac
    shift
done
case "$method $place" in
"GET repos/o/r/issues/7/comments?per_page=100")
    for file in @/comments/*; do
        [ -f "$file" ] || continue
        { read -r author; read -r first; } <"$file"
        if [ "$author" = "github-actions[bot]" ]; then case $first in "$marker"*) basename "$file" ;; esac; fi
    done ;;
"POST repos/o/r/issues/7/comments")
    id=$(($(ls @/comments | wc -l) + 100))
    { echo "github-actions[bot]"; cat "$body"; } >"@/comments/$id" ;;
"PATCH repos/o/r/issues/comments/"*)
    { echo "github-actions[bot]"; cat "$body"; } >"@/comments/${place##*/}" ;;
*) echo "unknown: $method $place" >&2; exit 5 ;;
esac
"""


class GitHub:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "comments").mkdir()
        (folder / "bin/gh").write_text(GH.replace("@/", f"{folder}/"))
        (folder / "bin/gh").chmod(0o755)

    def comment(self, text: str, number: str = "7") -> "subprocess.CompletedProcess[str]":
        (self.folder / "text.md").write_text(text)
        return subprocess.run(
            [SCRIPTS / "comment.sh", "text.md"],
            cwd=self.folder,
            env={
                "PATH": f"{self.folder}/bin:/usr/bin:/bin",
                "GH_TOKEN": "token",
                "GITHUB_REPOSITORY": "o/r",
                "PULL_REQUEST": number,
            },
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def comments(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted((self.folder / "comments").iterdir())}


@pytest.fixture
def github(tmp_path: Path) -> GitHub:
    return GitHub(tmp_path)


def test_a_comment_is_made_once_and_then_updated_in_place(github: GitHub) -> None:
    for text in ("first", "second", "third"):
        done = github.comment(f"<!-- fleet diff -->\n{text} `x` $(x)\n")
        assert done.returncode == 0, done.stderr
        assert github.comments() == {"100": f"github-actions[bot]\n<!-- fleet diff -->\n{text} `x` $(x)\n"}
    assert done.stdout == "updated comment 100\n"


def test_comments_of_others_and_with_other_markers_stay(github: GitHub) -> None:
    for id, text in {
        "1": "mallory\n<!-- fleet diff -->\n",
        "2": "github-actions[bot]\n<!-- fleet preview sp -->\n",
    }.items():
        (github.folder / "comments" / id).write_text(text)
    before = github.comments()
    assert github.comment("<!-- fleet diff -->\nmine\n").returncode == 0
    assert github.comment("<!-- fleet diff -->\nmine again\n").returncode == 0
    after = github.comments()
    assert {id: after.pop(id) for id in before} == before
    assert list(after.values()) == ["github-actions[bot]\n<!-- fleet diff -->\nmine again\n"]


@pytest.mark.parametrize(("text", "number"), [("no marker\n", "7"), ("<!-- fleet diff -->\n", "7/merge"), ("", "7")])
def test_nothing_is_posted_without_marker_or_number(github: GitHub, text: str, number: str) -> None:
    done = github.comment(text, number)
    assert done.returncode == 1
    assert "expected" in done.stderr
    assert not (github.folder / "calls").exists()


@pytest.mark.parametrize(("code", "words"), [("0", "goes through"), ("1", "stopped (exit code 1)")])
def test_output_is_folded_cut_and_cannot_leave_its_block(tmp_path: Path, code: str, words: str) -> None:
    output = tmp_path / "out.txt"
    output.write_text("```\n</details> @everyone\n" + "x" * 70_000)
    done = subprocess.run(
        [SCRIPTS / "folded.sh", "preview sp", code, output], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.startswith(f"<!-- fleet preview sp -->\n**fleet preview sp**: {words}\n")
    assert done.stdout.count("```") == 2
    assert len(done.stdout) < 61_000
    assert "cut here" in done.stdout
