"""`fleet vyos apply` against a stand-in router: real SSH, real bash, made-up VyOS commands (no VyOS can be had)."""

import hashlib
import logging
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import yaml

import cli.applying
from cli import documents
from infra.config import Fleet
from infra.vyos import artefacts
from infra.vyos.ownership import Difference, is_open
from infra.vyos.statements import Statement, read
from operations.router import change, ssh
from operations.router.plan import Plan
from tests.cli.project import Ran, folder_with
from tests.cli.project import fleet as command
from tests.operations.loop import Loop
from tests.rules.documents import fleet_of, patched, shipped
from tests.vyos.foreign import FOREIGN
from tests.vyos.standin import StandIn
from tests.vyos.vyatta import KEY as PUBLIC

WG_KEY = "bWFya2VyLW1hcmtlci1tYXJrZXItbWFya2VyLW1hcmsu"[:43] + "="
PASSWORD = "marker-of-a-password"
THEIRS = [one for one in read(FOREIGN) if "5010" not in one]
# What the router lacks in most tests: a key, a password, a neighbor and one rule.
LACKING = ("private-key", "password", "192.168.0.14")


def opted_in(router: StandIn, **changes: Any) -> Any:
    """The documents with every value of the router's configuration confirmed."""
    host_key = " ".join(router.host_key.export_public_key().decode().split()[:2])
    found = shipped()
    for name in ("franca", "sp"):
        kept = ("proxmox.", "network.bridge")
        found[name]["assumed"] = [path for path in found[name]["assumed"] if path.startswith(kept)]
        found[name]["wireguard"]["public_key"] = PUBLIC
    found["sp"]["wireguard"]["public_key"] = "c29tZS1wdWJsaWMta2V5LW9mLTMyLWJ5dGVzLTAwMDA="
    found["common"]["assumed"].remove("cilium.datapath")
    found["franca"]["bgp"]["authenticated"] = True
    reached = {"address": "127.0.0.1", "port": router.port, "user": "fleet", "host_key": host_key}
    values = {"apply": True, "backup_ref": "pbs:vyos/1", "ssh": reached}
    return patched(found, {f"franca.vyos.{key}": value for key, value in values.items()} | changes)


class StandInEngine:
    """Hands out the secrets of a stack."""

    def __init__(self, private_key: str) -> None:
        self.secrets = {"sshPrivateKey": private_key, "wg0PrivateKey": WG_KEY, "bgpPassword": PASSWORD}

    def plain(self, site: str, arguments: tuple[str, ...]) -> dict[str, Any]:
        assert (site, arguments) == ("franca", ("config", "--json"))
        return {f"fleet:{key}": {"value": value, "secret": True} for key, value in self.secrets.items()}


