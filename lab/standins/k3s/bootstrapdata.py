"""The cluster's certificates inside the datastore, encrypted with the token: what makes a changed token fatal."""

import base64
import hashlib
import json
import secrets

from cryptography.fernet import Fernet, InvalidToken

from . import pki
from .etcd import EtcdClient
from .log import Fatal
from .paths import Paths

_PREFIX = "/bootstrap/"


async def save_or_check(paths: Paths, client: EtcdClient, password: str) -> None:
    """Raises Fatal when the data was written with another token; raises EtcdError."""
    found = await client.keys(_PREFIX)
    if not found:
        await client.put(_key(password), _encrypt(password, json.dumps(pki.shared(paths))))
    else:
        _decrypt(password, found)


async def restore(paths: Paths, client: EtcdClient, password: str) -> None:
    """Writes the certificates of the datastore to the disk."""
    found = await client.keys(_PREFIX)
    if found:
        pki.take_over(paths, json.loads(_decrypt(password, found)))


async def change_password(client: EtcdClient, old: str, new: str) -> None:
    content = _decrypt(old, await client.keys(_PREFIX))
    await client.put(_key(new), _encrypt(new, content))
    await client.delete(_key(old))


def _key(password: str) -> str:
    return _PREFIX + hashlib.sha256(password.encode()).hexdigest()[:12]


def _decrypt(password: str, found: dict[str, bytes]) -> str:
    try:
        salt, _, content = found[_key(password)].partition(b":")
        return _cipher(password, bytes.fromhex(salt.decode())).decrypt(content).decode()
    except (KeyError, InvalidToken):
        raise Fatal("bootstrap data already found and encrypted with different token") from None


def _encrypt(password: str, content: str) -> bytes:
    salt = secrets.token_bytes(8)
    return salt.hex().encode() + b":" + _cipher(password, salt).encrypt(content.encode())


def _cipher(password: str, salt: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hashlib.pbkdf2_hmac("sha1", password.encode(), salt, 4096, 32)))
