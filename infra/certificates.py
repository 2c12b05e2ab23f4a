"""Certificates of the ClusterMesh: which a site has, what each must say, and what is wrong with given ones.

Making them is `operations.credentials`: an update only uses what a person made once. Names are those that Cilium 1.17
checks: the server's by every client, the common name of a client as its user in etcd (`authMode: cluster`).
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

DOMAIN = "mesh.cilium.io"  # below it Cilium names every peer after its cluster
SERVER_NAME = "clustermesh-apiserver.cilium.io"
SERVER_DNS = (SERVER_NAME, f"*.{DOMAIN}", "clustermesh-apiserver.kube-system.svc")
SERVER_ADDRESSES: tuple[IPv4Address | IPv6Address, ...] = (ip_address("127.0.0.1"), ip_address("::1"))
WARN_BEFORE = timedelta(days=60)

Pair = tuple[str, str]  # certificate and private key, PEM


def common_name(role: str, cluster: str) -> str:
    """`admin` is the API server's own user, `remote` the one it uses at its peers, `local` that of its agents."""
    return SERVER_NAME if role == "server" else f"{role}-{cluster}"


def secret_name(role: str) -> str:
    """Secret in kube-system that pods of the chart mount."""
    return f"clustermesh-apiserver-{role}-cert"


def parsed(pem: str) -> x509.Certificate:
    """Raises ValueError for anything but one certificate."""
    return x509.load_pem_x509_certificate(pem.encode())


def fingerprint(pem: str) -> str:
    """SHA-256 of the certificate's DER, as in `common.cilium.ca_sha256`. Raises ValueError."""
    return parsed(pem).fingerprint(hashes.SHA256()).hex()


def expiry(pem: str) -> datetime:
    """Raises ValueError."""
    return parsed(pem).not_valid_after_utc


def soon(when: datetime, now: datetime) -> str:
    """What to say of an expiry that is less than 60 days off; empty while there is time."""
    if when - now > WARN_BEFORE:
        return ""
    day = when.astimezone(UTC).strftime("%Y-%m-%d")
    return f"expired on {day}" if when <= now else f"expires on {day}, in {(when - now).days} days"


def faults(ca: str, cluster: str, leaves: Mapping[str, Pair]) -> Iterator[tuple[str, str, str]]:
    """Role, what was found, and what was expected: of each leaf that would not work. Says nothing of a faulty CA."""
    try:
        authority = parsed(ca)
    except ValueError:
        return
    for role, (pem, key) in leaves.items():
        for found, expected in _faults(authority, common_name(role, cluster), role, pem, key):
            yield role, found, expected


def _faults(authority: x509.Certificate, name: str, role: str, pem: str, key: str) -> Iterator[tuple[str, str]]:
    try:
        leaf = parsed(pem)
    except ValueError:
        yield "something else", "one certificate in PEM"
        return
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        yield "a certificate of another CA", "one that the stack's own CA issued"
    names = [str(one.value) for one in leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if names != [name]:
        yield f"a certificate of {', '.join(names) or 'nobody'}", name
    if role == "server" and not _serves(leaf):
        wanted = ", ".join((*SERVER_DNS, *map(str, SERVER_ADDRESSES)))
        yield "a certificate that lacks names which peers check", wanted
    if not _belongs(leaf, key):
        yield "a certificate with the key of another", "its own key, PEM"


def _serves(leaf: x509.Certificate) -> bool:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    dns = set(names.get_values_for_type(x509.DNSName))
    return set(SERVER_DNS) <= dns and set(SERVER_ADDRESSES) <= set(names.get_values_for_type(x509.IPAddress))


def _belongs(leaf: x509.Certificate, key: str) -> bool:
    try:
        private = load_pem_private_key(key.encode(), password=None)
    except (ValueError, TypeError):
        return False
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return private.public_key().public_bytes(*form) == leaf.public_key().public_bytes(*form)