class Site:
    """A folder with documents, the stack's secrets, and the router that they are about."""

    def __init__(self, router: StandIn, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.router, self.folder = router, folder
        folder.mkdir()
        self.engine = StandInEngine(router.key.export_private_key().decode())
        monkeypatch.setattr(cli.applying, "engine", lambda _: self.engine)
        monkeypatch.setattr(documents, "ROOT", folder)
        self.write()

    def write(self, **changes: Any) -> None:
        folder_with(self.folder, opted_in(self.router, **changes))

    def apply(self, *arguments: str) -> Ran:
        return command("vyos", "apply", "franca", *(arguments or ("--yes",)))

    @property
    def evidence(self) -> list[dict[str, str]]:
        path = self.folder / "evidence/franca.yaml"
        return list(yaml.safe_load(path.read_text())["evidence"]) if path.exists() else []


def fleet(router: StandIn) -> Fleet:
    found, faults = fleet_of(opted_in(router))
    assert found is not None, faults
    return found


def wanted(router: StandIn) -> set[Statement]:
    """What the router should have, with its keys in."""
    keys = {"private-key": WG_KEY, "password": PASSWORD}
    rendered = artefacts.statements(fleet(router), "franca")
    return {(*one[:-1], keys[one[-2]]) if is_open(one) else one for one in rendered}


@pytest.fixture
def make(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    """A site whose router lacks some of what is rendered."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(change, "VERIFY_S", 0)
    monkeypatch.setattr(change, "PAUSE_S", 0.1)
    made: list[StandIn] = []

    def make(lacking: tuple[str, ...] = LACKING) -> Site:
        router = StandIn(loop, tmp_path / "router")
        made.append(router)
        router.give([*THEIRS, *sorted(one for one in wanted(router) if not set(lacking) & set(one))])
        return Site(router, tmp_path / "project", monkeypatch)

    yield make
    for router in made:
        router.close()


def nothing_changed(site: Site) -> bool:
    router = site.router
    return router.running == router.saved and not router.armed and PASSWORD not in (router.state / "active").read_text()


def test_net_15_a_router_gets_what_it_lacks_after_a_recorded_backup(make: Callable[..., Site]) -> None:
    site = make()
    router = site.router
    before, saved = set(router.running), (router.state / "config/config.boot").read_bytes()
    ran = site.apply()
    assert ran.code == 0, ran.text
    assert router.running == before | wanted(router)
    assert router.saved == router.running
    assert not router.armed
    (backup,) = router.backups
    assert backup.read_bytes() == saved
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    (record,) = site.evidence
    assert (record["what"], record["kind"]) == ("vyos", "vyos-archive")
    assert record["reference"] == f"fleet@127.0.0.1:/config/{backup.name} sha256:{hashlib.sha256(saved).hexdigest()}"
    assert "set protocols bgp neighbor 192.168.0.14 peer-group 'FLEET-CILIUM'" in ran.out
    assert "RESTARTS" in ran.out
    again = site.apply()
    assert (again.code, "nothing to do" in again.text) == (0, True)
    assert len(site.evidence) == len(router.backups) == 1


def test_statements_of_every_part_arrive_as_they_are_rendered(make: Callable[..., Site]) -> None:
    site = make()
    lacking = sorted(wanted(site.router))[::4]  # each is a process of the stand-in, which takes its time
    site.router.give([*THEIRS, *sorted(wanted(site.router) - set(lacking))])
    assert {one[0] for one in lacking} == {"firewall", "interfaces", "policy", "protocols"}
    assert site.apply().code == 0
    assert site.router.running == set(THEIRS) | wanted(site.router)


def test_sec_07_keys_reach_the_router_alone(
    make: Callable[..., Site], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    site = make()
    site.router.trap("refuses", "FLEET-NONE")  # what it refuses it quotes
    site.router.give([one for one in site.router.running if "FLEET-NONE" not in one])
    said = [site.apply().text]
    site.router.trap("refuses", WG_KEY)
    said.append(site.apply().text)
    assert "set interfaces wireguard wg0 private-key @@WG0_PRIVATE_KEY@@" in said[1]
    assert "***" in said[1]
    site.router.mend()
    said += [site.apply("--dry-run").text, site.apply().text]
    said += [caplog.text, *capfd.readouterr(), *site.router.commands]
    said += [path.read_text() for path in site.folder.rglob("*") if path.is_file()]
    assert WG_KEY in (site.router.state / "active").read_text()
    for secret in (WG_KEY, PASSWORD, site.engine.secrets["sshPrivateKey"].splitlines()[1]):
        assert not [text for text in said if secret in text]
    assert list((site.router.state / "dev/shm").iterdir()) == []


def test_a_dry_run_changes_nothing(make: Callable[..., Site]) -> None:
    site = make()
    ran = site.apply("--dry-run")
    assert ran.code == 0
    assert "private-key '@@WG0_PRIVATE_KEY@@'" in ran.out
    assert "stands for the secret fleet:wg0PrivateKey" in ran.text
    assert nothing_changed(site)
    assert (site.router.backups, site.evidence) == ([], [])


def test_without_a_terminal_or_yes_nothing_is_asked_or_done(make: Callable[..., Site]) -> None:
    site = make()
    ran = command("vyos", "apply", "franca")
    assert (ran.code, "expected --yes" in ran.text) == (1, True)
    assert nothing_changed(site)


def test_net_15_a_document_that_did_not_opt_in_is_refused_before_anything_is_sent(make: Callable[..., Site]) -> None:
    site = make()
    site.write(**{"franca.vyos.apply": False})
    ran = site.apply()
    assert (ran.code, "[NET-15] franca.vyos.apply: found false" in ran.text) == (1, True)
    assert site.router.commands == []


@pytest.mark.parametrize("path", ["franca.vyos.version", "sp.wireguard.mtu", "common.cilium.datapath"])
def test_gen_07_an_assumed_value_that_the_router_follows_from_is_refused(make: Callable[..., Site], path: str) -> None:
    site = make()
    root, key = path.split(".", 1)
    assumed = opted_in(site.router)[root]["assumed"]
    site.write(**{f"{root}.assumed": [*assumed, key]})
    ran = site.apply()
    assert (ran.code, f"[GEN-07] {path}" in ran.text) == (1, True)
    assert site.router.commands == []


def test_another_host_key_is_not_spoken_to(make: Callable[..., Site]) -> None:
    site = make()
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().split()[:2]
    site.write(**{"franca.vyos.ssh.host_key": " ".join(other)})
    ran = site.apply()
    assert (ran.code, "another host key than vyos.ssh.host_key" in ran.text) == (1, True)
    assert site.router.commands == []


def test_a_login_without_our_key_and_a_silent_port_are_told(make: Callable[..., Site]) -> None:
    site = make()
    site.engine.secrets["sshPrivateKey"] = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
    assert "does not accept fleet:sshPrivateKey" in site.apply().text
    site.engine.secrets["sshPrivateKey"] = "no key"
    assert "fleet:sshPrivateKey is no private key" in site.apply().text
    site.engine.secrets["sshPrivateKey"] = site.router.key.export_private_key().decode()
    site.write(**{"franca.vyos.ssh.port": 9})
    assert "port 9: no answer" in site.apply().text


def test_a_port_that_takes_a_connection_and_says_nothing_is_told(
    make: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "CONNECT_TIMEOUT_S", 0.3)
    site = make()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        site.write(**{"franca.vyos.ssh.port": silent.getsockname()[1]})
        assert "no answer (in time)" in site.apply().text


@pytest.mark.parametrize(
    ("key", "value"), [("wg0PrivateKey", "short"), ("bgpPassword", "it's"), ("bgpPassword", "a\nb")]
)
def test_a_secret_that_vyos_would_not_take_is_named_and_not_shown(
    make: Callable[..., Site], key: str, value: str
) -> None:
    site = make()
    site.engine.secrets[key] = value
    ran = site.apply()
    assert (ran.code, f"fleet:{key}: found a value that VyOS does not take" in ran.text) == (1, True)
    assert value not in ran.text
    del site.engine.secrets[key]
    assert f"[SEC-07] franca.fleet:{key}: found nothing" in site.apply().text
    assert nothing_changed(site)


def test_a_refused_line_is_named_and_nothing_is_committed(make: Callable[..., Site]) -> None:
    site = make()
    site.router.trap("refuses", "192.168.0.14")
    ran = site.apply()
    assert ran.code == 1
    assert "VyOS refused: set protocols bgp neighbor 192.168.0.14 peer-group" in ran.text
    assert "nothing was changed" in ran.text
    assert nothing_changed(site)
    assert not (site.router.state / "session").exists()


def test_a_failed_commit_says_when_the_router_restarts(make: Callable[..., Site]) -> None:
    site = make()
    site.router.trap("commit")
    ran = site.apply()
    assert ran.code == 1
    assert "the commit failed or did not end (Commit failed)" in ran.text
    assert "unless somebody confirms, the router RESTARTS into its saved configuration" in ran.text
    assert "10 minutes after the commit, at about" in ran.text
    assert site.router.running == site.router.saved


def test_a_connection_lost_after_the_commit_is_finished_by_the_next_run(make: Callable[..., Site]) -> None:
    site = make()
    site.router.drop_once_armed = True
    ran = site.apply()
    assert ran.code == 1
    assert "the connection was lost while the router worked" in ran.text
    assert "configure; confirm; save; exit" in ran.text
    assert site.router.armed
    assert site.router.running != site.router.saved
    again = site.apply()
    assert again.code == 0, again.text
    assert "an earlier run is not at its end: a commit-confirm waits since Tue 2026-12-01" in again.text
    assert not site.router.armed
    assert site.router.saved == site.router.running >= wanted(site.router)
    assert len(site.router.backups) == 1


@pytest.mark.parametrize(
    ("trap", "value", "told"),
    [
        ("tunnel", "", "there is no interface wg0"),
        ("loses", "192.168.0.14", "it lacks: protocols bgp neighbor 192.168.0.14"),
        ("loses", "LAN-LOCAL", "it lost: firewall"),
    ],
)
def test_what_does_not_read_back_is_not_confirmed_and_is_taken_back(
    make: Callable[..., Site], trap: str, value: str, told: str
) -> None:
    site = make()
    before = site.router.running
    site.router.trap(trap, value)
    ran = site.apply()
    assert ran.code == 1
    assert told in ran.text
    assert "RESTARTS" in ran.text
    assert site.router.armed
    assert site.router.saved == before
    site.router.run_out()
    site.router.mend()
    again = site.apply()
    assert (site.router.state / "restarted").exists()
    assert again.code == 0, again.text
    assert site.router.running == site.router.saved == before | wanted(site.router)


def test_a_commit_that_is_taken_back_while_it_is_confirmed_is_not_called_done(
    make: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make()
    before, real = site.router.running, ssh.confirm

    def late(router: ssh.Router) -> ssh.Ran:
        site.router.run_out()
        return real(router)

    monkeypatch.setattr(ssh, "confirm", late)
    ran = site.apply()
    assert (ran.code, "taken back before it was confirmed: it lacks: " in ran.text) == (1, True)
    assert site.router.running == site.router.saved == before


def test_another_key_pair_than_the_document_says_is_not_confirmed(make: Callable[..., Site]) -> None:
    site = make()
    site.write(**{"franca.wireguard.public_key": "b3RoZXItcHVibGljLWtleS1vZi0zMi1ieXRlcy0wMDA="})
    ran = site.apply()
    assert (ran.code, "wg0 has another key pair than wireguard.public_key says" in ran.text) == (1, True)
    assert site.router.armed


def test_a_commit_that_was_not_saved_is_told_and_saved_by_the_next_run(make: Callable[..., Site]) -> None:
    site = make()
    site.router.trap("save")
    ran = site.apply()
    assert (ran.code, "confirmed, but not saved: the router's next restart would lose it" in ran.text) == (1, True)
    site.router.mend()
    again = site.apply()
    assert (again.code, "its configuration is not saved" in again.text) == (0, True)
    assert site.router.saved == site.router.running


def test_unsaved_work_of_others_is_left_alone(make: Callable[..., Site]) -> None:
    site = make()
    running = site.router.running
    site.router.give([*running, ("system", "host-name", "new")], running)
    for _ in range(2):
        ran = site.apply()
        assert ran.code == 1
        assert "1 unsaved changes that are not of this program (system host-name)" in ran.text
        (site.router.state / "armed").write_text(str(time.time() + 60))  # and then somebody's commit-confirm
    assert "a commit-confirm waits there since" in ran.text
    assert site.router.backups == []


def test_a_router_that_changed_since_it_was_read_is_left_alone(
    make: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make()
    real, running = ssh.copy_saved, site.router.running

    def meanwhile(router: ssh.Router, path: str) -> str:
        digest = real(router, path)
        site.router.give([*running, ("system", "host-name", "new")])
        return digest

    monkeypatch.setattr(ssh, "copy_saved", meanwhile)
    ran = site.apply()
    assert (ran.code, "its configuration changed since it was read" in ran.text) == (1, True)
    assert nothing_changed(site)


def test_what_is_to_be_deleted_stays_a_persons(make: Callable[..., Site]) -> None:
    site = make()
    old = ("protocols", "bgp", "neighbor", "192.168.0.99", "peer-group", "FLEET-CILIUM")
    site.router.give([*site.router.running, old])
    ran = site.apply()
    assert ran.code == 0
    assert "left to a person, since this command only adds: delete protocols bgp neighbor 192.168.0.99" in ran.text
    assert old in site.router.saved


def test_a_rule_in_the_way_or_another_release_is_refused(make: Callable[..., Site]) -> None:
    site = make()
    zone = [one for one in site.router.running if one[:3] != ("firewall", "zone", "LAN")]
    site.router.give(zone)
    assert "in the way: there is no zone LAN" in site.apply().text
    site.write(**{"franca.vyos.version": "1.5"})
    assert "found a router with VyOS 1.4; expected 1.5; correct franca.vyos.version" in site.apply().text
    assert site.router.backups == []


def test_a_router_of_1_5_that_reloads_is_not_said_to_restart() -> None:
    found, _ = fleet_of(patched(shipped(), {"franca.vyos.version": "1.5"}))
    assert found is not None
    reload = ("system", "config-management", "commit-confirm", "action", "reload")
    decided = Plan(
        wanted=(),
        found=Difference((), (), ()),
        before=(reload,),
        running_sha256="",
        saved_sha256="",
        unsaved=False,
        armed="",
    )
    site = found.sites["franca"]
    assert "goes back to the configuration before, without a restart" in change.consequence(site, decided)
    assert "RESTARTS" in change.consequence(site, replace(decided, before=()))


def test_an_interruption_says_what_the_router_will_do(
    make: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(change, "settle", interrupted)
    ran = site.apply()
    assert ran.code == 130
    assert "if it came to the commit, unless somebody confirms, the router RESTARTS" in ran.text
    assert site.router.armed
