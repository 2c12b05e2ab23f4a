"""Secrets that the lab makes up once and keeps until its folder goes: nothing of a real stack is ever read."""

import base64
import json
import os
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519

from infra.certificates import fingerprint
from infra.names import (
    API_TOKEN,
    BGP_PASSWORD,
    CILIUM_CA_CERT,
    CILIUM_CA_KEY,
    MESH_KEYS,
    ROOT_PASSWORD,
    SSH_PRIVATE_KEY,
    SSH_PUBLIC_KEY,
)
from lab.place import Place
from operations.authority import new_authority, new_leaves

TOKEN_ID = "fleet@pve!pulumi"


@dataclass(frozen=True)
class MadeUp:
    """Secrets by site, as stack configuration, and what the documents hold of them."""

    config: dict[str, dict[str, str]]  # by site: flat keys of `fleet:`
    ca_sha256: str
    wireguard_public_keys: dict[str, str]  # by site


def make(place: Place, sites: Mapping[str, str | None]) -> MadeUp:
    """Reads the lab's secrets, making those that are not there yet. `sites`: each with its cluster in the mesh."""
    known: dict[str, Any] = json.loads(place.secrets.read_text()) if place.secrets.exists() else {}
    fleet = known.setdefault("_fleet", {})
    if not fleet:
        certificate, key = new_authority()
        fleet.update(ca_cert=certificate, ca_key=key)
    for site, member in sites.items():
        if site not in known:
            private, public = _ssh_pair()
            known[site] = {
                "root_password": secrets.token_urlsafe(24),
                "api_token_id": TOKEN_ID,
                "api_token_secret": str(uuid.uuid4()),
                "ssh_private_key": private,
                "ssh_authorized_key": public,
                "wireguard_public_key": _wireguard_public_key(),
            }
        known[site].setdefault("bgp_password", secrets.token_urlsafe(24))
        if member is not None and known[site].get("mesh_member") != member:
            known[site]["mesh_member"] = member
            known[site]["mesh"] = new_leaves((fleet["ca_cert"], fleet["ca_key"]), member)
    private_file(place.secrets, json.dumps(known, indent=1))
    if not place.passphrase.exists():
        private_file(place.passphrase, secrets.token_urlsafe(32))
    return MadeUp(
        config={site: _config(known[site], fleet) for site in sites},
        ca_sha256=fingerprint(fleet["ca_cert"]),
        wireguard_public_keys={site: known[site]["wireguard_public_key"] for site in sites},
    )


def private_file(path: Path, text: str) -> None:
    """Writes a file that its owner alone can read, from its first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(path.name + ".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    part.replace(path)


def _config(site: dict[str, Any], fleet: dict[str, str]) -> dict[str, str]:
    return {
        API_TOKEN: f"{site['api_token_id']}={site['api_token_secret']}",
        ROOT_PASSWORD: site["root_password"],
        SSH_PRIVATE_KEY: site["ssh_private_key"],
        SSH_PUBLIC_KEY: site["ssh_authorized_key"],
        CILIUM_CA_CERT: fleet["ca_cert"],
        CILIUM_CA_KEY: fleet["ca_key"],
        BGP_PASSWORD: site["bgp_password"],
        **{
            key: text
            for role, pair in site.get("mesh", {}).items()
            for key, text in zip(MESH_KEYS[role], pair, strict=True)
        },
    }


def _ssh_pair() -> tuple[str, str]:
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode()


def _wireguard_public_key() -> str:
    raw = x25519.X25519PrivateKey.generate().public_key().public_bytes_raw()
    return base64.b64encode(raw).decode()
