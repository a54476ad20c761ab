"""Keys and signatures: P-256 and nothing else, and a signed text begins with what it is for.

Ed25519 would be as good, but gRPC's TLS does not speak it. A purpose before every text keeps one that was signed for
one use from being shown for another.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from decibel.core import atomic_write, optional, read_file

from .._errors import NotTrusted

with optional("cryptography", caller="db.Silo", extra="silo"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

Purpose = Literal["federation", "revocation list", "order", "greeting", "statement", "report"]
PREFIX = b"decibel silo, second version"
ECDSA = ec.ECDSA(hashes.SHA256())
SHORTEST = 12  # characters of a passphrase


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_key(holder: x509.Certificate | x509.CertificateSigningRequest, what: str) -> ec.EllipticCurvePublicKey:
    """The key in a certificate or a request, if it is of the one kind that is accepted."""
    try:
        key = holder.public_key()
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise NotTrusted(f"{what} has a key that is not P-256: create it by `decibel silo join --new-key`.")
    return key


def sign(key: ec.EllipticCurvePrivateKey, purpose: Purpose, text: bytes) -> bytes:
    return key.sign(_for(purpose, text), ECDSA)


def verified(key: ec.EllipticCurvePublicKey, signature: bytes, purpose: Purpose, text: bytes) -> bool:
    try:
        key.verify(signature, _for(purpose, text), ECDSA)
    except InvalidSignature:
        return False
    return True


def _for(purpose: Purpose, text: bytes) -> bytes:
    return b"\0".join((PREFIX, purpose.encode(), text))  # no purpose has a zero


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """The SHA-256 of a key, by which it is pinned, revoked and noted."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def as_digits(fingerprint_of_key: str) -> str:
    """A fingerprint for people to compare by telephone: twelve groups of five digits, the same in every language."""
    digits = f"{int(fingerprint_of_key, 16) % 10**60:060d}"
    return " ".join(digits[at : at + 5] for at in range(0, 60, 5))


def same_fingerprint(told: str, fingerprint_of_key: str) -> bool:
    """Whether what somebody typed is that fingerprint, as digits or as hexadecimal."""
    bare = "".join(told.lower().replace(":", " ").split())
    return bare in (fingerprint_of_key, as_digits(fingerprint_of_key).replace(" ", ""))


def save_key(key: ec.EllipticCurvePrivateKey, path: Path, passphrase: str | None = None) -> None:
    atomic_write(path, key_pem(key, passphrase), mode=0o600)


def key_pem(key: ec.EllipticCurvePrivateKey, passphrase: str | None = None) -> bytes:
    if passphrase is not None and len(passphrase) < SHORTEST:
        raise ValueError(f"the passphrase has {len(passphrase)} characters: give at least {SHORTEST}.")
    hidden = (
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase.encode())
    )
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


def is_encrypted(path: Path) -> bool:
    return b"ENCRYPTED" in read_file(path)


def load_key(path: Path, passphrase: str | None = None) -> ec.EllipticCurvePrivateKey:
    raw = read_file(path)
    try:
        key = serialization.load_pem_private_key(raw, passphrase.encode() if passphrase is not None else None)
    except TypeError:
        need = "is encrypted: give its passphrase." if passphrase is None else "has no passphrase: leave it out."
        raise ValueError(f"{path} {need}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{path} cannot be read: the passphrase is wrong, or the file is damaged.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise NotTrusted(f"{path} is not a P-256 key: create one by `decibel silo join --new-key`.")
    return key
