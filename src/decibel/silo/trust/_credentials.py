"""A site's folder: its key and certificate, the authority's certificate, the signed federation, and revoked keys."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from decibel.core import durable_replace, optional, read_file

from .._errors import NotTrusted
from .._federation import Federation
from ._certificates import (
    Holder,
    certificate_fingerprint,
    der,
    in_utc,
    load_certificate,
    pem,
    read_signed,
    validated_name,
)
from ._revocation import RevocationList
from ._signing import Purpose, fingerprint, key_pem, load_key, public_key, sign, verified
from ._trust import Trust

with optional("cryptography", caller="db.Silo", extra="silo"):
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

WARNED_BEFORE = timedelta(days=7)  # or a tenth of the time from its beginning, if that is less
KEY = "key.pem"
NEXT_KEY = "next-key.pem"
CERTIFICATE = "certificate.pem"


class Identity(NamedTuple):
    """A key and its certificate, which change together."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        return key_pem(self.key)

    @property
    def certificate_pem(self) -> bytes:
        return pem(self.certificate)

    @property
    def certificate_der(self) -> bytes:
        return der(self.certificate)


class Credentials:
    """What a site presents to others, and what it checks them with. Both are read again while it runs (`refresh`)."""

    def __init__(self, home: Path, name: str, authority: x509.Certificate, federation: Federation) -> None:
        self.home = home
        self.name = name
        self.authority = authority
        self.federation = federation
        self.trust = Trust(home, authority, federation.name)
        self.identity = load_identity(home)
        self._seen = read_file(home / CERTIFICATE)
        self._signatures = Signatures(authority, len(federation.sites))

    @classmethod
    def load(cls, home: str | Path, name: str) -> Credentials:
        """Loads them from the folder that `decibel silo join` made and `decibel silo sign` completed."""
        home = Path(home)
        authority = load_certificate(home / "authority.pem")
        federation = load_federation(home, authority)
        federation.number(name)
        credentials = cls(home, name, authority, federation)
        credentials._validate(credentials.identity)
        credentials.trust.take_federation(federation, str(home / "federation.json"))
        credentials.trust.start_saving()
        return credentials

    def _validate(self, identity: Identity) -> None:
        path = self.home / CERTIFICATE
        try:
            name = self.validated_name(identity.certificate)
        except NotTrusted as error:
            raise ValueError(f"{path}: {error} Request a new one (decibel silo join, then sign).") from None
        if name != self.name:
            raise ValueError(f"{path} belongs to {name!r}, not to {self.name!r}: use the right folder.")

    def refresh(self) -> list[str]:
        """Takes what is new in the folder: a list of revoked keys, or a renewed certificate. Returns what people should
        know.
        """
        said = [trouble for trouble in (self.trust.refresh(), self.trust.clock_trouble()) if trouble]
        try:
            if (raw := read_file(self.home / CERTIFICATE)) != self._seen:
                identity = load_identity(self.home)
                self._validate(identity)
                self.identity = identity
                self._seen = raw
                said.append(
                    f"a new certificate is in use, valid until {in_utc(identity.certificate.not_valid_after_utc)}"
                )
        except (ValueError, OSError) as error:
            said.append(f"the certificate in use is not the one in {self.home}: {error}")
        certificate = self.certificate
        revoked = self.trust.revoked
        now = self.trust.now()
        said += _ends_soon(
            "this site's certificate", certificate.not_valid_before_utc, certificate.not_valid_after_utc, now
        )
        said += _ends_soon("the list of revoked keys", revoked.issued, revoked.expires, now)
        return said

    def validated_name(self, certificate: x509.Certificate) -> str:
        """The name in a certificate; raises if the certificate is not valid now."""
        self.trust.refresh()
        return validated_name(certificate, self.authority, self.trust.revoked, now=self.trust.now())

    def proof(self, identity: Identity, listener: str, dialler: str, nonce: bytes) -> bytes:
        """The answer to a dialler's nonce, which proves that this site holds the key of its certificate now."""
        return sign(identity.key, "greeting", self._text(listener, dialler, nonce))

    def validated_prover(self, certificate: bytes, proof: bytes, listener: str, nonce: bytes) -> str:
        """The listener's name; raises if its certificate is not valid, or its key did not answer this dialler's
        nonce."""
        try:
            presented = x509.load_der_x509_certificate(certificate)
        except ValueError:
            raise NotTrusted("no certificate was presented.") from None
        key = public_key(presented, "the certificate")
        if not verified(key, proof, "greeting", self._text(listener, self.name, nonce)):
            raise NotTrusted("the certificate does not belong to the site that answered.")
        return self.validated_name(presented)

    def sign(self, purpose: Purpose, text: bytes) -> tuple[bytes, bytes]:
        """Signs what this site says about itself; returns the signature and the certificate to verify it with."""
        identity = self.identity
        return sign(identity.key, purpose, text), identity.certificate_der

    def has_signed(self, name: str, purpose: Purpose, certificate: bytes, signature: bytes, text: bytes) -> bool:
        """Whether a site of that name has signed a text; raises `NotTrusted` if its certificate no longer holds."""
        return self._signatures.has_signed(
            name, purpose, certificate, signature, text, self.trust.revoked, self.trust.now()
        )

    def _text(self, listener: str, dialler: str, nonce: bytes) -> bytes:
        return b"\0".join((self.federation.hash, listener.encode(), dialler.encode(), nonce))

    @property
    def expiries(self) -> dict[str, float]:
        """When what this site presents and checks with expires, as Unix times."""
        return {
            "certificate": self.certificate.not_valid_after_utc.timestamp(),
            "revocation_list": self.trust.revoked.expires.timestamp(),
        }

    @property
    def certificate(self) -> x509.Certificate:
        return self.identity.certificate

    @property
    def authority_pem(self) -> bytes:
        return pem(self.authority)


