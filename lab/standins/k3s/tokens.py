"""Cluster tokens: the short form (a password) and the full form with the hash of the cluster's CA."""

import hashlib
import re
import secrets
import string
from dataclasses import dataclass

from .log import Fatal


@dataclass(frozen=True)
class Token:
    password: str
    user: str = ""  # "server" or "node"; empty in the short form: whoever uses it says
    ca_hash: str = ""  # hex SHA-256 of the CA PEM; empty in the short form


def parse(text: str) -> Token:
    """Raises Fatal with K3s' words."""
    text = text.strip()
    if not text:
        raise Fatal("token must not be empty")
    if not text.startswith("K10"):
        return Token(text)
    ca_hash, separator, credentials = text[3:].partition("::")
    user, colon, password = credentials.partition(":")
    if not separator:
        raise Fatal("invalid token format")
    if not re.fullmatch(r"[0-9a-f]{64}", ca_hash):
        raise Fatal("invalid token CA hash length")
    if not colon:  # a bootstrap token stands for user and password at once
        return Token(credentials, "node", ca_hash)
    return Token(password, user, ca_hash)


def full(password: str, ca_pem: str) -> str:
    return f"K10{ca_hash(ca_pem)}::server:{password}"


def ca_hash(ca_pem: str) -> str:
    return hashlib.sha256(ca_pem.encode()).hexdigest()


def new_password() -> str:
    return secrets.token_hex(16)


def new_bootstrap_token() -> str:
    letters = string.ascii_lowercase + string.digits
    return ".".join("".join(secrets.choice(letters) for _ in range(n)) for n in (6, 16))
