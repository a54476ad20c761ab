"""The federation's authority, and every site's key and certificate."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache

from cryptography import x509

from decibel.silo._errors import NotTrusted
from decibel.silo.trust._authority import Authority
from decibel.silo.trust._certificates import certificate_fingerprint, make_request
from decibel.silo.trust._signing import new_key

MOST_SITES = 5


class Papers:
    """Keys and certificates, made once; none of them changes what happens."""

    def __init__(self) -> None:
        self.authority, self.other = Authority.make("test"), Authority.make("test")
        names = [f"site-{i}" for i in range(MOST_SITES)]
        self.keys = [new_key() for _ in names]
        requests = [make_request(key, name, "test") for key, name in zip(self.keys, names, strict=True)]
        self.certificates = [self.authority.certify(*both) for both in zip(requests, names, strict=True)]
        self.forged = [self.other.certify(*both) for both in zip(requests, names, strict=True)]
        self.prints = [certificate_fingerprint(one) for one in self.certificates]


class Signer:
    """Stands in for `Credentials` where statements are signed, many times faster: a hash with a secret of the site."""

    def __init__(self, number: int, note: Callable[[int, bytes], object] = lambda number, text: None) -> None:
        self._number = number
        self._note = note

    def sign(self, purpose: str, text: bytes) -> tuple[bytes, bytes]:
        self._note(self._number, text)
        return _hash(self._number, text), b"site-%d" % self._number

    def has_signed(self, name: str, purpose: str, certificate: bytes, signature: bytes, text: bytes) -> bool:
        if certificate != name.encode():
            raise NotTrusted(f"the certificate belongs to {certificate!r}.")
        return signature == _hash(int(name.removeprefix("site-")), text)


def _hash(number: int, text: bytes) -> bytes:
    return hashlib.sha256(b"secret of %d" % number + text).digest()


papers = cache(Papers)
parsed = cache(x509.load_der_x509_certificate)
