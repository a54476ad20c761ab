"""One edge as its site sees it: what was sent, what is awaited, and its state after failures.

Both ends pair what they send by position (step, exchange). An end waits only for a neighbour that is behind it; one
that is ahead has skipped this position and sends nothing in it. The site that is furthest behind therefore never waits,
and no two can wait for each other, whoever leaves, returns or jumps ahead. The states, and what leads from one to the
other, are in docs/reference/silo-protocol.md.
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

Known = dict[tuple[Any, tuple[int, ...]], set[Layout]]  # by dtype and shape, where such messages have their floats
WINDOW = 4  # unread messages kept per neighbour; at most two occur between sites in lockstep


class Flow(NamedTuple):
    """The size of a link's flow on one level, in the units of gradients and before it is cut."""

    now: float
    largest: float
    limit: float | None
    saturated: bool


class Stream(Protocol):
    """Sends frames in order, and none after the stream has ended."""

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
        # The stream, and who is at its other end.
        self.stream: Stream | None = None
        self.incarnation = 0
        self.last_seen = 0.0
        self.alive = self.running = self.finished = self.joining = False
        self.waits = False  # for a neighbour itself, as it says
        # The epoch and the step that JOIN named last
        self.join_epoch = 0
        self.join_step = 0
        self.join_sent_at = self.next_join_at = 0.0  # when it was said, and when it may be said again
        self.basis: tuple[Statement, ...] = ()  # by which it has settled, if that counts this site as it is now
        # By site, what was passed on by this stream: the order of the newest statement, and the last certificate; and
        # the last one that came.
        self.told: dict[int, tuple[int, int]] = {}
        self._shown: dict[int, bytes] = {}
        self._certificates: dict[int, bytes] = {}
        # The conversation.
        self.open = self.holds = False
        self.epoch = 0
        self.first = 0
        self.tie = LinkStatus.START_AT_ZERO
        self.tied_at = -1
        self.got = self.theirs = NOWHERE
        self.inbox: dict[Position, np.ndarray] = {}
        self.outbox: deque[tuple[Position, bytes]] = deque(maxlen=WINDOW)
        self.may_skip = False
        self.departed = False  # whether people were told that it is gone
        self._wanted: float | None = None  # when it was asked for its model, on this stream
        self.offer: Model | None = None  # the model that it gave
        self.offered_at = 0.0
        self._gave: float | None = None  # when it was given this site's
        # JOIN and JOINED, by which it was opened
        self._last_join = (0, False)
        self._last_joined = b""
        self.resumed = False  # whether both ends know, on this stream, what the other has got
        self.behind = False  # whether messages were left out, of positions that the other end has skipped
        self.rejected = self.repeated = 0
        self.refusal = self.trouble = ""  # why the other end closes streams, and why none is there
        self.invalid_row = ""  # what was wrong with a row that the step has taken, so that its stream is to be closed
        self.sent = self.received = 0  # bytes
        self.waited = 0.0  # seconds, for its messages
        self.flows: dict[str, Flow] = {}  # by level, for the status (`_flow_limits`)
        self._prepare()

    def _prepare(self) -> None:
        """What each kind of edge keeps in addition."""

    def touch(self, now: float) -> None:
        self.last_seen = now
        self.alive = True

    # Opening and closing

    def view(self, step: int, following: int = 0, *, answer: bool = False) -> Join:
        """The JOIN, or JOINED (`answer`), that describes this end; `step` is the next that begins here."""
        return Join(self.epoch, following, self.open, self.holds, step, self.got, answer)

    def open_link(self, mine: Join, theirs: Join, now: float = 0.0) -> None:
        """Both ends call this with the same two views and reach the same state. The dialling end chose the new epoch at
        random, so that messages of an older epoch are not mistaken for messages of this one."""
        self.resumed = True
        self.join_epoch = 0
        self.refusal = ""
        if mine.open and theirs.open and mine.epoch == theirs.epoch:
            self.resend(theirs.got)
            return
        self.epoch = theirs.next
        self.tie = {
            (True, True): LinkStatus.CONTINUE,
            (True, False): LinkStatus.GIVE_FLOW,
            (False, True): LinkStatus.TAKE_FLOW,
            (False, False): LinkStatus.START_AT_ZERO,
        }[mine.holds, theirs.holds]
        self.open = self.holds = self.may_skip = True
        self.behind = False
        self.first = mine.step
        self.tied_at = -1
        self.theirs = Position(theirs.step, -1)
        self.got = NOWHERE
        self.wait_budget.joined(now, behind=theirs.step < mine.step)
        self.inbox.clear()
        self.outbox.clear()

    def on_join(self, theirs: Join, mine: Join, now: float) -> None:
        """Answers a JOIN at the listening end. A dialler whose JOINED was lost gets the same JOINED again."""
        lost = self.open and not theirs.open and self._last_join == (theirs.next, theirs.holds)
        if lost and self.got == NOWHERE:
            self.send(self._last_joined)
            self.theirs = max(self.theirs, Position(theirs.step, -1))
            self.resumed = True
            self.resend(NOWHERE)
            return
        if self.open and not theirs.open:
            self.close(forget=not theirs.holds)
            mine = mine._replace(open=False, holds=self.holds)
        if theirs.open and not (self.open and self.epoch == theirs.epoch):
            self.send(write(mine._replace(open=False)))  # that conversation is over
            return
        self._last_join = (theirs.next, theirs.holds)
        self._last_joined = write(mine)
        self.send(self._last_joined)
        self.open_link(mine, theirs, now)

    def on_joined(self, theirs: Join, step: int, now: float) -> None:
        """Takes a JOINED at the dialling end."""
        if self.open and not theirs.open:
            self.close(forget=not theirs.holds)
            return  # and will ask again
        if self.open and theirs.epoch != self.epoch:
            raise Rejected(f"a JOINED in epoch {theirs.epoch}, where this end talks in epoch {self.epoch}")
        if not self.open and not (self.joining and theirs.next == self.join_epoch):
            return  # the answer to what was asked before
        mine = self.view(step)
        advanced = not self.open and step > self.join_step
        self.joining = False
        self.open_link(mine, theirs, now)
        if advanced:  # while it waited for the answer
            self.send_skip(step)

    def on_restart(self) -> None:
        """The neighbour was restarted, and takes its flows from this end."""
        self.close(forget=False)
        self.running = self.finished = False

    def on_bye(self, reason: str, *, forget: bool) -> None:
        self.finished = reason == "finished"
        if reason == "aside":
            self.on_refuse("it took too long, so the others continue without it for a while")
        self.running = self.running and reason == "aside"
        if self.finished:
            self.joining = False
            self.theirs = FINISHED  # what it has sent still counts; nothing more is awaited
        else:
            self.close(forget=forget)

    def close(self, *, forget: bool) -> None:
        """Ends this edge's part in the run; with `forget` its flow is dropped."""
        self.open = self.joining = False
        self.join_epoch = 0
        self.holds = self.holds and not forget
        self.inbox.clear()
        self.outbox.clear()

    def end(self) -> None:
        """Sends nothing more, except what is already queued."""
        if self.stream is not None:
            self.stream.end()

    def hang_up(self) -> None:
        if self.stream is not None:
            self.stream.hang_up()
        self.stream = None
        self.joining = False
        self.resumed = False
        self._wanted = None
        self.basis = ()
        for memory in (self.told, self._shown, self._certificates):
            memory.clear()

    def with_certificates(self, statements: Iterable[Statement]) -> list[Statement]:
        """What came by this stream, with the certificates that need not be sent again."""
        completed: list[Statement] = []
        for statement in statements:
            certificate = statement.certificate or self._certificates.get(statement.site, b"")
            self._certificates[statement.site] = certificate
            completed.append(statement._replace(certificate=certificate))
        return completed

    def without_certificates(self, statements: Iterable[Statement]) -> list[Statement]:
        """The same, where the other end has had the certificate by this stream."""
        return [
            statement._replace(certificate=b"")
            if self._shown.get(statement.site) == statement.certificate
            else statement
            for statement in statements
        ]

    def note_told(self, statements: Iterable[Statement]) -> None:
        """These were passed on, with the certificates that the other end did not have."""
        for statement in statements:
            self.told[statement.site] = max(self.told.get(statement.site, (-1, -1)), statement.order)
            self._shown[statement.site] = statement.certificate

    def on_refuse(self, sentence: str) -> None:
        """The other end refused this site, with a reason; the same reason is logged once."""
        told = self.refusal
        self.refusal = plain(sentence)
        if self.refusal != told:
            self.log(f"{self.name} rejected this site: {self.refusal}")

    def ask_for_model(self, now: float, pause: float) -> None:
        """Asks for the neighbour's model, and again if no answer came during a pause or the stream is new."""
        if self.stream is None or self.offer is not None:
            return
        if self._wanted is None or now >= self._wanted + pause:
            self._wanted = now
            self.send(write(Want()))

    def on_model(self, model: Model, entries: int, dtype: np.dtype, now: float) -> None:
        """Keeps the model of a neighbour: no entries, or as many as this site's has."""
        if self._wanted is None:
            raise Rejected("a MODEL that was not asked for")
        if model.row.size and not (model.row.size == entries and model.row.dtype == dtype):
            raise Rejected(f"a MODEL of {model.row.dtype} with {model.row.size} entries, of {entries}")
        if not np.isfinite(model.row).all():
            raise Rejected("a MODEL with a NaN or infinity")
        self._wanted = None
        self.offer = model
        self.offered_at = now

    def give(self, model: bytes, now: float, pause: float) -> None:
        """This site's model, not more often than after a pause."""
        if self._gave is None or now >= self._gave + pause:
            self._gave = now
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
            self.sent += len(frame)
            self.stream.send(frame)

    def send_data(self, at: Position, frame: bytes) -> None:
        """Sends a message, or nothing if the other end has skipped this position. The resulting jump is announced
        before the next message.
        """
        if self.theirs > at:
            self.behind = True
            return
        if self.behind:
            self.send_skip(at.step)
        self.send_in_order(at, frame)

    def send_skip(self, step: int) -> None:
        """Announces that this end continues at a later step. Earlier announcements still in the outbox are dropped:
        sent after this one they would look like a step back."""
        self.behind = False
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
        """One of those in docs/reference/silo-protocol.md."""
        if self.finished:
            return "finished"
        if self.open:
            return "talking" if self.stream else "reconnecting"
        if self.joining:
            return "joining"
        return "connected" if self.stream else "away"

    def status(self, now: float) -> dict[str, JSON]:
        """What `decibel silo status` shows of it."""
        seen = round(now - self.last_seen, 1) if self.last_seen else None
        return {
            "state": self.state,
            "last_seen_seconds_ago": seen,
            "why": "" if self.open else self.refusal or ("" if self.stream else self.trouble),
            "rejected": self.rejected,
            "sent_bytes": self.sent,
            "received_bytes": self.received,
            "waited_seconds": round(self.waited, 3),
            "flows": {level: flow._asdict() for level, flow in self.flows.items()},
        }

    def takes_part(self, step: int) -> bool:
        return self.open and self.first <= step

    def receive(self, data: Data, known: Known, now: float, at: Position = NOWHERE) -> None:
        """Stores a message for the step, or rejects it; those for positions before `at`, where this end is, are
        dropped."""
        layouts = layouts_of(data.tensor, known)
        if not self.open or data.epoch != self.epoch or data.at <= self.got:
            self.repeated += 1  # of a conversation that is over, or a second time
            self.allowance.spend(now)
            return
        if not self._follows(data.at):
            raise Rejected(f"a message of step {data.at.step}, exchange {data.at.exchange}, out of order")
        if len(self.inbox) >= WINDOW:
            raise Rejected("more messages ahead than the protocol allows")
        if not any(all_finite(data.tensor, layout) for layout in layouts):
            raise Rejected("a tensor with a NaN or infinity")
        self.got = self.theirs = data.at
        self.may_skip = False
        if data.at >= at:
            self.inbox[data.at] = data.tensor
            self.wait_budget.caught_up()

    def on_receipt(self, receipt: Receipt, now: float) -> None:
        """The neighbour has read a message."""
        raise Rejected("a RECEIPT, which sites with common steps do not say")

    def _follows(self, at: Position) -> bool:
        """The next exchange of the same step, or the first of the next; where a jump was announced, of a later."""
        if self.may_skip:
            return at.exchange == 0 and at.step >= self.theirs.step
        return follows(self.theirs, at)

    def on_skip(self, step: int) -> None:
        if not self.open or self.finished or self.theirs == Position(step, -1):  # over, or said again
            return
        if step <= self.theirs.step:
            raise Rejected(f"a jump to step {step}, which is not ahead")
        self.theirs = Position(step, -1)
        self.may_skip = True

    # What the step asks

    def awaited(self, at: Position) -> bool:
        """Whether a message of this position may still come."""
        return self.takes_part(at.step) and at not in self.inbox and self.theirs < at

    def take(self, at: Position) -> tuple[np.ndarray | None, LinkStatus]:
        """The message of this position, if one came, and the state of the link."""
        for old in [place for place in self.inbox if place < at]:
            del self.inbox[old]
        if not self.takes_part(at.step):
            return None, LinkStatus.CONTINUE if self.holds else LinkStatus.DROP_FLOW
        row = self.inbox.pop(at, None)
        if self.tied_at < 0 and row is not None:  # the first position in which both ends take part
            self.tied_at = at.step
        if row is not None:
            self.wait_budget.took_part()
        return row, self.tie if at.step == self.tied_at else LinkStatus.CONTINUE


def layouts_of(tensor: np.ndarray, known: Known) -> set[Layout]:
    """Where such a message has its floats; rejects one that no exchange sends."""
    layouts = known.get((tensor.dtype, tensor.shape))
    if layouts is None:
        raise Rejected(f"a tensor of {tensor.dtype} and shape {tensor.shape}, which no exchange sends")
    return layouts


def follows(before: Position, at: Position) -> bool:
    """Whether `at` may directly follow `before`: the next exchange of the step, or the first of the next step. How many
    exchanges the other end's step has is unknown."""
    return at in (Position(before.step, before.exchange + 1), Position(before.step + 1, 0))
