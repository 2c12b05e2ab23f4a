"""What opens a site's Proxmox and its guests: secrets of the stack and host keys of its state, in memory alone.

The engine decrypts both; they are never written, printed or put on a command line. Leaves out what is done with them.
"""

import json
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import urllib3
from proxmoxer import ProxmoxAPI

from infra.config import Site
from infra.names import API_TOKEN, SSH_PRIVATE_KEY
from infra.violation import InvariantError, Violation
from operations.engine import Engine

CALL_TIMEOUT_S = 30


@dataclass(frozen=True, kw_only=True)
class Access:
    """Secrets of one site."""

    api_token: str = field(repr=False)  # user@realm!name=uuid
    private_key: str = field(repr=False)  # OpenSSH
    host_keys: dict[str, str]  # public, by guest


def access(engine: Engine, site_id: str, site: Site) -> Access:
    """Raises EngineError if the engine does not answer, InvariantError for a secret that the stack lacks."""
    values = secrets_of(engine, site_id, (API_TOKEN, SSH_PRIVATE_KEY))
    seen = seen_host_keys(engine.plain(site_id, ("stack", "export")))
    keys = {name: guest.ssh_host_key or seen.get(name, "") for name, guest in site.guests.items()}
    return Access(
        api_token=values[API_TOKEN],
        private_key=values[SSH_PRIVATE_KEY],
        host_keys={name: key for name, key in keys.items() if key},
    )


def secrets_of(engine: Engine, site_id: str, keys: Iterable[str]) -> dict[str, str]:
    """Secrets of the stack. Raises as `access` does."""
    config = engine.plain(site_id, ("config", "--json"))
    values = {key: str(config.get(f"fleet:{key}", {}).get("value", "")) for key in keys}
    missing = [key for key, value in values.items() if not value]
    if missing:
        raise InvariantError(
            Violation(
                id="SEC-07",
                path=f"{site_id}.fleet:{key}",
                found="nothing",
                expected="a secret of the stack",
                remedy=f"pulumi config set --secret fleet:{key} -s {site_id} (reads the value from standard input)",
            )
            for key in missing
        )
    return values


def connect(site: Site, api_token: str) -> ProxmoxAPI:
    """The API of the site's Proxmox; nothing is sent yet. Raises ValueError for a token that is none."""
    login, _, secret = api_token.partition("=")
    user, _, name = login.partition("!")
    if not (user and name and secret):
        raise ValueError("no token of the form user@realm!name=uuid")
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # verify_tls is the document's decision
    place = urlsplit(site.proxmox.endpoint)
    return ProxmoxAPI(
        place.hostname,
        port=place.port or 443,
        user=user,
        token_name=name,
        token_value=secret,
        # The system's authorities, or those of SSL_CERT_FILE; the library alone would take its own.
        verify_ssl=(ssl.get_default_verify_paths().cafile or True) if site.proxmox.verify_tls else False,
        timeout=CALL_TIMEOUT_S,
    )


def seen_host_keys(state: dict[str, Any]) -> dict[str, str]:
    """Host keys that the first contacts kept in a state exported with its secrets, by guest."""
    keys = {}
    for resource in state.get("deployment", {}).get("resources") or ():
        name = str(resource.get("urn", "")).rsplit("::", 1)[-1]
        if not (name.startswith("guest-") and name.endswith("-contact")):
            continue
        output = resource.get("outputs", {}).get("stdout")
        if isinstance(output, dict):  # a secret: its plain text is JSON
            output = json.loads(output.get("plaintext") or '""')
        if isinstance(output, str) and output.strip():
            keys[name.removeprefix("guest-").removesuffix("-contact")] = output.strip()
    return keys
