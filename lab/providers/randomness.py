"""Stand-in for the `random` provider: passwords, strings, ids, UUIDs and bytes that change only when replaced.

All inputs replace, as in the real provider. Passwords, hashes and bytes are secret. Left out: RandomInteger, RandomPet
and RandomShuffle, which the program does not use.
"""

import base64
import ctypes
import ctypes.util
import secrets
import string
import uuid
from collections.abc import Iterator
from typing import Any, Final

import pulumi_random as sdk
from pulumi.provider.experimental.provider import CheckFailure

from lab.providers import STANDS_IN_FOR
from lab.providers.arguments import properties
from lab.providers.serving import Refused, serve
from lab.providers.stand_in import Kind, StandIn
from lab.providers.values import UNKNOWN, Properties

CLASSES: Final = {
    "upper": string.ascii_uppercase,
    "lower": string.ascii_lowercase,
    "numeric": string.digits,
    "special": "!@#$%&*()-_=+[]{}<>:?",
}
DEFAULTS: Final = {"special": True, "upper": True, "lower": True, "numeric": True} | {
    f"min{name.title()}": 0 for name in CLASSES
}
BCRYPT_COST: Final = 10
BCRYPT_ALPHABET: Final = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class _Random(Kind):
    """What all kinds share: nothing to update, read or delete outside the state."""

    def __init__(self) -> None:
        self.replaces = frozenset(properties(self.arguments))


class _Text(_Random):
    computed = frozenset({"result"})

    def normal(self, inputs: Properties) -> Properties:
        # `number` is the old name of `numeric`.
        return DEFAULTS | {"numeric": inputs.get("number", True)} | inputs

    def invalid(self, inputs: Properties) -> Iterator[CheckFailure]:
        values = self.normal(inputs)
        length = values["length"]
        least = [values[f"min{name.title()}"] for name in CLASSES]
        if UNKNOWN in (length, *least):
            return
        if length < max(1, sum(least)):
            yield CheckFailure("length", f"found {length}; expected at least {max(1, sum(least))}, the sum of min*")
        if not any(values[name] for name in CLASSES):
            yield CheckFailure("special", "at least one class of characters must be allowed")

    def text(self, inputs: Properties) -> str:
        """Characters from the operating system's generator, each class at least as often as asked for."""
        pools = dict(CLASSES)
        pools["special"] = inputs.get("overrideSpecial") or pools["special"]
        allowed = "".join(pool for name, pool in pools.items() if inputs[name])
        drawn = [secrets.choice(pools[name]) for name in pools for _ in range(inputs[f"min{name.title()}"])]
        drawn += [secrets.choice(allowed) for _ in range(inputs["length"] - len(drawn))]
        secrets.SystemRandom().shuffle(drawn)
        return "".join(drawn)


class Password(_Text):
    token = "random:index/randomPassword:RandomPassword"
    arguments = sdk.RandomPasswordArgs
    computed = frozenset({"result", "bcryptHash"})
    always_secret = computed

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        return "none", _password_outputs(self.text(inputs))

    async def read(self, resource_id: str, state: Properties) -> tuple[str, Properties, Properties] | None:
        if state:
            return await super().read(resource_id, state)
        # An import: the id is the password itself, and is not kept as the id.
        return "none", DEFAULTS | {"length": len(resource_id)}, _password_outputs(resource_id)


class String(_Text):
    token = "random:index/randomString:RandomString"
    arguments = sdk.RandomStringArgs

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        text = self.text(inputs)
        return text, {"result": text}


class Id(_Random):
    token = "random:index/randomId:RandomId"
    arguments = sdk.RandomIdArgs
    computed = frozenset({"b64Std", "b64Url", "dec", "hex"})

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        drawn, prefix = secrets.token_bytes(inputs["byteLength"]), inputs.get("prefix", "")
        url = base64.urlsafe_b64encode(drawn).decode().rstrip("=")
        return url, {
            "b64Std": prefix + base64.b64encode(drawn).decode(),
            "b64Url": prefix + url,
            "dec": prefix + str(int.from_bytes(drawn, "big")),
            "hex": prefix + drawn.hex(),
        }


class Uuid(_Random):
    token = "random:index/randomUuid:RandomUuid"
    arguments = sdk.RandomUuidArgs
    computed = frozenset({"result"})

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        drawn = str(uuid.uuid4())
        return drawn, {"result": drawn}


class Bytes(_Random):
    token = "random:index/randomBytes:RandomBytes"
    arguments = sdk.RandomBytesArgs
    computed = frozenset({"base64", "hex"})
    always_secret = computed

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        drawn = secrets.token_bytes(inputs["length"])
        return "none", {"base64": base64.b64encode(drawn).decode(), "hex": drawn.hex()}


def _password_outputs(password: str) -> dict[str, Any]:
    return {"result": password, "bcryptHash": bcrypt(password)}


def bcrypt(password: str) -> str:
    """The hash by the system's libcrypt: Python's own wrapper of it is gone from 3.13 on."""
    found = ctypes.util.find_library("crypt")
    if found is None:
        raise Refused("RandomPassword.bcryptHash needs libcrypt, which was not found; install it (Debian: libcrypt1)")
    crypt = ctypes.CDLL(found).crypt
    crypt.restype = ctypes.c_char_p
    # 22 characters stand for the 16 bytes of salt; only four values fit into the last one.
    salt = "".join(secrets.choice(BCRYPT_ALPHABET) for _ in range(21)) + secrets.choice(".Oeu")
    hashed = crypt(password.encode(), f"$2b${BCRYPT_COST:02}${salt}".encode())
    if not hashed or not hashed.startswith(b"$2b$"):
        raise Refused("RandomPassword.bcryptHash: the system's libcrypt knows no bcrypt")
    return str(hashed.decode())


def provider() -> StandIn:
    return StandIn([Password(), String(), Id(), Uuid(), Bytes()])


if __name__ == "__main__":
    serve(provider(), STANDS_IN_FOR["random"])