class Signatures:
    """What sites have signed. Checks of issuers and signatures do not change over time, so they are cached, for as many
    as there are sites."""

    def __init__(self, authority: x509.Certificate, sites: int) -> None:
        self._authority = authority
        self._holder = lru_cache(maxsize=4 * sites)(self._find_holder)
        self._verified = lru_cache(maxsize=8 * sites)(self._verify)

    def has_signed(
        self,
        name: str,
        purpose: Purpose,
        certificate: bytes,
        signature: bytes,
        text: bytes,
        revoked: RevocationList,
        now: datetime,
    ) -> bool:
        """Whether a site of that name has signed a text; raises `NotTrusted` if its certificate no longer holds."""
        holder = self._holder(certificate)
        if holder is None or holder.name != name or not self._verified(certificate, signature, purpose, text):
            return False
        holder.check(revoked, now)
        return True

    def _find_holder(self, certificate: bytes) -> Holder | None:
        """Whose certificate it is; None if the authority did not issue it."""
        try:
            return Holder.of(x509.load_der_x509_certificate(certificate), self._authority)
        except ValueError:  # NotTrusted is one
            return None

    def _verify(self, certificate: bytes, signature: bytes, purpose: Purpose, text: bytes) -> bool:
        holder = self._holder(certificate)
        return holder is not None and verified(holder.key, signature, purpose, text)


def load_identity(home: Path) -> Identity:
    """The certificate and its key: the key in use, or a newer one that has been certified since."""
    certificate = load_certificate(home / CERTIFICATE)
    wanted = certificate_fingerprint(certificate)
    for name in (KEY, NEXT_KEY):
        if (home / name).exists() and fingerprint((key := load_key(home / name)).public_key()) == wanted:
            if name == NEXT_KEY:
                durable_replace(home / NEXT_KEY, home / KEY)
            return Identity(key, certificate)
    if not (home / KEY).exists():
        raise ValueError(f"{home / KEY} is missing: restore it, or make a new key (decibel silo join, then sign).")
    raise ValueError(
        f"{home / CERTIFICATE} does not match {home / KEY}: request a new one (decibel silo join, then sign)."
    )


def load_federation(folder: Path, authority: x509.Certificate) -> Federation:
    path = folder / "federation.json"
    if not path.is_file():
        raise ValueError(f"{path} is missing: copy it from whoever made the federation.")
    return Federation.from_text(read_signed(read_file(path), authority, "federation", str(path)))


def _ends_soon(what: str, begins: datetime, ends: datetime, now: datetime) -> list[str]:
    left = ends - now
    return (
        [f"{what} expires on {in_utc(ends)}: get a new one from the organiser"]
        if left < min(WARNED_BEFORE, (ends - begins) / 10)
        else []
    )
