"""One edge as its site sees it: what was sent, what is awaited, and its state after failures.

Both ends pair what they send by position (step, exchange). An end waits only for a neighbour that is behind it; one
that is ahead has skipped this position and sends nothing in it. The site that is furthest behind therefore never waits,
and no two can wait for each other, whoever leaves, returns or jumps ahead. The states, and what leads from one to the
other, are in docs/reference/silo-protocol.md.

What can end: `Edge.stop_exchanging` ends the exchange of messages and leaves the stream open; `Edge.end_stream` sends
what is queued and then ends the stream; `Edge.drop_stream` ends it at once, and forgets what was passed on over it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from decibel.core import JSON, plain
from decibel.network import LinkStatus

from .._errors import Rejected
from .._federation import FaultTolerance
from ._frame_limits import BURST, FINISHED, NOWHERE, PER_BEAT, PER_SECOND, Allowance, WaitBudget
from ._frames import Data, Join, Model, Position, Receipt, Skip, Statement, Want, write
from ._payload_layout import Layout, all_finite

# Where the messages that exchanges send have their floats, by dtype and shape
ExpectedLayouts = dict[tuple[Any, tuple[int, ...]], set[Layout]]
INBOX_MESSAGES = 4  # unread messages kept per neighbour; at most two occur between sites in lockstep


class Flow(NamedTuple):
    """The size of a link's flow on one level, in the units of gradients and before it is clipped."""

    now: float
    largest: float
    limit: float | None
    saturated: bool


class Stream(Protocol):
    """A stream sends frames in order, and none after it has ended."""

    def send(self, frame: bytes) -> None: ...

    def send_newest(self, key: int, frame: bytes) -> None: ...

    def end(self) -> None: ...

    def hang_up(self) -> None: ...


