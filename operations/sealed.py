"""A text encrypted under a passphrase, so that it can travel between people who hold different stacks.

Scrypt makes the key, Fernet encrypts and authenticates (both of `cryptography`). The parameters stand in the file for
the reader's information; others than these are refused, so that no file can make its reader work for hours.
"""

import base64
import json
import os

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

FORMAT = "fleet-sealed-1"
COST = {"n": 1 << 17, "r": 8, "p": 1}  # 128 MiB and a fraction of a second for each guess
SALT_BYTES = 16
SHORTEST_PASSPHRASE = 12
LONGEST_FILE = 1 << 20


class SealError(Exception):
    """The text cannot be sealed or opened; the message says why."""


def seal(text: str, passphrase: str) -> str:
    _text(passphrase)
    if len(passphrase) < SHORTEST_PASSPHRASE:
        raise SealError(
            f"found a passphrase of {len(passphrase)} characters; expected {SHORTEST_PASSPHRASE} or more: the file "
            "may fall into any hands"
        )
    salt = os.urandom(SALT_BYTES)
    token = Fernet(_key(passphrase, salt)).encrypt(text.encode()).decode()
    sealed = {"format": FORMAT, "kdf": "scrypt", **COST, "salt": base64.b64encode(salt).decode(), "token": token}
    return json.dumps(sealed, indent=1) + "\n"


def opened(sealed: str, passphrase: str) -> str:
    """Raises SealError for a file of another kind, a changed one, and a wrong passphrase."""
    _text(passphrase)
    try:
        found = json.loads(sealed) if len(sealed) <= LONGEST_FILE else None
        if not isinstance(found, dict) or found.get("format") != FORMAT or {k: found.get(k) for k in COST} != COST:
            raise SealError(f"found another kind of file; expected one that fleet credentials export wrote ({FORMAT})")
        salt, token = base64.b64decode(str(found["salt"]), validate=True), str(found["token"])
        return Fernet(_key(passphrase, salt)).decrypt(token).decode()
    except InvalidToken:
        raise SealError("found a wrong passphrase, or a file that was changed") from None
    except (ValueError, KeyError, RecursionError):
        raise SealError("found a damaged file; expected one that fleet credentials export wrote") from None


def _key(passphrase: str, salt: bytes) -> bytes:
    return base64.urlsafe_b64encode(Scrypt(salt=salt, length=32, **COST).derive(passphrase.encode()))


def _text(passphrase: str) -> None:
    """A variable of the environment may hold any bytes."""
    try:
        passphrase.encode()
    except UnicodeEncodeError:
        raise SealError("found a passphrase that is no text in UTF-8; expected letters, digits and signs") from None
