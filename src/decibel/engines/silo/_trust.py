"""What a site remembers: whose authority it trusts, and the newest list of revoked keys that it has seen.

`revoked.json` in the site's folder is where a new list is put. The site keeps what it has accepted in `trust.json`, so
that neither a file that is put back nor one that is taken away makes it forget. It also keeps the latest time that it
has seen, so that a clock that is set back revives nothing that has expired.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ...core._files import atomic_write
from ...core._optional import optional
from ._certificates import key_print, read_revoked
from ._errors import NotTrusted
from ._revocation import RevocationList
from ._signing import read_file, same_fingerprint, spoken

with optional("cryptography", caller="db.Silo", extra="silo"):
    from cryptography import x509

TRUST, REVOKED = "trust.json", "revoked.json"
BEHIND = timedelta(minutes=5)  # how far a clock may be behind the latest time seen, without a word
NOTED = timedelta(minutes=10)  # how often the time is written down


class Trust:
    """Of one site, from its folder. The authority is the one that it met first."""

    def __init__(self, home: Path, authority: x509.Certificate, federation: str) -> None:
        self.home, self.authority, self.federation = home, authority, federation
        self._lock = threading.Lock()
        self._seen: bytes | None = None
        pinned, kept, seen = _remembered(home)
        validate_pinned(pinned, authority, home / "authority.pem")
        self._kept, self._saved, self._noted = kept, True, seen
        self.revoked = self._read(kept, home / TRUST)
        self._began = max(_clock(), seen), time.monotonic()
        if (trouble := self.refresh()) and not self._found(home / REVOKED):
            raise ValueError(trouble)

    @classmethod
    def begin(cls, home: Path, public: Path, authority: x509.Certificate, federation: str, told: str | None) -> Trust:
        """At `join`: pins the authority, or compares it with the one that was pinned; takes the list if it is newer.

        `told` is the fingerprint that somebody was told of: another one raises, and a pinned one is replaced by it.
        """
        key = key_print(authority)
        if told is not None and not same_fingerprint(told, key):
            raise NotTrusted(f"{public / 'authority.pem'} has the fingerprint {spoken(key)}, not the one you gave.")
        delivered = public / REVOKED
        text = read_file(delivered).decode(errors="replace")
        newer = read_revoked(text, authority, federation, str(delivered))
        if (home / TRUST).exists():
            pinned, kept, _ = _remembered(home)
            if told is None:
                validate_pinned(pinned, authority, public / "authority.pem")
            if pinned == key and read_revoked(kept, authority, federation, TRUST).number >= newer.number:
                text = kept
        memory = {"authority": key, "revoked": text, "time": _clock().isoformat()}
        atomic_write(home / TRUST, json.dumps(memory, indent=1), mode=0o600)
        atomic_write(home / REVOKED, text)
        return cls(home, authority, federation)

    def now(self) -> datetime:
        """The time, which never goes back: not before what this site has seen, whatever the clock says."""
        began, ticks = self._began
        return max(_clock(), began + timedelta(seconds=time.monotonic() - ticks))

    def clock_trouble(self) -> str | None:
        """A sentence, if the clock has been set back."""
        if (behind := self.now() - _clock()) <= BEHIND:
            return None
        return (
            f"the clock of this machine is {behind.total_seconds() / 3600:.1f} hours behind the time that this site "
            "has seen, which counts: set it right, or if it was ahead before, join again (decibel silo join)."
        )

    def refresh(self) -> str | None:
        """Takes a newer list from the folder, if there is one; a sentence if what is there is not to be used."""
        path, trouble = self.home / REVOKED, None
        with self._lock:
            try:
                raw = read_file(path)
                if raw != self._seen:
                    self._take(raw, path)
                    self._seen = raw
            except ValueError as error:
                trouble = str(error)
            try:
                if not self._saved or self.now() > self._noted + NOTED:
                    self._save()
            except OSError as error:
                trouble = trouble or f"{self.home / TRUST} cannot be written ({error.strerror or error}): make room."
        return trouble

    def _take(self, raw: bytes, path: Path) -> None:
        found = self._read(raw.decode(errors="replace"), path)
        if found.number < self.revoked.number:
            raise NotTrusted(
                f"{path} is list {found.number}, and this site has list {self.revoked.number}, which it keeps: put "
                "the newest there."
            )
        if found.number == self.revoked.number and found != self.revoked:
            raise NotTrusted(
                f"{path} is another list {found.number} than this site has, which it keeps: the organiser has to sign "
                "one with a larger number (decibel silo revoke)."
            )
        if found.number > self.revoked.number:
            self.revoked, self._kept, self._saved = found, raw.decode(), False  # it counts from here on

    def _save(self) -> None:
        now = self.now()
        memory = {"authority": key_print(self.authority), "revoked": self._kept, "time": now.isoformat()}
        atomic_write(self.home / TRUST, json.dumps(memory, indent=1), mode=0o600)
        self._saved, self._noted = True, now

    def _read(self, text: str, path: Path) -> RevocationList:
        return read_revoked(text, self.authority, self.federation, str(path))

    def _found(self, path: Path) -> bool:
        """Whether there is a list of this federation, be it an old one."""
        try:
            return bool(self._read(read_file(path).decode(errors="replace"), path))
        except ValueError:
            return False


def validate_pinned(pinned: str, authority: x509.Certificate, path: Path) -> None:
    if (key := key_print(authority)) != pinned:
        raise NotTrusted(
            f"{path} is another authority than the one that this site trusts. It has the fingerprint {spoken(key)}, "
            f"the trusted one {spoken(pinned)}: ask the organiser by telephone, and only if it was replaced on purpose "
            "give the new one by `decibel silo join --authority FINGERPRINT`."
        )


def _clock() -> datetime:
    return datetime.now(UTC)


def _remembered(home: Path) -> tuple[str, str, datetime]:
    path = home / TRUST
    if not path.is_file():
        raise ValueError(f"{path} is missing: create the site's folder by `decibel silo join`.")
    raw = read_file(path)
    try:
        found = json.loads(raw)
        pinned, kept = found["authority"], found["revoked"]
        seen = datetime.fromisoformat(found.get("time", "1970-01-01T00:00:00+00:00"))
        spoken(pinned)
        kept.encode()
        if seen.tzinfo is None:
            raise ValueError
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        raise ValueError(f"{path} is damaged: restore it, or join in a new folder.") from None
    return pinned, kept, seen
