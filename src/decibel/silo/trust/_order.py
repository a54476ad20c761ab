"""What the authority orders all sites: to stop, or that they may run again. Numbered, so that no older order counts
again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from decibel.core import optional, plain

from .._errors import NotTrusted
from . import LARGEST_ORDER
from ._certificates import in_utc, read_signed

with optional("cryptography", caller="db.Silo", extra="silo"):
    from cryptography import x509

LONGEST_REASON = 300  # letters


@dataclass(frozen=True)
class Order:
    """The newest counts: while it says stop, no site of the federation runs."""

    federation: str
    number: int
    stop: bool
    reason: str
    issued: datetime

    @classmethod
    def following(cls, before: Order | None, federation: str, *, stop: bool, reason: str) -> Order:
        """The order after another."""
        if len(reason) > LONGEST_REASON:
            raise ValueError(f"the reason has {len(reason)} letters: give at most {LONGEST_REASON}.")
        number = 1 if before is None else before.number + 1
        return cls(federation, number, stop, plain(reason, LONGEST_REASON), datetime.now(UTC).replace(microsecond=0))

    @property
    def text(self) -> str:
        content = {"federation": self.federation, "number": self.number, "stop": self.stop, "reason": self.reason}
        return json.dumps(content | {"issued": self.issued.isoformat()})

    @property
    def sentence(self) -> str:
        """Why a site does not run."""
        because = f": {self.reason}" if self.reason else ""
        return f"the authority stopped the federation on {in_utc(self.issued)} (order {self.number}){because}"

    @classmethod
    def from_text(cls, text: str, what: str) -> Order:
        try:
            content = json.loads(text)
            issued = datetime.fromisoformat(content["issued"])
            order = cls(content["federation"], content["number"], content["stop"], plain(content["reason"]), issued)
            if not (type(order.number) is int and order.number > 0 and type(order.stop) is bool and issued.tzinfo):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise NotTrusted(f"{what} is signed, but is not an order: get it again.") from None
        return order


def read_order(raw: str | bytes, authority: x509.Certificate, federation: str, what: str) -> Order:
    """An order that the authority signed for this federation."""
    if len(raw) > LARGEST_ORDER:
        raise NotTrusted(f"{what} has more than {LARGEST_ORDER} bytes: it cannot be an order.")
    order = Order.from_text(read_signed(raw, authority, "order", what), what)
    if order.federation != federation:
        raise NotTrusted(f"{what} is of federation {order.federation!r}, not of {federation!r}: get the right one.")
    return order
