"""Makes the CA of the fleet and the certificates that a site's half of the ClusterMesh needs.

Pure: keys come from the operating system, nothing is stored. What each certificate must say is `infra.certificates`.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from infra.certificates import SERVER_ADDRESSES, SERVER_DNS, Pair, common_name
from infra.names import MESH_KEYS

CA_NAME = "Cilium CA of the fleet"
CA_VALID = timedelta(days=3650)
LEAF_VALID = timedelta(days=1095)  # as the chart's own
CLOCK_SKEW = timedelta(minutes=5)


def new_authority(now: datetime | None = None) -> Pair:
    """A CA: certificate and key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CA_NAME)])
    builder = _builder(name, name, key.public_key(), now or datetime.now(UTC), CA_VALID)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return _pem(builder.sign(key, hashes.SHA256()), key)


def new_leaves(authority: Pair, cluster: str, now: datetime | None = None) -> dict[str, Pair]:
    """All certificates of a cluster, by role."""
    return {role: new_leaf(authority, role, cluster, now) for role in MESH_KEYS}


def new_leaf(authority: Pair, role: str, cluster: str, now: datetime | None = None) -> Pair:
    """Ends no later than its CA. Raises ValueError for a CA that is not a certificate and its key."""
    begin = now or datetime.now(UTC)
    issuer, signer = _issuer(authority, begin)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name(role, cluster))])
    valid = min(LEAF_VALID, issuer.not_valid_after_utc - begin)
    builder = _builder(name, issuer.subject, key.public_key(), begin, valid)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if role == "server":
        uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)  # and client: etcd's own gateway dials etcd with it
        names: Iterable[x509.GeneralName] = (
            *map(x509.DNSName, SERVER_DNS),
            *map(x509.IPAddress, SERVER_ADDRESSES),
        )
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    builder = builder.add_extension(_issued_by(issuer), critical=False)
    return _pem(builder.sign(signer, hashes.SHA256()), key)


def check_authority(authority: Pair) -> None:
    """Raises ValueError for a pair that can issue nothing that anybody trusts."""
    _issuer(authority, datetime.now(UTC))


def _issuer(authority: Pair, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey]:
    issuer = x509.load_pem_x509_certificate(authority[0].encode())
    signer = load_pem_private_key(authority[1].encode(), password=None)
    if not isinstance(signer, (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)):
        raise ValueError("its key is neither EC nor RSA")
    if signer.public_key() != issuer.public_key():
        raise ValueError("its key is not that of its certificate")
    try:
        may = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        may = False
    if not may:
        raise ValueError("its certificate is no CA")
    if issuer.not_valid_after_utc <= now:
        raise ValueError(f"it expired on {issuer.not_valid_after_utc:%Y-%m-%d}")
    return issuer, signer


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: datetime, valid: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - CLOCK_SKEW)
        .not_valid_after(begin + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _issued_by(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        known = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:  # a CA made by hand
        known = x509.SubjectKeyIdentifier.from_public_key(issuer.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return certificate.public_bytes(Encoding.PEM).decode(), text
