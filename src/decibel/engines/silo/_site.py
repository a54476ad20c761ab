"""One site among its neighbours: the roll call at the start, the exchanges of every step, and fault tolerance.

Two kinds of threads meet here under one lock: that of the compiled step, which begins steps and exchanges rows, and
those of the streams, which deliver frames. What a neighbour's silence means is decided in one place, `watch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from jax.typing import DTypeLike

from ...network._links import LinkState
from ._clock import Clock
from ._edge import Edge, Known, Stream
from ._errors import NotFinite, Rejected, SiteLost, Stopped
from ._federation import Federation
from ._frames import Beat, Build, Bye, Data, Frame, Hello, Join, Position, Refuse, Roll, Skip, Stand, write, write_data
from ._health import Health
from ._limits import FINISHED, LAST, Limits
from ._payload_layout import Layout, all_finite
from ._roll_call import RollCall, Signer

TICK = 0.5  # seconds, at most, between looks at whether to stop
GRACE = 1.0  # seconds for a step to end after the signal to stop
STOP = LAST + 1  # no step: the run ends here


class Site:
    """`lossy`: whether the method tolerates lost messages (`"edge-ed"`)."""

    def __init__(
        self,
        federation: Federation,
        number: int,
        problem: bytes,
        signer: Signer,
        *,
        lossy: bool,
        say: Callable[[str], None],
        clock: Clock | None = None,
        edge: type[Edge] = Edge,
    ) -> None:
        self.federation, self.number, self.problem, self.lossy = federation, number, problem, lossy
        self.say, self._warn = say, getattr(say, "warning", say)  # a log has levels
        self.build, self.clock = Build(), clock or Clock()
        self.limits, self.fault_tolerance = Limits.of(federation), (rules := federation.fault_tolerance)
        self.incarnation, self.lock = self.clock.incarnation(), self.clock.lock()
        self.edges = {
            other: edge(other, federation.sites[other].name, federation.dials(number, other), rules, self._warn)
            for other in federation.neighbours(number)
        }
        self.known: Known = {}  # what exchanges send
        self.exchanges, self.in_place = 0, False  # of a step as far as traced, and how it calls (`_host_callback`)
        self._roll_call = RollCall(federation, number, problem, self.incarnation, signer)
        self.health = Health(self.clock.now(), self._roll_call, self.edges)
        self.running = self.closing = self.stopping = self.finished = False
        self._stopped_at: float | None = None
        self.next, self.goal = 0, self.limits.steps  # the step that begins next, and that at which the run ends
        self._at = Position(0, -1)
        self.error: Exception | None = None

    @property
    def name(self) -> str:
        return self.federation.sites[self.number].name

    def expect(self, dtype: DTypeLike, shape: tuple[int, ...], layout: Layout = None) -> None:
        """An exchange of such rows will come."""
        self.exchanges += 1
        self.known.setdefault((np.dtype(dtype), tuple(shape)), set()).add(layout)

    @property
    def largest_message(self) -> int:
        return max((dtype.itemsize * int(np.prod(shape)) for dtype, shape in self.known), default=0)

    # The start

    def agree(self, steps: Sequence[int]) -> int:
        """The saved step to start from, 0 for the beginning: the largest that every site has saved. Where neighbours
        run already, this site returns, and takes up its own newest."""
        with self.lock:
            self._roll_call.say(0, steps)
            self._roll_call.tell(self.edges.values())
            told = self.clock.now()
            while (start := self._roll_call.settle(steps, self.edges.values(), returns=self.lossy)) is None:
                absent = self._roll_call.absent
                if self.clock.now() > told + 10:
                    self.say(f"waiting for {', '.join(absent[:5])}{', ...' if len(absent) > 5 else ''}")
                    told = self.clock.now() + 50
                self._wait(absent)
                if self.stopping:
                    return max(steps, default=0)
            self.health.awaited = {}
            self.next = max(self.next, start)
            self._at = Position(self.next, -1)
            return self.next

    # The step

    def begin(self, step: int) -> int:
        """Waits until a step can begin; returns it, a later one where neighbours are ahead, or `STOP` if none will."""
        with self.lock:
            self._validate_open()
            if not self._roll_call.settled:
                self.agree([])
            if not self.running and step != self.next and not (self.lossy or self.stopping):
                raise SiteLost(f"all sites start from step {self.next}, whose checkpoint this one could not read.")
            self.next = max(step, self.next)
            if not self.running and not self.stopping:
                self.running = True
                self._roll_call.tell(self.edges.values(), running=True)
                self._wait_at_the_start()
            self._join()
            while not self.stopping and not self._may_go_on():
                self._wait(self.health.absent(running=self.running))
                self._join()
            self.health.awaited = {}
            if self.stopping:
                return STOP
            self._catch_up()
            now, self.next = self.next, self.next + 1
            self._at = Position(now, -1)
            return now

    def _catch_up(self) -> None:
        """Skips the steps that neighbours have done without this site, as far as two sites say that they have."""
        talking = [edge for edge in self.edges.values() if edge.open and not edge.finished]
        ahead = max((edge.theirs.step for edge in talking), default=0)
        ahead = min(ahead, self._roll_call.confirmed, self.goal - 1) if self.lossy else ahead
        if ahead > self.next:
            if not self.lossy:
                raise SiteLost.without("its neighbours are ahead of it", lossy=self.lossy)
            self.next = ahead
            for edge in talking:
                edge.jump(ahead)

    def _wait_at_the_start(self) -> None:
        """For every neighbour that was counted; one that returns waits for any."""
        begun = self.clock.now()
        while not self.stopping:
            self._join()
            ready = [edge.open or edge.finished for edge in self.edges.values()]
            slow = self.clock.now() > begun + self.fault_tolerance.patience
            if all(ready) or (any(ready) and self.lossy and (slow or not self._roll_call.counted)):
                return
            self._wait(self.health.absent(running=self.running), self.fault_tolerance.beat / 4)

    def _join(self) -> None:
        """Opens the edges that this site dials and whose other end runs. Nobody waits for the answer but at the start:
        one that never comes must not hold up the others."""
        now = self.clock.now()
        for edge in self.edges.values():
            if edge.joining and now > edge.asked_at + self.fault_tolerance.patience:
                edge.ask_after = now + self.fault_tolerance.patience
                edge.hang_up()
            ready = edge.dials and edge.stream and edge.running and not (edge.open or edge.finished or edge.joining)
            if ready and now >= edge.ask_after and edge.patience.may_join(now):
                edge.joining, edge.asked_at, edge.asked_step = True, now, self.next
                edge.asking = edge.asking or self.clock.nonce()  # the same, as long as no answer came
                edge.say(write(edge.view(self.next, edge.asking)))

    def _may_go_on(self) -> bool:
        away = [edge for edge in self.edges.values() if not (edge.open or edge.finished)]
        if not away or not self.edges:
            return True
        if not self.lossy or self.fault_tolerance.quorum == "stop":
            raise SiteLost.without(", ".join(edge.name for edge in away) + " cannot be reached", lossy=self.lossy)
        if self.fault_tolerance.quorum == "wait":
            return False
        # Alone it would only find its own solution; unless others are done, which takes two to say.
        done = any(edge.finished for edge in self.edges.values()) and self._roll_call.confirmed >= self.goal
        return done or any(edge.open and not edge.finished for edge in self.edges.values())

    def exchange(
        self,
        others: Sequence[int],
        rows: np.ndarray,
        layout: Layout,
        out: tuple[np.ndarray, np.ndarray, np.ndarray],
        *,
        finite: bool = True,
    ) -> None:
        """Sends a row to every neighbour (the same, or (slots, entries) one each) and waits for theirs. Fills in what
        arrived by slot, where anything did, and the states of the links. Slots of no neighbour are −1 in `others`;
        `finite` is whether rows in code are, decoded."""
        arrived, received, states = out
        if not (finite and all_finite(rows, layout)):
            raise NotFinite(f"{self.name} has a NaN or infinity to send.")
        with self.lock:
            self._validate_open()
            at = self._at = Position(self._at.step, self._at.exchange + 1)
            slots = [(slot, self.edges[other]) for slot, other in enumerate(others) if other >= 0]
            for slot, edge in slots:
                if edge.takes_part(at.step) and not edge.finished:
                    row = rows if rows.ndim == 1 else rows[slot]
                    edge.say_data(at, write_data(edge.epoch, at, row))
            self._wait_for([edge for _, edge in slots], at)
            received[...], states[...] = False, LinkState.TIED
            for slot, edge in slots:
                row, states[slot] = edge.take(at)
                if row is not None and row.shape == arrived[slot].shape and row.dtype == rows.dtype:
                    arrived[slot], received[slot] = row, True
                elif not self.lossy:
                    raise SiteLost.without(
                        f"no message was received from {edge.name} in step {at.step}", lossy=self.lossy
                    )
            arrived[~received] = 0

    def reject(self, others: Sequence[int]) -> None:
        """What these neighbours sent in this exchange is not finite once it is decoded."""
        with self.lock:
            edges = [self.edges[other] for other in others]
            for edge in edges:
                edge.rejected += 1
            names = ", ".join(edge.name for edge in edges)
            sentence = f"{names} sent a message in step {self._at.step} that decodes to a NaN or infinity"
            raise SiteLost.without(sentence, lossy=self.lossy)

    def _wait_for(self, edges: list[Edge], at: Position) -> None:
        since = self.clock.now()
        late = since + self.fault_tolerance.deadline
        while awaited := [edge for edge in edges if edge.awaited(at)]:
            self._join()  # who waits here for one neighbour may be what another waits for
            self._wait((edge.name for edge in awaited), late - since if since < late else None)
            before, since = since, self.clock.now()
            for edge in awaited:
                edge.waited += since - before
            if len(awaited) == 1 < sum(edge.takes_part(at.step) for edge in edges):  # all others have sent
                awaited[0].patience.spend(since, since - before)
            if self.fault_tolerance.quorum != "wait":
                self._suspend([edge for edge in awaited if edge.awaited(at)], late=since >= late)
        self.health.awaited = {}

    def _suspend(self, awaited: list[Edge], *, late: bool) -> None:
        """Goes on without those that are not waited for any longer."""
        now, deadline = self.clock.now(), f"for {self.fault_tolerance.deadline:g} seconds (deadline)"
        for edge in awaited:
            if not (reason := deadline if late else edge.patience.over(now)):
                continue
            sentence = f"{edge.name} sent no message {reason}, though alive"
            if not self.lossy or self.fault_tolerance.quorum == "stop":
                raise SiteLost.without(sentence, lossy=self.lossy)
            self._warn(f"{sentence}: edge suspended")
            edge.say(write(Bye("aside")))
            edge.close(forget=True)
            edge.patience.suspended(now)

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

    @contextmanager
    def failing_later(self) -> Iterator[None]:
        """Keeps what goes wrong for when the compiled step has ended, which cannot pass it on."""
        try:
            yield
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        """No further step begins, and whoever waits is told soon. It takes no lock: a signal's handler calls it."""
        self.stopping = True

    def give_up(self) -> None:
        """Whoever waits for a neighbour waits no longer."""
        with self.lock:
            self.closing = True
            self.lock.notify_all()

    # What comes by the streams

    def connected(self, edge: Edge, hello: Hello, stream: Stream) -> None:
        """A stream with that neighbour is there, after both have said HELLO."""
        with self.lock:
            edge.hang_up()
            if edge.incarnation not in (0, hello.incarnation):
                edge.close(forget=False)  # it has started anew, and will take its flows from here
                edge.running = edge.finished = False
            edge.incarnation, edge.stream = hello.incarnation, stream
            edge.touch(self.clock.now())
            self._roll_call.tell([edge], running=self.running)
            if edge.dials and edge.open:
                edge.say(write(edge.view(self.next)))
            self.lock.notify_all()

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
            self.limits.validate(frame)
            if isinstance(frame, Data):
                edge.receive(frame, self.known, now, self._at)
            else:
                edge.allowance.spend(now)
                self._control(edge, frame)
            if not isinstance(frame, Beat | Stand):
                self.lock.notify_all()

    def _control(self, edge: Edge, frame: Frame) -> None:
        match frame:
            case Join():
                self._joined(edge, frame) if frame.answer else self._join_asked(edge, frame)
            case Roll(_, running, statements):
                news, edge.basis = self._roll_call.take(statements), self._roll_call.basis(frame)
                edge.running = running
                if news and not self._roll_call.settled:
                    self._roll_call.tell(self.edges.values(), running=self.running)
            case Stand(statements):
                self._roll_call.take(statements)
            case Skip(step):
                edge.skip(step)
            case Bye(reason):
                edge.said_bye(reason, forget=self.fault_tolerance.forgets)
            case Refuse(sentence):
                edge.refused(sentence)
            case Hello():
                raise Rejected("a second HELLO")
            case _:
                pass

    def _join_asked(self, edge: Edge, theirs: Join) -> None:
        if edge.dials:
            raise Rejected("a JOIN from the listening end")
        now = self.clock.now()
        if self.running and (edge.open or edge.patience.may_join(now)):  # or it will ask again
            edge.asked(theirs, edge.view(self.next, theirs.next, answer=True), now)

    def _joined(self, edge: Edge, theirs: Join) -> None:
        if not edge.dials:
            raise Rejected("a JOINED from the connecting end")
        edge.answered(theirs, self.next, self.clock.now())

    # Life and death

    def watch(self) -> None:
        """Now and then: a sign of life and the newest statements to everyone, and who gave no sign is gone."""
        with self.lock:
            beat, now = write(Beat()), self.clock.now()
            self.health.look(now, self._at.step, running=self.running)
            self._stand()
            for edge in self.edges.values():
                edge.say(beat)
                if edge.alive and now - edge.last_seen > self.fault_tolerance.patience:
                    edge.alive = edge.running = False
                    edge.hang_up()
                    if edge.open:
                        self._warn(f"no heartbeat from {edge.name}")
                        edge.close(forget=self.fault_tolerance.forgets)
            self.lock.notify_all()

    def _stand(self) -> None:
        """Tells where this site is, and what it has heard of others since."""
        if self.running:
            self._roll_call.say(self._at.step)
            for edge in self.edges.values():
                if edge.stream and (new := self._roll_call.positions(edge.told)):
                    edge.say(write(Stand(new)))

    def goodbye(self, finished: bool) -> None:
        """Says goodbye; where this site has finished, waits until its neighbours have received all its messages."""
        with self.lock:
            if finished:
                self._at = Position(self.next, -1)
                self._stand()
            for edge in self.edges.values():
                if finished and edge.open:
                    edge.say_in_turn(FINISHED, write(Bye("finished")))
                else:
                    edge.say(write(Bye("finished" if finished else "left")))
            until = self.clock.now() + self.fault_tolerance.patience
            while finished and not self.stopping and self.clock.now() < until:
                if all(edge.finished or not edge.alive for edge in self.edges.values()):
                    break
                self.lock.wait(min(TICK, self.fault_tolerance.beat / 4))
            self.health.look(self.clock.now(), self._at.step, running=self.running)
            self.running, self.closing, self.finished = False, True, finished
            self.lock.notify_all()
