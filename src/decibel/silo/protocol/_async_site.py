"""One site without a common clock: it sends after each step, and takes the newest messages that have arrived.

No step waits for a message, and no site for another's checkpoint: a site that is started again continues from its own.
It waits in three cases only: at its start, until its neighbours run; when all of them are gone; and at its end, to tell
those that it cannot reach. A link whose other end is gone is dropped or kept, as the federation says (`quorum`). The
states of its two ends need not match.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decibel.network import LinkStatus

from .._errors import NotFinite, Rejected
from ._async_edge import AsyncEdge
from ._edge import Edge, Stream
from ._frames import Frame, Join, Position, Roll, Skip, Statement, write
from ._payload_layout import all_finite
from ._site import STOP, Site
from ._termination import Averages, RestDetector


class AsyncSite(Site):
    """A site that waits for no message: it uses the newest that has arrived from every neighbour."""

    edge_type = AsyncEdge
    edges: dict[int, AsyncEdge]

    def _prepare(self) -> None:
        federation = self.federation
        self.exchange_keys: list[tuple[int, int]] = []  # the exchanges of a step, each by its number and its graph
        self.neighbour_of_slot: list[tuple[int, ...]] = []  # for each of these; −1 where there is none
        self.rest = RestDetector(federation.stop)
        self._averages = Averages(federation.stop.average or 1) if federation.stop else None
        self._used: list[np.ndarray] = []  # for each exchange, the slots whose message was used in this step
        self._used_since: set[int] = set()  # the neighbours of whom a message was used since the last average

    def set_exchanges(self, keys: Sequence[tuple[int, int]], neighbour_of_slot: Sequence[tuple[int, ...]]) -> None:
        """Sets the exchanges of a step, in their order, and the neighbours on every graph."""
        self.exchange_keys = list(keys)
        self.neighbour_of_slot = [neighbour_of_slot[graph] for _, graph in keys]
        self._used = [np.zeros(len(slots), bool) for slots in self.neighbour_of_slot]
        for edge in self.edges.values():
            edge.exchanges = len(keys)

    # The start

    def agree_on_start(self, steps: Sequence[int]) -> int:
        """Starts from this site's own newest step: nobody else's checkpoint matters."""
        with self.lock:
            self.next_step = self._rendezvous.start = max(steps, default=0)
            self._rendezvous.sign_own(0, steps)
            self._rendezvous.send_roll(self.edges.values())
            self._position = Position(self.next_step, -1)
            return self.next_step

    def continues_after(self, step: int) -> bool:
        """Whether a finished run continues. If the stop rule ended it, it does: a site that was away still needs its
        links.
        """
        return step < self.limits.steps

    def _wait_at_the_start(self) -> None:
        """Waits until all neighbours run: as long as one message may take for those that are there, and for a short
        while for the others."""
        begun = self.clock.now()
        while not self.stopping:
            waited = self.clock.now() - begun
            rules = self.fault_tolerance
            ready = [edge.is_open or edge.finished for edge in self.edges.values()]
            patience = [rules.deadline if edge.alive else rules.patience for edge in self.edges.values()]
            missed = all(is_ready or waited > longest for is_ready, longest in zip(ready, patience, strict=True))
            if all(ready) or (any(ready) and missed):
                return
            self._wait(self.health.absent(running=True), rules.beat / 4)

    # The step

    def post(self, step: int, rows: Sequence[np.ndarray]) -> None:
        """Sends this site's messages before a step: for each of its exchanges, a row for each slot."""
        if not all(all_finite(row, None) for row in rows):
            raise NotFinite(f"{self.name} has a NaN or infinity to send.")
        with self.lock:
            self._validate_open()
            for exchange, (neighbours, row) in enumerate(zip(self.neighbour_of_slot, rows, strict=True)):
                for slot, other in enumerate(neighbours):
                    if other >= 0:
                        self.edges[other].post(exchange, step, row[slot], self.clock.now())

    def note_change(self, change: float, by_exchange: Sequence[np.ndarray]) -> None:
        """Takes, after a step, the largest change of this site's variables, and of its links by exchange and slot."""
        with self.lock:
            self._note_used()
            self._record_rest(change, by_exchange)

    def note_held(self, variables: Sequence[np.ndarray], links: Sequence[np.ndarray]) -> None:
        """Takes, after a step, this site's variables, and (slots, entries) what its links hold by exchange. Averages of
        them are compared."""
        with self.lock:
            assert self._averages is not None
            self._note_used()
            moved = self._averages.add([*variables, *links])
            if moved is not None:
                change = max(float(moved_by.max(initial=0)) for moved_by in moved[: len(variables)])
                by_exchange = [moved_by.max(-1, initial=0) for moved_by in moved[len(variables) :]]
                self._record_rest(change, by_exchange)

    def _note_used(self) -> None:
        for neighbours, used in zip(self.neighbour_of_slot, self._used, strict=True):
            self._used_since |= {other for other, was_used in zip(neighbours, used.tolist(), strict=True) if was_used}

    def _record_rest(self, change: float, by_exchange: Sequence[np.ndarray]) -> None:
        used: dict[int, float] = {}
        for neighbours, changes in zip(self.neighbour_of_slot, by_exchange, strict=True):
            for other, change_of_link in zip(neighbours, changes.tolist(), strict=True):
                if other in self._used_since:
                    used[other] = max(used.get(other, 0.0), change_of_link)
        self._used_since.clear()
        since = self.rest.since
        self.rest.record_step(self.clock.now(), change, used)
        if self.rest.since is not None and since is None:
            for edge in self.edges.values():
                edge.ask_for_answer(self.next_step)

    def begin_step(self, step: int) -> int:
        """Begins the step at once, and returns it; `STOP` if none is to follow."""
        with self.lock:
            self._validate_open()
            if not self._rendezvous.is_start_known:
                self.agree_on_start([])
            self.next_step = step
            if not self.running and not self.stopping:
                self._start_running()
                if self._is_left_behind():
                    self._take_model()
            while not (self.stopping or self.end_reason or self._may_continue()):
                self._wait(self.health.absent(running=self.running))
            self.health.awaited = {}
            if self.stopping or self._all_at_rest():
                return STOP
            self.next_step = step + 1
            self._position = Position(step, -1)
            self.steps_done += 1
            return step

    def _is_left_behind(self) -> bool:
        """Whether the run ended without this site, asked at its start only: a site that runs already continues with the
        last messages of finished sites."""
        everyone = self.edges and all(edge.finished for edge in self.edges.values())
        return bool(everyone) and self.next_step < self.goal and self._rendezvous.is_over

    def _may_continue(self) -> bool:
        away = [edge.name for edge in self.edges.values() if not (edge.is_open or edge.finished)]
        if away and self.fault_tolerance.quorum == "stop":
            raise self._lost(f"{', '.join(away)} cannot be reached")
        return len(away) < len(self.edges) or not self.edges  # alone it would only find its own solution

    def _all_at_rest(self) -> bool:
        talking = {number: edge for number, edge in self.edges.items() if edge.is_open}
        # Without a link the others have another solution; a neighbour that is gone may have been done before that.
        all_there = all(edge.is_open or edge.finished for edge in self.edges.values())
        # A neighbour that is slow, or was cut off, may have said that it rests before it heard where this site is now.
        all_answered = all(edge.has_answered for edge in talking.values())
        self.done = all_there and all_answered and self.rest.is_at_rest(talking)
        if self.done and self._rendezvous.others_done and self.rest.rule is not None:
            self.end_reason = (
                f"all sites were at rest for {self.rest.rule.seconds:g} seconds, by the federation's stop rule"
            )
        return bool(self.end_reason)

    def collect(self, exchange: int, out: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        """Fills three arrays by slot: the newest message, whether there is a new one, and the status of the link."""
        received_rows, has_arrived, link_statuses = out
        received_rows[...] = 0
        has_arrived[...] = False
        link_statuses[...] = LinkStatus.CONTINUE
        with self.lock:
            self._validate_open()
            for slot, other in enumerate(self.neighbour_of_slot[exchange]):
                if other < 0:
                    continue
                row, link_statuses[slot] = self.edges[other].collect(exchange)
                if row is not None and row.shape == received_rows[slot].shape and row.dtype == received_rows.dtype:
                    received_rows[slot] = row
                    has_arrived[slot] = True
            self._used[exchange][...] = has_arrived

    # What comes by the streams

    def _greet(self, edge: Edge) -> None:
        assert isinstance(edge, AsyncEdge)
        self._say_bye(edge) if self.bye else edge.post_again()

    def _on_join_or_skip(self, edge: Edge, frame: Join | Skip) -> None:
        raise Rejected(f"{type(frame).__name__.upper()}, which sites without a common clock do not say")

    def _on_frame(self, edge: Edge, frame: Frame) -> None:
        super()._on_frame(edge, frame)
        if isinstance(frame, Roll) and edge.running and isinstance(edge, AsyncEdge):
            edge.enter()

    def _hear(self, edge: Edge, statements: list[Statement], stream: Stream) -> None:
        """Also reads the steps of the neighbours, from which the ages of their messages follow."""
        super()._hear(edge, statements, stream)
        with self.lock:
            for other, neighbour in self.edges.items():
                if (statement := self._rendezvous.by_site.get(other)) is not None:
                    neighbour.note_step(statement.step, self.clock.now())

    def _send_statement(self) -> None:
        super()._send_statement()
        for edge in self.edges.values():
            edge.post_unacknowledged()

    def _say_bye(self, edge: Edge) -> None:
        """Sends this site's newest messages and statements, and that no more will come."""
        assert isinstance(edge, AsyncEdge) and self.bye is not None
        edge.post_again()
        self._rendezvous.send_news([edge])
        edge.send(write(self.bye))

    def goodbye(self, finished: bool) -> None:
        """Says goodbye. A site that has finished waits a while for neighbours that it cannot reach: one that is not
        told takes it for gone, and drops its link."""
        if finished:
            self.running = True  # also where it stopped before its first step
        super().goodbye(finished)

    def _needs_no_more(self, edge: Edge) -> bool:
        return edge.stream is not None
