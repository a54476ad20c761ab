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
from ._edge import Edge, Known, Stream
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
from ._newest import Signer
from ._payload_layout import Layout
from ._rendezvous import Rendezvous
from ._shared_model import agree_on

if TYPE_CHECKING:
    from ..trust._order import Order

TICK = 0.5  # seconds, at most, between looks at whether to stop
GRACE = 1.0  # seconds for a step to end after the signal to stop
WORTH_REPORTING = 10.0  # seconds of waiting after which people are told for whom
REMINDER = 60.0  # seconds after which they are told again
STOP = MOST_STEPS + 1  # no step: the run ends here


class Bulletin(Protocol):
    """What sites tell each other for people (`_bulletin`)."""

    @property
    def known(self) -> list[Report]: ...

    @property
    def order(self) -> Order | None: ...

    def greet(self, edge: Edge) -> None: ...

    def hear(self, edge: Edge, frame: Reports | Ordered) -> None: ...


class Site(ABC):
    """`incarnation` is larger at every start (`_incarnation`); `lossy`: whether the method tolerates lost messages
    (`"edge-ed"`); `restart`: whether it may begin again at step 0 where the sites have saved no step in common."""

    edge_type: ClassVar[type[Edge]] = Edge

    def __init__(
        self,
        federation: Federation,
        number: int,
        problem: bytes,
        signer: Signer,
        *,
        incarnation: int,
        lossy: bool = True,
        restart: bool = False,
        say: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        self.federation = federation
        self.number = number
        self.problem = problem
        self.lossy = lossy
        self._restart = restart
        self.build = Build()
        self.clock = clock or Clock()
        self.log = say if isinstance(say, Log) else Log(federation.sites[number].name, say, self.clock.now)
        self.limits, self.fault_tolerance = Limits.of(federation), (rules := federation.fault_tolerance)
        self._witnesses = federation.witnesses
        self.incarnation = incarnation
        self.lock = self.clock.lock()
        self.edges = {
            other: self.edge_type(other, name, federation.dials(number, other), rules, self.log.about(name))
            for other in federation.neighbours(number)
            for name in (federation.sites[other].name,)
        }
        self._proofs = {other: self.limits.proofs(rules.beat) for other in self.edges}
        self.known: Known = {}  # what exchanges send
        # Of a step as far as traced, and how it calls (`_host_callback`)
        self.exchanges = 0
        self.in_place = False
        self._rendezvous = Rendezvous(
            federation,
            number,
            problem,
            signer,
            incarnation=incarnation,
            nonce=self.clock.nonce() or 1,  # 0 stands for a site that was not heard
            returns=lossy,
        )
        self.health = Health(self.clock.now(), self._rendezvous, self.edges)
        self.running = self.closing = self.stopping = self.finished = False
        self.done = False  # no step is left, or it is at rest by the stop rule
        self._statement_sent_at = 0.0  # when it told last where it is
        self._stopped_at: float | None = None
        # The step that begins next, and that at which the run ends
        self.next = 0
        self.goal = self.limits.steps
        self.steps_done = 0  # by this site, in all its starts
        self._suspect_wait = 0.0  # seconds spent waiting for at most `faulty` neighbours
        self._at = Position(0, -1)
        self.error: Exception | None = None
        self.ordered = ""  # why it stops, if the authority has ordered it
        self.bulletin: Bulletin | None = None  # what sites tell each other for people
        self._told_waiting = -math.inf  # when people were told last that it waits
        # The end.
        self.ended = ""  # why the run ended before its last step; empty if it did not
        self.bye: Bye | None = None  # what it says to all once it leaves
        self.had_finished = False  # whether this run had ended before this start
        self._stay = 0.0  # seconds for which it gives its model then
        self._lacking = frozenset[str]()  # neighbours that lack it
        self.model: Model | None = None  # to give, once it has finished
        self.asks_for_model = False  # since the others finished without this site
        self.taken: Model | None = None  # theirs
        self._model_dtype = np.dtype(np.float32)
        self._model_entries = 0
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """What each kind of site keeps in addition."""

    @property
    def name(self) -> str:
        return self.federation.sites[self.number].name

    def expect(self, dtype: DTypeLike, shape: tuple[int, ...], layout: Layout = None) -> None:
        """An exchange of such rows will come."""
        self.exchanges += 1
        self.known.setdefault((np.dtype(dtype), tuple(shape)), set()).add(layout)

    def expect_empty(self, dtype: DTypeLike) -> None:
        """Where a link rests in an exchange of such rows, an empty one tells that the sender is there."""
        self.known.setdefault((np.dtype(dtype), (0,)), set()).add(None)

    def expect_model(self, row: np.ndarray) -> None:
        """Neighbours' models are such rows."""
        self._model_dtype = row.dtype
        self._model_entries = row.size

    @property
    def model_bytes(self) -> int:
        return self._model_dtype.itemsize * self._model_entries

    @property
    def largest_message(self) -> int:
        return max((dtype.itemsize * int(np.prod(shape)) for dtype, shape in self.known), default=0)

    # The start, and the steps

    @abstractmethod
    def agree(self, steps: Sequence[int]) -> int:
        """The step to start from, 0 for the beginning, given the steps that this site has saved."""

    @abstractmethod
    def continues_after(self, step: int) -> bool:
        """Whether there is more to do where this run has ended before, at a step."""

    @abstractmethod
    def begin(self, step: int) -> int:
        """The step that begins now, at or after this one; `STOP` if none is to follow."""

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
        """Those that came with a later edition and had saved nothing when all sites started."""
        return self._rendezvous.new_members

    def resume_finished(self, step: int, why: str, lacking: Collection[str], stay: float) -> None:
        """This run had already finished in an earlier start: do no steps, and give the model for `stay` seconds to
        neighbours that are `lacking` it."""
        with self.lock:
            self._stay = stay
            self._lacking = frozenset(lacking)
            self.next = self.goal = self._rendezvous.start = step
            self._at = Position(step, -1)
            self.ended = why
            self.running = self.done = self.finished = self.had_finished = True
            self._rendezvous.sign_own(step, running=True, done=True)

    def _take_model(self) -> None:
        """Waits until as many neighbours as must say a thing give the same model; gives up where those who are there
        cannot."""
        needed = min(self.federation.witnesses, len(self.edges))
        patience = self.fault_tolerance.patience
        come_to = f"the others finished without this site, which came to step {self.next}"
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
                self.taken = offers[agreement.giver]
                self.next = self.taken.step
                self.ended = f"{come_to}: it has the model {agreement}, of step {self.next}"
                return
            # One that is there and has not finished lacks the model, too.
            waits = [
                edge.name for edge in self.edges.values() if edge.offer is None and (edge.finished or not edge.stream)
            ]
            last = max((edge.offered_at for edge in self.edges.values()), default=now)
            if not waits and now > last + patience:
                raise SiteLost(
                    f"{come_to}, and no {needed} of its neighbours give the same model: copy solution.npz from a site "
                    "that you trust."
                )
            self._wait(waits)

    def reject(self, others: Sequence[int]) -> None:
        """What these neighbours sent in this exchange is not finite once it is decoded."""
        with self.lock:
            edges = [self.edges[other] for other in others]
            for edge in edges:
                edge.rejected += 1
            names = ", ".join(edge.name for edge in edges)
            sentence = f"{names} sent a message in step {self._at.step} that decodes to a NaN or infinity"
            raise self._lost(sentence)

    def _lost(self, what: str) -> SiteLost:
        """Why this run cannot continue, and what people can do."""
        if self.lossy:
            return SiteLost(f"{what}, and the federation's quorum is 'stop': start the sites again when all are there.")
        return SiteLost(
            f"{what}: this method needs every message, so start all sites again and they continue from their last "
            "common checkpoint; 'edge-ed' would have continued."
        )

    def _wait(self, names: Iterable[str], longest: float | None = None) -> None:
        """For those, until something happens, or a little while."""
        self.health.waits_for(names, self.clock.now())
        most = min(self.fault_tolerance.beat, TICK)
        self.lock.wait(most if longest is None else max(0.0, min(most, longest)))
        self._validate_open()

    def _validate_open(self) -> None:
        if self.error is not None:
            raise self.error
        if self.closing:
            raise SiteLost("the site was closed.")
        if self.stopping and self._at.exchange >= 0:
            self._stopped_at = self.clock.now() if self._stopped_at is None else self._stopped_at
            if self.clock.now() > self._stopped_at + GRACE:
                raise Stopped(f"step {self._at.step} was given up: a neighbour's message did not come.")

    def stop(self) -> None:
        """No further step begins, and waiting ends soon. It takes no lock, since a signal handler calls it."""
        self.stopping = True

    def order_to_stop(self, sentence: str) -> None:
        """The authority has ordered it, for that reason."""
        self.ordered = sentence
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
        """A stream with that neighbour is there, after both have said HELLO."""
        with self.lock:
            self._validate_incarnation(edge, hello)
            edge.hang_up()
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
        """Statements of an earlier incarnation count for nothing, so that a site that went back would not be heard."""
        last = max(edge.incarnation, self._rendezvous.incarnation_of(edge.number))
        if hello.incarnation < last:
            raise Rejected(
                f"{edge.name} was started with incarnation {hello.incarnation}, after {last}: set the clock of its "
                "machine right, and start it again"
            )

    def disconnected(self, edge: Edge, stream: Stream) -> None:
        with self.lock:
            if edge.stream is stream:
                edge.hang_up()
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
                edge.receive(frame, self.known, now, self._at)
            elif isinstance(frame, Receipt):
                edge.on_receipt(frame, now)
            elif isinstance(frame, Model):
                edge.on_model(frame, self._model_entries, self._model_dtype, now)
            else:
                edge.allowance.spend(now)
                self._control(edge, frame)
            statements = edge.with_certificates(frame.statements) if isinstance(frame, Roll | Stand) else []
            if not isinstance(frame, Beat | Receipt | Reports | Stand):
                self.lock.notify_all()
        if statements:
            self._hear(edge, statements, stream)
        if isinstance(frame, Reports | Ordered) and self.bulletin is not None:
            self.bulletin.hear(edge, frame)

    def _hear(self, edge: Edge, statements: list[Statement], stream: Stream) -> None:
        """What sites say of themselves. Signatures are checked while others have the lock."""
        checked = self._rendezvous.checked(statements, self._proofs[edge.number], self.clock.now())
        basis = self._rendezvous.basis(statements)
        with self.lock:
            if edge.stream is not stream:
                return
            edge.basis = basis or edge.basis
            news = self._rendezvous.take(checked)
            if not self._rendezvous.start_known:
                self._rendezvous.decide_start(self.edges.values())
                self.lock.notify_all()
            elif news and self.clock.now() >= self._statement_sent_at + self.fault_tolerance.beat / 4:
                self._send_statement()  # a site that has just started waits for an answer

    def _control(self, edge: Edge, frame: Frame) -> None:
        match frame:
            case Roll(running):
                edge.running = running
            case Beat(waits):
                edge.waits = waits
            case Bye(reason):
                if edge.open and reason == "left":
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
                self._converse(edge, frame)
            case _:
                pass

    @abstractmethod
    def _converse(self, edge: Edge, frame: Join | Skip) -> None:
        """A neighbour proposes to exchange messages from some step on."""

    # Life and death

    def _tell_departed(self, edge: Edge, why: str) -> None:
        edge.departed = True
        then = {
            "continue": ': the run continues without its data until it returns (quorum = "continue")',
            "wait": ': the run waits for it (quorum = "wait")',
        }
        edge.log(f"{edge.name} {why}" + (then.get(self.fault_tolerance.quorum, "") if self.lossy else ""))

    def on_heartbeat(self) -> None:
        """Called every `beat`: sends a heartbeat and new statements, and drops neighbours whose heartbeat is
        overdue."""
        with self.lock:
            beat = write(Beat(waits=bool(self.health.awaited)))
            now = self.clock.now()
            self.health.update(now, self._at.step, running=self.running)
            self._tell_waiting(now)
            self._send_statement()
            for edge in self.edges.values():
                edge.send(beat)
                if edge.alive and now - edge.last_seen > self.fault_tolerance.patience:
                    edge.alive = edge.running = False
                    edge.hang_up()
                    if edge.open:
                        self._tell_departed(edge, f"has sent no heartbeat for {self.fault_tolerance.patience:g} s")
                        edge.close(forget=self.fault_tolerance.forgets)
            self.lock.notify_all()

    def _tell_waiting(self, now: float) -> None:
        """Logs for whom this site has been waiting, every `REMINDER` seconds, and what to do if those have finished."""
        names = [name for name, since in self.health.awaited.items() if now - since >= WORTH_REPORTING]
        if not names or now < self._told_waiting + REMINDER:
            return
        self._told_waiting = now
        line = f"waiting for {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
        hint = "; if they have finished, start them again and they give this site the model"
        self.log(line + (hint if self._rendezvous.saved or self.steps_done else ""))

    def _send_statement(self) -> None:
        """Signs and sends this site's position, and sends newer statements of others. Until the start step is known,
        `agree` does this."""
        if self._rendezvous.start_known and not self.closing:
            self._statement_sent_at = self.clock.now()
            self._rendezvous.sign_own(self._at.step, running=self.running, done=self.done)
            self._rendezvous.send_news(self.edges.values())

    def goodbye(self, finished: bool) -> None:
        """Says goodbye. A site that has just finished waits until its neighbours have all its messages; one that was
        restarted after its end stays to give the model."""
        with self.lock:
            self.bye = Bye("finished" if finished else "left")
            absent = [edge for edge in self.edges.values() if not (edge.open or edge.finished)]
            if finished:
                self._at = Position(self.next, -1)
                self.done = True
                self._rendezvous.sign_own(self.next, running=self.running, done=True)
            for edge in self.edges.values():
                self._say_bye(edge)
            self._rendezvous.send_news(self.edges.values())  # after its last messages, on which others may rest
            begun = self.clock.now()
            until = begun + max(self.fault_tolerance.patience, self._stay)
            while finished and not self.stopping and self.clock.now() < until and self._is_needed(begun):
                self.lock.wait(min(TICK, self.fault_tolerance.beat / 4))
            if finished:
                gone = [edge.name for edge in self.edges.values() if edge in absent or not edge.alive]
                lacking = self._lacking if self.had_finished else gone
                self.health.without = [
                    edge.name for edge in self.edges.values() if edge.name in lacking and not edge.finished
                ]
            self.health.update(self.clock.now(), self._at.step, running=self.running)
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