class Edge:
    """One neighbour as this site sees it: its stream, the exchange in progress, and statistics. Guarded by the site's
    lock."""

    def __init__(
        self,
        number: int,
        name: str,
        dials: bool,
        rules: FaultTolerance,
        log: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.number = number
        self.name = name
        self.dials = dials
        self.log = log
        self.allowance = Allowance(PER_SECOND + PER_BEAT / rules.beat, BURST)
        self.wait_budget = WaitBudget(rules)
        # The stream, and the neighbour at its other end
        self.stream: Stream | None = None
        self.incarnation = 0
        self.last_seen = 0.0
        self.alive = False
        self.running = False
        self.finished = False
        self.joining = False  # whether a JOIN of this end awaits its answer
        self.is_waiting = False  # whether the neighbour itself waits for another, as it says
        # The last JOIN of this end: its epoch and step, when it was sent, and when it may be sent again
        self.join_epoch = 0
        self.join_step = 0
        self.join_sent_at = 0.0
        self.next_join_at = 0.0
        # The statements from which the neighbour computed its start, if they count this site as it is now
        self.their_start_statements: tuple[Statement, ...] = ()
        # By site, over this stream: the order of the newest statement that was passed on, the certificate that was sent
        # last, and the certificate that was received last
        self.passed_on: dict[int, tuple[int, int]] = {}
        self._certificates_sent: dict[int, bytes] = {}
        self._certificates_received: dict[int, bytes] = {}
        # The exchange of messages
        self.is_open = False
        self.holds_flow = False
        self.epoch = 0
        self.first_step = 0  # the first in which this end takes part
        self.first_common_step = -1  # the first in which a message of both ends met; −1 before that
        self.status_at_first_exchange = LinkStatus.START_AT_ZERO  # what becomes of the flow in that step
        self.last_received = NOWHERE
        self.their_position = NOWHERE
        self.inbox: dict[Position, np.ndarray] = {}
        self.outbox: deque[tuple[Position, bytes]] = deque(maxlen=INBOX_MESSAGES)
        self.may_skip = False  # whether the next message may be of any later step
        self.departed = False  # whether people were told that it is gone
        self._model_asked_at: float | None = None  # when the neighbour was asked for its model, over this stream
        self.offer: Model | None = None  # the model that the neighbour gave
        self.offered_at = 0.0
        self._model_given_at: float | None = None  # when the neighbour was given this site's model
        # The JOIN and the JOINED by which the edge was opened
        self._last_join = (0, False)
        self._last_joined = b""
        self.resumed = False  # whether both ends know what has arrived, so that messages may be sent over this stream
        self.must_announce_skip = False  # whether this end left out positions that the other end has skipped
        self.rejected = 0
        self.repeated = 0
        self.refusal = ""  # why the other end closes streams
        self.trouble = ""  # why there is no stream
        self.invalid_row = ""  # what was wrong with a row that the step has taken, so that its stream is to be closed
        self.sent_bytes = 0
        self.received_bytes = 0
        self.waited_seconds = 0.0  # for its messages
        self.flows: dict[str, Flow] = {}  # by level, for the status (`_flow_limits`)
        self._prepare()

    def _prepare(self) -> None:
        """Sets the fields that this kind of edge has in addition."""

    def touch(self, now: float) -> None:
        self.last_seen = now
        self.alive = True

    # Opening and closing

    def join_frame(self, step: int, new_epoch: int = 0, *, answer: bool = False) -> Join:
        """The JOIN, or JOINED (`answer`), that describes this end; `step` is the next that begins here."""
        return Join(self.epoch, new_epoch, self.is_open, self.holds_flow, step, self.last_received, answer)

    def open_link(self, mine: Join, theirs: Join, now: float = 0.0) -> None:
        """Both ends call this with the same two views and reach the same state. The dialling end chose the new epoch at
        random, so that messages of an older epoch are not mistaken for messages of this one."""
        self.resumed = True
        self.join_epoch = 0
        self.refusal = ""
        if mine.is_open and theirs.is_open and mine.epoch == theirs.epoch:
            self.resend(theirs.last_received)
            return
        self.epoch = theirs.new_epoch
        self.status_at_first_exchange = {
            (True, True): LinkStatus.CONTINUE,
            (True, False): LinkStatus.GIVE_FLOW,
            (False, True): LinkStatus.TAKE_FLOW,
            (False, False): LinkStatus.START_AT_ZERO,
        }[mine.holds_flow, theirs.holds_flow]
        self.is_open = self.holds_flow = self.may_skip = True
        self.must_announce_skip = False
        self.first_step = mine.step
        self.first_common_step = -1
        self.their_position = Position(theirs.step, -1)
        self.last_received = NOWHERE
        self.wait_budget.on_join(now, behind=theirs.step < mine.step)
        self.inbox.clear()
        self.outbox.clear()

    def on_join(self, theirs: Join, mine: Join, now: float) -> None:
        """Answers a JOIN at the listening end. A dialler whose JOINED was lost gets the same JOINED again."""
        lost = self.is_open and not theirs.is_open and self._last_join == (theirs.new_epoch, theirs.holds_flow)
        if lost and self.last_received == NOWHERE:
            self.send(self._last_joined)
            self.their_position = max(self.their_position, Position(theirs.step, -1))
            self.resumed = True
            self.resend(NOWHERE)
            return
        if self.is_open and not theirs.is_open:
            self.stop_exchanging(forget=not theirs.holds_flow)
            mine = mine._replace(is_open=False, holds_flow=self.holds_flow)
        if theirs.is_open and not (self.is_open and self.epoch == theirs.epoch):
            self.send(write(mine._replace(is_open=False)))  # that conversation is over
            return
        self._last_join = (theirs.new_epoch, theirs.holds_flow)
        self._last_joined = write(mine)
        self.send(self._last_joined)
        self.open_link(mine, theirs, now)

    def on_joined(self, theirs: Join, step: int, now: float) -> None:
        """Takes a JOINED at the dialling end."""
        if self.is_open and not theirs.is_open:
            self.stop_exchanging(forget=not theirs.holds_flow)
            return  # and will ask again
        if self.is_open and theirs.epoch != self.epoch:
            raise Rejected(f"a JOINED in epoch {theirs.epoch}, where this end talks in epoch {self.epoch}")
        if not self.is_open and not (self.joining and theirs.new_epoch == self.join_epoch):
            return  # the answer to what was asked before
        mine = self.join_frame(step)
        advanced = not self.is_open and step > self.join_step
        self.joining = False
        self.open_link(mine, theirs, now)
        if advanced:  # while it waited for the answer
            self.send_skip(step)

    def on_restart(self) -> None:
        """The neighbour was restarted, and takes its flows from this end."""
        self.stop_exchanging(forget=False)
        self.running = self.finished = False

    def on_bye(self, reason: str, *, forget: bool) -> None:
        self.finished = reason == "finished"
        if reason == "aside":
            self.on_refuse("it took too long, so the others continue without it for a while")
        self.running = self.running and reason == "aside"
        if self.finished:
            self.joining = False
            self.their_position = FINISHED  # what it has sent still counts; nothing more is awaited
        else:
            self.stop_exchanging(forget=forget)

    def stop_exchanging(self, *, forget: bool) -> None:
        """Ends the exchange of messages, and leaves the stream open; with `forget` the flow is dropped."""
        self.is_open = self.joining = False
        self.join_epoch = 0
        self.holds_flow = self.holds_flow and not forget
        self.inbox.clear()
        self.outbox.clear()

    def end_stream(self) -> None:
        """Sends nothing more, except what is already queued."""
        if self.stream is not None:
            self.stream.end()

    def drop_stream(self) -> None:
        if self.stream is not None:
            self.stream.hang_up()
        self.stream = None
        self.joining = False
        self.resumed = False
        self._model_asked_at = None
        self.their_start_statements = ()
        for memory in (self.passed_on, self._certificates_sent, self._certificates_received):
            memory.clear()

    def with_certificates(self, statements: Iterable[Statement]) -> list[Statement]:
        """These statements, each with its certificate, which the other end sends only once over a stream."""
        completed: list[Statement] = []
        for statement in statements:
            certificate = statement.certificate or self._certificates_received.get(statement.site, b"")
            self._certificates_received[statement.site] = certificate
            completed.append(statement._replace(certificate=certificate))
        return completed

    def without_certificates(self, statements: Iterable[Statement]) -> list[Statement]:
        """These statements, each without its certificate if that was sent over this stream."""
        return [
            statement._replace(certificate=b"")
            if self._certificates_sent.get(statement.site) == statement.certificate
            else statement
            for statement in statements
        ]

    def note_passed_on(self, statements: Iterable[Statement]) -> None:
        """Remembers that these statements and their certificates were sent over this stream."""
        for statement in statements:
            self.passed_on[statement.site] = max(self.passed_on.get(statement.site, (-1, -1)), statement.order)
            self._certificates_sent[statement.site] = statement.certificate

    def on_refuse(self, sentence: str) -> None:
        """The other end refused this site, with a reason; the same reason is logged once."""
        previous_refusal = self.refusal
        self.refusal = plain(sentence)
        if self.refusal != previous_refusal:
            self.log(f"{self.name} rejected this site: {self.refusal}")

    def ask_for_model(self, now: float, pause: float) -> None:
        """Asks for the neighbour's model, and again if no answer came during a pause or the stream is new."""
        if self.stream is None or self.offer is not None:
            return
        if self._model_asked_at is None or now >= self._model_asked_at + pause:
            self._model_asked_at = now
            self.send(write(Want()))

    def on_model(self, model: Model, entries: int, dtype: np.dtype, now: float) -> None:
        """Keeps the model of a neighbour: no entries, or as many as this site's has."""
        if self._model_asked_at is None:
            raise Rejected("a MODEL that was not asked for")
        if model.row.size and not (model.row.size == entries and model.row.dtype == dtype):
            raise Rejected(f"a MODEL of {model.row.dtype} with {model.row.size} entries, of {entries}")
        if not np.isfinite(model.row).all():
            raise Rejected("a MODEL with a NaN or infinity")
        self._model_asked_at = None
        self.offer = model
        self.offered_at = now

    def give(self, model: bytes, now: float, pause: float) -> None:
        """Sends this site's model, not more often than after a pause."""
        if self._model_given_at is None or now >= self._model_given_at + pause:
            self._model_given_at = now
            self.send(model)

    def resend(self, got: Position) -> None:
        """Sends again what did not arrive. If more is missing than is kept, the other end is told where to continue."""
        missing = [(at, frame) for at, frame in self.outbox if at > got]
        if missing and missing[0][0].exchange >= 0 and missing[0][0] != FINISHED and not follows(got, missing[0][0]):
            missing = [(at, frame) for at, frame in missing if at >= (got.step + 1, 0)]
            while missing and missing[0][0].exchange > 0:
                del missing[0]
            if missing:
                self.send(write(Skip(missing[0][0].step)))
        for _, frame in missing:
            self.send(frame)

    # Talking

    def send(self, frame: bytes) -> None:
        if self.stream is not None:
            self.sent_bytes += len(frame)
            self.stream.send(frame)

    def send_data(self, at: Position, frame: bytes) -> None:
        """Sends a message, or nothing if the other end has skipped this position. The resulting jump is announced
        before the next message.
        """
        if self.their_position > at:
            self.must_announce_skip = True
            return
        if self.must_announce_skip:
            self.send_skip(at.step)
        self.send_in_order(at, frame)

    def send_skip(self, step: int) -> None:
        """Announces that this end continues at a later step. Earlier announcements still in the outbox are dropped:
        sent after this one they would look like a step back."""
        self.must_announce_skip = False
        while self.outbox and self.outbox[-1][0].exchange < 0:
            self.outbox.pop()
        self.send_in_order(Position(step, -1), write(Skip(step)))

    def send_in_order(self, at: Position, frame: bytes) -> None:
        """Sends in order, and again after a reconnection."""
        self.outbox.append((at, frame))
        if self.resumed:
            self.send(frame)

    @property
    def state(self) -> str:
        """The word for this edge's state, one of those in docs/reference/silo-protocol.md."""
        if self.finished:
            return "finished"
        if self.is_open:
            return "talking" if self.stream else "reconnecting"
        if self.joining:
            return "joining"
        return "connected" if self.stream else "away"

    def status(self, now: float) -> dict[str, JSON]:
        """The facts that `decibel silo status` shows of this edge."""
        seen = round(now - self.last_seen, 1) if self.last_seen else None
        return {
            "state": self.state,
            "last_seen_seconds_ago": seen,
            "why": "" if self.is_open else self.refusal or ("" if self.stream else self.trouble),
            "rejected": self.rejected,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
            "waited_seconds": round(self.waited_seconds, 3),
            "flows": {level: flow._asdict() for level, flow in self.flows.items()},
        }

    def takes_part(self, step: int) -> bool:
        """Whether this end exchanges messages in a step."""
        return self.is_open and self.first_step <= step

    def receive(self, data: Data, expected_layouts: ExpectedLayouts, now: float, at: Position = NOWHERE) -> None:
        """Stores a message for the step, or rejects it; those for positions before `at`, where this end is, are
        dropped."""
        layouts = layouts_of(data.tensor, expected_layouts)
        if not self.is_open or data.epoch != self.epoch or data.at <= self.last_received:
            self.repeated += 1  # of a conversation that is over, or a second time
            self.allowance.spend(now)
            return
        if not self._follows(data.at):
            raise Rejected(f"a message of step {data.at.step}, exchange {data.at.exchange}, out of order")
        if len(self.inbox) >= INBOX_MESSAGES:
            raise Rejected("more messages ahead than the protocol allows")
        if not any(all_finite(data.tensor, layout) for layout in layouts):
            raise Rejected("a tensor with a NaN or infinity")
        self.last_received = self.their_position = data.at
        self.may_skip = False
        if data.at >= at:
            self.inbox[data.at] = data.tensor
            self.wait_budget.on_caught_up()

    def on_receipt(self, receipt: Receipt, now: float) -> None:
        """The neighbour has read a message."""
        raise Rejected("a RECEIPT, which sites with common steps do not say")

    def _follows(self, at: Position) -> bool:
        """Whether a message of this position may come next: the next exchange of the same step, or the first exchange
        of the next step, or of any later one after a jump was announced."""
        if self.may_skip:
            return at.exchange == 0 and at.step >= self.their_position.step
        return follows(self.their_position, at)

    def on_skip(self, step: int) -> None:
        if not self.is_open or self.finished or self.their_position == Position(step, -1):  # over, or said again
            return
        if step <= self.their_position.step:
            raise Rejected(f"a jump to step {step}, which is not ahead")
        self.their_position = Position(step, -1)
        self.may_skip = True

    # What the step asks

    def awaited(self, at: Position) -> bool:
        """Whether a message of this position may still come."""
        return self.takes_part(at.step) and at not in self.inbox and self.their_position < at

    def take(self, at: Position) -> tuple[np.ndarray | None, LinkStatus]:
        """The message of this position, if one has arrived, and the status of the link.

        Before this end takes part, and after it has stopped, the link keeps its flow or, if the flow was dropped, drops
        it. In the first step in which messages of both ends meet, the status is what JOIN and JOINED agreed on. In all
        other steps the link continues.
        """
        for old in [position for position in self.inbox if position < at]:
            del self.inbox[old]
        if not self.takes_part(at.step):
            return None, LinkStatus.CONTINUE if self.holds_flow else LinkStatus.DROP_FLOW
        row = self.inbox.pop(at, None)
        if self.first_common_step < 0 and row is not None:  # the first position in which both ends take part
            self.first_common_step = at.step
        if row is not None:
            self.wait_budget.on_message()
        if at.step == self.first_common_step:
            return row, self.status_at_first_exchange
        return row, LinkStatus.CONTINUE


def layouts_of(tensor: np.ndarray, expected_layouts: ExpectedLayouts) -> set[Layout]:
    """Where a message of this dtype and shape has its floats; rejects one that no exchange sends."""
    layouts = expected_layouts.get((tensor.dtype, tensor.shape))
    if layouts is None:
        raise Rejected(f"a tensor of {tensor.dtype} and shape {tensor.shape}, which no exchange sends")
    return layouts


def follows(before: Position, at: Position) -> bool:
    """Whether `at` may directly follow `before`: the next exchange of the step, or the first of the next step. How many
    exchanges the other end's step has is unknown."""
    return at in (Position(before.step, before.exchange + 1), Position(before.step + 1, 0))
