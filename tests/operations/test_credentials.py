"""`fleet credentials`: one CA for the fleet, certificates of each site, and no secret where others can read it.

The engine is a stand-in that keeps configuration in a file and writes down its command lines; OpenSSL judges what is
made. The real engine takes part in the lab.
"""

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

import cli.credentials
from cli import documents
from cli.faults import Stop
from infra.certificates import Pair, faults, fingerprint
from infra.config import Fleet
from infra.names import MESH_KEYS
from operations import credentials, expiry
from operations.authority import new_authority, new_leaf, new_leaves
from operations.credentials import CredentialsError
from operations.engine import Engine
from operations.sealed import SealError, opened, seal
from tests.sites import changed, three_sites

PASSPHRASE = "correct horse battery"
STAND_IN = """\
#!{python}
import json, pathlib, sys
arguments = sys.argv[1:]
folder = pathlib.Path(arguments[arguments.index("--cwd") + 1])
with (folder / "command-lines").open("a") as log:
    log.write(json.dumps(arguments) + "\\n")
kept = folder / ("kept." + arguments[arguments.index("--stack") + 1] if "--stack" in arguments else "kept")
config = json.loads(kept.read_text()) if kept.exists() else {{}}
if arguments[:4] == ["config", "set", "--secret", "--raw"]:
    config[arguments[4]] = {{"value": sys.stdin.read(), "secret": True}}
    kept.write_text(json.dumps(config))
elif arguments[0] == "config":
    assert "--show-secrets" in arguments
    print(json.dumps(config))
elif arguments[0] == "version":
    print("v3.272.0")
else:
    sys.exit("unknown: " + " ".join(arguments))
"""


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    program, folder = tmp_path / "pulumi", tmp_path / "project"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    folder.mkdir()
    return Engine(program=program, folder=folder)


def fleet_with(fingerprint_of_ca: str | None) -> Fleet:
    return changed(lambda found: found["common"]["cilium"].update(ca_sha256=fingerprint_of_ca))


def kept(engine: Engine, site: str) -> dict[str, str]:
    path = engine.folder / f"kept.{site}"
    return {key: entry["value"] for key, entry in json.loads(path.read_text()).items()} if path.exists() else {}


def openssl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    program = shutil.which("openssl")
    assert program, "OpenSSL is the judge of these tests"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=30)


# What is made


