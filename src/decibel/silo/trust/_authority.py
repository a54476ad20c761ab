"""The authority signs, and records what it has signed. It is kept offline, its key encrypted by a passphrase."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from decibel.core import JSON, atomic_write, optional, plain, read_file

from .._errors import NotTrusted
from .._federation import Federation
from ._certificates import (
    builder,
    certificate_fingerprint,
    der,
    distinguished,
    load_certificate,
    pem,
    read_revoked,
    requested_name,
    write_signed,
)
from ._order import Order, read_order
from ._revocation import DAYS, RevocationList
from ._signature_ledger import Entry, SignatureLedger
from ._signing import Purpose, fingerprint, is_encrypted, load_key, new_key, public_key, save_key

with optional("cryptography", caller="db.Silo", extra="silo"):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
KEY = "key.pem"
CERTIFICATE = "authority.pem"
LEDGER = "ledger.jsonl"
REVOKED = "revoked.json"
FEDERATION = "federation.json"
ORDER = "order.json"


@dataclass
class Authority:
    """Whoever has its key can admit anyone, so it is kept away from all sites."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    ledger: SignatureLedger | None = None

    @classmethod
    def make(cls, federation: str, ledger: SignatureLedger | None = None) -> Authority:
        key = new_key()
        name = distinguished(f"authority of {federation}", federation)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        unsigned = (
            builder(name, name, key.public_key(), timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        authority = cls(key, unsigned.sign(key, hashes.SHA256()), ledger)
        authority._note("authority", der(authority.certificate), name=federation, key=authority.fingerprint)
        return authority

    @classmethod
    def create(cls, folder: Path, federation: str, passphrase: str | None) -> Authority:
        """A new one, in a folder; without a passphrase its key is stored as it is."""
        if (folder / KEY).exists():
            raise ValueError(f"{folder} already has a key: give another --out, or move it away.")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = cls.make(federation, SignatureLedger(folder / LEDGER))
        atomic_write(folder / CERTIFICATE, pem(authority.certificate))
        save_key(authority.key, folder / KEY, passphrase)
        return authority

    @classmethod
    def load(cls, folder: Path, passphrase: str | None = None) -> Authority:
        certificate = load_certificate(folder / CERTIFICATE)
        if not (folder / LEDGER).is_file():
            raise ValueError(f"{folder / LEDGER} is missing: put back the record of what this authority has signed.")
        authority = cls(load_key(folder / KEY, passphrase), certificate, SignatureLedger(folder / LEDGER))
        if authority.fingerprint != certificate_fingerprint(certificate):
            raise ValueError(f"{folder / KEY} is not the key of {folder / CERTIFICATE}: put the right one back.")
        return authority

    @staticmethod
    def needs_passphrase(folder: Path) -> bool:
        return is_encrypted(folder / KEY)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key.public_key())

    @property
    def federation(self) -> str:
        """The name of the federation that it was made for."""
        (organization,) = self.certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        return str(organization.value)

    def alone(self) -> AbstractContextManager[None]:
        """No other process signs with this authority until the block ends."""
        return nullcontext() if self.ledger is None else self.ledger.alone()

    def certify(
        self,
        request: x509.CertificateSigningRequest,
        name: str,
        lifetime: timedelta = timedelta(days=365),
        *,
        revoked: RevocationList | None = None,
    ) -> x509.Certificate:
        """A certificate for the site of that name, if the request asks for that name and its key is good.

        Nothing of the request but its key goes into the certificate.
        """
        if (requested := requested_name(request)) != name:
            raise NotTrusted(f"the request is for {plain(requested)!r}, not for {name!r}: ask {name} for its own.")
        key = public_key(request, f"the request of {name!r}")
        if not request.is_signature_valid:
            raise NotTrusted(f"the request of {name!r} is not signed by its own key: the site has to create it again.")
        if revoked is not None and fingerprint(key) in revoked.keys:
            raise NotTrusted(f"the key of {name!r} is revoked: the site has to create another (join --new-key).")
        for entry in _entries(self, "certificate"):
            if entry["key"] == fingerprint(key) and entry["name"] != name:
                raise NotTrusted(f"the key of {name!r} is that of {entry['name']!r}: each site has a key of its own.")
        unsigned = (
            builder(distinguished(name, self.federation), self.certificate.subject, key, lifetime)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
                critical=False,
            )
        )
        certificate = unsigned.sign(self.key, hashes.SHA256())
        until = certificate.not_valid_after_utc.isoformat()
        serial = f"{certificate.serial_number:x}"
        self._note("certificate", der(certificate), name=name, key=fingerprint(key), serial=serial, until=until)
        return certificate

    def sign_federation(self, federation: Federation) -> str:
        details = {"edition": federation.edition, "hash": federation.hash.hex()}
        return self._sign("federation", federation.text, name=federation.name, **details)

    def sign_revoked(self, revoked: RevocationList) -> str:
        return self._sign("revocation list", revoked.text, name=revoked.federation, list=json.loads(revoked.text))

    def sign_order(self, order: Order) -> str:
        return self._sign("order", order.text, name=order.federation, order=json.loads(order.text))

    def _sign(self, purpose: Purpose, body: str, **details: JSON) -> str:
        signed = write_signed(self.key, purpose, body)
        self._note(purpose, signed.encode(), **details)
        return signed

    def _note(self, what: str, signed: bytes, **details: JSON) -> None:
        if self.ledger is not None:
            self.ledger.add(what, signed, **details)


