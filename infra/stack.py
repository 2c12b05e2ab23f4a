"""What the engine hands to a run: which site, its secrets, its mirrors; and the gates before anything is registered."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import pulumi
from pulumi.runtime.config import get_config, is_config_secret

from infra import certificates
from infra.charts import packed_at
from infra.clustermesh import SecretPair
from infra.config import Cluster, Fleet, Lxc, Vm, load
from infra.config.loading import COMMON_KEY, PROJECT_FILE, SITE_KEY, common_value, site_value
from infra.k3s import Mirror
from infra.k3s.in_force import in_force, waits_for_migration
from infra.names import (
    API_TOKEN,
    BGP_PASSWORD,
    CILIUM_CA_CERT,
    CILIUM_CA_KEY,
    MESH_KEYS,
    ROOT_PASSWORD,
    SECRETS,
    SSH_PRIVATE_KEY,
    SSH_PUBLIC_KEY,
)
from infra.proxmox import Credentials, needs_root
from infra.rules import judge
from infra.site import Inputs
from infra.versions import METALLB, cilium
from infra.violation import InvariantError, Violation, assumed_value
from infra.vyos.tunnel import private_keys

_PUBLIC_KEY_FORM = re.compile(r"(ssh-|ecdsa-|sk-)[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\n]*)?")
# What the kernel takes for a TCP MD5 signature and VyOS for a value.
_BGP_PASSWORD_FORM = re.compile(r"[!#-&(-\[\]-~]{1,80}")
# Nodes hand it to curl and print it, so neither a flag nor a password.
_MIRROR_URL = re.compile(r"https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[A-Za-z0-9._~%+/-]*)?")


class MirrorConfig(TypedDict):
    """`fleet:artifacts`."""

    url: str
    sha256sums: str


def checked_fleet(folder: Path, site_id: str) -> Fleet:
    """The fleet of a folder, judged. Raises InvariantError with every fault; prints warnings and acknowledgements."""
    fleet, violations = load(folder)
    if fleet is None:
        raise InvariantError(violations)
    verdict = judge(fleet)
    stops = [*verdict.stops, *_unknown_site(fleet, site_id)]
    if site_id in fleet.sites:
        stops += _engine_disagrees(folder, site_id)
        if not pulumi.runtime.is_dry_run():
            stops += gates(fleet, site_id)
    if stops:
        raise InvariantError(stops)
    for warning in verdict.warnings:
        if warning.site in (site_id, "common"):
            pulumi.log.warn(str(warning))
    for violation, reason in verdict.accepted:
        if violation.site == site_id:
            pulumi.log.info(f"accepted: {violation}; because: {reason}")
    for remark in _remarks(fleet, site_id):
        pulumi.log.warn(remark)
    assumed = len(fleet.sites[site_id].assumed) + len(fleet.common.assumed)
    if assumed:
        pulumi.log.info(f"{assumed} assumed values: a real update refuses until each is confirmed")
    return fleet


def gates(fleet: Fleet, site_id: str) -> Iterator[Violation]:
    """What a preview may show and a real update must not do."""
    site = fleet.sites[site_id]
    for root, paths in (("common", fleet.common.assumed), (site_id, site.assumed)):
        for path in paths:
            yield assumed_value(root, path)
    for guest in site.guests.values():
        if guest.existing and guest.older_project and not guest.handed_over:
            yield Violation(
                id="PVE-10",
                path=f"{site_id}.guests.{guest.name}.handed_over",
                found=f"nothing, and the guest in the state of {guest.older_project}",
                expected="evidence that the older project let go of it",
                remedy=f"follow fleet runbook {site_id} hand-over: two projects with one guest undo each other's work",
                source="CPPS-ADR-009",
            )
    for cluster in site.clusters.values():
        for guest in site.nodes(cluster):
            yield from _unfit(f"{site_id}.guests.{guest.name}.current", cluster, guest)


def _unfit(path: str, cluster: Cluster, guest: Vm | Lxc) -> Iterator[Violation]:
    """What runs on an existing guest that a cluster names, and no update may touch."""
    current = guest.current if guest.existing else None
    role = "server" if guest.name in cluster.servers else "agent"
    if current is None:
        return
    if current.runs == "other":
        yield Violation(
            id="PVE-03",
            path=f"{path}.runs",
            found=f"other work on a guest that is to be a node of {cluster.name}",
            expected=f"{role} or nothing",
            remedy="follow docs/operacoes/adoption.md, other work: move it away, or name another guest",
            source="CPPS-ADR-005",
        )
    elif current.k3s and current.runs != role:
        yield Violation(
            id="K3S-11",
            path=f"{path}.runs",
            found=f"{current.runs}, of a guest among the {role}s of {cluster.name}",
            expected=role,
            remedy=f"name it among the {current.runs}s, or drain and remove its K3s first",
        )
    elif current.datastore == "sqlite":
        yield Violation(
            id="K3S-03",
            path=f"{path}.datastore",
            found="sqlite",
            expected="etcd: no other server can join SQLite, and nothing restores it",
            remedy="follow docs/operacoes/k3s-rebuild.md, SQLite, then write etcd here",
        )


def _remarks(fleet: Fleet, site_id: str) -> Iterator[str]:
    """What a run leaves out on purpose."""
    site = fleet.sites[site_id]
    for cluster in site.clusters.values():
        servers = [guest for guest in site.nodes(cluster) if guest.name in cluster.servers]
        if waits_for_migration(cluster, servers):
            yield (
                f"[MIG-01] {site_id}.clusters.{cluster.name}.cni: found servers that run Flannel "
                f"({in_force(cluster, servers).flannel_backend}); Cilium is left out, it follows its migration; "
                "new servers join with the flags in force"
            )


def inputs(fleet: Fleet, site_id: str) -> Inputs:
    """Secrets and mirrors of the stack. Raises InvariantError that names every missing one."""
    config = pulumi.Config("fleet")
    wanted = [API_TOKEN, SSH_PRIVATE_KEY, SSH_PUBLIC_KEY]
    if needs_root(fleet.sites[site_id]):
        wanted.append(ROOT_PASSWORD)
    if fleet.sites[site_id].runs_cilium:
        wanted += [CILIUM_CA_CERT, CILIUM_CA_KEY]
        if fleet.sites[site_id].bgp.authenticated:
            wanted.append(BGP_PASSWORD)
    values = {key: config.get_secret(key) if key in SECRETS else config.get(key) for key in wanted}
    faults = [_missing(site_id, key) for key, value in values.items() if value is None]
    faults += _public_key(site_id, config.get(SSH_PUBLIC_KEY))
    if values.get(BGP_PASSWORD) is not None:
        faults += _bgp_password(site_id, get_config(f"fleet:{BGP_PASSWORD}") or "")
    mirror, mirror_faults = _mirror(site_id, config.get("artifacts"))
    faults += [*mirror_faults, *_charts(fleet, site_id, config.get("charts"))]
    pairs = _mesh_pairs(fleet, site_id)
    faults += [*_foreign_ca(fleet, site_id), *_mesh_faults(fleet, site_id, pairs)]
    if faults:
        raise InvariantError(faults)
    for key in (*SECRETS, *private_keys(fleet, site_id)):
        if config.get(key) is not None and not is_config_secret(f"fleet:{key}"):
            remedy = f"replace it, since the file may have been read: pulumi config set --secret fleet:{key}"
            pulumi.log.warn(f"[SEC-07] {site_id}.fleet:{key}: found plain text in the stack file; {remedy}")
    for remark in _mesh_remarks(fleet, site_id, pairs):
        pulumi.log.warn(remark)
    given = {key: value for key, value in values.items() if value is not None}
    return Inputs(
        credentials=Credentials(
            api_token=given[API_TOKEN],
            root_password=given.get(ROOT_PASSWORD),
            ssh_private_key=given[SSH_PRIVATE_KEY],
            ssh_public_key=given[SSH_PUBLIC_KEY],
        ),
        cilium_ca=(given.get(CILIUM_CA_CERT, ""), given.get(CILIUM_CA_KEY, "")),
        artifacts=mirror,
        charts=config.get("charts"),
        bgp_password=given.get(BGP_PASSWORD),
        mesh=_mesh_secrets() if pairs and fleet.common.cilium.ca_mode == "shared" else None,
    )


def _foreign_ca(fleet: Fleet, site_id: str) -> Iterator[Violation]:
    """The stack shows by its fingerprint that its CA is the one of the fleet: sites with another would not join."""
    line, pem = fleet.common.cilium, pulumi.Config("fleet").get(CILIUM_CA_CERT)
    if pem is None or line.ca_sha256 is None or line.ca_mode != "shared" or not fleet.sites[site_id].runs_cilium:
        return
    try:
        found = certificates.fingerprint(pem)
    except ValueError:
        found = "no certificate in PEM"
    if found != line.ca_sha256:
        yield Violation(
            id="MSH-03",
            path=f"{site_id}.fleet:{CILIUM_CA_CERT}",
            found=found,
            expected=f"{line.ca_sha256}, the fingerprint in common.cilium.ca_sha256",
            remedy=f"bring the CA of the fleet from a site that has it: fleet credentials import {site_id} <file>",
            source="CPPS architecture",
        )


def _mesh_pairs(fleet: Fleet, site_id: str) -> dict[str, certificates.Pair]:
    """What the stack has of the mesh certificates, in plain text: to be judged, never to be shown or declared."""
    config = pulumi.Config("fleet")
    if fleet.sites[site_id].mesh_member is None:
        return {}
    found = {role: (config.get(cert) or "", config.get(key) or "") for role, (cert, key) in MESH_KEYS.items()}
    return {} if not any(any(pair) for pair in found.values()) else found


def _mesh_faults(fleet: Fleet, site_id: str, pairs: Mapping[str, certificates.Pair]) -> Iterator[Violation]:
    """Half a set of certificates, or ones that peers would turn down."""
    cluster = fleet.sites[site_id].mesh_member
    complete = {role: pair for role, pair in pairs.items() if all(pair)}
    for role in pairs.keys() - complete.keys():
        for key, value in zip(MESH_KEYS[role], pairs[role], strict=True):
            if not value:
                yield Violation(
                    id="SEC-07",
                    path=f"{site_id}.fleet:{key}",
                    found="nothing, while other certificates of the mesh are there",
                    expected="all of them, or none to leave the mesh out",
                    remedy=f"make the missing ones: fleet credentials init {site_id}",
                )
    authority = pulumi.Config("fleet").get(CILIUM_CA_CERT)
    if cluster is not None and authority is not None:
        for role, found, expected in certificates.faults(authority, cluster.name, complete):
            yield Violation(
                id="MSH-06",
                path=f"{site_id}.fleet:{MESH_KEYS[role][0]}",
                found=found,
                expected=expected,
                remedy=f"issue them anew: fleet credentials rotate {site_id}",
            )


def _mesh_remarks(fleet: Fleet, site_id: str, pairs: Mapping[str, certificates.Pair]) -> Iterator[str]:
    """Why the mesh is left out, and which certificate ends soon. An old one stops no update: it may be the repair."""
    cluster = fleet.sites[site_id].mesh_member
    if cluster is None:
        return
    path = f"{site_id}.clusters.{cluster.name}.in_mesh"
    if fleet.common.cilium.ca_mode != "shared":
        yield f"[MSH-03] {path}: found ca_mode separate; ClusterMesh is left out: it is built for the shared CA alone"
        return
    if not pairs:
        yield (
            f"[MSH-06] {path}: found no certificates of the mesh in the stack; ClusterMesh is left out; "
            f"make them: fleet credentials init {site_id}"
        )
    authority = {CILIUM_CA_CERT: pulumi.Config("fleet").get(CILIUM_CA_CERT) or ""}
    for key, pem in (authority | {MESH_KEYS[role][0]: pair[0] for role, pair in pairs.items()}).items():
        with contextlib.suppress(ValueError):  # what is no certificate is a fault elsewhere, or no fingerprint yet
            if said := certificates.soon(certificates.expiry(pem), datetime.now(UTC)):
                option = " --ca" if key == CILIUM_CA_CERT else ""
                yield (
                    f"[MSH-06] {site_id}.fleet:{key}: {said}; issue it anew: fleet credentials rotate {site_id}{option}"
                )


def _mesh_secrets() -> dict[str, SecretPair]:
    config = pulumi.Config("fleet")
    return {role: (config.require_secret(cert), config.require_secret(key)) for role, (cert, key) in MESH_KEYS.items()}


def _missing(site_id: str, key: str) -> Violation:
    if key == ROOT_PASSWORD:
        return Violation(
            id="LXC-12",
            path=f"{site_id}.fleet:{key}",
            found="an API token alone",
            expected="the password of root@pam too: Proxmox keeps devices and features of a privileged container to it",
            remedy=f"pulumi config set --secret fleet:{key} (reads the value from standard input)",
        )
    flag = "--secret " if key in SECRETS else ""
    return Violation(
        id="SEC-07",
        path=f"{site_id}.fleet:{key}",
        found="nothing",
        expected="a secret of the stack" if key in SECRETS else "a value of the stack",
        remedy=f"pulumi config set {flag}fleet:{key} (reads the value from standard input)",
    )


def _public_key(site_id: str, value: str | None) -> Iterator[Violation]:
    """Guests keep the value as it is: the other half of the key must not get there."""
    if value is not None and not _PUBLIC_KEY_FORM.fullmatch(value.strip()):
        yield Violation(
            id="DOC-03",
            path=f"{site_id}.fleet:{SSH_PUBLIC_KEY}",
            found="something else",
            expected="one line as in a .pub file, for example ssh-ed25519 AAAA...",
            remedy=f"pulumi config set fleet:{SSH_PUBLIC_KEY} <the .pub file",
        )


def _bgp_password(site_id: str, value: str) -> Iterator[Violation]:
    """The router has the same one, and takes no other form."""
    if not _BGP_PASSWORD_FORM.fullmatch(value):
        yield Violation(
            id="DOC-03",
            path=f"{site_id}.fleet:{BGP_PASSWORD}",
            found="something else",
            expected="1 to 80 ASCII characters without spaces, quotes and backslashes, and no line end",
            remedy=f"openssl rand -hex 24 | tr -d '\\n' | pulumi config set --secret --raw fleet:{BGP_PASSWORD}",
        )


def _charts(fleet: Fleet, site_id: str, folder: str | None) -> Iterator[Violation]:
    """What is missing there would be missed only once every guest and server is up."""
    site = fleet.sites[site_id]
    if folder is None or not site.runs_cilium:
        return
    wanted = [cilium(fleet.common.cilium.version), *([METALLB] if site.lb.mode == "metallb" else [])]
    for chart in wanted:
        file = Path(packed_at(folder, chart))
        if not file.is_absolute() or not file.is_file():
            yield Violation(
                id="DOC-03",
                path=f"{site_id}.fleet:charts",
                found=folder if file.is_absolute() else f"{folder or 'nothing'}, which is no absolute path",
                expected=f"the path of a folder on this machine with {file.name}",
                remedy='helm pull it there, then pulumi config set fleet:charts "$PWD/charts"',
            )


def _mirror(site_id: str, text: str | None) -> tuple[Mirror | None, list[Violation]]:
    if text is None:
        return None, []
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    known = MirrorConfig.__required_keys__
    texts = isinstance(value, dict) and set(value) == known and all(isinstance(part, str) for part in value.values())
    if texts and re.fullmatch("[0-9a-f]{64}", value["sha256sums"]) and _MIRROR_URL.fullmatch(value["url"]):
        return Mirror(url=value["url"], sha256sums=value["sha256sums"]), []
    fault = Violation(
        id="DOC-03",
        path=f"{site_id}.fleet:artifacts",
        found="something else",
        expected="a mapping with the texts url: http or https without a password, and sha256sums: 64 hex digits",
        remedy="correct the value",
    )
    return None, [fault]


def _unknown_site(fleet: Fleet, site_id: str) -> Iterator[Violation]:
    if site_id not in fleet.sites:
        yield Violation(
            id="GEN-01",
            path=f"Pulumi.{site_id}.yaml",
            found="no such document",
            expected=f"a stack named like one of {', '.join(fleet.sites)}",
            remedy="select the stack of a site, or add its stack file",
        )


def _engine_disagrees(folder: Path, site_id: str) -> Iterator[Violation]:
    """The engine reads the stack file too; a value that the two understand differently must not pass."""
    config = pulumi.Config("fleet")
    for root, seen, read in (
        (site_id, config.get_object("site"), site_value(folder / f"Pulumi.{site_id}.yaml")),
        ("common", config.get_object("common"), common_value(folder / PROJECT_FILE)),
    ):
        if seen != read:
            key = COMMON_KEY if root == "common" else SITE_KEY
            path = ".".join([root, *_first_difference(seen, read)])
            yield Violation(
                id="DOC-01",
                path=path,
                found=f"a value of {key} that the engine reads differently",
                expected="the same value",
                remedy="quote it, or remove --config overrides and --config-file",
            )


def _first_difference(one: Any, other: Any) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *other]:
            if one.get(key) != other.get(key):
                return [str(key), *_first_difference(one.get(key), other.get(key))]
    return []
