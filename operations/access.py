"""What opens a site's Proxmox and its guests: secrets of the stack and host keys of its state, in memory alone.

The engine decrypts both; they are never written, printed or put on a command line. Leaves out what is done with them.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.config import Site
from infra.stack import API_TOKEN, SSH_PRIVATE_KEY
from infra.violation import InvariantError, Violation
from operations.engine import EngineError, explained

TIMEOUT_S = 300


@dataclass(frozen=True, kw_only=True)
class Access:
    """Secrets of one site."""

    api_token: str = field(repr=False)  # user@realm!name=uuid
    private_key: str = field(repr=False)  # OpenSSH
    host_keys: dict[str, str]  # public, by guest


def access(
    program: Path, folder: Path, site_id: str, site: Site, environment: Mapping[str, str] | None = None
) -> Access:
    """Raises EngineError if the engine does not answer, InvariantError for a secret that the stack lacks."""
    config = _asked(program, folder, ["config", "--show-secrets", "--json", "--stack", site_id], site_id, environment)
    values = {key: str(config.get(f"fleet:{key}", {}).get("value", "")) for key in (API_TOKEN, SSH_PRIVATE_KEY)}
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
    state = _asked(program, folder, ["stack", "export", "--show-secrets", "--stack", site_id], site_id, environment)
    seen = seen_host_keys(state)
    keys = {name: guest.ssh_host_key or seen.get(name, "") for name, guest in site.guests.items()}
    return Access(
        api_token=values[API_TOKEN],
        private_key=values[SSH_PRIVATE_KEY],
        host_keys={name: key for name, key in keys.items() if key},
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


def _asked(
    program: Path, folder: Path, arguments: list[str], site_id: str, environment: Mapping[str, str] | None
) -> dict[str, Any]:
    what = f"pulumi {' '.join(arguments[:2])}"
    try:
        done = subprocess.run(
            [str(program), *arguments, "--cwd", str(folder), "--non-interactive"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise EngineError(f"found no program {program}; expected the pulumi CLI") from None
    except subprocess.TimeoutExpired:
        raise EngineError(f"{what}: no answer within {TIMEOUT_S} s") from None
    if done.returncode:
        raise EngineError(explained(site_id, what, done.stderr))  # never its output: that would be the secrets
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
