"""One edge between sites without a common clock: the newest message of each exchange, and how old it is.

Messages are numbered by the sender's steps, which grow as long as it is not started again. The newest replaces an older
one that was not used, at the sender's end as at the receiver's, so that no end holds more than one for each exchange.
Nobody waits for a message, and none is needed: nothing has to be said again but the newest, on a new stream.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...core._json import JSON
from ...network._links import LinkState
from ._edge import Edge, Known
from ._errors import Rejected
from ._federation import FaultTolerance
from ._frames import Data, Position, write_data
from ._limits import NEWEST_BURST, NEWEST_PER_SECOND, NOWHERE, Allowance
from ._payload_layout import all_finite


class AsyncEdge(Edge):
    """It is open from when the neighbour runs until it has left, or gives no sign of life."""

    def __init__(
        self,
        number: int,
        name: str,
        dials: bool,
        rules: FaultTolerance,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        super().__init__(number, name, dials, rules, tell)
        self._messages = Allowance(rate=NEWEST_PER_SECOND, burst=NEWEST_BURST)
        self.exchanges = 0  # of a step, as far as known
        self._mail: dict[int, np.ndarray] = {}  # by exchange, what came last and was not used
        self._numbers: dict[int, int] = {}  # by exchange, the step of what came last
        self._posted: dict[int, bytes] = {}  # by exchange, this site's newest
        self._sent_at: dict[int, float] = {}  # by exchange, when one was sent last
        self._came = 0.0  # when a message came last
        self.used = self.replaced = 0  # messages; those that a newer one replaced before they were used
        self.steps_since = 0  # steps of this site since a message was used

    def begins_anew(self) -> None:
        """The neighbour was started again, and numbers its messages from where it continues."""
        self.open = self.running = self.finished = False
        self._numbers.clear()

    def enter(self) -> None:
        """The neighbour runs."""
        self.open = self.holds = True
        self.refusal = ""

    def said_bye(self, reason: str, *, forget: bool) -> None:
        super().said_bye(reason, forget=forget)
        self.open = self.open and not self.finished  # what it sent last counts for good

    def close(self, *, forget: bool) -> None:
        super().close(forget=forget and not self.finished)

    def post(self, exchange: int, step: int, row: np.ndarray, now: float) -> None:
        """Sends this site's newest message, in the place of an older one that still waits; not if another went out a
        moment ago, since the neighbour takes only so many a second."""
        self._posted[exchange] = write_data(0, Position(step, exchange), row)
        if now - self._sent_at.get(exchange, -1.0) >= 2 * self.exchanges / NEWEST_PER_SECOND:
            self._sent_at[exchange] = now
            self._send(exchange)

    def post_again(self) -> None:
        """On a new stream, and at the end."""
        for exchange in self._posted:
            self._send(exchange)

    def _send(self, exchange: int) -> None:
        if self.stream is not None:
            frame = self._posted[exchange]
            self.sent += len(frame)
            self.stream.send_newest(exchange, frame)

    def receive(self, data: Data, known: Known, now: float, at: Position = NOWHERE) -> None:
        """Keeps a message that is newer than what came before, or rejects it."""
        layouts = known.get((data.tensor.dtype, data.tensor.shape))
        if layouts is None:
            raise Rejected(f"a tensor of {data.tensor.dtype} and shape {data.tensor.shape}, which no exchange sends")
        step, exchange = data.at
        if data.epoch or not 0 <= exchange < self.exchanges:
            raise Rejected(f"a message of epoch {data.epoch}, exchange {exchange}, of {self.exchanges} exchanges")
        self._messages.spend(now)
        if step <= self._numbers.get(exchange, -1):
            self.repeated += 1
            self.allowance.spend(now)
            return
        if not any(all_finite(data.tensor, layout) for layout in layouts):
            raise Rejected("a tensor with a NaN or infinity")
        self.replaced += exchange in self._mail
        self._mail[exchange], self._numbers[exchange] = data.tensor, step
        self._came, self.theirs = now, max(self.theirs, data.at)

    def collect(self, exchange: int) -> tuple[np.ndarray | None, LinkState]:
        """The newest message that was not used, if there is one, and the state of the link."""
        if not self.holds:
            return None, LinkState.DROPPED
        row = self._mail.pop(exchange, None)
        self.steps_since += exchange == 0
        if row is not None:
            self.used, self.steps_since = self.used + 1, 0
        return row, LinkState.TIED

    def age(self, now: float) -> float:
        """Seconds since a message came; infinite if none did."""
        return now - self._came if self._came else float("inf")

    def status(self, now: float) -> dict[str, JSON]:
        return super().status(now) | {
            "their_step": max(self._numbers.values(), default=None),
            "message_seconds_ago": round(self.age(now), 3) if self._came else None,
            "steps_since_message": self.steps_since,
            "messages_used": self.used,
            "messages_replaced": self.replaced,
        }
