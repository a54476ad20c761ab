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
from ._edge import Edge, ExpectedLayouts, layouts_of
from ._frame_limits import NEWEST_BURST, NEWEST_PER_SECOND, NOWHERE, Allowance
from ._frames import Data, Position, Receipt, write, write_data
from ._payload_layout import all_finite

FEWEST_ON_THE_WAY = 2  # messages of an exchange that were sent and not acknowledged: one travels while one is read
MOST_ON_THE_WAY = 8  # the same, of small messages, so that a long way does not make them rare
BYTES_ON_THE_WAY = 2**16  # bytes, of all of these
STATEMENTS = 16  # of the neighbour's step, by which its speed is measured
NEVER = 2**62  # a step that no site comes to


class AsyncEdge(Edge):
    """An edge that is open while the neighbour runs, until it leaves or gives no sign of life."""

    def _prepare(self) -> None:
        self._messages = Allowance(NEWEST_PER_SECOND, NEWEST_BURST)
        self.exchanges = 0  # in a step
        # By exchange: what has come from the neighbour
        self._mail: dict[int, np.ndarray] = {}  # the newest message, until it is used
        self._newest_step: dict[int, int] = {}  # the step of the newest message
        # By exchange: what this site sends
        self._posted: dict[int, tuple[int, bytes]] = {}  # the step of the newest message, and its frame
        self._on_the_way: dict[int, deque[int]] = {}  # the steps of messages that were sent and not acknowledged
        self._last_sent: dict[int, int] = {}  # the step of the message that was sent last over this stream
        self._sent_at: dict[int, float] = {}  # when a message was sent last
        self._last_arrival_at = 0.0
        # When the neighbour came to which step, by its statements
        self._progress: deque[tuple[float, int]] = deque(maxlen=STATEMENTS)
        # This site's messages of this step and later ones say that it is at rest. When the neighbour has read one of
        # these, the step of its newest message is kept.
        self._rest_from_step = NEVER
        self._their_step_when_read: int | None = None
        self._newest_used_step = -1  # the step of the neighbour's newest message that was used
        self.used = 0  # messages that were used
        self.replaced = 0  # messages that a newer one replaced before they were used
        self.steps_since = 0  # steps of this site since a message was used

    def on_restart(self) -> None:
        """Takes note that the neighbour was started again, and numbers its messages from where it continues."""
        self.is_open = self.running = self.finished = False
        self._newest_step.clear()
        self._progress.clear()
        self._their_step_when_read = None
        self._newest_used_step = -1

    def enter(self) -> None:
        """Opens the edge, since the neighbour runs."""
        self.is_open = self.holds_flow = True
        self.refusal = ""

    def on_bye(self, reason: str, *, forget: bool) -> None:
        super().on_bye(reason, forget=forget)
        self.is_open = self.is_open and not self.finished  # its last message keeps counting

    def close(self, *, forget: bool) -> None:
        super().stop_exchanging(forget=forget and not self.finished)

    def hang_up(self) -> None:
        super().drop_stream()
        self._on_the_way.clear()
        self._last_sent.clear()

    def post(self, exchange: int, step: int, row: np.ndarray, now: float) -> None:
        """Keeps this site's newest message instead of an older one that was not sent, and sends it if it may."""
        self._posted[exchange] = step, write_data(0, Position(step, exchange), row)
        self._send_if_allowed(exchange, now)

    def post_again(self) -> None:
        """Sends the newest messages again, on a new stream and at the end."""
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
        most = max(FEWEST_ON_THE_WAY, min(MOST_ON_THE_WAY, BYTES_ON_THE_WAY // size))
        return len(self._on_the_way.get(exchange, ())) < most

    def _send(self, exchange: int) -> None:
        if self.stream is None:
            return
        step, frame = self._posted[exchange]
        self.sent_bytes += len(frame)
        self.stream.send_newest(exchange, frame)
        if self._last_sent.get(exchange) != step:
            self._on_the_way.setdefault(exchange, deque()).append(step)
            self._last_sent[exchange] = step

    def on_receipt(self, receipt: Receipt, now: float) -> None:
        """Takes note that the neighbour has read this message, and so all before it."""
        step, exchange = receipt.at
        if step > self._last_sent.get(exchange, -1):
            raise Rejected(f"a RECEIPT for step {step}, exchange {exchange}, which was not sent")
        waiting = self._on_the_way[exchange]
        if not waiting or waiting[0] > step:
            self.allowance.spend(now)
        while waiting and waiting[0] <= step:
            waiting.popleft()
        if self._their_step_when_read is None and step >= self._rest_from_step:
            self._their_step_when_read = max(self._newest_step.values(), default=-1)
        self._send_if_allowed(exchange, now)

    def ask_for_answer(self, step: int) -> None:
        """Asks for a message that depends on one from this step or later, since this site is at rest from then on."""
        self._rest_from_step = step
        self._their_step_when_read = None

    @property
    def has_answered(self) -> bool:
        """Whether this site has used a message that the neighbour computed after reading one sent at rest. The
        neighbour may have read it in the middle of step k, so only its message of step k + 2 certainly depends on
        it."""
        return self._their_step_when_read is not None and self._newest_used_step >= self._their_step_when_read + 2

    def receive(self, data: Data, expected_layouts: ExpectedLayouts, now: float, at: Position = NOWHERE) -> None:
        """Keeps a message that is newer than what came before, or rejects it."""
        layouts = layouts_of(data.tensor, expected_layouts)
        step, exchange = data.at
        if data.epoch or not 0 <= exchange < self.exchanges:
            raise Rejected(f"a message of epoch {data.epoch}, exchange {exchange}, of {self.exchanges} exchanges")
        self._messages.spend(now)
        if step <= self._newest_step.get(exchange, -1):
            self.repeated += 1
            self.allowance.spend(now)
        elif not any(all_finite(data.tensor, layout) for layout in layouts):
            raise Rejected("a tensor with a NaN or infinity")
        else:
            self.replaced += exchange in self._mail
            self._mail[exchange] = data.tensor
            self._newest_step[exchange] = step
            self._last_arrival_at = now
            self.their_position = max(self.their_position, data.at)
        self._acknowledge(exchange)

    def _acknowledge(self, exchange: int) -> None:
        if self.stream is not None:
            frame = write(Receipt(Position(self._newest_step[exchange], exchange)))
            self.sent_bytes += len(frame)
            self.stream.send_newest(-1 - exchange, frame)  # a key that no message has

    def collect(self, exchange: int) -> tuple[np.ndarray | None, LinkStatus]:
        """The newest message that was not used, if there is one, and the state of the link."""
        if not self.holds_flow:
            return None, LinkStatus.DROP_FLOW
        row = self._mail.pop(exchange, None)
        self.steps_since += exchange == 0
        if row is not None:
            self.used += 1
            self.steps_since = 0
            # No number is known for a message from before a restart.
            self._newest_used_step = max(self._newest_used_step, self._newest_step.get(exchange, -1))
        return row, LinkStatus.CONTINUE

    def note_step(self, step: int, now: float) -> None:
        """Takes note that the neighbour says it has reached this step."""
        if not self._progress or step > self._progress[-1][1]:
            self._progress.append((now, step))

    @property
    def steps_behind(self) -> int:
        """By how many of the neighbour's steps its newest message is older than the neighbour, as far as is known."""
        newest = max(self._newest_step.values(), default=0)
        return max(0, self._progress[-1][1] - newest) if self._progress else 0

    def age(self, now: float) -> float:
        """Age of the newest message in seconds: the time since it arrived or, if longer, the time that its sender
        needed for the steps since. Infinite if none arrived."""
        if not self._last_arrival_at:
            return float("inf")
        waited = now - self._last_arrival_at
        if len(self._progress) < 2:
            return waited
        begun, first = self._progress[0]
        ended, last = self._progress[-1]
        return max(waited, self.steps_behind * (ended - begun) / (last - first))

    def status(self, now: float) -> dict[str, JSON]:
        return super().status(now) | {
            "their_step": max(self._newest_step.values(), default=None),
            "message_steps_behind": self.steps_behind,
            "message_seconds_ago": round(self.age(now), 3) if self._last_arrival_at else None,
            "steps_since_message": self.steps_since,
            "messages_used": self.used,
            "messages_replaced": self.replaced,
        }
