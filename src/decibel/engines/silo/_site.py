"""One site among its neighbours: the roll call at the start, the exchanges of every step, and fault tolerance.

Two kinds of threads meet here under one lock: that of the compiled step, which begins steps and exchanges rows, and
those of the streams, which deliver frames. What a neighbour's silence means is decided in one place, `watch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from jax.typing import DTypeLike

from ...core._json import JSON
from ...network._links import LinkState
from ._clock import Clock
from ._edge import Edge, Known, Rejected, Stream
from ._errors import NotFinite, SiteLost
from ._federation import Federation
from ._frames import Beat, Bye, Data, Entry, Frame, Hello, Join, Position, Roll, Skip, write, write_data
from ._payload_layout import Layout, all_finite


class Site:
    """`lossy`: whether the method tolerates lost messages (`"edge-ed"`)."""

    def __init__(
        self,
        federation: Federation,
        number: int,
        problem: bytes,
        *,
        lossy: bool,
        say: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        self.federation, self.number, self.problem, self.lossy, self._say = federation, number, problem, lossy, say
        self.clock = clock or Clock()
        self.fault_tolerance = federation.fault_tolerance
        self.incarnation = self.clock.incarnation()
        self.lock = self.clock.lock()
        self.edges = {
            other: Edge(other, federation.sites[other].name, federation.dials(number, other))
            for other in federation.neighbours(number)
        }
        self.known: Known = {}  # what exchanges send
        self.exchanges = 0  # of a step, as far as one was traced
        self.in_place = False  # how the step calls (`_host_callback`)
        self._roll: dict[int, Entry] = {}
        self._agreed, self._settled, self.running, self.closing = -1, False, False, False
        self._finished = False
        self.next = 0  # the step that begins next
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
            self._roll[self.number] = Entry(self.number, self.incarnation, tuple(steps))
            self._tell_roll()
            told = self.clock.now()
            while not self._settled and not self._settle(steps):
                if self.clock.now() > told + 10:
                    self._say(f"waiting for {self._absent()}")
                    told = self.clock.now() + 50
                self.lock.wait(self.fault_tolerance.beat)
                self._validate_open()
            return self.next

    def _settle(self, steps: Sequence[int]) -> bool:
        for edge in self.edges.values():
            if edge.stream and edge.roll is not None:
                counts_me = self._roll[self.number] in edge.roll.entries
                if edge.roll.agreed >= 0 and counts_me:
                    return self._start_from(edge.roll.agreed, counted=True)
                if edge.running and self.lossy:
                    return self._start_from(max(steps, default=0), counted=False)
        if len(self._roll) == len(self.federation.sites):
            common = set.intersection(*({0, *entry.steps} for entry in self._roll.values()))
            return self._start_from(max(common), counted=True)
        return False

    def _start_from(self, step: int, *, counted: bool) -> bool:
        """`counted`: every neighbour starts from this step, too, and both ends remember the same."""
        self._settled, self.next = True, step
        if counted:
            self._agreed = step
            for edge in self.edges.values():
                edge.holds = True
        self._tell_roll()
        return True

    def _absent(self) -> str:
        missing = [site.name for number, site in enumerate(self.federation.sites) if number not in self._roll]
        return ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")

    def _tell_roll(self, edge: Edge | None = None) -> None:
        frame = write(Roll(self._agreed, self.running, tuple(self._roll.values())))
        for one in [edge] if edge else self.edges.values():
            one.say(frame)

    # The step

    def begin(self, step: int) -> int:
        """Waits until a step can begin; returns it, or a later one where neighbours are ahead."""
        with self.lock:
            self._validate_open()
            if not self._settled:
                self.agree([])
            if not self.running and step != self.next and not self.lossy:
                raise SiteLost(f"all sites start from step {self.next}, whose checkpoint this one could not read.")
            self.next = max(step, self.next)
            if not self.running:
                self.running = True
                self._tell_roll()
                self._wait_at_the_start()
            self._join()
            while not self._may_go_on():
                self.lock.wait(self.fault_tolerance.beat)
                self._validate_open()
                self._join()
            talking = [edge for edge in self.edges.values() if edge.open and not edge.finished]
            ahead = max((edge.theirs.step for edge in talking), default=0)
            if ahead > self.next:
                if not self.lossy:
                    raise SiteLost(self._not_without("its neighbours are ahead of it"))
                self.next = ahead
                for edge in talking:
                    edge.say(write(Skip(ahead)))
            now, self.next = self.next, self.next + 1
            self._at = Position(now, -1)
            return now

    def _wait_at_the_start(self) -> None:
        """For every neighbour that was counted; one that returns waits for any."""
        begun = self.clock.now()
        while True:
            self._join()
            ready = [edge.open or edge.finished for edge in self.edges.values()]
            slow = self.clock.now() > begun + self.fault_tolerance.patience
            if all(ready) or (any(ready) and self.lossy and (slow or self._agreed < 0)):
                return
            self.lock.wait(self.fault_tolerance.beat / 4)
            self._validate_open()

    def _join(self) -> None:
        """Opens the edges that this site dials and whose other end runs; their answers come without a step there."""
        for edge in self.edges.values():
            if edge.dials and edge.stream and edge.running and not (edge.open or edge.finished or edge.joining):
                edge.joining = True
                edge.say(write(edge.view(self.next)))
        until = self.clock.now() + self.fault_tolerance.patience
        while any(edge.joining for edge in self.edges.values()) and self.clock.now() < until:
            self.lock.wait(self.fault_tolerance.beat)
            self._validate_open()
        for edge in self.edges.values():
            if edge.joining:
                edge.hang_up()

    def _may_go_on(self) -> bool:
        away = [edge for edge in self.edges.values() if not (edge.open or edge.finished)]
        if not away or not self.edges:
            return True
        if not self.lossy or self.fault_tolerance.quorum == "stop":
            raise SiteLost(self._not_without(", ".join(edge.name for edge in away) + " cannot be reached"))
        if self.fault_tolerance.quorum == "wait":
            return False
        return len(away) < len(self.edges)  # alone it would only find its own solution

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
                if edge.takes_part(at.step):
                    row = rows if rows.ndim == 1 else rows[slot]
                    edge.say_data(at, write_data(edge.epoch, at, row))
            self._wait_for([edge for _, edge in slots], at)
            received[...], states[...] = False, LinkState.TIED
            for slot, edge in slots:
                row, states[slot] = edge.take(at)
                if row is not None and row.shape == arrived[slot].shape and row.dtype == rows.dtype:
                    arrived[slot], received[slot] = row, True
                elif not self.lossy:
                    raise SiteLost(self._not_without(f"no message was received from {edge.name} in step {at.step}"))
            arrived[~received] = 0

    def reject(self, others: Sequence[int]) -> None:
        """What these neighbours sent in this exchange is not finite once it is decoded."""
        with self.lock:
            edges = [self.edges[other] for other in others]
            for edge in edges:
                edge.rejected += 1
            names = ", ".join(edge.name for edge in edges)
            sentence = f"{names} sent a message in step {self._at.step} that decodes to a NaN or infinity"
            raise SiteLost(self._not_without(sentence))

    def _wait_for(self, edges: list[Edge], at: Position) -> None:
        late = self.clock.now() + self.fault_tolerance.deadline
        while awaited := [edge for edge in edges if edge.awaited(at)]:
            self.lock.wait(min(self.fault_tolerance.beat, max(0.0, late - self.clock.now())))
            self._validate_open()
            if self.clock.now() < late or self.fault_tolerance.quorum == "wait":
                continue
            names = ", ".join(edge.name for edge in awaited)
            sentence = f"{names} sent no message for {self.fault_tolerance.deadline:g} seconds (deadline), though alive"
            if not self.lossy or self.fault_tolerance.quorum == "stop":
                raise SiteLost(self._not_without(sentence))
            self._say(f"{sentence}: edge suspended")
            for edge in awaited:
                edge.say(write(Bye("aside")))
                edge.close(forget=True)

    def _not_without(self, what: str) -> str:
        if not self.lossy:
            return (
                f"{what}: this method needs every message, so start all sites again and they continue from their last "
                "common checkpoint; 'edge-ed' would have continued."
            )
        return f"{what}, and the federation's quorum is 'stop': start the sites again when all are there."

    def _validate_open(self) -> None:
        if self.error is not None:
            raise self.error
        if self.closing:
            raise SiteLost("the site was closed.")

    @contextmanager
    def failing_later(self) -> Iterator[None]:
        """Keeps what goes wrong for when the compiled step has ended, which cannot pass it on."""
        try:
            yield
        except Exception as error:
            self.error = error

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
            self._tell_roll(edge)
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
            edge.touch(self.clock.now())
            match frame:
                case Data():
                    edge.receive(frame, self.known)
                case Join():
                    self._joined(edge, frame) if frame.answer else self._join_asked(edge, frame)
                case Roll():
                    self._roll_received(edge, frame)
                case Skip(step):
                    edge.skip(step)
                case Bye(reason):
                    self._farewell(edge, reason)
                case Beat():
                    return
                case Hello():
                    raise Rejected("a second HELLO")
            self.lock.notify_all()

    def _roll_received(self, edge: Edge, roll: Roll) -> None:
        if any(entry.site >= len(self.federation.sites) for entry in roll.entries):
            raise Rejected("a list of more sites than there are")
        edge.roll, edge.running = roll, roll.running
        if self._settled:
            return
        own = {entry.site: entry for entry in roll.entries if entry.site != self.number}
        newer = {
            site: entry
            for site, entry in own.items()
            if site not in self._roll or self._roll[site].incarnation < entry.incarnation
        }
        self._roll |= newer
        if newer:
            self._tell_roll()

    def _join_asked(self, edge: Edge, theirs: Join) -> None:
        if edge.dials:
            raise Rejected("a JOIN from the listening end")
        if not self.running:
            return  # it will ask again
        if edge.open and not theirs.open:
            edge.close(forget=not theirs.holds)
        mine = edge.view(self.next, answer=True)
        if theirs.open and not (edge.open and edge.epoch == theirs.epoch):
            edge.say(write(mine._replace(open=False)))  # that conversation is over
            return
        edge.say(write(mine))
        edge.settle(mine, theirs)

    def _joined(self, edge: Edge, theirs: Join) -> None:
        if not edge.dials:
            raise Rejected("a JOINED from the connecting end")
        if edge.open and not theirs.open:
            edge.close(forget=not theirs.holds)
        if not edge.open and not edge.joining:
            return
        mine = edge.view(self.next)
        edge.joining = False
        edge.settle(mine, theirs)

    def _farewell(self, edge: Edge, reason: str) -> None:
        edge.finished = reason == "finished"
        edge.running = edge.running and reason == "aside"
        if reason == "finished":
            edge.theirs = Position(2**62, 0)  # what it has sent still counts; nothing more is awaited
        else:
            edge.close(forget=self.fault_tolerance.quorum != "wait")

    # Life and death

    def watch(self) -> None:
        """Now and then: a sign of life to everyone, and who gave none is gone."""
        with self.lock:
            beat, now = write(Beat()), self.clock.now()
            for edge in self.edges.values():
                edge.say(beat)
                if edge.alive and now - edge.last_seen > self.fault_tolerance.patience:
                    edge.alive = edge.running = False
                    edge.hang_up()
                    if edge.open:
                        self._say(f"no heartbeat from {edge.name}")
                        edge.close(forget=self.fault_tolerance.quorum != "wait")
            self.lock.notify_all()

    def goodbye(self, finished: bool) -> None:
        """Says goodbye; where this site has finished, waits until its neighbours have received all its messages."""
        with self.lock:
            reason = "finished" if finished else "left"
            for edge in self.edges.values():
                edge.say(write(Bye(reason)))
            until = self.clock.now() + self.fault_tolerance.patience
            while finished and self.clock.now() < until:
                if all(edge.finished or not edge.alive for edge in self.edges.values()):
                    break
                self.lock.wait(self.fault_tolerance.beat / 4)
            self.running, self.closing, self._finished = False, True, finished
            self.lock.notify_all()

    def status(self) -> dict[str, JSON]:
        with self.lock:
            now = self.clock.now()
            return {
                "site": self.name,
                "step": self.next if self._finished else self._at.step,
                "state": "finished" if self._finished else "running" if self.running else "waiting",
                "neighbours": {edge.name: edge.status(now) for edge in self.edges.values()},
            }