def publish(authority: Authority, federation: Federation, folder: Path, days: float = DAYS) -> None:
    """What every site gets: the authority's certificate, the signed federation file and the first, empty list."""
    atomic_write(folder / CERTIFICATE, pem(authority.certificate))
    atomic_write(folder / FEDERATION, authority.sign_federation(federation))
    if not (folder / REVOKED).exists():
        atomic_write(folder / REVOKED, authority.sign_revoked(RevocationList.first(federation.name, days)))


def current_federation(authority: Authority, federation: Federation) -> None:
    """Raises unless a federation file is the newest that the ledger has."""
    signed = _entries(authority, "federation")
    if signed and signed[-1]["hash"] != federation.hash.hex():
        raise ValueError(
            f"the federation file is edition {federation.edition}, and the ledger's newest is edition "
            f"{signed[-1]['edition']}: put back that one, from any site's folder."
        )


def current_list(authority: Authority, federation: Federation, folder: Path) -> RevocationList:
    """The newest list, by the ledger and by what was published, in case the ledger comes from an old backup."""
    lists: list[RevocationList] = []
    for entry in _entries(authority, "revocation list"):
        lists.append(RevocationList.from_text(json.dumps(entry["list"]), "the ledger"))
    path = folder / REVOKED
    if path.exists():
        lists.append(read_revoked(read_file(path), authority.certificate, federation.name, str(path)))
    if not lists:
        raise ValueError(f"{path} is missing, and the ledger has no list: put both back.")
    newest = max(lists, key=lambda revoked: revoked.number)
    return replace(newest, keys=frozenset[str]().union(*(revoked.keys for revoked in lists)))


def current_order(authority: Authority, federation: Federation, folder: Path) -> Order | None:
    """The newest order, by the ledger and by what was published; None if there never was one."""
    orders = [Order.from_text(json.dumps(entry["order"]), "the ledger") for entry in _entries(authority, "order")]
    if (folder / ORDER).exists():
        orders.append(read_order(read_file(folder / ORDER), authority.certificate, federation.name, ORDER))
    return max(orders, key=lambda order: order.number, default=None)


def keys_of(authority: Authority, names: list[str]) -> set[str]:
    """Every key that was ever certified for those sites."""
    return {str(entry["key"]) for entry in _entries(authority, "certificate") if entry["name"] in names}


def _entries(authority: Authority, what: str) -> list[Entry]:
    return [entry for entry in authority.ledger.entries() if entry["what"] == what] if authority.ledger else []
