"""A site's own folder: its key and certificate, the authority's certificate, the signed federation, what is revoked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...core._optional import optional
from ._certificates import (
    NotTrusted,
    check,
    der,
    key_pem,
    load_certificate,
    load_key,
    pem,
    prove,
    proven,
    read_signed,
    revoked_serials,
)
from ._federation import Federation

with optional("cryptography", caller="db.Silo", extra="silo"):
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Credentials:
    """What a site shows, and what it checks others by. The list of revoked certificates is read at every greeting."""

    federation: Federation
    name: str
    authority: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    revoked_list: Path | None = None

    @classmethod
    def load(cls, home: str | Path, name: str) -> Credentials:
        """From the folder that `decibel silo join` made and `decibel silo sign` completed."""
        home = Path(home)
        authority = load_certificate(home / "authority.pem")
        federation = load_federation(home, authority)
        own = cls(
            federation, name, authority, load_key(home / "key.pem"), load_certificate(home / "certificate.pem"),
            home / "revoked.json",
        )  # fmt: skip
        federation.number(name)
        try:
            known = own.check(own.certificate)
        except NotTrusted as error:
            raise ValueError(f"{home / 'certificate.pem'}: {error} Request a new one (decibel silo sign).") from None
        if known != name:
            raise ValueError(f"{home / 'certificate.pem'} belongs to {known!r}, not to {name!r}: use the right folder.")
        return own

    def check(self, certificate: x509.Certificate) -> str:
        """The name in a certificate, if it holds."""
        path = self.revoked_list
        text = path.read_text() if path is not None and path.is_file() else None
        return check(certificate, self.authority, revoked_serials(text, self.authority))

    def proof(self, listener: str, dialler: str, nonce: bytes) -> bytes:
        """That this site holds the key of its certificate, now: the answer to a dialler's nonce."""
        return prove(self.key, self._text(listener, dialler, nonce))

    def check_proof(self, certificate: bytes, proof: bytes, listener: str, nonce: bytes) -> str:
        """The listener's name, from a certificate that holds and whose key answered this dialler's nonce."""
        try:
            found = x509.load_der_x509_certificate(certificate)
        except ValueError:
            raise NotTrusted("no certificate was presented.") from None
        if not proven(found, proof, self._text(listener, self.name, nonce)):
            raise NotTrusted("the certificate does not belong to the site that answered.")
        return self.check(found)

    def _text(self, listener: str, dialler: str, nonce: bytes) -> bytes:
        return b"\0".join((b"decibel silo", self.federation.hash, listener.encode(), dialler.encode(), nonce))

    @property
    def key_pem(self) -> bytes:
        return key_pem(self.key)

    @property
    def certificate_pem(self) -> bytes:
        return pem(self.certificate)

    @property
    def certificate_der(self) -> bytes:
        return der(self.certificate)

    @property
    def authority_pem(self) -> bytes:
        return pem(self.authority)


def load_federation(folder: Path, authority: x509.Certificate) -> Federation:
    path = folder / "federation.json"
    if not path.is_file():
        raise ValueError(f"{path} is missing: copy it from whoever made the federation.")
    return Federation.from_text(read_signed(path.read_text(), authority, str(path)))
