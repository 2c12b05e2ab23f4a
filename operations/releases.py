"""Helm's record of a release whose installation was cut off: in the way of the next try, and of nobody's knowledge.

Helm refuses a name that has a record, whatever its status, so a killed engine would leave a person to repair it. The
record alone goes: what the release put into the cluster carries its name, and Helm takes it up when it installs again.
Left out: releases that the state knows; those go on by an upgrade.
"""

import base64
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote, urlencode

import yaml

RELEASE = "kubernetes:helm.sh/v3:Release"
TIMEOUT_S = 30


@dataclass(frozen=True, kw_only=True)
class CutOff:
    """A release that was being installed when the engine died. The kubeconfig holds a token: never shown."""

    name: str
    namespace: str
    kubeconfig: str


def waiting(exported: Mapping[str, Any]) -> bool:
    """Whether a state, secrets encrypted or not, has such releases."""
    return any(True for _ in _pending(exported))


def cut_off(exported: Mapping[str, Any]) -> list[CutOff]:
    """The releases that a state, exported with its secrets in plain text, knows only as being created."""
    known = {one["urn"]: one for one in (exported.get("deployment") or {}).get("resources") or ()}
    found = []
    for resource in _pending(exported):
        provider = known.get(str(resource.get("provider", "")).rpartition("::")[0], {})
        kubeconfig = _opened((provider.get("inputs") or {}).get("kubeconfig"))
        inputs = resource.get("inputs") or {}
        if kubeconfig and inputs.get("name") and inputs.get("namespace"):
            found.append(CutOff(name=inputs["name"], namespace=inputs["namespace"], kubeconfig=kubeconfig))
    return found


def forget(release: CutOff) -> list[str]:
    """Removes Helm's records of a release; returns their names. Raises OSError where the cluster does not answer."""
    config = yaml.safe_load(release.kubeconfig)
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)

    def ask(method: str, path: str) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{cluster['server']}{path}", method=method, headers={"Authorization": f"Bearer {user['token']}"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
            read: dict[str, Any] = json.load(answer)
            return read

    secrets = f"/api/v1/namespaces/{quote(release.namespace)}/secrets"
    selector = urlencode({"labelSelector": f"owner=helm,name={release.name}"})
    names = [item["metadata"]["name"] for item in ask("GET", f"{secrets}?{selector}")["items"]]
    for name in names:
        try:
            ask("DELETE", f"{secrets}/{quote(name)}")
        except urllib.error.HTTPError as error:
            if error.code != 404:  # somebody else removed it
                raise
    return names


def _pending(exported: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    deployment = exported.get("deployment") or {}
    known = {one["urn"] for one in deployment.get("resources") or ()}
    for operation in deployment.get("pending_operations") or ():
        resource: dict[str, Any] = operation["resource"]
        if operation["type"] == "creating" and resource["type"] == RELEASE and resource["urn"] not in known:
            yield resource


def _opened(value: Any) -> str:
    if isinstance(value, Mapping):
        value = json.loads(value["plaintext"]) if "plaintext" in value else ""
    return value if isinstance(value, str) else ""


def main() -> None:
    """As a process of its own, where the caller is in another network than the cluster: releases on standard input."""
    for given in json.load(sys.stdin):
        forget(CutOff(**given))


def packed(releases: Iterable[CutOff]) -> str:
    """What `main` reads."""
    return json.dumps([asdict(release) for release in releases])


if __name__ == "__main__":
    main()
