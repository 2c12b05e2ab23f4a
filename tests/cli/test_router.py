"""`fleet render` and `fleet vyos diff` as a person runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import project
from tests.cli.project import ROOT, fleet_process, folder_with
from tests.rules.documents import patched, shipped
from tests.vyos.foreign import FOREIGN

KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I="


def rendered(site: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "config/vyos").glob(f"*/{site}.conf")))


def test_render_prints_what_lies_in_the_project() -> None:
    ran = project.fleet("render", "sp")
    assert ran.code == 0
    assert all(line in ran.out for line in rendered("sp").splitlines())
    assert project.fleet("render", "--all", "--check").code == 0


def test_render_writes_and_checks_a_folder(tmp_path: Path) -> None:
    folder_with(tmp_path, shipped())
    old = tmp_path / "config/vyos/bgp/gone.conf"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    arguments = ("--folder", str(tmp_path))
    assert project.fleet("render", "--all", "--check", *arguments).code == 1
    assert project.fleet("render", "--all", "--write", *arguments).code == 0
    assert project.fleet("render", "--all", "--check", *arguments).code == 0
    assert not old.exists()
    (tmp_path / "config/vyos/wireguard/sp.conf").write_text("by hand")
    ran = project.fleet("render", "sp", "--check", *arguments)
    assert (ran.code, "wireguard/sp.conf" in ran.err) == (1, True)


@pytest.mark.parametrize("arguments", [(), ("sp", "--all"), ("paris",), ("sp", "--write", "--check")])
def test_render_answers_a_wrong_request(arguments: tuple[str, ...]) -> None:
    assert project.fleet("render", *arguments).code == 1


def test_render_refuses_documents_with_faults(tmp_path: Path) -> None:
    folder_with(tmp_path, patched(shipped(), {"sp.vyos.version": "1.3"}))
    ran = project.fleet("render", "--all", "--write", "--folder", str(tmp_path))
    assert ran.code == 1
    assert "upgrade the router first" in ran.text
    assert not (tmp_path / "config").exists()


def complete(site: str) -> str:
    lines = "\n".join(line.replace("@@WG0_PRIVATE_KEY@@", KEY) for line in rendered(site).splitlines())
    own = "".join(
        f"set firewall zone {zone} description 'x'\nset firewall ipv4 name {zone}-LOCAL default-action 'drop'\n"
        for zone in ("LAN", "LOCAL", "WAN")
    )
    return f"{lines}\n{own}"


def test_an_equal_router_is_exit_code_0_and_silence(tmp_path: Path) -> None:
    (tmp_path / "router").write_text(complete("franca"))
    ran = project.fleet("vyos", "diff", "franca", str(tmp_path / "router"))
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_a_different_router_is_exit_code_1_with_deletions_first_and_no_secret(tmp_path: Path) -> None:
    stale = f"set interfaces wireguard wg0 peer old preshared-key '{KEY}'\n"
    stale += "set policy route-map FLEET-OLD rule 1 action permit\n"
    (tmp_path / "router").write_text(complete("franca").replace("mtu '1420'", "mtu '1400'") + stale)
    ran = project.fleet("vyos", "diff", "franca", str(tmp_path / "router"))
    assert ran.code == 1
    assert ran.out.splitlines() == [
        "delete interfaces wireguard wg0 peer old",
        "delete policy route-map FLEET-OLD",
        "set interfaces wireguard wg0 mtu '1420'",
    ]
    assert KEY not in ran.out + ran.err


def test_a_foreign_saved_file_keeps_all_it_has_and_placeholders_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.boot").write_text(FOREIGN)
    ran = project.fleet("vyos", "diff", "franca", str(tmp_path / "config.boot"))
    assert ran.code == 1
    assert "delete" not in ran.out
    assert "@@WG0_PRIVATE_KEY@@" in ran.err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "set interfaces wireguard wg0 private-key '****************'",
        FOREIGN.replace("firewall@15", "firewall@5"),
        FOREIGN.replace("firewall@15", "firewall@19"),
    ],
)
def test_what_cannot_be_compared_is_exit_code_2(tmp_path: Path, text: str) -> None:
    (tmp_path / "router").write_text(text)
    ran = project.fleet("vyos", "diff", "franca", str(tmp_path / "router"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


@pytest.mark.parametrize(("site", "file"), [("paris", "/dev/null"), ("sp", "/nowhere"), ("sp", "/")])
def test_no_site_and_no_file_are_exit_code_2(site: str, file: str) -> None:
    assert project.fleet("vyos", "diff", site, file).code == 2


def test_bytes_that_are_no_text_are_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "router").write_bytes(b"\xff\xfe\x00")
    assert project.fleet("vyos", "diff", "sp", str(tmp_path / "router")).code == 2


def test_standard_input_is_read() -> None:
    ran = fleet_process("vyos", "diff", "sp", "-")
    assert (ran.code, "holds no configuration" in ran.err) == (2, True)


def test_a_pipe_is_read_as_a_file_is(tmp_path: Path) -> None:
    """As in `fleet vyos diff sp <(ssh router show configuration commands)`."""
    (tmp_path / "running").write_text(complete("sp"))
    line = f'"$1" -P -m cli vyos diff sp <(cat {tmp_path}/running)'
    done = subprocess.run(
        ["bash", "-c", line, "bash", sys.executable],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_an_endless_file_is_no_configuration() -> None:
    ran = project.fleet("vyos", "diff", "sp", "/dev/zero")
    assert (ran.code, "more than 16 MiB" in ran.text) == (2, True)
