"""Node passwords: the Secret by which a server knows a node again."""

import base64
import hashlib
import secrets
from pathlib import Path

from .kubeapi import ApiError, KubeApi
from .paths import NODE_PASSWORD, write

REJECTED = (
    "Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not match server "
    "node-passwd entry, try enabling a unique node name with the --with-node-id flag"
)
_SECRETS = "/api/v1/namespaces/kube-system/secrets"


def own(file: Path = NODE_PASSWORD) -> str:
    """This node's password, made at first use."""
    if not file.exists():
        write(file, secrets.token_hex(16) + "\n")
    return file.read_text().strip()


def secret_name(node: str) -> str:
    return f"{node}.node-password.k3s"


async def accepted(api: KubeApi, node: str, password: str) -> bool:
    """Compares with the Secret, or makes it for a node seen for the first time; raises ApiError."""
    path = f"{_SECRETS}/{secret_name(node)}"
    found = await api.find(path)
    if found is None:
        salt = secrets.token_bytes(8)
        stored = f"$1:{salt.hex()}:14:8:1:{base64.b64encode(_hash(password, salt)).decode()}"
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "immutable": True,
            "metadata": {"name": secret_name(node), "namespace": "kube-system"},
            "data": {"hash": base64.b64encode(stored.encode()).decode()},
        }
        try:
            await api.create(_SECRETS, body)
            return True
        except ApiError as problem:
            if problem.status != 409:
                raise
            found = await api.get(path)
    parts = base64.b64decode(found["data"]["hash"]).decode().split(":")
    return len(parts) == 6 and base64.b64decode(parts[5]) == _hash(password, bytes.fromhex(parts[1]))


def _hash(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=2**14, r=8, p=1, dklen=64)
