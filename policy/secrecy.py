"""Secrets: that what is one is marked as one, so that state, previews and logs hide it."""

import base64
import contextlib
import re
from collections.abc import Iterator

from policy import marks
from policy.judging import NOTING, Fault, Resource, each
from policy.reading import UNKNOWN, Path, at, dotted, leaves

# Inputs that hold a secret whatever it looks like.
ALWAYS_SECRET: dict[str, tuple[tuple[str, ...], ...]] = {
    "pulumi:providers:proxmoxve": (("apiToken",), ("password",)),
    "pulumi:providers:kubernetes": (("kubeconfig",),),
    "command:remote:Command": (("connection", "privateKey"), ("connection", "password")),
    "command:remote:CopyToRemote": (("connection", "privateKey"), ("connection", "password")),
    "kubernetes:helm.sh/v3:Release": (("values", "tls", "ca", "key"),),
    "kubernetes:core/v1:Secret": (("data",), ("stringData",)),
    "proxmoxve:index/vmLegacy:VmLegacy": (("initialization", "userAccount", "password"),),
    "proxmoxve:index/containerLegacy:ContainerLegacy": (("initialization", "userAccount", "password"),),
}
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
ENCODED_PEM = re.compile(r"LS0tLS1CRUdJT[A-Za-z0-9+/=]{12,}")
API_TOKEN = re.compile(r"\b[\w.-]+@[\w.-]+![\w.-]+=[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
WEB_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}")
WIREGUARD_KEY = re.compile(r"(?i)\bprivate-?key\s*[=:]?\s*['\"]?[A-Za-z0-9+/]{43}=")
JOIN_TOKEN = re.compile(r"\bK10[0-9a-f]{64}::[\w:-]+")
KUBECONFIG_KEY = re.compile(r"(?m)client-key-data[\"']?\s*:|^\s*(- )?token:\s+\S{16,}")


@each("SEC-07", level=NOTING, remediate=marks.note)
def secrets_are_marked(resource: Resource) -> Iterator[Fault]:
    """Keys, passwords and tokens are Pulumi secrets, so that neither state nor log shows them."""
    for keys in ALWAYS_SECRET.get(resource.type, ()):
        held = at(resource.props, *keys)
        for path, value in leaves(held, keys) if held not in (None, {}, []) else ():
            if value not in (None, "", UNKNOWN) and not marks.is_secret(resource.urn, path):
                yield Fault(dotted(path), "a secret: pulumi.Output.secret(...)")
    for path in _unmarked(resource, PRIVATE_KEY, API_TOKEN, WEB_TOKEN, WIREGUARD_KEY):
        yield Fault(dotted(path), "no key or token outside a secret: pulumi.Output.secret(...)")


@each("K3S-13")
def join_tokens_and_kubeconfigs_are_secret(resource: Resource) -> Iterator[Fault]:
    """Join tokens and kubeconfigs are Pulumi secrets."""
    for path in _unmarked(resource, JOIN_TOKEN, KUBECONFIG_KEY):
        yield Fault(dotted(path), "no join token and no kubeconfig outside a secret: pulumi.Output.secret(...)")


def _unmarked(resource: Resource, *patterns: re.Pattern[str]) -> Iterator[Path]:
    for path, value in leaves(resource.props):
        if isinstance(value, str) and not marks.is_secret(resource.urn, path):
            texts = (value, *_decoded(value))
            if any(pattern.search(text) for pattern in patterns for text in texts):
                yield path


def _decoded(value: str) -> Iterator[str]:
    """PEM texts that stand in base64, as charts and kubeconfigs want them."""
    for found in ENCODED_PEM.findall(value):
        whole = found.rstrip("=")[:100]
        with contextlib.suppress(ValueError):  # it only looks like base64
            yield base64.b64decode(whole[: len(whole) // 4 * 4]).decode(errors="replace")
