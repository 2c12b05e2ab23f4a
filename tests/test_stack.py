"""A run of `__main__.py` under mocks: what it asks of the engine, and what stops it before anything is registered."""

import asyncio
import base64
import copy
import json
import logging
import runpy
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from cli.plan import Recorder
from infra.config.loading import common_value, site_value
from infra.names import MESH_SECRETS, ROOT_PASSWORD, SECRETS
from infra.violation import InvariantError
from tests.sites import ROOT, THIRD, Documents, Record, authority, certified, confirmed, of_type, plain_documents

# Certificates are judged, so they are real ones: `certified`.
SECRET_VALUES = {f"fleet:{key}": f"MARK-{key}" for key in SECRETS}
MEMBERS = {"franca": "cluster-fca", "sp": "cluster-sp", THIRD: "north"}
GIVEN_OF_OLD = ("existing", "current", "ssh_user", "older_project", "handed_over")
BAD_MIRRORS = ("file:///etc/shadow", "-K/tmp/x", "http://u:p@m", "http://m/a b", "http://m\nlist_url=http://evil", "")
GIVEN = SECRET_VALUES | {"fleet:sshPublicKey": "ssh-ed25519 PUBLIC"}


@dataclass
class Run:
    """One run of the program and how it ended."""

    record: Record
    error: InvariantError | None = None
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def registered(self) -> set[str]:
        """Everything but the stack itself, which the engine makes."""
        return {name for kind, name in self.record if kind != "pulumi:pulumi:Stack"}

    def faults(self) -> list[tuple[str, str]]:
        assert self.error is not None, "the program went on"
        return [(violation.id, violation.path) for violation in self.error.violations]


