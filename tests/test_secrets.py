"""No secret leaves the program unmarked: SEC-07, over everything that is declared."""

import base64
import json
import re
from typing import Any

import pulumi
import pytest

import cli.plan
from cli.plan import Declared, plan
from infra.names import MESH_KEYS
from infra.proxmox import Credentials
from infra.site import Inputs, SiteStack
from tests.sites import ROOT, SITES, Record, declared, three_sites

MARKS = {
    "api token": "MARK-api-token",
    "root password": "MARK-root-password",
    "ssh key": "MARK-ssh-private-key",
    "ca certificate": "MARK-ca-certificate",
    "ca key": "MARK-ca-key",
    "mesh key": "MARK-mesh-key",
    "mesh certificate": "MARK-mesh-certificate",
    "cluster token": "plan-only-",  # what the recorder answers for generated passwords
    "api credentials": "MARK-service-account",
}
PUBLIC = "ssh-ed25519 PUBLIC"


def marked() -> Inputs:
    """Secrets in plain text: whether they are marked must not depend on who hands them over."""
    return Inputs(
        credentials=Credentials(
            api_token=MARKS["api token"],
            root_password=MARKS["root password"],
            ssh_private_key=MARKS["ssh key"],
            ssh_public_key=PUBLIC,
        ),
        cilium_ca=(MARKS["ca certificate"], MARKS["ca key"]),
        artifacts=None,
        charts=None,
        mesh=dict.fromkeys(MESH_KEYS, (MARKS["mesh certificate"], MARKS["mesh key"])),
    )


def spellings(mark: str) -> list[str]:
    """A mark in plain text, and in base64 whatever stands before it."""
    texts = [mark]
    for pad in range(3):
        encoded = base64.b64encode(b"x" * pad + mark.encode()).decode()
        texts.append(encoded[4 if pad else 0 : len(encoded) - 4])
    return texts


@pytest.fixture(scope="module", params=SITES)
def record(request: pytest.FixtureRequest) -> Record:
    token = base64.b64encode(MARKS["api credentials"].encode()).decode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.plan, "_CREDENTIALS", json.dumps({"ca": "Q0E=", "token": token}))
        return plan(three_sites(), request.param, marked)


def holders(record: Record, mark: str, shown: bool) -> list[str]:
    def text(made: Declared) -> str:
        return json.dumps(made.shown if shown else made.inputs, default=str)

    return [name for (_, name), made in record.items() if any(word in text(made) for word in spellings(mark))]


@pytest.mark.parametrize("secret", MARKS)
def test_sec_07_no_secret_stands_unmarked_in_any_input(record: Record, secret: str) -> None:
    unmarked = holders(record, MARKS[secret], shown=True)
    assert not unmarked


def test_sec_07_the_search_finds_every_secret_where_it_is_marked(record: Record) -> None:
    """Else the test above would prove nothing."""
    containers = [name for kind, name in record if kind.endswith("ContainerLegacy")]
    for secret, mark in MARKS.items():
        found = holders(record, mark, shown=False)
        assert bool(found) is (secret != "root password" or bool(containers)), secret


def test_the_root_password_opens_the_one_provider_that_needs_it(record: Record) -> None:
    found = holders(record, MARKS["root password"], shown=False)
    assert all(name.startswith("proxmox-") and name.endswith("-root") for name in found)


def test_the_api_token_of_proxmox_reaches_its_provider_alone(record: Record) -> None:
    (name,) = holders(record, MARKS["api token"], shown=False)
    assert name.endswith("-token")
    assert name.startswith("proxmox-")


def test_the_public_key_is_public(record: Record) -> None:
    found = holders(record, PUBLIC, shown=True)
    assert found


def test_no_secret_is_part_of_a_name_or_of_a_command_line(record: Record) -> None:
    for (_, name), made in record.items():
        lines = f"{name} {made.inputs.get('create')} {made.inputs.get('delete')} {made.inputs.get('environment')}"
        assert not [mark for mark in MARKS.values() if mark in lines]


@pytest.mark.parametrize("site_id", SITES)
def test_what_a_plan_shows_holds_no_secret(site_id: str) -> None:
    shown = json.dumps([made.masked() for made in declared(site_id).values()], default=str)
    for secret in ("proxmoxApiToken", "proxmoxRootPassword", "sshPrivateKey", "ciliumCaCert", "ciliumCaKey"):
        assert f"<{secret}>" not in shown
        assert base64.b64encode(f"<{secret}>".encode()).decode() not in shown
    assert "plan-only-" not in shown
    assert "sshPublicKey" in shown


@pytest.mark.parametrize("site_id", SITES)
def test_k3s_13_the_kubeconfig_among_the_outputs_is_secret_and_the_rest_is_not(site_id: str) -> None:
    secret: dict[tuple[str, str], bool] = {}

    async def look(cluster: str, key: str, value: Any) -> bool:
        secret[cluster, key] = await pulumi.Output.from_input(value).is_secret()
        return True

    def program() -> None:
        for cluster, outputs in SiteStack(three_sites(), site_id, marked()).outputs.items():
            assert isinstance(outputs, dict)
            for key, value in outputs.items():
                seen: pulumi.Output[bool] = pulumi.Output.from_input(look(cluster, key, value))
                assert seen  # a run ends once every output is known

    cli.plan.declare(program, stack=site_id)
    clusters = three_sites().sites[site_id].clusters
    assert {cluster for cluster, _ in secret} == set(clusters)
    assert {key for key, is_secret in secret.items() if is_secret} == {(cluster, "kubeconfig") for cluster in clusters}


def test_no_document_holds_a_secret() -> None:
    """They are encrypted values of the stack, or generated."""
    for path in [*ROOT.glob("Pulumi*.yaml")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"PRIVATE KEY|password|(?i:apitoken)|[!=][0-9a-f]{8}-[0-9a-f]{4}-", text), path.name
