"""Certificate authorities of a cluster, shared by its servers, and the certificates each server issues from them."""

import ipaddress
import secrets
import time
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .paths import Paths, write

CAS = ("server-ca", "client-ca", "request-header-ca", "etcd/server-ca", "etcd/peer-ca")
_SHARED_KEYS = ("service.key", "service.current.key")
_RENEW_BEFORE = timedelta(days=120)

# file | signing CA | common name | organisations | use
_CLIENTS = (
    ("client-admin", "client-ca", "system:admin", ("system:masters",)),
    ("client-supervisor", "client-ca", "system:k3s-supervisor", ("system:masters",)),
    ("client-controller", "client-ca", "system:kube-controller-manager", ()),
    ("client-scheduler", "client-ca", "system:kube-scheduler", ()),
    ("client-kube-apiserver", "client-ca", "system:apiserver", ("system:masters",)),
    ("client-auth-proxy", "request-header-ca", "system:auth-proxy", ()),
    ("etcd/client", "etcd/server-ca", "etcd-client", ()),
)


def create_authorities(paths: Paths, encryption_provider: str) -> None:
    """Makes what is missing; an empty provider means that Secrets are stored as they are."""
    for name in CAS:
        if not (paths.tls / f"{name}.crt").exists():
            key = ec.generate_private_key(ec.SECP256R1())
            subject = _name(f"k3s-{name.replace('/', '-')}@{int(time.time())}")
            certificate = (
                _builder(subject, subject, key.public_key(), timedelta(days=3650))
                .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
                .add_extension(_usage(ca=True), critical=True)
                .sign(key, hashes.SHA256())
            )
            write(paths.tls / f"{name}.key", _key_pem(key))
            write(paths.tls / f"{name}.crt", _pem(certificate), 0o644)
    if not (paths.tls / "service.key").exists():
        pem = _key_pem(ec.generate_private_key(ec.SECP256R1()))
        for name in _SHARED_KEYS:
            write(paths.tls / name, pem)
    encryption = paths.cred / "encryption-config.json"
    if encryption_provider and not encryption.exists():
        write(encryption, _encryption_config(encryption_provider))


def shared(paths: Paths) -> dict[str, str]:
    """What a joining server needs, by path below the server's folder."""
    names = [f"tls/{n}.{kind}" for n in CAS for kind in ("crt", "key")] + [f"tls/{n}" for n in _SHARED_KEYS]
    names += ["cred/encryption-config.json"]
    return {n: (paths.server / n).read_text() for n in names if (paths.server / n).exists()}


def complete(paths: Paths) -> bool:
    return all((paths.tls / f"{n}.{kind}").exists() for n in CAS for kind in ("crt", "key"))


def take_over(paths: Paths, content: dict[str, str]) -> None:
    for name, text in content.items():
        write(paths.server / name, text, 0o644 if name.endswith(".crt") else 0o600)


def issue_all(paths: Paths, sans: Iterable[str], etcd_sans: Iterable[str]) -> None:
    """Client certificates are kept until they near their end, serving ones follow their names at each start."""
    for name, ca, common_name, organisations in _CLIENTS:
        if not _lasts(paths.tls / f"{name}.crt"):
            _store(paths, name, issue(paths, ca, common_name, organisations))
    _store(paths, "serving-kube-apiserver", issue(paths, "server-ca", "kube-apiserver", (), sans))
    # etcd's HTTP gateway calls etcd itself with the serving certificate, so that one must do as a client's, too
    _store(paths, "etcd/server-client", issue(paths, "etcd/server-ca", "etcd-server", (), etcd_sans))
    _store(paths, "etcd/peer-server-client", issue(paths, "etcd/peer-ca", "etcd-peer", (), etcd_sans))


def issue(
    paths: Paths, ca: str, common_name: str, organisations: Iterable[str], sans: Iterable[str] = ()
) -> tuple[str, str]:
    """Certificate (with that of its CA behind it) and key, as PEM."""
    authority = x509.load_pem_x509_certificate((paths.tls / f"{ca}.crt").read_bytes())
    signer = serialization.load_pem_private_key((paths.tls / f"{ca}.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    names = list(dict.fromkeys(sans))
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if names else [])
    builder = (
        _builder(_name(common_name, organisations), authority.subject, key.public_key(), timedelta(days=365))
        .add_extension(_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_san(n) for n in names]), critical=False)
    return _pem(builder.sign(signer, hashes.SHA256())) + _pem(authority), _key_pem(key)


def expiry(path: Path) -> tuple[str, datetime]:
    """Subject and end of the first certificate of a file."""
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return certificate.subject.rfc4514_string(), certificate.not_valid_after_utc


def leaf_names() -> list[str]:
    serving = ["serving-kube-apiserver", "etcd/server-client", "etcd/peer-server-client"]
    return [c[0] for c in _CLIENTS] + serving


def _lasts(path: Path) -> bool:
    return path.exists() and expiry(path)[1] - datetime.now(UTC) > _RENEW_BEFORE


def _store(paths: Paths, name: str, pair: tuple[str, str]) -> None:
    write(paths.tls / f"{name}.crt", pair[0], 0o644)
    write(paths.tls / f"{name}.key", pair[1])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + life)
    )


def _name(common_name: str, organisations: Iterable[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organisations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _san(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    ).decode()


def _encryption_config(provider: str) -> str:
    key = b64encode(secrets.token_bytes(32)).decode()
    return (
        '{"kind":"EncryptionConfiguration","apiVersion":"apiserver.config.k8s.io/v1","resources":[{"resources":'
        f'["secrets"],"providers":[{{"{provider}":{{"keys":[{{"name":"{provider}key","secret":"{key}"}}]}}}},'
        '{"identity":{}}]}]}\n'
    )
