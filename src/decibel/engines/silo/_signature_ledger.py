"""What an authority has signed: one line of JSON for each signature, on the disk before the signature is handed out.

Each line holds the SHA-256 of the one before, so that none can be changed or taken out unseen.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

from ...core._files import append_line
from ...core._json import JSON

Entry = dict[str, JSON]
NOTHING = "0" * 64


class Ledger:
    """Lines are added, never changed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, what: str, signed: bytes, **details: JSON) -> None:
        """Notes a signature; `signed` is what is about to be handed out."""
        last, count = self._read()[1:]
        entry = {
            "number": count + 1,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
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
        raw = self.path.read_bytes() if self.path.exists() else b""
        entries: list[Entry] = []
        last = NOTHING
        for number, line in enumerate(raw.split(b"\n"), 1):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # cut short
            if not isinstance(entry, dict) or entry.get("before") != last or entry.get("number") != len(entries) + 1:
                raise ValueError(f"{self.path}, line {number}, does not follow the line before: it has been changed.")
            entries.append(entry)
            last = hashlib.sha256(line).hexdigest()
        return entries, last, len(entries)
