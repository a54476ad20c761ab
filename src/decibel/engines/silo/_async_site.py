"""One site without a common clock: it posts when it has finished a step, and takes the newest that has come.

No step waits for a message, and no site for another's checkpoint: a site that is started again continues from its own.
It waits in two cases only: at its start, until its neighbours run, and when all of them are gone. A link whose other
end is gone is dropped or kept, as the federation says (`quorum`); what its two ends remember need not fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from ...network._links import LinkState
from ._async_edge import AsyncEdge
from ._clock import Clock
from ._edge import Edge, Stream
from ._errors import NotFinite, Rejected, SiteLost
from ._federation import Federation
from ._frames import Bye, Frame, Hello, Join, Position, Roll, Skip, Stand, write
from ._payload_layout import all_finite
from ._rest import Rest
from ._roll_call import Signer
from ._site import STOP, TICK, Site


class AsyncSite(Site):
    """`places` are the exchanges of a step, by number and graph; `others` their neighbours by slot, −1 for none."""

    def __init__(
        self,
        federation: Federation,
        number: int,
        problem: bytes,
        signer: Signer,
        *,
        lossy: bool = True,
        say: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        super().__init__(federation, number, problem, signer, lossy=lossy, say=say, clock=clock, edge=AsyncEdge)
        self.places: list[tuple[int, int]] = []
        self.others: list[tuple[int, ...]] = []
        self.rest = Rest(federation.stop)
        self.done = False
        self.ended = ""  # why, where the stop rule holds
        self.bye: Bye | None = None  # what it says to all once it leaves
        self._used: list[np.ndarray] = []  # by place, the slots whose message was used in this step

    def _edge(self, other: int) -> AsyncEdge:
        return cast(AsyncEdge, self.edges[other])

    def exchange_at(self, places: Sequence[tuple[int, int]], others: Sequence[tuple[int, ...]]) -> None:
        """The exchanges of a step, in their order, and the neighbours on every graph."""
        self.places, self.others = list(places), [others[graph] for _, graph in places]
        self._used = [np.zeros(len(slots), bool) for slots in self.others]
        for other in self.edges:
            self._edge(other).exchanges = len(places)

    # The start

    def agree(self, steps: Sequence[int]) -> int:
        """This site's own newest step: nobody else's checkpoint matters."""
        with self.lock:
            self._roll_call.say(0, steps)
            self._roll_call.settled = True
            self._roll_call.tell(self.edges.values())
            self.next = max(steps, default=0)
            self._at = Position(self.next, -1)
            return self.next

    def _wait_at_the_start(self) -> None:
        """For neighbours that are there until they run, as long as one message may take; for others a little while."""
        begun = self.clock.now()
        while not self.stopping:
            waited, rules = self.clock.now() - begun, self.fault_tolerance
            ready = [edge.open or edge.finished for edge in self.edges.values()]
            patience = [rules.deadline if edge.alive else rules.patience for edge in self.edges.values()]
            missed = all(one or waited > longest for one, longest in zip(ready, patience, strict=True))
            if all(ready) or (any(ready) and missed):
                return
            self._wait(self.health.absent(running=True), rules.beat / 4)

    def _join(self) -> None:
        """There is nothing to agree on."""

    # The step

    def post(self, step: int, rows: Sequence[np.ndarray]) -> None:
        """Sends to every neighbour what this site has to say before a step, by place and slot."""
        if not all(all_finite(row, None) for row in rows):
            raise NotFinite(f"{self.name} has a NaN or infinity to send.")
        with self.lock:
            self._validate_open()
            for place, (others, row) in enumerate(zip(self.others, rows, strict=True)):
                for slot, other in enumerate(others):
                    if other >= 0:
                        self._edge(other).post(place, step, row[slot], self.clock.now())

    def note(self, change: float, by_place: Sequence[np.ndarray]) -> None:
        """After a step: the largest change of this site's variables, and of its links by place and slot."""
        with self.lock:
            used: dict[int, float] = {}
            for others, changes, arrived in zip(self.others, by_place, self._used, strict=True):
                for other, one, came in zip(others, changes.tolist(), arrived.tolist(), strict=True):
                    if other >= 0 and came:
                        used[other] = max(used.get(other, 0.0), one)
            self.rest.note(self.clock.now(), change, used)

    def begin(self, step: int) -> int:
        """The step, at once; `STOP` if none is to follow."""
        with self.lock:
            self._validate_open()
            if not self._roll_call.settled:
                self.agree([])
            self.next = step
            if not self.running and not self.stopping:
                self.running = True
                self._roll_call.tell(self.edges.values(), running=True)
                self._wait_at_the_start()
            while not self.stopping and not self._may_go_on():
                self._wait(self.health.absent(running=self.running))
            self.health.awaited = {}
            if self.stopping or self._all_at_rest():
                return STOP
            self.next, self._at = step + 1, Position(step, -1)
            return step

    def _may_go_on(self) -> bool:
        away = [edge.name for edge in self.edges.values() if not (edge.open or edge.finished)]
        if away and self.fault_tolerance.quorum == "stop":
            raise SiteLost.without(f"{', '.join(away)} cannot be reached", lossy=True)
        return len(away) < len(self.edges) or not self.edges  # alone it would only find its own solution

    def _all_at_rest(self) -> bool:
        talking = [number for number, edge in self.edges.items() if edge.open]
        # Where a link is dropped the others' solution is another; who is gone may have said before that it was done.
        there = all(edge.open or edge.finished for edge in self.edges.values())
        self.done = there and self.rest.holds(talking)
        if self.done and self._roll_call.others_done and self.rest.rule is not None:
            self.ended = f"all sites were at rest for {self.rest.rule.seconds:g} seconds, by the federation's stop rule"
        return bool(self.ended)

    def collect(self, place: int, out: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        """Fills in the newest messages by slot, where there is a new one, and the states of the links."""
        arrived, received, states = out
        arrived[...], received[...], states[...] = 0, False, LinkState.TIED
        with self.lock:
            self._validate_open()
            for slot, other in enumerate(self.others[place]):
                if other < 0:
                    continue
                row, states[slot] = self._edge(other).collect(place)
                if row is not None and row.shape == arrived[slot].shape and row.dtype == arrived.dtype:
                    arrived[slot], received[slot] = row, True
            self._used[place][...] = received

    # What comes by the streams

    def connected(self, edge: Edge, hello: Hello, stream: Stream) -> None:
        with self.lock:
            assert isinstance(edge, AsyncEdge)
            edge.hang_up()
            if edge.incarnation != hello.incarnation:
                edge.begins_anew()
            edge.incarnation, edge.stream = hello.incarnation, stream
            edge.touch(self.clock.now())
            self._roll_call.tell([edge], running=self.running)
            self._say_bye(edge) if self.bye else edge.post_again()
            self.lock.notify_all()

    def _control(self, edge: Edge, frame: Frame) -> None:
        if isinstance(frame, Join | Skip):
            raise Rejected(f"{type(frame).__name__.upper()}, which sites without a common clock do not say")
        super()._control(edge, frame)
        if isinstance(frame, Roll) and edge.running and isinstance(edge, AsyncEdge):
            edge.enter()

    def _stand(self) -> None:
        if self.running:
            self._roll_call.say(self._at.step, done=self.done)
            for edge in self.edges.values():
                if edge.stream and (new := self._roll_call.positions(edge.told)):
                    edge.say(write(Stand(new)))

    def _say_bye(self, edge: Edge) -> None:
        """Its newest messages and statements, and that no more will come."""
        assert isinstance(edge, AsyncEdge) and self.bye is not None
        edge.post_again()
        if edge.stream and (new := self._roll_call.positions(edge.told)):
            edge.say(write(Stand(new)))
        edge.say(write(self.bye))

    def goodbye(self, finished: bool) -> None:
        """Says goodbye. Who has finished waits a while for neighbours that it cannot reach: one that is not told takes
        it for gone, and drops its link."""
        with self.lock:
            self.bye = Bye("finished" if finished else "left")
            if finished:
                self._at, self.done = Position(self.next, -1), True
                self._roll_call.say(self.next, done=True)
            for edge in self.edges.values():
                self._say_bye(edge)
            until = self.clock.now() + self.fault_tolerance.patience
            while finished and not self.stopping and self.clock.now() < until:
                if all(edge.stream or edge.finished for edge in self.edges.values()):
                    break
                self.lock.wait(min(TICK, self.fault_tolerance.beat / 4))
            self.health.look(self.clock.now(), self._at.step, running=self.running)
            self.running, self.closing, self.finished = False, True, finished
            self.lock.notify_all()
