"""Certificates and signed texts: how they are made, and when they are valid.

A site's name is the one in its certificate and nowhere else. Signed texts (the federation file, the list of revoked
keys) are JSON with a body and the authority's signature of it, for one purpose.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from decibel.core import optional, read_file

from .._errors import Foreign, NotTrusted
from ._revocation import RevocationList
from ._signing import Purpose, fingerprint, public_key, sign, verified

with optional("cryptography", caller="db.Silo", extra="silo"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID


class Holder(NamedTuple):
    """The permanent content of a certificate: the name, the key, and the time for which it is valid."""

    name: str
    key: ec.EllipticCurvePublicKey
    fingerprint: str
    begins: datetime
    ends: datetime

    @classmethod
    def of(cls, certificate: x509.Certificate, authority: x509.Certificate) -> Holder:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            raise Foreign("the certificate was issued by another authority.") from None
        key = public_key(certificate, "the certificate")
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            (name,) = names.get_values_for_type(x509.DNSName)
        except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension):
            raise NotTrusted("the certificate does not name one site.") from None
        begins = certificate.not_valid_before_utc
        ends = certificate.not_valid_after_utc
        return cls(name, key, fingerprint(key), begins, ends)

    def check(self, revoked: RevocationList, now: datetime) -> None:
        """Raises if the certificate is not valid now."""
        if now < self.begins:
            raise NotTrusted(
                f"the certificate is not valid before {in_utc(self.begins)}, and the time is {in_utc(now)} here."
            )
        if now > self.ends:
            raise NotTrusted(f"the certificate has expired on {in_utc(self.ends)}, and the time is {in_utc(now)} here.")
        if now > revoked.expires:
            raise NotTrusted(
                f"the list of revoked keys has expired on {in_utc(revoked.expires)}, and the time is {in_utc(now)} "
                "here: get a new one from the organiser, who makes it by `decibel silo revoke`."
            )
        if self.fingerprint in revoked.keys:
            raise NotTrusted("the certificate is revoked.")


def validated_name(
    certificate: x509.Certificate, authority: x509.Certificate, revoked: RevocationList, now: datetime | None = None
) -> str:
    """The name in a certificate; raises if the certificate is not valid at that time."""
    holder = Holder.of(certificate, authority)
    holder.check(revoked, now or datetime.now(UTC))
    return holder.name


def in_utc(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def write_signed(key: ec.EllipticCurvePrivateKey, purpose: Purpose, body: str) -> str:
    signature = base64.b64encode(sign(key, purpose, body.encode())).decode()
    return json.dumps({"purpose": purpose, "body": body, "signature": signature}, indent=1)


def read_signed(text: str | bytes, authority: x509.Certificate, purpose: Purpose, what: str) -> str:
    """The body, if the authority signed it for that purpose."""
    try:
        envelope = json.loads(text)
        body = envelope["body"]
        signature = base64.b64decode(envelope["signature"], validate=True)
        if not verified(public_key(authority, "the authority"), signature, purpose, body.encode()):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NotTrusted(f"{what} is not signed by this federation's authority as a {purpose}: get it again.") from None
    return body


def read_revoked(text: str | bytes, authority: x509.Certificate, federation: str, what: str) -> RevocationList:
    """A list of revoked keys that the authority signed for this federation."""
    revoked = RevocationList.from_text(read_signed(text, authority, "revocation list", what), what)
    if revoked.federation != federation:
        raise NotTrusted(f"{what} is of federation {revoked.federation!r}, not of {federation!r}: get the right one.")
    return revoked


def make_request(key: ec.EllipticCurvePrivateKey, name: str, federation: str) -> x509.CertificateSigningRequest:
    return (
        x509.CertificateSigningRequestBuilder().subject_name(distinguished(name, federation)).sign(key, hashes.SHA256())
    )


def requested_name(request: x509.CertificateSigningRequest) -> str:
    names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise NotTrusted("the request does not name one site: create it by `decibel silo join`.")
    return str(names[0].value)


def load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_file(path))
    except ValueError as error:
        raise _unreadable(path, error, "certificate") from None


def load_request(path: Path) -> x509.CertificateSigningRequest:
    try:
        return x509.load_pem_x509_csr(read_file(path))
    except ValueError as error:
        raise _unreadable(path, error, "certificate request") from None


def _unreadable(path: Path, error: ValueError, what: str) -> ValueError:
    return error if str(path) in str(error) else ValueError(f"{path} is not a {what}: get it again.")


def pem(thing: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return thing.public_bytes(serialization.Encoding.PEM)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def certificate_fingerprint(certificate: x509.Certificate) -> str:
    """The fingerprint of the key in a certificate."""
    return fingerprint(public_key(certificate, "the certificate"))


def distinguished(common: str, federation: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
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
