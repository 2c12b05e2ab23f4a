"""What docs/production.md tells a person to do can be done."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import infra.names
from infra.versions import cilium
from infra.vyos.artefacts import statements
from infra.vyos.ownership import is_open, key_of
from tests.cli import project
from tests.cli.project import ROOT, folder_with
from tests.rules.documents import fleet_of, patched, shipped

TEXT = (ROOT / "docs/production.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
SHELL = "\n".join(body for kind, body in BLOCKS if kind == "sh")
# Those of the program, and those that a router may lack.
FLEET, _ = fleet_of(patched(shipped(), {"sp.bgp.authenticated": True}))
assert FLEET is not None
OPEN = [one for one in statements(FLEET, "sp") if is_open(one) and one[-2] != "public-key"]
SECRETS = {*infra.names.SECRETS, *map(key_of, OPEN)}
COMMANDS = sorted(set(re.findall(r"\./fleet ((?:lab )?[a-z]+)", TEXT)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_exists(command: str) -> None:
    assert project.fleet(*command.split(), "--help").code == 0


def test_every_credential_of_the_program_is_explained_and_no_other() -> None:
    keys = {*SECRETS, infra.names.SSH_PUBLIC_KEY}
    assert set(re.findall(r"`fleet:(\w+)`", TEXT)) - {"artifacts", "charts"} == keys
    made = {infra.names.CILIUM_CA_CERT, infra.names.CILIUM_CA_KEY, *infra.names.MESH_SECRETS}  # fleet credentials
    assert set(re.findall(r"config set (?:--\w+ )*fleet:(\w+)", SHELL)) == {*keys - made, "artifacts", "charts"}
    assert re.findall(r"fleet credentials (\w+)", SHELL) == ["init", "export", "import", "show", "rotate"]


def test_secrets_are_set_as_secrets_and_never_on_the_command_line() -> None:
    for flags, key, rest in re.findall(r"config set ((?:--\w+ )*)fleet:(\w+)(.*)", SHELL):
        if key in SECRETS:
            assert "--secret" in flags
            assert re.fullmatch(r" -s sp( <\S+)?", rest)


def test_pinned_versions_are_those_of_the_project() -> None:
    common = shipped()["common"]
    assert f"--version {common['cilium']['version']}" in SHELL
    assert f"--repo {cilium('1').repository}" in SHELL
    assert all(f"k3s/{version}/k3s" in TEXT for version in common["k3s_checksums"])
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for plugin, version in re.findall(r"`(command|random|kubernetes)` ([\d.]+\d)", TEXT):
        assert f"\npulumi-{plugin}=={version} " in lock


def test_the_example_node_passes_the_rules_and_adds_what_the_page_says(tmp_path: Path) -> None:
    guest, agents = (yaml.safe_load(body) for kind, body in BLOCKS if kind == "yaml")
    changed = patched(
        shipped(),
        {"sp.guests.vm-sp-03": guest["vm-sp-03"], "sp.clusters.cluster-sp.agents": agents["agents"]},
    )
    folder_with(tmp_path, changed)
    ran = project.fleet("check", "--folder", str(tmp_path))
    assert ran.code == 0, ran.text
    before = {one["name"] for one in json.loads(project.fleet("plan", "sp", "--json").out)}
    after = {one["name"] for one in json.loads(project.fleet("plan", "sp", "--json", "--folder", str(tmp_path)).out)}
    assert before - after == set()
    guests = {"guest-vm-sp-03", "guest-vm-sp-03-vm", "guest-vm-sp-03-contact"}
    told = re.search(r"commands of the cluster for the new node: (.*?)\.", TEXT, re.DOTALL)
    assert told
    roles = re.findall(r"`(\w+)`", told[1])
    assert after - before == guests | {f"k3s-cluster-sp-{role}-vm-sp-03" for role in roles}


def test_links_and_headings_agree() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in TEXT.splitlines()
        if line.startswith("## ")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) == headings
    assert all((ROOT / "docs" / path).exists() for path in re.findall(r"\]\(([\w./-]+)\)", TEXT))


def test_shell_blocks_are_sound_shell() -> None:
    shell = shutil.which("sh")
    assert shell
    text = SHELL.replace("<checksum of SHA256SUMS>", "checksum")
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False, timeout=10)
    assert done.returncode == 0, done.stderr
