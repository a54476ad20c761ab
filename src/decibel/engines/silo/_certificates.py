"""Identities: an authority that is kept offline, keys that never leave their site, and certificates that expire.

A site's name is the one in its certificate and nowhere else. Signed texts (the federation file, the list of revoked
certificates) are JSON with a body and the authority's signature of it.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ...core._files import atomic_write
from ...core._optional import optional

with optional("cryptography", caller="db.Silo", extra="silo"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ECDSA = ec.ECDSA(hashes.SHA256())
AUTHORITY_DAYS = 3650


class NotTrusted(ValueError):
    """A certificate or a signature that does not hold."""


class Authority:
    """Signs; its key is all it takes to let anyone in, so it is kept where no site is."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.key, self.certificate = key, certificate

    @classmethod
    def make(cls, federation: str) -> Authority:
        key = new_key()
        name = _name(f"authority of {federation}", federation)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = (
            _builder(name, name, key.public_key(), timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def load(cls, folder: Path) -> Authority:
        return cls(load_key(folder / "key.pem"), load_certificate(folder / "authority.pem"))

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        save_key(self.key, folder / "key.pem")
        atomic_write(folder / "authority.pem", pem(self.certificate))

    def certify(
        self, request: x509.CertificateSigningRequest, known: list[str], lifetime: timedelta = timedelta(days=365)
    ) -> x509.Certificate:
        """A certificate for the site that the request names, if the federation has such a site."""
        name = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        if not request.is_signature_valid:
            raise NotTrusted(f"the request of {name!r} is not signed by its own key: the site has to create it again.")
        if name not in known:
            raise NotTrusted(f"the request is for {name!r}, which is not a site of this federation.")
        builder = (
            _builder(request.subject, self.certificate.subject, request.public_key(), lifetime)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(str(name))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
                critical=False,
            )
        )
        return builder.sign(self.key, hashes.SHA256())

    def sign(self, body: str) -> str:
        signature = self.key.sign(body.encode(), ECDSA)
        return json.dumps({"body": body, "signature": base64.b64encode(signature).decode()}, indent=1)


def read_signed(text: str, authority: x509.Certificate, what: str) -> str:
    """The body, if the authority signed it."""
    try:
        found = json.loads(text)
        body, signature = found["body"], base64.b64decode(found["signature"], validate=True)
        _public(authority).verify(signature, body.encode(), ECDSA)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidSignature):
        raise NotTrusted(f"{what} is not signed by this federation's authority: get it again.") from None
    return body


def check(
    certificate: x509.Certificate, authority: x509.Certificate, revoked: set[int], now: datetime | None = None
) -> str:
    """The name in a certificate that holds."""
    now = now or datetime.now(UTC)
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise NotTrusted("the certificate was issued by another authority.") from None
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise NotTrusted("the certificate has expired or is not valid yet.")
    if certificate.serial_number in revoked:
        raise NotTrusted("the certificate is revoked.")
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.DNSName
    )[0]


def make_request(key: ec.EllipticCurvePrivateKey, name: str, federation: str) -> x509.CertificateSigningRequest:
    return x509.CertificateSigningRequestBuilder().subject_name(_name(name, federation)).sign(key, hashes.SHA256())


def prove(key: ec.EllipticCurvePrivateKey, text: bytes) -> bytes:
    return key.sign(text, ECDSA)


def proven(certificate: x509.Certificate, proof: bytes, text: bytes) -> bool:
    try:
        _public(certificate).verify(proof, text, ECDSA)
    except InvalidSignature:
        return False
    return True


def revoked_serials(text: str | None, authority: x509.Certificate) -> set[int]:
    if text is None:
        return set()
    return {int(serial, 16) for serial in json.loads(read_signed(text, authority, "the list of revoked certificates"))}


def fingerprint(certificate: x509.Certificate) -> str:
    """For people to compare over the telephone."""
    return certificate.fingerprint(hashes.SHA256()).hex(":", 4)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def save_key(key: ec.EllipticCurvePrivateKey, path: Path) -> None:
    atomic_write(path, key_pem(key), mode=0o600)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(_read(path), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def load_certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(_read(path))


def load_request(path: Path) -> x509.CertificateSigningRequest:
    return x509.load_pem_x509_csr(_read(path))


def pem(thing: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return thing.public_bytes(serialization.Encoding.PEM)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path} is missing.")
    return path.read_bytes()


def _name(common: str, federation: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, lifetime: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begin = now - timedelta(minutes=5)  # clocks differ
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(begin, now + lifetime - timedelta(seconds=1)))
        .not_valid_after(now + lifetime)
    )


def _public(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key