@pytest.mark.parametrize("role", MESH_KEYS)
def test_msh_03_openssl_verifies_every_certificate_against_the_shared_ca(tmp_path: Path, role: str) -> None:
    authority = new_authority()
    ca, leaf = tmp_path / "ca.crt", tmp_path / "leaf.crt"
    ca.write_text(authority[0])
    for cluster in ("cluster-fca", "cluster-sp"):
        leaf.write_text(new_leaf(authority, role, cluster)[0])
        purposes = ("sslserver", "sslclient") if role == "server" else ("sslclient",)
        for purpose in purposes:
            done = openssl("verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(ca), str(leaf))
            assert done.returncode == 0, done.stdout + done.stderr
    ca.write_text(new_authority()[0])
    assert openssl("verify", "-CAfile", str(ca), str(leaf)).returncode != 0


@pytest.mark.parametrize(
    ("option", "name", "good"),
    [
        ("-checkhost", "clustermesh-apiserver.cilium.io", True),
        ("-checkhost", "cluster-fca.mesh.cilium.io", True),
        ("-checkhost", "clustermesh-apiserver.kube-system.svc", True),
        ("-checkip", "127.0.0.1", True),
        ("-checkip", "::1", True),
        ("-checkhost", "clustermesh-apiserver.default.svc", False),
    ],
)
def test_msh_06_the_server_has_the_names_that_agents_and_peers_check(
    tmp_path: Path, option: str, name: str, good: bool
) -> None:
    leaf = tmp_path / "leaf.crt"
    leaf.write_text(new_leaf(new_authority(), "server", "cluster-sp")[0])
    said = openssl("x509", "-in", str(leaf), "-noout", option, name).stdout
    assert ("does match" in said) is good


@pytest.mark.parametrize(("role", "name"), [(role, f"{role}-cluster-sp") for role in ("admin", "remote", "local")])
def test_msh_06_a_client_is_named_as_its_user(tmp_path: Path, role: str, name: str) -> None:
    leaf = tmp_path / "leaf.crt"
    leaf.write_text(new_leaf(new_authority(), role, "cluster-sp")[0])
    said = openssl("x509", "-in", str(leaf), "-noout", "-subject", "-purpose").stdout
    assert f"CN = {name}" in said or f"CN={name}" in said
    assert "SSL server : No" in said


def test_a_certificate_ends_no_later_than_its_ca() -> None:
    old = new_authority(datetime.now(UTC) - timedelta(days=3600))
    record = dict(expiry_of({"ca": old[0], "admin": new_leaf(old, "admin", "cluster-sp")[0]}))
    assert record["admin"] <= record["ca"]


def expiry_of(certificates: dict[str, str]) -> list[tuple[str, datetime]]:
    from infra.certificates import expiry as when  # noqa: PLC0415

    return [(name, when(pem)) for name, pem in certificates.items()]


# Commands


def test_init_makes_ca_and_certificates_once(engine: Engine) -> None:
    fleet = fleet_with(None)
    done = credentials.init(engine, fleet, "franca")
    assert (done.made_authority, done.made_leaves) == (True, True)
    config = kept(engine, "franca")
    assert set(config) == {f"fleet:{key}" for pair in MESH_KEYS.values() for key in pair} | {
        "fleet:ciliumCaCert",
        "fleet:ciliumCaKey",
    }
    again = credentials.init(engine, fleet, "franca")
    assert (again.made_authority, again.made_leaves) == (False, False)
    assert kept(engine, "franca") == config


def test_init_mends_what_is_missing_or_wrong_and_keeps_the_ca(engine: Engine) -> None:
    fleet = fleet_with(None)
    credentials.init(engine, fleet, "sp")
    config = kept(engine, "sp")
    engine.keep_secret("sp", "fleet:meshAdminKey", "half")
    assert credentials.init(engine, fleet, "sp").made_leaves
    assert kept(engine, "sp")["fleet:ciliumCaKey"] == config["fleet:ciliumCaKey"]


def test_msh_03_no_second_ca_is_made(engine: Engine) -> None:
    with pytest.raises(CredentialsError, match="fleet credentials import sp"):
        credentials.init(engine, fleet_with("a" * 64), "sp")
    (engine.folder / "Pulumi.franca.yaml").write_text("config:\n  fleet:ciliumCaCert:\n    secure: v1:abc\n")
    with pytest.raises(CredentialsError, match="franca has one"):
        credentials.init(engine, fleet_with(None), "sp")
    assert kept(engine, "sp") == {}


def test_the_ca_travels_in_a_sealed_file_and_the_keys_of_a_site_stay(engine: Engine) -> None:
    credentials.init(engine, fleet_with(None), "franca")
    fleet = fleet_with(fingerprint(kept(engine, "franca")["fleet:ciliumCaCert"]))
    sealed = credentials.export(engine, fleet, "franca", PASSPHRASE)
    mine = kept(engine, "franca")
    assert not [text for text in mine.values() if text in sealed]
    plain = opened(sealed, PASSPHRASE)
    assert json.loads(plain)["key"] == mine["fleet:ciliumCaKey"]
    assert not [
        mine[f"fleet:{key}"] for _, key in MESH_KEYS.values() if mine[f"fleet:{key}"] in json.loads(plain).values()
    ]
    done = credentials.take(engine, fleet, "sp", sealed, PASSPHRASE)
    assert done.made_leaves
    assert kept(engine, "sp")["fleet:ciliumCaCert"] == mine["fleet:ciliumCaCert"]
    assert list(faults(mine["fleet:ciliumCaCert"], "cluster-sp", done.held.leaves)) == []


def test_msh_03_a_file_with_another_ca_is_refused(engine: Engine) -> None:
    authority = new_authority()
    sealed = seal(json.dumps({"kind": "fleet-authority", "certificate": authority[0], "key": authority[1]}), PASSPHRASE)
    with pytest.raises(CredentialsError, match="MSH-03"):
        credentials.take(engine, fleet_with("b" * 64), "sp", sealed, PASSPHRASE)
    credentials.init(engine, fleet_with(None), "sp")
    with pytest.raises(CredentialsError, match="found another CA"):
        credentials.take(engine, fleet_with(None), "sp", sealed, PASSPHRASE)


def test_msh_03_before_the_documents_have_a_fingerprint_the_records_of_others_are_compared(engine: Engine) -> None:
    credentials.init(engine, fleet_with(None), "franca")
    good = credentials.export(engine, fleet_with(None), "franca", PASSPHRASE)
    other = new_authority()
    foreign = seal(json.dumps({"kind": "fleet-authority", "certificate": other[0], "key": other[1]}), PASSPHRASE)
    with pytest.raises(CredentialsError, match=r"expected that of franca.*evidence/credentials/franca\.yaml"):
        credentials.take(engine, fleet_with(None), "sp", foreign, PASSPHRASE)
    assert "fleet:ciliumCaCert" not in kept(engine, "sp")
    assert credentials.take(engine, fleet_with(None), "sp", good, PASSPHRASE).made_leaves


@pytest.mark.parametrize(
    "change", [lambda text: text[:-40] + "}", lambda text: "{}", lambda text: "\x00", lambda text: ""]
)
def test_a_damaged_file_is_a_message(engine: Engine, change: Callable[[str], str]) -> None:
    with pytest.raises(CredentialsError, match="expected"):
        credentials.take(engine, fleet_with(None), "sp", change(seal("{}", PASSPHRASE)), PASSPHRASE)


def test_a_wrong_passphrase_and_a_changed_token_open_nothing() -> None:
    sealed = seal("secret", PASSPHRASE)
    with pytest.raises(SealError, match="wrong passphrase"):
        opened(sealed, PASSPHRASE + "x")
    token = json.loads(sealed)
    token["token"] = token["token"][:50] + ("A" if token["token"][50] != "A" else "B") + token["token"][51:]
    with pytest.raises(SealError, match="changed"):
        opened(json.dumps(token), PASSPHRASE)
    with pytest.raises(SealError, match="another kind"):
        opened(json.dumps(json.loads(sealed) | {"n": 1 << 30}), PASSPHRASE)
    with pytest.raises(SealError, match="12 or more"):
        seal("secret", "short")


@pytest.mark.parametrize("inside", ["[" * 100_000, "[1]", '{"kind": "other"}'], ids=["deep", "list", "other"])
def test_a_sealed_file_that_holds_something_else_is_a_message(engine: Engine, inside: str) -> None:
    with pytest.raises(CredentialsError, match="expected"):
        credentials.take(engine, fleet_with(None), "sp", seal(inside, PASSPHRASE), PASSPHRASE)


def test_a_certificate_that_is_no_ca_issues_nothing(engine: Engine) -> None:
    leaf = new_leaf(new_authority(), "server", "cluster-sp")
    sealed = seal(json.dumps({"kind": "fleet-authority", "certificate": leaf[0], "key": leaf[1]}), PASSPHRASE)
    with pytest.raises(CredentialsError, match="no CA"):
        credentials.take(engine, fleet_with(None), "sp", sealed, PASSPHRASE)
    assert not kept(engine, "sp")


def test_a_rotation_that_was_cut_off_within_the_ca_is_told_and_not_exported(engine: Engine) -> None:
    credentials.init(engine, fleet_with(None), "sp")
    engine.keep_secret("sp", "fleet:ciliumCaCert", new_authority()[0])
    for attempt in (credentials.init, credentials.rotate):
        with pytest.raises(CredentialsError, match="rotate sp --ca"):
            attempt(engine, fleet_with(None), "sp")
    with pytest.raises(CredentialsError, match="rotate sp --ca"):
        credentials.export(engine, fleet_with(None), "sp", PASSPHRASE)
    credentials.rotate(engine, fleet_with(None), "sp", authority=True)
    assert credentials.export(engine, fleet_with(None), "sp", PASSPHRASE)


def test_a_passphrase_that_is_no_text_is_a_message() -> None:
    with pytest.raises(SealError, match="UTF-8"):
        seal("secret", "\udcff" * 20)
    with pytest.raises(SealError, match="UTF-8"):
        opened(seal("secret", PASSPHRASE), "\udcff" * 20)


def test_rotate_changes_the_certificates_alone(engine: Engine) -> None:
    fleet = fleet_with(None)
    credentials.init(engine, fleet, "sp")
    before = kept(engine, "sp")
    credentials.rotate(engine, fleet, "sp")
    after = kept(engine, "sp")
    assert {key for key in after if after[key] != before[key]} == {
        f"fleet:{key}" for pair in MESH_KEYS.values() for key in pair
    }


def test_rotate_with_the_ca_changes_everything_and_the_other_site_follows(engine: Engine) -> None:
    credentials.init(engine, fleet_with(None), "franca")
    old = kept(engine, "franca")["fleet:ciliumCaCert"]
    done = credentials.rotate(engine, fleet_with(fingerprint(old)), "franca", authority=True)
    assert done.made_authority
    new = kept(engine, "franca")["fleet:ciliumCaCert"]
    assert fingerprint(new) != fingerprint(old)
    fleet = fleet_with(fingerprint(new))
    sealed = credentials.export(engine, fleet, "franca", PASSPHRASE)
    credentials.init(engine, fleet_with(None), "sp")
    credentials.rotate(engine, fleet, "sp", authority=True, sealed=sealed, passphrase=PASSPHRASE)
    assert kept(engine, "sp")["fleet:ciliumCaCert"] == new


def test_a_site_outside_the_mesh_has_nothing_to_make(engine: Engine) -> None:
    fleet = changed(lambda found: found["sp"]["clusters"]["cluster-sp"].update(in_mesh=False))
    with pytest.raises(CredentialsError, match="in_mesh"):
        credentials.init(engine, fleet, "sp")


def test_sec_07_no_secret_is_on_a_command_line_in_a_record_or_in_a_plain_file(engine: Engine) -> None:
    fleet = fleet_with(None)
    credentials.init(engine, fleet, "sp")
    credentials.rotate(engine, fleet, "sp")
    lines = (engine.folder / "command-lines").read_text()
    assert lines.count('"set"') >= 18
    keys = [text for key, text in kept(engine, "sp").items() if key.endswith("Key")]
    assert keys
    for path in engine.folder.rglob("*"):
        if path.is_file() and not path.name.startswith("kept."):
            text = path.read_text()
            assert "PRIVATE KEY" not in text, path
            assert not [line for key in keys for line in key.splitlines()[1:-1] if line in text], path


# Expiry


def test_the_record_holds_public_facts_alone(engine: Engine) -> None:
    done = credentials.init(engine, fleet_with(None), "sp")
    assert done.record == engine.folder / "evidence" / "credentials" / "sp.yaml"
    record = yaml.safe_load(done.record.read_text())["certificates"]
    assert [one["name"] for one in record] == ["ca", *MESH_KEYS]
    assert record[0]["sha256"] == fingerprint(kept(engine, "sp")["fleet:ciliumCaCert"])
    assert all(set(one) == {"name", "sha256", "expires"} for one in record)


@pytest.mark.parametrize(("days", "names"), [(1034, []), (1036, list(MESH_KEYS)), (1200, list(MESH_KEYS))])
def test_check_warns_60_days_before_a_recorded_certificate_ends(tmp_path: Path, days: int, names: list[str]) -> None:
    authority = new_authority()
    leaves: dict[str, Pair] = new_leaves(authority, "cluster-sp")
    expiry.write(tmp_path, "sp", {"ca": authority[0]} | {role: pair[0] for role, pair in leaves.items()})
    record, found_faults = expiry.load(tmp_path, "sp")
    assert found_faults == []
    found = list(expiry.due(record, "sp", datetime.now(UTC) + timedelta(days=days)))
    assert [one.path for one in found] == [f"sp.credentials.{name}" for name in names]
    assert {one.level.value for one in found} <= {"warn"}


def project_of(tmp_path: Path) -> Path:
    for path in documents.ROOT.glob("Pulumi*.yaml"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_fleet_check_reads_the_record_and_refuses_a_damaged_one(tmp_path: Path) -> None:
    folder = project_of(tmp_path)
    before = documents.judged(folder)
    old = new_authority(datetime.now(UTC) - timedelta(days=3650 - 30))
    path = expiry.write(folder, "sp", {"ca": old[0]})
    after = documents.judged(folder)
    new = set(after.warnings) - set(before.warnings)
    assert [(one.id, one.path) for one in new] == [("MSH-06", "sp.credentials.ca")]
    assert "--ca" in next(iter(new)).remedy
    path.write_text("certificates: [{name: ca, sha256: nonsense, expires: tomorrow}]\n")
    damaged = documents.judged(folder)
    assert [stop for stop in damaged.stops if stop.path.startswith("sp.credentials")]
    path.write_text("{")
    assert [stop.path for stop in documents.judged(folder).stops] == ["evidence/credentials/sp.yaml:2"]


# The command line


@pytest.fixture
def commands(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(documents, "ROOT", project_of(engine.folder))
    monkeypatch.setattr(cli.credentials, "engine", lambda _: engine)
    monkeypatch.setenv("FLEET_CREDENTIALS_PASSPHRASE", PASSPHRASE)
    return engine


def test_commands_print_certificates_and_never_a_key(
    commands: Engine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "fleet.sealed"
    cli.credentials.init("franca")
    cli.credentials.export("franca", file)
    cli.credentials.take("sp", file)
    cli.credentials.rotate("sp", authority=False, source=None, yes=False)
    cli.credentials.show("sp", as_json=False)
    cli.credentials.show("sp", as_json=True)
    said = capsys.readouterr()
    secret = [text for site in ("franca", "sp") for key, text in kept(commands, site).items() if key.endswith("Key")]
    printed = said.out + said.err + file.read_text()
    assert not [line for text in secret for line in text.splitlines()[1:-1] if line in printed]
    assert "cilium.ca_sha256" in said.out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_nothing_is_overwritten_and_a_lone_from_is_refused(commands: Engine, tmp_path: Path) -> None:
    file = tmp_path / "there"
    file.write_text("mine")
    with pytest.raises(Stop, match="nothing is overwritten"):
        cli.credentials.export("franca", file)
    assert file.read_text() == "mine"
    with pytest.raises(Stop, match="--ca"):
        cli.credentials.rotate("franca", authority=False, source=file, yes=True)


def test_files_that_are_none_are_messages(commands: Engine, tmp_path: Path) -> None:
    cli.credentials.init("franca")
    for name in ("a" * 300, "no-folder/file"):
        with pytest.raises(Stop, match="name a file"):
            cli.credentials.export("franca", tmp_path / name)
    with pytest.raises(Stop, match="found more than"):
        cli.credentials.take("sp", Path("/dev/zero"))
    record = expiry.path_of(commands.folder, "franca")
    record.unlink()
    record.mkdir()
    with pytest.raises(Stop, match=r"credentials/franca\.yaml"):
        cli.credentials.rotate("franca", authority=False, source=None, yes=True)


def test_the_passphrase_comes_from_a_file_too_and_is_asked_for_only_at_a_terminal(
    commands: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.credentials.init("franca")
    phrase, file = tmp_path / "phrase", tmp_path / "sealed"
    phrase.write_text(PASSPHRASE + "\n")
    monkeypatch.delenv("FLEET_CREDENTIALS_PASSPHRASE")
    with phrase.open() as no_terminal:
        monkeypatch.setattr("sys.stdin", no_terminal)
        with pytest.raises(Stop, match="no terminal"):
            cli.credentials.export("franca", file)
    monkeypatch.setenv("FLEET_CREDENTIALS_PASSPHRASE_FILE", str(phrase))
    cli.credentials.export("franca", file)
    assert opened(file.read_text(), PASSPHRASE)


def test_a_new_ca_needs_a_yes(commands: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cli.credentials.init("franca")
    before: dict[str, Any] = kept(commands, "franca")
    (tmp_path / "nothing").touch()
    with (tmp_path / "nothing").open() as empty:
        monkeypatch.setattr("sys.stdin", empty)
        with pytest.raises(Stop, match="--yes"):
            cli.credentials.rotate("franca", authority=True, source=None, yes=False)
    assert kept(commands, "franca") == before


def test_every_member_of_the_shipped_fleet_can_have_certificates() -> None:
    assert {site_id for site_id in three_sites().sites if three_sites().sites[site_id].mesh_member} == set(
        three_sites().sites
    )
