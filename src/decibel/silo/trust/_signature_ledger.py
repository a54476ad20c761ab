"""What an authority has signed: one line of JSON for each signature, on the disk before the signature is handed out.

Each line holds the SHA-256 of the one before, so that none can be changed or taken out unseen. One process at a time
signs, and none whose clock has been set back.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from decibel.core import JSON, append_line, read_bytes

Entry = dict[str, JSON]
NOTHING = "0" * 64
CLOCK_TOLERANCE = timedelta(minutes=5)  # how far a clock may be behind the last line


class SignatureLedger:
    """Lines are added, never changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Other processes that sign wait until the block ends, so that what it has read from the ledger stays valid."""
        if self._held:
            yield
            return
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._held = True
            yield
        finally:
            self._held = False
            os.close(lock)

    def add(self, what: str, signed: bytes, **details: JSON) -> None:
        """Notes a signature; `signed` is what is about to be handed out."""
        with self.alone():
            entries, last, count = self._read()
            now = datetime.now(UTC)
            if entries and now < (before := _time(entries[-1])) - CLOCK_TOLERANCE:
                raise ValueError(
                    f"the clock of this machine, {now:%Y-%m-%d %H:%M} UTC, is behind the last line of {self.path}, "
                    f"{before:%Y-%m-%d %H:%M} UTC: set it right, and then sign."
                )
            entry = {
                "number": count + 1,
                "time": now.isoformat(timespec="seconds"),
                "what": what,
                **details,
                "sha256": hashlib.sha256(signed).hexdigest(),
                "before": last,
            }
            append_line(self.path, json.dumps(entry), mode=0o600)

    def entries(self) -> list[Entry]:
        """All lines, in order; one that a crash cut short is left out, since nothing was handed out for it."""
        return self._read()[0]

    def _read(self) -> tuple[list[Entry], str, int]:
        raw = read_bytes(self.path) if self.path.exists() else b""
        entries: list[Entry] = []
        last = NOTHING
        for number, line in enumerate(raw.split(b"\n"), 1):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # cut short
            if not isinstance(entry, dict) or entry.get("before") != last or entry.get("number") != len(entries) + 1:
                raise ValueError(
                    f"{self.path}, line {number}, does not follow the line before, so the file was changed: restore "
                    "it from a copy."
                )
            entries.append(entry)
            last = hashlib.sha256(line).hexdigest()
        return entries, last, len(entries)


def _time(entry: Entry) -> datetime:
    return datetime.fromisoformat(str(entry["time"]))
