"""A site that keeps step with its neighbours: it waits for the messages of every step, within its patience."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decibel.network import LinkStatus

from .._errors import FinishedByFew, NotFinite, NothingInCommon, Rejected, SiteLost, Stopped
from ._edge import Edge
from ._frame_limits import FINISHED, FREE_DELAY
from ._frames import Bye, Join, Position, Skip, write, write_data
from ._payload_layout import Layout, all_finite
from ._site import STOP, Site

INTRODUCTION = 0.1  # seconds, at least, between two messages about who is there, until all are


class LockstepSite(Site):
    """A site that begins a step when its neighbours do, and skips steps that they have done without it."""

    def _prepare(self) -> None:
        """Sets no further fields."""

    # The start

    def agree_on_start(self, steps: Sequence[int]) -> int:
        """Agrees on the saved step to start from, 0 for the beginning: the largest that every site has saved. If the
        neighbours run already, this site starts from its own newest."""
        with self.lock:
            self._rendezvous.sign_own(0, steps)
            self._rendezvous.send_roll(self.edges.values())
            self._rendezvous.decide_start(self.edges.values())
            while (start := self._rendezvous.start) is None:
                if not self.tolerates_loss and (few := self._rendezvous.finished_by_few):
                    raise FinishedByFew.of(few)
                self._rendezvous.send_news(self.edges.values())
                self._wait(self._rendezvous.absent, INTRODUCTION)
                if self.stopping:
                    return max(steps, default=0)
            self.health.awaited = {}
            if start == 0 and steps and self._rendezvous.start_statements and not self._restart:
                raise NothingInCommon.among(steps, self._rendezvous.saved_by_others)
            self.next_step = max(self.next_step, start)
            self._position = Position(self.next_step, -1)
            return self.next_step

    def continues_after(self, step: int) -> bool:
        """Whether there is more to do where this run has ended before, at a step."""
        return False

    def _wait_at_the_start(self) -> None:
        """Waits for every neighbour or, in a site that returns to a run, for any of them."""
        begun = self.clock.now()
        while not self.stopping:
            self._send_due_joins()
            ready = [edge.is_open or edge.finished for edge in self.edges.values()]
            slow = self.clock.now() > begun + self.fault_tolerance.patience
            if all(ready) or (any(ready) and self.tolerates_loss and (slow or not self._rendezvous.start_statements)):
                return
            self._wait(self.health.absent(running=self.running), self.fault_tolerance.beat / 4)

    # The step

    def begin_step(self, step: int) -> int:
        """Waits until a step can begin, and returns its number; if neighbours are ahead it is a later step, and `STOP`
        if none is to follow."""
        with self.lock:
            self._validate_open()
            if not self._rendezvous.is_start_known:
                self.agree_on_start([])
            if not self.running and step != self.next_step and not (self.tolerates_loss or self.stopping):
                raise SiteLost(f"all sites start from step {self.next_step}, whose checkpoint this one could not read.")
            self.next_step = max(step, self.next_step)
            if not self.running and not self.stopping:
                self._start_running()
            self._send_due_joins()
            while not (self.stopping or self._is_left_behind() or self._may_continue()):
                self._wait(self.health.absent(running=self.running))
                self._send_due_joins()
            if self._is_left_behind():
                self._take_model()
            self.health.awaited = {}
            if self.stopping or self.end_reason:
                return STOP
            self._catch_up()
            begun = self.next_step
            self.next_step = begun + 1
            self.steps_done += 1
            self._position = Position(begun, -1)
            return begun

    def _catch_up(self) -> None:
        """Skips the steps that neighbours have done without this site, as far as more sites than may be faulty say
        that they have."""
        talking = [edge for edge in self.edges.values() if edge.is_open and not edge.finished]
        neighbours_step = max((edge.their_position.step for edge in talking), default=0)
        if neighbours_step <= self.next_step:
            return
        if not self.tolerates_loss:
            raise self._lost("its neighbours are ahead of it")
        later = min(neighbours_step, self._rendezvous.confirmed_step, self.goal - 1)
        if later > self.next_step:
            self.log(
                f"goes on at step {later}, where the others are; steps from {self.next_step} on were not done here"
            )
            self.next_step = later
            for edge in talking:
                edge.send_skip(later)

    def _send_due_joins(self) -> None:
        """Sends a JOIN on every edge that this site dials and whose other end runs, unless one was sent lately. Nobody
        waits for the answer except at the start: one that never comes must not hold up the others."""
        now = self.clock.now()
        for edge in self.edges.values():
            if edge.joining and now > edge.join_sent_at + self.fault_tolerance.patience:
                edge.next_join_at = now + self.fault_tolerance.patience
                edge.drop_stream()
            ready = edge.dials and edge.stream and edge.running and not (edge.is_open or edge.finished or edge.joining)
            if ready and now >= edge.next_join_at and edge.wait_budget.may_join(now):
                edge.joining = True
                edge.join_sent_at = now
                edge.join_step = self.next_step
                edge.join_epoch = edge.join_epoch or self.clock.nonce()  # the same, as long as no answer came
                edge.send(write(edge.join_frame(self.next_step, edge.join_epoch)))

    def _is_left_behind(self) -> bool:
        """Whether the run ended without this site: more sites than may be faulty say that they are done, a neighbour
        has finished, and no neighbour still exchanges messages. One that does is ignored if this site is more steps
        behind than there are sites, since a site that takes part cannot lag that far."""
        if self.next_step >= self.goal or not self._rendezvous.is_over:
            return False
        somebody_exchanges = any(edge.is_open and not edge.finished for edge in self.edges.values())
        is_far_behind = self.goal - self.next_step > len(self.federation.sites)
        somebody_finished = any(edge.finished for edge in self.edges.values())
        return somebody_finished and (is_far_behind or not somebody_exchanges)

    def _may_continue(self) -> bool:
        away = [edge for edge in self.edges.values() if not (edge.is_open or edge.finished)]
        if not away or not self.edges:
            return True
        if not self.tolerates_loss or self.fault_tolerance.quorum == "stop":
            raise self._lost(f"{', '.join(edge.name for edge in away)} cannot be reached")
        if self.fault_tolerance.quorum == "wait":
            return False
        # Alone it would only find its own solution.
        return any(edge.is_open and not edge.finished for edge in self.edges.values())

    def exchange(
        self,
        neighbour_of_slot: Sequence[int],
        rows: np.ndarray,
        layout: Layout,
        out: tuple[np.ndarray, np.ndarray, np.ndarray],
        *,
        resting: Sequence[int] = (),
        finite: bool = True,
    ) -> None:
        """Sends a row to every neighbour and waits for theirs.

        Args:
            neighbour_of_slot: the number of the site at the other end of each slot, −1 for none.
            rows: (entries,) the same for all, or (slots, entries).
            layout: where an encoded row has its floats.
            out: three arrays to fill, by slot: the row, whether one has arrived, and the status of the link.
            resting: neighbours whose links rest in this exchange. An empty row goes both ways, so that all keep step.
            finite: whether this site's own encoded rows decode to finite numbers.
        """
        received_rows, has_arrived, link_statuses = out
        if not (finite and all_finite(rows, layout)):
            raise NotFinite(f"{self.name} has a NaN or infinity to send.")
        with self.lock:
            self._validate_open()
            at = self._position = Position(self._position.step, self._position.exchange + 1)
            slots = [(slot, self.edges[other]) for slot, other in enumerate(neighbour_of_slot) if other >= 0]
            idle = [self.edges[other] for other in resting]
            for slot, edge in slots:
                self._send_row(edge, at, rows if rows.ndim == 1 else rows[slot])
            for edge in idle:
                self._send_row(edge, at, rows.ravel()[:0])
            self._wait_for([*(edge for _, edge in slots), *idle], at)
            has_arrived[...] = False
            link_statuses[...] = LinkStatus.CONTINUE
            for slot, edge in slots:
                row, link_statuses[slot] = edge.take(at)
                if row is not None and self._accept_row(row, edge, at, received_rows.dtype, received_rows.shape[1:]):
                    received_rows[slot] = row
                    has_arrived[slot] = True
                else:
                    self._validate_may_miss(edge, at)
            for edge in idle:
                row, _ = edge.take(at)
                if row is None:
                    self._validate_may_miss(edge, at)
                else:
                    self._accept_row(row, edge, at, rows.dtype, (0,))
            received_rows[~has_arrived] = 0

    def _send_row(self, edge: Edge, at: Position, row: np.ndarray) -> None:
        if edge.takes_part(at.step) and not edge.finished:
            edge.send_data(at, write_data(edge.epoch, at, row))

    def _accept_row(self, row: np.ndarray, edge: Edge, at: Position, dtype: np.dtype, shape: tuple[int, ...]) -> bool:
        """Accepts a row of the dtype and the shape of this exchange. Marks the edge of any other, so that its stream is
        closed as for a malformed frame."""
        if row.shape == shape and row.dtype == dtype:
            return True
        edge.invalid_row = (
            f"a tensor of {row.dtype} and shape {row.shape} in step {at.step}, exchange {at.exchange}, where one of "
            f"{dtype} and shape {shape} is sent"
        )
        return False

    def _validate_may_miss(self, edge: Edge, at: Position) -> None:
        """Raises where the method needs every message."""
        if self.stopping and not self.tolerates_loss:
            raise Stopped(f"step {at.step} was given up: all are told to stop.")
        if not self.tolerates_loss:
            raise self._lost(f"no message was received from {edge.name} in step {at.step}")

    def _wait_for(self, edges: list[Edge], at: Position) -> None:
        since = self.clock.now()
        deadline = self.fault_tolerance.deadline
        held_up = {edge.number: 0.0 for edge in edges}  # seconds, in this exchange
        while awaited := [edge for edge in edges if edge.awaited(at)]:
            self._send_due_joins()  # while this site waits for one neighbour another may wait for it
            left = deadline - max(held_up[edge.number] for edge in awaited)
            self._wait((edge.name for edge in awaited), left if left > 0 else None)
            before = since
            since = self.clock.now()
            few = len(awaited) < min(self._confirmations_needed, sum(edge.takes_part(at.step) for edge in edges))
            self._charge(awaited, since - before, held_up, few=few)
            if self.fault_tolerance.quorum != "wait":
                late = [edge for edge in awaited if edge.awaited(at) and held_up[edge.number] >= deadline]
                self._suspend(late, f"for {deadline:g} seconds (deadline)")
            if self.tolerates_loss and self.fault_tolerance.quorum == "continue":
                for edge in awaited:
                    if edge.awaited(at) and (reason := edge.wait_budget.exceeded_reason(since)):
                        self._suspend([edge], reason)
        self.health.awaited = {}

    def _charge(self, awaited: list[Edge], seconds: float, held_up: dict[int, float], *, few: bool) -> None:
        """Charges each late neighbour for the wait.

        - Always against the deadline of this exchange (`held_up`).
        - If only `few` are late, so that all of them may be faulty, also against its share of the run's time, less a
          free delay of `FREE_DELAY` beats.
        - A neighbour that itself waits for another is charged half, so that the neighbours of the late site are the
          first to continue without it.
        """
        free = FREE_DELAY * self.fault_tolerance.beat
        self._suspect_wait += seconds if few else 0.0
        for edge in awaited:
            edge.waited_seconds += seconds
            before = held_up[edge.number]
            held_up[edge.number] += seconds / 2 if edge.is_waiting else seconds
            if few:
                price = max(0.0, held_up[edge.number] - free) - max(0.0, before - free)
                edge.wait_budget.spend(self.clock.now() - self._suspect_wait, price)

    def _suspend(self, late: list[Edge], reason: str) -> None:
        """Continues without these neighbours, for the reason given, until their pauses end."""
        now = self.clock.now()
        for edge in late:
            sentence = f"{edge.name} sent no message {reason}, though alive"
            if not self.tolerates_loss or self.fault_tolerance.quorum == "stop":
                raise self._lost(sentence)
            edge.log(f"{sentence}: edge suspended")
            edge.send(write(Bye("aside")))
            edge.stop_exchanging(forget=True)
            edge.wait_budget.on_suspend(now)

    # What comes by the streams

    def _greet(self, edge: Edge) -> None:
        if edge.dials and edge.is_open:
            edge.send(write(edge.join_frame(self.next_step)))
        elif self.bye is not None and not edge.is_open:
            edge.send(write(self.bye))

    def _on_join_or_skip(self, edge: Edge, frame: Join | Skip) -> None:
        match frame:
            case Skip(step):
                edge.on_skip(step)
            case Join(answer=True):
                self._on_joined(edge, frame)
            case Join():
                self._answer_join(edge, frame)

    def _answer_join(self, edge: Edge, theirs: Join) -> None:
        if edge.dials:
            raise Rejected("a JOIN from the listening end")
        now = self.clock.now()
        if (self.had_finished or self.bye is not None) and not edge.is_open:
            return  # it is told that this site has no more to say
        if self.running and (edge.is_open or edge.wait_budget.may_join(now)):  # or it will ask again
            edge.on_join(theirs, edge.join_frame(self.next_step, theirs.new_epoch, answer=True), now)
            self._tell_returned(edge)

    def _on_joined(self, edge: Edge, theirs: Join) -> None:
        if not edge.dials:
            raise Rejected("a JOINED from the connecting end")
        edge.on_joined(theirs, self.next_step, self.clock.now())
        self._tell_returned(edge)

    def _tell_returned(self, edge: Edge) -> None:
        if edge.departed and edge.is_open:
            edge.departed = False
            edge.log(f"{edge.name} is back at step {self.next_step}")

    def _say_bye(self, edge: Edge) -> None:
        assert self.bye is not None
        if self.bye.reason == "finished" and edge.is_open:
            edge.send_in_order(FINISHED, write(self.bye))
        else:
            edge.send(write(self.bye))

    def _needs_no_more(self, edge: Edge) -> bool:
        """Whether a neighbour that has not finished is not waited for at the end."""
        return not edge.alive
