"""What a site remembers: whose authority it trusts, and the newest list of revoked keys and order that it has seen.

`revoked.json` and `order.json` in the site's folder are where new ones are put. The site keeps what it has accepted in
`trust.json`, so that neither a file that is put back nor one that is taken away makes it forget. It also keeps the
latest time that it has seen, so that a clock that is set back revives nothing that has expired.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from decibel.core import atomic_write, optional, read_file

from .._errors import NotTrusted
from .._federation import Federation, validate_successor
from ._certificates import certificate_fingerprint, in_utc, read_revoked
from ._order import Order, read_order
from ._revocation import RevocationList
from ._signing import as_digits, same_fingerprint

with optional("cryptography", caller="db.Silo", extra="silo"):
    from cryptography import x509

TRUST = "trust.json"
REVOKED = "revoked.json"
ORDER = "order.json"
CLOCK_TOLERANCE = timedelta(minutes=5)  # how far a clock may be behind the latest time seen, without a word
TIME_SAVED_EVERY = timedelta(minutes=10)  # how often the time is written down


class Memory(NamedTuple):
    """What is in `trust.json`: the fingerprint of the authority, the newest list and order, as they were signed, the
    latest time that was seen, and the number and the hash of the newest edition of the federation file. The order is
    empty where there was none, and so are edition and hash."""

    authority: str
    revoked: str
    time: datetime
    order: str = ""
    edition: int = 0
    federation: str = ""

    @property
    def text(self) -> str:
        return json.dumps({**self._asdict(), "time": self.time.isoformat()}, indent=1)


class Trust:
    """What one site trusts, read from its folder. It trusts the first authority that it met.

    Nothing is written before `start_saving`. So a start that is refused, because a clock is ahead, leaves no trace.
    """

    def __init__(self, home: Path, authority: x509.Certificate, federation: str) -> None:
        self.home = home
        self.authority = authority
        self.federation = federation
        self._lock = threading.Lock()
        self._seen: bytes | None = None
        memory = _remembered(home)
        validate_pinned(memory.authority, authority, home / "authority.pem")
        self._memory = memory
        self._saved = True
        self._writes = False
        self.revoked = self._read(memory.revoked, home / TRUST)
        self.order: Order | None = self._read_order(memory.order, TRUST) if memory.order else None
        self._order_seen: bytes | None = None
        self._began = max(_clock(), memory.time), time.monotonic()
        if (trouble := self.refresh()) and not self._has_list(home / REVOKED):
            raise ValueError(trouble)

    @classmethod
    def begin(
        cls, home: Path, public: Path, authority: x509.Certificate, federation: str, expected_fingerprint: str | None
    ) -> Trust:
        """Pins the authority at `join`, or compares it with the one that was pinned; takes the list if it is newer.

        With `expected_fingerprint` an authority that has another one raises, and this one replaces a pinned one.
        """
        key = certificate_fingerprint(authority)
        if expected_fingerprint is not None and not same_fingerprint(expected_fingerprint, key):
            raise NotTrusted(f"{public / 'authority.pem'} has the fingerprint {as_digits(key)}, not the one you gave.")
        delivered = public / REVOKED
        text = read_file(delivered).decode(errors="replace")
        newer = read_revoked(text, authority, federation, str(delivered))
        memory = Memory(key, text, _clock())
        if (home / TRUST).exists():
            before = _remembered(home)
            if expected_fingerprint is None:
                validate_pinned(before.authority, authority, public / "authority.pem")
            if before.authority == key:
                if read_revoked(before.revoked, authority, federation, TRUST).number >= newer.number:
                    text = before.revoked
                memory = before._replace(revoked=text, time=_clock())
        atomic_write(home / TRUST, memory.text, mode=0o600)
        atomic_write(home / REVOKED, text)
        if (public / ORDER).exists() and public.resolve() != home.resolve():
            atomic_write(home / ORDER, read_file(public / ORDER))
        trust = cls(home, authority, federation)
        trust.start_saving()
        return trust

    def take_federation(self, federation: Federation, what: str) -> None:
        """Remembers a federation file, if it is the newest edition that this site has had, or follows it; raises if
        not."""
        with self._lock:
            memory = self._memory
            if memory.edition:
                validate_successor(memory.edition, memory.federation, federation, what)
            digest = federation.hash.hex()
            if memory.federation != digest:
                self._memory = memory._replace(edition=federation.edition, federation=digest)
                self._saved = False

    def start_saving(self) -> None:
        """Writes what this site sees to its folder, now and from here on."""
        self._writes = True
        self.refresh()

    def now(self) -> datetime:
        """The time, which never goes back: the clock's, or the latest that this site has seen if that is later."""
        began, ticks = self._began
        return max(_clock(), began + timedelta(seconds=time.monotonic() - ticks))

    def clock_trouble(self) -> str | None:
        """A sentence if the clock has been set back, else None."""
        clock = _clock()
        seen = self.now()
        if seen - clock <= CLOCK_TOLERANCE:
            return None
        return (
            f"the clock of this machine says {in_utc(clock)}, and this site has seen {in_utc(seen)}, which counts: set "
            "the clock, or if it was ahead before, join again (decibel silo join)."
        )

    def refresh(self) -> str | None:
        """Takes a newer list and order from the folder, if there are any. Returns a sentence if what is there must not
        be used, else None."""
        path = self.home / REVOKED
        trouble = None
        with self._lock:
            try:
                raw = read_file(path)
                if raw != self._seen:
                    self._take(raw, path)
                    self._seen = raw
            except ValueError as error:
                trouble = str(error)
            try:
                self._look_for_order(self.home / ORDER)
            except ValueError as error:
                trouble = trouble or str(error)
            try:
                if self._writes and (not self._saved or self.now() > self._memory.time + TIME_SAVED_EVERY):
                    self._save()
            except OSError as error:
                trouble = trouble or f"{self.home / TRUST} cannot be written ({error.strerror or error}): make room."
        return trouble

    def _take(self, raw: bytes, path: Path) -> None:
        taken = self._read(raw.decode(errors="replace"), path)
        if taken.number < self.revoked.number:
            raise NotTrusted(
                f"{path} is list {taken.number}, and this site has list {self.revoked.number}, which it keeps: put "
                "the newest there."
            )
        if taken.number == self.revoked.number and taken != self.revoked:
            raise NotTrusted(
                f"{path} is another list {taken.number} than this site has, which it keeps: the organiser has to sign "
                "one with a larger number (decibel silo revoke)."
            )
        if taken.number > self.revoked.number:
            self._memory = self._memory._replace(revoked=raw.decode())
            self._saved = False
            self.revoked = taken  # it counts from here on

    def _look_for_order(self, path: Path) -> None:
        if not path.exists():
            return
        raw = read_file(path)
        if raw == self._order_seen:
            return
        self._order_seen = raw
        order = self._take_order(raw, str(path))
        if self.order is not None and order.number < self.order.number:
            raise NotTrusted(
                f"{path} is order {order.number}, and this site has order {self.order.number}, which it keeps: put the "
                "newest there."
            )

    def take_order(self, raw: bytes) -> None:
        """Takes what a neighbour has passed on, if it is newer; raises if it is not signed."""
        with self._lock:
            self._take_order(raw, "an order")

    def _take_order(self, raw: bytes, what: str) -> Order:
        order = self._read_order(raw.decode(errors="replace"), what)
        if self.order is None or order.number > self.order.number:
            self._memory = self._memory._replace(order=raw.decode())
            self._saved = False
            self.order = order  # it counts from here on
        return order

    @property
    def order_text(self) -> bytes:
        """The newest order as it was signed; empty if there is none."""
        return self._memory.order.encode()

    def _save(self) -> None:
        memory = self._memory._replace(time=self.now())
        atomic_write(self.home / TRUST, memory.text, mode=0o600)
        self._memory = memory
        self._saved = True

    def _read_order(self, text: str, what: str) -> Order:
        return read_order(text, self.authority, self.federation, what)

    def _read(self, text: str, path: Path) -> RevocationList:
        return read_revoked(text, self.authority, self.federation, str(path))

    def _has_list(self, path: Path) -> bool:
        """Whether there is a list of this federation, even an old one."""
        try:
            return bool(self._read(read_file(path).decode(errors="replace"), path))
        except ValueError:
            return False


def validate_pinned(pinned: str, authority: x509.Certificate, path: Path) -> None:
    if (key := certificate_fingerprint(authority)) != pinned:
        raise NotTrusted(
            f"{path} is another authority than the one that this site trusts. It has the fingerprint "
            f"{as_digits(key)}, the trusted one {as_digits(pinned)}: ask the organiser by telephone, and only if it "
            "was replaced on purpose give the new one by `decibel silo join --authority FINGERPRINT`."
        )


def _clock() -> datetime:
    return datetime.now(UTC)


def _remembered(home: Path) -> Memory:
    path = home / TRUST
    if not path.is_file():
        raise ValueError(f"{path} is missing: create the site's folder by `decibel silo join`.")
    raw = read_file(path)
    try:
        content = json.loads(raw)
        time = datetime.fromisoformat(content.pop("time"))
        memory = Memory(time=time, **content)
        as_digits(memory.authority)
        for text in (memory.revoked, memory.order, memory.federation):
            text.encode()
        if time.tzinfo is None or not isinstance(memory.edition, int):
            raise ValueError
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        raise ValueError(f"{path} is damaged: restore it, or join in a new folder.") from None
    return memory
