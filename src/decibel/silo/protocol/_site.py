"""One site among its neighbours, whether or not they keep step: who is there, their streams, and the end of a run.

Two kinds of threads meet here under one lock: that of the compiled step, which begins steps and exchanges rows, and
those of the streams, which deliver frames. What a neighbour's silence means is decided in one place, `watch`.
`LockstepSite` and `AsyncSite` say how steps begin and how messages are exchanged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from jax.typing import DTypeLike

from .._errors import Rejected, SiteLost, Stopped
from .._federation import Federation
from .._logging import Log
from ._clock import Clock
from ._edge import Edge, ExpectedLayouts, Stream
from ._frame_limits import MOST_STEPS, Limits
from ._frames import (
    Beat,
    Build,
    Bye,
    Data,
    Frame,
    Hello,
    Join,
    Model,
    Ordered,
    Position,
    Receipt,
    Refuse,
    Report,
    Reports,
    Roll,
    Skip,
    Stand,
    Statement,
    Want,
    write,
)
from ._health import Health
from ._payload_layout import Layout
from ._rendezvous import Rendezvous
from ._shared_model import agree_on
from ._signed_board import Signer

if TYPE_CHECKING:
    from ..trust._order import Order

TICK = 0.5  # seconds, at most, between looks at whether to stop
GRACE = 1.0  # seconds for a step to end after the signal to stop
WORTH_REPORTING = 10.0  # seconds of waiting after which people are told for whom
REMINDER = 60.0  # seconds after which they are told again
STOP = MOST_STEPS + 1  # no step: the run ends here


class ReportBoard(Protocol):
    """The part of `_bulletin.Bulletin` that a site uses: what sites tell each other for people."""

    @property
    def reports(self) -> list[Report]: ...

    @property
    def order(self) -> Order | None: ...

    def greet(self, edge: Edge) -> None: ...

    def hear(self, edge: Edge, frame: Reports | Ordered) -> None: ...


class Site(ABC):
    """One site of a federation, whose neighbours are at the other ends of its edges.

    Args:
        federation: what all sites have agreed on.
        number: this site's position in the federation file.
        run_hash: the SHA-256 of method, step sizes, seed and initial values, which all sites share.
        signer: signs this site's statements, and checks those of others.
        incarnation: a number that is larger at every start (`_incarnation`).
        tolerates_loss: whether the method tolerates lost messages, as `"edge-ed"` does.
        restart: whether the site may begin again at step 0 where the sites have saved no step in common.
        say: receives every line of the log.
        clock: the machine's clock, or that of a simulation.
    """

    edge_type: ClassVar[type[Edge]] = Edge

    def __init__(
        self,
        federation: Federation,
        number: int,
        run_hash: bytes,
        signer: Signer,
        *,
        incarnation: int,
        tolerates_loss: bool = True,
        restart: bool = False,
        say: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        self.federation = federation
        self.number = number
        self.run_hash = run_hash
        self.tolerates_loss = tolerates_loss
        self._restart = restart
        self.build = Build()
        self.clock = clock or Clock()
        self.log = say if isinstance(say, Log) else Log(federation.sites[number].name, say, self.clock.now)
        self.limits = Limits.of(federation)
        self.fault_tolerance = federation.fault_tolerance
        self._confirmations_needed = federation.confirmations_needed
        self.incarnation = incarnation
        self.lock = self.clock.lock()
        self.edges = {other: self._edge_to(other) for other in federation.neighbours(number)}
        self._signature_allowances = {
            other: self.limits.signature_allowance(self.fault_tolerance.beat) for other in self.edges
        }
        self.expected_layouts: ExpectedLayouts = {}  # the rows that exchanges send, filled when a step is traced
        self.exchanges = 0  # of a step, as far as it has been traced
        self.in_place = False  # how the compiled step calls this site (`_host_callback`)
        self._rendezvous = Rendezvous(
            federation,
            number,
            run_hash,
            signer,
            incarnation=incarnation,
            nonce=self.clock.nonce() or 1,  # 0 stands for a site that was not heard
            may_rejoin=tolerates_loss,
        )
        self.health = Health(self.clock.now(), self._rendezvous, self.edges)
        # A site is `running` from its first step on, and `done` when no step is left or it is at rest by the stop rule.
        # `stopping` asks it to begin no further step. `goodbye` ends it: it is `closing`, and `finished` if its run is.
        self.running = False
        self.done = False
        self.stopping = False
        self.closing = False
        self.finished = False
        self._statement_sent_at = 0.0  # when it signed and sent its own statement last
        self._stopped_at: float | None = None
        self.next_step = 0  # the step that begins next
        self.goal = self.limits.steps  # the step at which the run ends
        self.steps_done = 0  # by this site, in all its starts
        self._suspect_wait = 0.0  # seconds spent waiting for at most `faulty` neighbours
        self._position = Position(0, -1)
        self.error: Exception | None = None
        self.stop_order = ""  # the authority's reason, if it has ordered this site to stop
        self.bulletin: ReportBoard | None = None  # what sites tell each other for people
        self._waiting_told_at = -math.inf  # when the log said last for whom this site waits
        # The end of the run
        self.end_reason = ""  # why the run ended before its last step; empty if it did not
        self.bye: Bye | None = None  # the last frame to every neighbour, once this site leaves
        self.had_finished = False  # whether this run had finished in an earlier start
        self._serve_model_seconds = 0.0  # how long a site that had finished gives its model
        self._lacking = frozenset[str]()  # names of neighbours that lack the model
        self.model: Model | None = None  # this site's own, to give once it has finished
        self.asks_for_model = False  # whether the others finished without this site
        self.taken_model: Model | None = None  # the model of a neighbour, if this site was left behind
        self._model_dtype = np.dtype(np.float32)
        self._model_entries = 0
        self._prepare()

    def _edge_to(self, other: int) -> Edge:
        name = self.federation.sites[other].name
        dials = self.federation.dials(self.number, other)
        return self.edge_type(other, name, dials, self.fault_tolerance, self.log.about(name))

    @abstractmethod
    def _prepare(self) -> None:
        """Sets the fields that this kind of site has in addition."""

    @property
    def name(self) -> str:
        return self.federation.sites[self.number].name

    def expect(self, dtype: DTypeLike, shape: tuple[int, ...], layout: Layout = None) -> None:
        """Registers rows that an exchange of the step sends."""
        self.exchanges += 1
        self.expected_layouts.setdefault((np.dtype(dtype), tuple(shape)), set()).add(layout)

    def expect_empty(self, dtype: DTypeLike) -> None:
        """Registers the empty row that a link carries while it rests, which tells that the sender is there."""
        self.expected_layouts.setdefault((np.dtype(dtype), (0,)), set()).add(None)

    def expect_model(self, row: np.ndarray) -> None:
        """Registers the row that a neighbour's model must be like."""
        self._model_dtype = row.dtype
        self._model_entries = row.size

    @property
    def model_bytes(self) -> int:
        return self._model_dtype.itemsize * self._model_entries

    @property
    def largest_message(self) -> int:
        return max((dtype.itemsize * int(np.prod(shape)) for dtype, shape in self.expected_layouts), default=0)

    # The start, and the steps

    @abstractmethod
    def agree_on_start(self, steps: Sequence[int]) -> int:
        """Agrees with the other sites on the step to start from, 0 for the beginning, given the steps that this site
        has saved."""

    @abstractmethod
    def continues_after(self, step: int) -> bool:
        """Whether there is more to do where this run has ended before, at a step."""

    @abstractmethod
    def begin_step(self, step: int) -> int:
        """Begins a step, at or after the given one, and returns its number; `STOP` if none is to follow."""

    @abstractmethod
    def _wait_at_the_start(self) -> None:
        """Waits for neighbours before the first step."""

    def _start_running(self) -> None:
        self.running = True
        self._rendezvous.send_roll(self.edges.values(), running=True)
        self._send_statement()
        self._wait_at_the_start()

    @property
    def new_members(self) -> list[str]:
        """The sites that came with a later edition and had saved nothing when all sites started."""
        return self._rendezvous.new_members

    def resume_finished(self, step: int, why: str, lacking: Collection[str], stay: float) -> None:
        """Takes up a run that had finished in an earlier start: the site does no step, and gives its model for `stay`
        seconds to neighbours that are `lacking` it."""
        with self.lock:
            self._serve_model_seconds = stay
            self._lacking = frozenset(lacking)
            self.next_step = self.goal = self._rendezvous.start = step
            self._position = Position(step, -1)
            self.end_reason = why
            self.running = self.done = self.finished = self.had_finished = True
            self._rendezvous.sign_own(step, running=True, done=True)

    def _take_model(self) -> None:
        """Waits until enough neighbours give the same model to believe it; raises if those who are there do not."""
        needed = min(self.federation.confirmations_needed, len(self.edges))
        patience = self.fault_tolerance.patience
        come_to = f"the others finished without this site, which came to step {self.next_step}"
        self.asks_for_model = True
        self.log(f"{come_to}: it asks for their model")
        while not self.stopping:
            now = self.clock.now()
            for edge in self.edges.values():
                if edge.finished:
                    edge.ask_for_model(now, patience)
            offers = {edge.name: edge.offer for edge in self.edges.values() if edge.offer is not None}
            agreement = agree_on(offers, needed)
            if agreement is not None:
                self.taken_model = offers[agreement.giver]
                self.next_step = self.taken_model.step
                self.end_reason = f"{come_to}: it has the model {agreement}, of step {self.next_step}"
                return
            # One that is there and has not finished lacks the model, too.
            awaited_names = [
                edge.name for edge in self.edges.values() if edge.offer is None and (edge.finished or not edge.stream)
            ]
            last_offer_at = max((edge.offered_at for edge in self.edges.values()), default=now)
            if not awaited_names and now > last_offer_at + patience:
                raise SiteLost(
                    f"{come_to}, and no {needed} of its neighbours give the same model: copy solution.npz from a site "
                    "that you trust."
                )
            self._wait(awaited_names)

    def reject(self, others: Sequence[int]) -> None:
        """Raises, since what these neighbours sent in this exchange is not finite once it is decoded."""
        with self.lock:
            edges = [self.edges[other] for other in others]
            for edge in edges:
                edge.rejected += 1
            names = ", ".join(edge.name for edge in edges)
            sentence = f"{names} sent a message in step {self._position.step} that decodes to a NaN or infinity"
            raise self._lost(sentence)

    def _lost(self, what: str) -> SiteLost:
        """The error that says why this run cannot continue, and what people can do."""
        if self.tolerates_loss:
            return SiteLost(f"{what}, and the federation's quorum is 'stop': start the sites again when all are there.")
        return SiteLost(
            f"{what}: this method needs every message, so start all sites again and they continue from their last "
            "common checkpoint; 'edge-ed' would have continued."
        )

    def _wait(self, names: Iterable[str], longest: float | None = None) -> None:
        """Waits for the sites of these names until another thread notifies this one, or for a tick or `longest`
        seconds, whichever is less."""
        self.health.set_awaited(names, self.clock.now())
        seconds = min(self.fault_tolerance.beat, TICK)
        if longest is not None:
            seconds = max(0.0, min(seconds, longest))
        self.lock.wait(seconds)
        self._validate_open()

    def _validate_open(self) -> None:
        if self.error is not None:
            raise self.error
        if self.closing:
            raise SiteLost("the site was closed.")
        if self.stopping and self._position.exchange >= 0:
            self._stopped_at = self.clock.now() if self._stopped_at is None else self._stopped_at
            if self.clock.now() > self._stopped_at + GRACE:
                raise Stopped(f"step {self._position.step} was given up: a neighbour's message did not come.")

    def stop(self) -> None:
        """Asks the site to begin no further step and to end its waiting soon. Takes no lock, since a signal handler
        calls it."""
        self.stopping = True

    def order_to_stop(self, sentence: str) -> None:
        """Stops this site, for the reason that the authority gave in its order."""
        self.stop_order = sentence
        self.log(sentence)
        self.stop()
        self.lock.notify_all()

    def abort_waiting(self) -> None:
        """Aborts all waiting for neighbours."""
        with self.lock:
            self.closing = True
            self.lock.notify_all()

    # What comes by the streams

    def connected(self, edge: Edge, hello: Hello, stream: Stream) -> None:
        """Takes a new stream with a neighbour, after both have said HELLO."""
        with self.lock:
            self._validate_incarnation(edge, hello)
            edge.drop_stream()
            if edge.incarnation not in (0, hello.incarnation):
                edge.on_restart()
            edge.incarnation = hello.incarnation
            edge.stream = stream
            edge.touch(self.clock.now())
            self._rendezvous.send_roll([edge], running=self.running)
            self._greet(edge)
            if self.bulletin is not None:
                self.bulletin.greet(edge)
            self.lock.notify_all()

    @abstractmethod
    def _greet(self, edge: Edge) -> None:
        """Says on a new stream what the neighbour has to know."""

    def _validate_incarnation(self, edge: Edge, hello: Hello) -> None:
        """Raises if a neighbour has gone back to an earlier incarnation, since others would ignore its statements."""
        last = max(edge.incarnation, self._rendezvous.incarnation_of(edge.number))
        if hello.incarnation < last:
            raise Rejected(
                f"{edge.name} was started with incarnation {hello.incarnation}, after {last}: set the clock of its "
                "machine right, and start it again"
            )

    def disconnected(self, edge: Edge, stream: Stream) -> None:
        with self.lock:
            if edge.stream is stream:
                edge.drop_stream()
                self.lock.notify_all()

    def receive(self, edge: Edge, frame: Frame, stream: Stream) -> None:
        with self.lock:
            if edge.stream is not stream:
                return  # by a stream that another has replaced
            now = self.clock.now()
            edge.touch(now)
            if edge.invalid_row:
                sentence, edge.invalid_row = edge.invalid_row, ""
                raise Rejected(sentence)
            self.limits.validate(frame)
            if isinstance(frame, Data):
                edge.receive(frame, self.expected_layouts, now, self._position)
            elif isinstance(frame, Receipt):
                edge.on_receipt(frame, now)
            elif isinstance(frame, Model):
                edge.on_model(frame, self._model_entries, self._model_dtype, now)
            else:
                edge.allowance.spend(now)
                self._on_frame(edge, frame)
            statements = edge.with_certificates(frame.statements) if isinstance(frame, Roll | Stand) else []
            if not isinstance(frame, Beat | Receipt | Reports | Stand):
                self.lock.notify_all()
        if statements:
            self._hear(edge, statements, stream)
        if isinstance(frame, Reports | Ordered) and self.bulletin is not None:
            self.bulletin.hear(edge, frame)

    def _hear(self, edge: Edge, statements: list[Statement], stream: Stream) -> None:
        """Takes statements of sites. Their signatures are checked without the lock, so that others may have it."""
        news = self._rendezvous.valid_news(statements, self._signature_allowances[edge.number], self.clock.now())
        start_statements = self._rendezvous.complete_set(statements)
        with self.lock:
            if edge.stream is not stream:
                return
            edge.their_start_statements = start_statements or edge.their_start_statements
            some_site_restarted = self._rendezvous.take(news)
            if not self._rendezvous.is_start_known:
                self._rendezvous.decide_start(self.edges.values())
                self.lock.notify_all()
            elif some_site_restarted and self.clock.now() >= self._statement_sent_at + self.fault_tolerance.beat / 4:
                self._send_statement()  # a site that has just started waits for an answer

    def _on_frame(self, edge: Edge, frame: Frame) -> None:
        match frame:
            case Roll(running):
                edge.running = running
            case Beat(waits):
                edge.is_waiting = waits
            case Bye(reason):
                if edge.is_open and reason == "left":
                    self._tell_departed(edge, "has left")
                edge.on_bye(reason, forget=self.fault_tolerance.forgets)
            case Want():
                if self.model is not None:
                    edge.give(write(self.model), self.clock.now(), self.fault_tolerance.patience)
            case Refuse(sentence):
                edge.on_refuse(sentence)
            case Hello():
                raise Rejected("a second HELLO")
            case Join() | Skip():
                self._on_join_or_skip(edge, frame)
            case _:
                pass

    @abstractmethod
    def _on_join_or_skip(self, edge: Edge, frame: Join | Skip) -> None:
        """Opens an edge at a neighbour's JOIN, or follows its jump to a later step."""

    # Heartbeats, and the end

    def _tell_departed(self, edge: Edge, why: str) -> None:
        edge.departed = True
        then = {
            "continue": ': the run continues without its data until it returns (quorum = "continue")',
            "wait": ': the run waits for it (quorum = "wait")',
        }
        edge.log(f"{edge.name} {why}" + (then.get(self.fault_tolerance.quorum, "") if self.tolerates_loss else ""))

    def on_heartbeat(self) -> None:
        """Called every `beat`: sends a heartbeat and new statements, and drops neighbours whose heartbeat is
        overdue."""
        with self.lock:
            beat = write(Beat(is_waiting=bool(self.health.awaited)))
            now = self.clock.now()
            self.health.update(now, self._position.step, running=self.running)
            self._tell_waiting(now)
            self._send_statement()
            for edge in self.edges.values():
                edge.send(beat)
                if edge.alive and now - edge.last_seen > self.fault_tolerance.patience:
                    edge.alive = edge.running = False
                    edge.drop_stream()
                    if edge.is_open:
                        self._tell_departed(edge, f"has sent no heartbeat for {self.fault_tolerance.patience:g} s")
                        edge.stop_exchanging(forget=self.fault_tolerance.forgets)
            self.lock.notify_all()

    def _tell_waiting(self, now: float) -> None:
        """Logs every `REMINDER` seconds for whom this site waits, and what to do if those have finished."""
        names = [name for name, since in self.health.awaited.items() if now - since >= WORTH_REPORTING]
        if not names or now < self._waiting_told_at + REMINDER:
            return
        self._waiting_told_at = now
        line = f"waiting for {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
        hint = "; if they have finished, start them again and they give this site the model"
        self.log(line + (hint if self._rendezvous.saved or self.steps_done else ""))

    def _send_statement(self) -> None:
        """Signs and sends this site's position, and sends newer statements of others. Until the start step is known,
        `agree` does this."""
        if self._rendezvous.is_start_known and not self.closing:
            self._statement_sent_at = self.clock.now()
            self._rendezvous.sign_own(self._position.step, running=self.running, done=self.done)
            self._rendezvous.send_news(self.edges.values())

    def goodbye(self, finished: bool) -> None:
        """Says goodbye. A site that has just finished waits until its neighbours have all its messages; one that was
        restarted after its end stays to give the model."""
        with self.lock:
            self.bye = Bye("finished" if finished else "left")
            absent = [edge for edge in self.edges.values() if not (edge.is_open or edge.finished)]
            if finished:
                self._position = Position(self.next_step, -1)
                self.done = True
                self._rendezvous.sign_own(self.next_step, running=self.running, done=True)
            for edge in self.edges.values():
                self._say_bye(edge)
            self._rendezvous.send_news(self.edges.values())  # after its last messages, on which others may rest
            begun = self.clock.now()
            until = begun + max(self.fault_tolerance.patience, self._serve_model_seconds)
            while finished and not self.stopping and self.clock.now() < until and self._is_needed(begun):
                self.lock.wait(min(TICK, self.fault_tolerance.beat / 4))
            if finished:
                gone = [edge.name for edge in self.edges.values() if edge in absent or not edge.alive]
                lacking = self._lacking if self.had_finished else gone
                self.health.without = [
                    edge.name for edge in self.edges.values() if edge.name in lacking and not edge.finished
                ]
            self.health.update(self.clock.now(), self._position.step, running=self.running)
            self.running = False
            self.closing = True
            self.finished = finished
            self.lock.notify_all()

    def _is_needed(self, begun: float) -> bool:
        """Whether a site that has finished, and says so since `begun`, stays for others."""
        unfinished = [edge for edge in self.edges.values() if not edge.finished]
        if not self.had_finished:
            return not all(self._needs_no_more(edge) for edge in unfinished)
        if self._rendezvous.others_done:
            return False
        listens = self.clock.now() < begun + self.fault_tolerance.patience
        return (
            listens or self._rendezvous.somebody_is_not_done or any(edge.name in self._lacking for edge in unfinished)
        )

    @abstractmethod
    def _say_bye(self, edge: Edge) -> None:
        """Says `bye` to a neighbour, after all that it still has to receive."""

    @abstractmethod
    def _needs_no_more(self, edge: Edge) -> bool:
        """Whether a neighbour that has not finished is not waited for at the end."""
