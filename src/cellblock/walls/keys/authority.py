"""The certificate authority of one session: made from its seed, so that every turnkey of the session makes the same."""

from __future__ import annotations

import datetime
import hashlib
import hmac
from collections.abc import Iterable
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group of P-256: private keys are smaller."""
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cellblock session")])
_DAY = datetime.timedelta(days=1)


def authority_key(seed: bytes) -> ec.EllipticCurvePrivateKey:
    """Return the key of a session's authority."""
    digest = hmac.digest(seed, b"authority", hashlib.sha512)
    return ec.derive_private_key(int.from_bytes(digest) % (_ORDER - 1) + 1, ec.SECP256R1())


def authority_certificate(seed: bytes) -> bytes:
    """Return the certificate of a session's authority, in PEM."""
    key = authority_key(seed)
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * _DAY)
        .not_valid_after(now + 3650 * _DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    content: bytes = made.public_bytes(serialization.Encoding.PEM)
    return content


def leaf(seed: bytes, hosts: Iterable[str]) -> bytes:
    """Return a certificate for hosts, and its key, in PEM."""
    issuer, key = authority_key(seed), ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + 390 * _DAY)
        .add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)
        .sign(issuer, hashes.SHA256())
    )
    private: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public: bytes = made.public_bytes(serialization.Encoding.PEM)
    return private + public


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)
