"""One edge between sites without a common clock: the newest message of each exchange, and how old it is.

Messages are numbered by the sender's steps, which grow as long as it is not started again. The receiver acknowledges
what it has read, and the sender keeps its newest message back while too many others are on their way: what waits in the
buffers of a network grows old, and no message can overtake it there. The newest replaces an older one that was not
sent, and at the receiver's end one that was not used, so that no end holds more than one for each exchange. Nobody
waits for a message, and none is needed. On a new stream only the newest is sent again.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from decibel.core import JSON
from decibel.network import LinkStatus

from .._errors import Rejected
from ._edge import Edge, Known, layouts_of
from ._frame_limits import NEWEST_BURST, NEWEST_PER_SECOND, NOWHERE, Allowance
from ._frames import Data, Position, Receipt, write, write_data
from ._payload_layout import all_finite

LEAST_ON_THE_WAY = 2  # messages of an exchange that were sent and not acknowledged: one travels while one is read
MOST_ON_THE_WAY = 8  # the same, of small messages, so that a long way does not make them rare
BYTES_ON_THE_WAY = 2**16  # bytes, of all of these
STATEMENTS = 16  # of the neighbour's step, by which its speed is measured
NEVER = 2**62  # a step that no site comes to


class AsyncEdge(Edge):
    """An edge that is open while the neighbour runs, until it leaves or gives no sign of life."""

    def _prepare(self) -> None:
        self._messages = Allowance(NEWEST_PER_SECOND, NEWEST_BURST)
        self.exchanges = 0  # of a step, as far as known
        self._mail: dict[int, np.ndarray] = {}  # by exchange, what came last and was not used
        self._numbers: dict[int, int] = {}  # by exchange, the step of what came last
        self._posted: dict[int, tuple[int, bytes]] = {}  # by exchange, this site's newest and its step
        self._on_the_way: dict[int, deque[int]] = {}  # by exchange, the steps of what the other end has not read
        self._last_sent: dict[int, int] = {}  # by exchange, the step of what was sent last over this stream
        self._sent_at: dict[int, float] = {}  # by exchange, when one was sent last
        self._came = 0.0  # when a message came last
        self._steps: deque[tuple[float, int]] = deque(maxlen=STATEMENTS)  # when the neighbour said that it was where
        self._asked_from = NEVER  # the step from which on this site's messages tell that it is at rest
        self._read_at: int | None = None  # the step of the neighbour's newest message when it had read one of these
        self._newest_used = -1  # the step of the neighbour's newest message that was used
        self.used = 0  # messages
        self.replaced = 0  # messages that a newer one replaced before they were used
        self.steps_since = 0  # steps of this site since a message was used

    def on_restart(self) -> None:
        """The neighbour was started again, and numbers its messages from where it continues."""
        self.open = self.running = self.finished = False
        self._numbers.clear()
        self._steps.clear()
        self._read_at = None
        self._newest_used = -1

    def enter(self) -> None:
        """The neighbour runs."""
        self.open = self.holds = True
        self.refusal = ""

    def on_bye(self, reason: str, *, forget: bool) -> None:
        super().on_bye(reason, forget=forget)
        self.open = self.open and not self.finished  # its last message keeps counting

    def close(self, *, forget: bool) -> None:
        super().close(forget=forget and not self.finished)

    def hang_up(self) -> None:
        super().hang_up()
        self._on_the_way.clear()
        self._last_sent.clear()

    def post(self, exchange: int, step: int, row: np.ndarray, now: float) -> None:
        """Keeps this site's newest message instead of an older one that was not sent, and sends it if it may."""
        self._posted[exchange] = step, write_data(0, Position(step, exchange), row)
        self._send_if_allowed(exchange, now)

    def post_again(self) -> None:
        """On a new stream, and at the end."""
        for exchange in self._posted:
            self._send(exchange)

    def post_unacknowledged(self) -> None:
        """Called every `beat`, in case a receipt was lost."""
        for exchange in self._posted:
            if not self._may_send(exchange):
                self._send(exchange)

    def _send_if_allowed(self, exchange: int, now: float) -> None:
        """Sends unless another went out a moment ago: the neighbour accepts a limited number a second."""
        due = now - self._sent_at.get(exchange, -1.0) >= 2 * self.exchanges / NEWEST_PER_SECOND
        if due and self._may_send(exchange) and self._posted[exchange][0] != self._last_sent.get(exchange):
            self._sent_at[exchange] = now
            self._send(exchange)

    def _may_send(self, exchange: int) -> bool:
        """Whether fewer than the allowed number are on their way."""
        size = len(self._posted[exchange][1])
        most = max(LEAST_ON_THE_WAY, min(MOST_ON_THE_WAY, BYTES_ON_THE_WAY // size))
        return len(self._on_the_way.get(exchange, ())) < most

    def _send(self, exchange: int) -> None:
        if self.stream is None:
            return
        step, frame = self._posted[exchange]
        self.sent += len(frame)
        self.stream.send_newest(exchange, frame)
        if self._last_sent.get(exchange) != step:
            self._on_the_way.setdefault(exchange, deque()).append(step)
            self._last_sent[exchange] = step

    def on_receipt(self, receipt: Receipt, now: float) -> None:
        """The neighbour has read this message, and so all before it."""
        step, exchange = receipt.at
        if step > self._last_sent.get(exchange, -1):
            raise Rejected(f"a RECEIPT for step {step}, exchange {exchange}, which was not sent")
        waiting = self._on_the_way[exchange]
        if not waiting or waiting[0] > step:
            self.allowance.spend(now)
        while waiting and waiting[0] <= step:
            waiting.popleft()
        if self._read_at is None and step >= self._asked_from:
            self._read_at = max(self._numbers.values(), default=-1)
        self._send_if_allowed(exchange, now)

    def ask(self, step: int) -> None:
        """This site is at rest, and its messages from that step on tell it."""
        self._asked_from = step
        self._read_at = None

    @property
    def has_answered(self) -> bool:
        """Whether this site has used a message that the neighbour computed after reading one sent at rest. The
        neighbour may have read it in the middle of step k, so only its message of step k + 2 certainly depends on
        it."""
        return self._read_at is not None and self._newest_used >= self._read_at + 2

    def receive(self, data: Data, known: Known, now: float, at: Position = NOWHERE) -> None:
        """Keeps a message that is newer than what came before, or rejects it."""
        layouts = layouts_of(data.tensor, known)
        step, exchange = data.at
        if data.epoch or not 0 <= exchange < self.exchanges:
            raise Rejected(f"a message of epoch {data.epoch}, exchange {exchange}, of {self.exchanges} exchanges")
        self._messages.spend(now)
        if step <= self._numbers.get(exchange, -1):
            self.repeated += 1
            self.allowance.spend(now)
        elif not any(all_finite(data.tensor, layout) for layout in layouts):
            raise Rejected("a tensor with a NaN or infinity")
        else:
            self.replaced += exchange in self._mail
            self._mail[exchange] = data.tensor
            self._numbers[exchange] = step
            self._came = now
            self.theirs = max(self.theirs, data.at)
        self._acknowledge(exchange)

    def _acknowledge(self, exchange: int) -> None:
        if self.stream is not None:
            frame = write(Receipt(Position(self._numbers[exchange], exchange)))
            self.sent += len(frame)
            self.stream.send_newest(-1 - exchange, frame)  # a key that no message has

    def collect(self, exchange: int) -> tuple[np.ndarray | None, LinkStatus]:
        """The newest message that was not used, if there is one, and the state of the link."""
        if not self.holds:
            return None, LinkStatus.DROP_FLOW
        row = self._mail.pop(exchange, None)
        self.steps_since += exchange == 0
        if row is not None:
            self.used += 1
            self.steps_since = 0
            # No number is known for a message from before a restart.
            self._newest_used = max(self._newest_used, self._numbers.get(exchange, -1))
        return row, LinkStatus.CONTINUE

    def is_at(self, step: int, now: float) -> None:
        """The neighbour says that it has reached this step."""
        if not self._steps or step > self._steps[-1][1]:
            self._steps.append((now, step))

    @property
    def steps_behind(self) -> int:
        """By how many of the neighbour's steps its newest message is older than the neighbour, as far as is known."""
        newest = max(self._numbers.values(), default=0)
        return max(0, self._steps[-1][1] - newest) if self._steps else 0

    def age(self, now: float) -> float:
        """Age of the newest message in seconds: the time since it arrived or, if longer, the time that its sender
        needed for the steps since. Infinite if none arrived."""
        if not self._came:
            return float("inf")
        waited = now - self._came
        if len(self._steps) < 2:
            return waited
        begun, first = self._steps[0]
        ended, last = self._steps[-1]
        return max(waited, self.steps_behind * (ended - begun) / (last - first))

    def status(self, now: float) -> dict[str, JSON]:
        return super().status(now) | {
            "their_step": max(self._numbers.values(), default=None),
            "message_steps_behind": self.steps_behind,
            "message_seconds_ago": round(self.age(now), 3) if self._came else None,
            "steps_since_message": self.steps_since,
            "messages_used": self.used,
            "messages_replaced": self.replaced,
        }