@dataclass
class Project:
    """A folder with the program and documents, and what the engine knows of them."""

    folder: Path

    def write(self, documents: Documents) -> "Project":
        for name, value in documents.items():
            file = "Pulumi.yaml" if name == "common" else f"Pulumi.{name}.yaml"
            config = {"fleet:common": {"value": value}} if name == "common" else {"fleet:site": value}
            head = {"name": "fleet", "runtime": "python"} if name == "common" else {}
            text = yaml.safe_dump({**head, "config": config}, sort_keys=False)
            (self.folder / file).write_text(text, encoding="utf-8")
        return self

    def engine_config(self, stack: str) -> dict[str, str]:
        return {
            "fleet:site": json.dumps(site_value(self.folder / f"Pulumi.{stack}.yaml")),
            "fleet:common": json.dumps(common_value(self.folder / "Pulumi.yaml")),
        }

    def run(self, stack: str, *, preview: bool, plain: tuple[str, ...] = (), **config: str | None) -> Run:
        """`config` adds to what a sound stack has; None takes a key away. Keys of `plain` are not encrypted."""
        certificates = certified(MEMBERS[stack]) if stack in MEMBERS else {}
        known = (
            self.engine_config(stack) | GIVEN | certificates | {f"fleet:{key}": value for key, value in config.items()}
        )
        values = {key: value for key, value in known.items() if value is not None}
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        recorder = Recorder()
        pulumi.runtime.reset_options()
        pulumi.runtime.set_all_config(values, [key for key in values if key in SECRET_VALUES and key not in plain])
        run = Run(recorder.declared)
        try:
            pulumi.runtime.set_mocks(
                recorder.mocks,
                project="fleet",
                stack=stack,
                preview=preview,
                logger=logging.getLogger("engine"),
                monitor=recorder,
            )

            def program() -> None:
                run.result = runpy.run_path(str(self.folder / "__main__.py"))

            pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]  # the SDK's mocks are not typed
        except InvariantError as error:
            run.error = error
        finally:
            pulumi.runtime.set_all_config({}, [])
            pulumi.runtime.reset_options()
            loop.close()
            asyncio.set_event_loop(None)
        return run


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The shipped documents, verbatim."""
    for path in [ROOT / "__main__.py", *ROOT.glob("Pulumi*.yaml")]:
        shutil.copy(path, tmp_path)
    return Project(tmp_path)


@pytest.fixture
def sound(tmp_path: Path) -> Project:
    """All three sites with every value confirmed and no guest that exists."""
    shutil.copy(ROOT / "__main__.py", tmp_path)
    return Project(tmp_path).write(confirmed(plain_documents()))


def edited(project: Project, site_id: str, edit: Any) -> Project:
    file = "Pulumi.yaml" if site_id == "common" else f"Pulumi.{site_id}.yaml"
    value = common_value(project.folder / file) if site_id == "common" else site_value(project.folder / file)
    edit(value)
    return project.write({site_id: value})


# What goes through


@pytest.mark.parametrize("stack", ["franca", "sp"])
def test_a_preview_shows_the_shipped_sites_and_counts_what_is_assumed(
    project: Project, stack: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "engine"):
        run = project.run(stack, preview=True)
    assert run.error is None
    assert stack in run.registered
    documents = plain_documents()
    count = len(documents[stack]["assumed"]) + len(documents["common"]["assumed"])
    assert f"{count} assumed values: a real update refuses until each is confirmed" in caplog.text


@pytest.mark.parametrize("stack", ["franca", "sp", THIRD])
def test_a_real_update_of_a_confirmed_document_goes_through(sound: Project, stack: str) -> None:
    run = sound.run(stack, preview=False)
    assert run.error is None
    site = site_value(sound.folder / f"Pulumi.{stack}.yaml")
    assert {f"k3s-{cluster}" for cluster in site["clusters"]} <= run.registered
    assert set(run.result["site"].outputs) == set(site["clusters"])


def test_what_is_accepted_is_said_with_its_reason_and_warnings_are_printed_for_the_own_site_alone(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "engine"):
        project.run("sp", preview=True)
    assert "accepted: [TIER-09] sp.guests.gpu-sp-01.host" in caplog.text
    assert "because: pve-ippri-31 has run" in caplog.text
    assert "[BGP-12] sp.lb.pool" in caplog.text
    assert "[BGP-12] franca.lb.pool" not in caplog.text


# Gates


@pytest.mark.parametrize("stack", ["franca", "sp"])
def test_gen_07_a_real_update_names_every_assumed_value_of_its_site_and_of_the_fleet(
    project: Project, stack: str
) -> None:
    run = project.run(stack, preview=False)
    documents = plain_documents()
    expected = [("GEN-07", f"common.{path}") for path in documents["common"]["assumed"]]
    expected += [("GEN-07", f"{stack}.{path}") for path in documents[stack]["assumed"]]
    assert [fault for fault in run.faults() if fault[0] == "GEN-07"] == expected
    assert run.registered == set()


def settled(project: Project, edit: Any = lambda _: None) -> Project:
    """The shipped guests that exist already, with every value confirmed."""
    documents = plain_documents()
    current = {
        site_id: {
            name: {key: guest[key] for key in GIVEN_OF_OLD if key in guest} for name, guest in site["guests"].items()
        }
        for site_id, site in documents.items()
        if site_id != "common"
    }
    documents = confirmed(documents)
    for site_id, guests in current.items():
        for name, known in guests.items():
            documents[site_id]["guests"][name] |= known
        documents[site_id].get("accept", {}).pop("PVE-03", None)
    edit(documents)
    return project.write(documents)


def test_guests_that_exist_are_adopted_by_a_real_update_and_none_is_made_beside_them(sound: Project) -> None:
    run = settled(sound).run("franca", preview=False)
    assert run.error is None
    vms = of_type(run.record, "VmLegacy")
    assert {name: made.imported for name, made in vms.items()} == {
        "guest-vm-cpps-02-vm": "pve-labri-31/102",
        "guest-vm-cpps-03-vm": "pve-labri-32/103",
        "guest-vm-cpps-04-vm": "",
    }


def test_mig_01_a_run_says_that_it_leaves_cilium_out(sound: Project, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "engine"):
        assert settled(sound).run("franca", preview=True).error is None
    assert "[MIG-01] franca.clusters.cluster-fca.cni: found servers that run Flannel (vxlan)" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "engine"):
        assert sound.run(THIRD, preview=True).error is None
    assert "MIG-01" not in caplog.text


def test_pve_10_a_guest_of_an_older_project_waits_for_its_evidence(sound: Project) -> None:
    run = settled(sound).run("sp", preview=False)
    assert run.faults() == [("PVE-10", "sp.guests.gpu-sp-01.handed_over")]
    assert run.registered == set()
    assert "infra/proxmox-sp" in str(run.error)
    assert "fleet runbook sp hand-over" in str(run.error)
    assert sound.run("sp", preview=True).error is None, "a preview changes nothing"


def test_pve_10_evidence_lets_the_update_through(sound: Project) -> None:
    def edit(documents: Documents) -> None:
        documents["sp"]["guests"]["gpu-sp-01"]["handed_over"] = "2026-12-01 ana: URN deleted there, previews empty"

    assert settled(sound, edit).run("sp", preview=False).error is None


@pytest.mark.parametrize(
    ("change", "rule", "key", "words"),
    [
        ({"datastore": "sqlite"}, "K3S-03", "datastore", "docs/operacoes/k3s-rebuild.md"),
        ({"runs": "other"}, "PVE-03", "runs", "docs/operacoes/adoption.md"),
        ({"runs": "agent"}, "K3S-11", "runs", "expected server"),
    ],
)
def test_what_no_update_may_touch_stops_it_and_names_the_way(
    sound: Project, change: dict[str, str], rule: str, key: str, words: str
) -> None:
    def edit(documents: Documents) -> None:
        documents["franca"]["guests"]["vm-cpps-03"]["current"] |= change

    run = settled(sound, edit).run("franca", preview=False)
    assert run.faults() == [(rule, f"franca.guests.vm-cpps-03.current.{key}")]
    assert run.registered == set()
    assert words in str(run.error)
    assert (ROOT / words).exists() or not words.startswith("docs/")
    assert sound.run("franca", preview=True).error is None


def test_other_work_on_a_guest_of_no_cluster_is_none_of_an_updates_business(sound: Project) -> None:
    def edit(documents: Documents) -> None:
        tools = copy.deepcopy(documents["franca"]["guests"]["vm-cpps-02"])
        tools |= {"vmid": 190, "address": "192.168.0.90", "current": {"runs": "other"}}
        documents["franca"]["guests"]["tools"] = tools

    assert settled(sound, edit).run("franca", preview=False).error is None


def test_gen_02_what_a_sibling_assumes_stops_nobody_else(sound: Project) -> None:
    edited(sound, "sp", lambda site: site.update(assumed=["network.mtu"]))
    assert sound.run("franca", preview=False).error is None
    assert sound.run("sp", preview=False).faults() == [("GEN-07", "sp.network.mtu")]


def test_a_value_that_the_fleet_assumes_stops_every_site(sound: Project) -> None:
    edited(sound, "common", lambda common: common.update(assumed=["cilium.datapath"]))
    for stack in ("franca", THIRD):
        assert sound.run(stack, preview=False).faults() == [("GEN-07", "common.cilium.datapath")]


# Secrets and mirrors


def test_sec_07_every_missing_secret_is_named_at_once(sound: Project) -> None:
    edited(sound, "sp", lambda site: site["bgp"].update(authenticated=True))
    run = sound.run("sp", preview=True, **dict.fromkeys([*SECRETS, "sshPublicKey"]))
    needed = set(SECRETS) - set(MESH_SECRETS)  # without those of the mesh, that layer alone is left out
    wanted = {("LXC-12" if key == ROOT_PASSWORD else "SEC-07", f"sp.fleet:{key}") for key in (*needed, "sshPublicKey")}
    assert sorted(run.faults()) == sorted(wanted)
    assert run.registered == set()
    text = str(run.error)
    assert "pulumi config set --secret fleet:ciliumCaKey" in text
    assert "pulumi config set fleet:sshPublicKey" in text


def test_a_site_without_containers_needs_no_root_password(sound: Project) -> None:
    assert sound.run("franca", preview=True, proxmoxRootPassword=None).error is None
    assert sound.run("sp", preview=True, proxmoxRootPassword=None).faults() == [
        ("LXC-12", "sp.fleet:proxmoxRootPassword")
    ]


def test_a_site_without_authentication_needs_no_password_of_the_peering(sound: Project) -> None:
    assert sound.run("sp", preview=True, bgpPassword=None).error is None


@pytest.mark.parametrize("password", ["two words", "quo'te", 'quo"te', "back\\slash", "line\n", "é", "x" * 81, ""])
def test_a_password_that_the_router_refuses_is_named_before_anything_and_not_shown(
    sound: Project, password: str
) -> None:
    edited(sound, "sp", lambda site: site["bgp"].update(authenticated=True))
    run = sound.run("sp", preview=True, bgpPassword=password)
    assert run.faults() == [("DOC-03", "sp.fleet:bgpPassword")]
    assert run.registered == set()
    assert len(password) < 2 or password not in str(run.error)


def test_a_secret_that_was_set_in_plain_text_is_hidden_all_the_same(sound: Project) -> None:
    run = sound.run("sp", preview=True)
    shown = json.dumps([made.masked() for made in run.record.values()], default=str)
    assert "MARK-" not in shown
    assert "PRIVATE KEY" not in shown
    assert base64.b64encode(authority()[1].encode()).decode() not in shown


def test_a_mirror_reaches_the_nodes(sound: Project) -> None:
    mirror = json.dumps({"url": "http://mirror.example", "sha256sums": "a" * 64})
    run = sound.run("franca", preview=True, artifacts=mirror)
    told = of_type(run.record, ":Command")["k3s-cluster-fca-server-vm-cpps-02"].inputs["stdin"]
    assert f"list_url=http://mirror.example/SHA256SUMS\nlist_sha256={'a' * 64}\n" in told


def test_a_chart_directory_reaches_the_release(sound: Project, tmp_path: Path) -> None:
    version = plain_documents()["common"]["cilium"]["version"]
    (tmp_path / f"cilium-{version}.tgz").touch()
    run = sound.run("franca", preview=True, charts=str(tmp_path))
    (release,) = of_type(run.record, ":Release").values()
    assert release.inputs["chart"] == f"{tmp_path}/cilium-{version}.tgz"


@pytest.mark.parametrize(
    "folder", ["", "charts", "/nonexistent", "https://charts.example", "oci://charts.example", "{}"]
)
def test_a_chart_directory_without_the_chart_is_refused_before_anything_is_made(sound: Project, folder: str) -> None:
    run = sound.run("franca", preview=True, charts=folder)
    assert run.faults() == [("DOC-03", "franca.fleet:charts")]
    assert run.registered == set()


@pytest.mark.parametrize(
    "key", ["-----BEGIN OPENSSH PRIVATE KEY-----\nMARK", "ssh-ed25519 AAAA\nssh-ed25519 BBBB", "AAAA", "ssh-ed25519"]
)
def test_what_is_no_public_key_reaches_no_guest_and_no_message(sound: Project, key: str) -> None:
    run = sound.run("sp", preview=True, sshPublicKey=key)
    assert run.faults() == [("DOC-03", "sp.fleet:sshPublicKey")]
    assert "MARK" not in str(run.error)


def test_sec_07_a_secret_in_plain_text_is_pointed_out(sound: Project, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "engine"):
        assert sound.run("sp", preview=True).error is None
        assert "SEC-07" not in caplog.text
        assert sound.run("sp", preview=True, plain=("fleet:proxmoxApiToken",)).error is None
    assert caplog.text.count("[SEC-07] sp.fleet:proxmoxApiToken: found plain text") == 1
    assert "MARK-" not in caplog.text


def test_sec_07_the_private_key_of_a_tunnel_is_pointed_out_too(
    sound: Project, caplog: pytest.LogCaptureFixture
) -> None:
    """The program does not use it, `fleet vyos apply` does; it lies in the same file."""
    with caplog.at_level(logging.WARNING, "engine"):
        assert sound.run("sp", preview=True, wg0PrivateKey="MARK-wg0PrivateKey", wg7PrivateKey="x").error is None
    assert caplog.text.count("SEC-07") == 1
    assert "[SEC-07] sp.fleet:wg0PrivateKey: found plain text" in caplog.text
    assert "MARK-" not in caplog.text


@pytest.mark.parametrize(
    "value",
    [
        '{"url": "http://m"}',
        '{"url": "http://m", "sha256sums": 5}',
        '{"url": "u", "sha256sums": "s", "x": 1}',
        "[]",
        "not JSON",
        *(json.dumps({"url": url, "sha256sums": "a" * 64}) for url in BAD_MIRRORS),
    ],
)
def test_a_misshapen_mirror_is_refused_together_with_what_is_missing(sound: Project, value: str) -> None:
    run = sound.run("franca", preview=True, artifacts=value, sshPrivateKey=None)
    assert run.faults() == [("SEC-07", "franca.fleet:sshPrivateKey"), ("DOC-03", "franca.fleet:artifacts")]


# Documents


def test_a_value_that_the_engine_reads_differently_is_refused_with_its_path(sound: Project) -> None:
    site = site_value(sound.folder / "Pulumi.sp.yaml")
    site["bgp"]["site_asn"] = "65002"
    run = sound.run("sp", preview=True, site=json.dumps(site))
    assert run.faults() == [("DOC-01", "sp.bgp.site_asn")]
    assert run.registered == set()


def test_a_fact_of_the_fleet_that_the_engine_reads_differently_is_refused_with_its_path(sound: Project) -> None:
    common = common_value(sound.folder / "Pulumi.yaml")
    common["git"]["revision"] = "other"
    run = sound.run("sp", preview=True, common=json.dumps(common))
    assert run.faults() == [("DOC-01", "common.git.revision")]


def test_a_document_that_the_engine_does_not_have_is_refused(sound: Project) -> None:
    run = sound.run("sp", preview=True, site=None)
    assert run.faults() == [("DOC-01", "sp")]


@pytest.mark.parametrize("preview", [True, False])
def test_a_fleet_that_breaks_rules_registers_nothing_and_names_them_all(sound: Project, preview: bool) -> None:
    def edit(site: dict[str, Any]) -> None:
        site["guests"]["vm-sp-02"]["vmid"] = site["guests"]["vm-sp-01"]["vmid"]
        site["clusters"]["cluster-sp"]["pod_cidr"] = "10.41.0.0/16"

    run = edited(sound, "sp", edit).run("sp", preview=preview)
    assert {"PVE-08", "NET-09"} <= {rule for rule, _ in run.faults()}
    assert run.registered == set()


def test_a_fault_of_a_sibling_stops_a_site_too(sound: Project) -> None:
    """Rules hold between the sites: two of them must not claim one range."""

    def edit(site: dict[str, Any]) -> None:
        site["clusters"]["cluster-sp"]["pod_cidr"] = "10.41.0.0/16"

    run = edited(sound, "sp", edit).run("franca", preview=True)
    assert "NET-09" in {rule for rule, _ in run.faults()}
    assert run.registered == set()


def test_faults_of_shape_of_all_documents_are_named_at_once(sound: Project) -> None:
    edited(sound, "sp", lambda site: site["bgp"].update(site_asm=1))
    edited(sound, "franca", lambda site: site["bgp"].pop("hold_time_s"))
    run = sound.run("sp", preview=True)
    assert sorted(run.faults()) == [("DOC-02", "sp.bgp.site_asm"), ("GEN-07", "franca.bgp.hold_time_s")]
    assert run.registered == set()


@pytest.mark.parametrize("preview", [True, False])
def test_gen_01_a_stack_without_a_document_is_told_which_ones_there_are(sound: Project, preview: bool) -> None:
    run = sound.run("nowhere", preview=preview, site=None)
    assert run.faults() == [("GEN-01", "Pulumi.nowhere.yaml")]
    assert "franca, norte, sp" in str(run.error)


def test_the_error_of_a_run_prints_without_a_traceback() -> None:
    assert issubclass(InvariantError, pulumi.RunError)
