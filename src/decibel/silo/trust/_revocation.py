"""The list of revoked keys: numbered, so that an older one cannot replace a newer one, and valid for a limited time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from .._errors import NotTrusted

DAYS = 90.0
KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class RevocationList:
    """Keys, by their fingerprints, whose certificates no longer count, whatever their serial number."""

    federation: str
    number: int
    issued: datetime
    expires: datetime
    keys: frozenset[str] = frozenset()

    @classmethod
    def first(cls, federation: str, days: float = DAYS) -> RevocationList:
        """The empty list: that nothing is revoked is signed, too."""
        now = _now()
        return cls(federation, 1, now, now + timedelta(days=days))

    def next(self, keys: Iterable[str], days: float = DAYS, *, after: int = 0) -> RevocationList:
        """The list with more keys, and a number larger than this one's and `after`."""
        now = _now()
        number = max(self.number, after) + 1
        return RevocationList(self.federation, number, now, now + timedelta(days=days), self.keys | frozenset(keys))

    @property
    def text(self) -> str:
        return json.dumps(
            {
                "federation": self.federation,
                "number": self.number,
                "issued": self.issued.isoformat(),
                "expires": self.expires.isoformat(),
                "keys": sorted(self.keys),
            }
        )

    @classmethod
    def from_text(cls, text: str, what: str) -> RevocationList:
        try:
            content = json.loads(text)
            issued, expires = (datetime.fromisoformat(content[name]) for name in ("issued", "expires"))
            revoked = cls(content["federation"], content["number"], issued, expires, frozenset(content["keys"]))
            numbered = type(revoked.number) is int and revoked.number > 0
            if not (numbered and issued.tzinfo and expires.tzinfo and all(KEY.fullmatch(key) for key in revoked.keys)):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise NotTrusted(f"{what} is signed, but is not a list of revoked keys: get it again.") from None
        return revoked


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
