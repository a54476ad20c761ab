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
    """It begins a step when its neighbours do, and skips steps that they have done without it."""

    def _prepare(self) -> None:
        """Nothing more than all sites."""

    # The start

    def agree(self, steps: Sequence[int]) -> int:
        """The saved step to start from, 0 for the beginning: the largest that every site has saved. Where neighbours
        run already, this site returns, and takes up its own newest."""
        with self.lock:
            self._rendezvous.sign_own(0, steps)
            self._rendezvous.send_roll(self.edges.values())
            self._rendezvous.decide_start(self.edges.values())
            while (start := self._rendezvous.start) is None:
                if not self.lossy and (few := self._rendezvous.finished_by_few):
                    raise FinishedByFew.of(few)
                self._rendezvous.send_news(self.edges.values())
                self._wait(self._rendezvous.absent, INTRODUCTION)
                if self.stopping:
                    return max(steps, default=0)
            self.health.awaited = {}
            if start == 0 and steps and self._rendezvous.counted and not self._restart:
                raise NothingInCommon.among(steps, self._rendezvous.saved_by_others)
            self.next = max(self.next, start)
            self._at = Position(self.next, -1)
            return self.next

    def continues_after(self, step: int) -> bool:
        """Whether there is more to do where this run has ended before, at a step."""
        return False

    def _wait_at_the_start(self) -> None:
        """For every neighbour that was counted; one that returns waits for any."""
        begun = self.clock.now()
        while not self.stopping:
            self._join()
            ready = [edge.open or edge.finished for edge in self.edges.values()]
            slow = self.clock.now() > begun + self.fault_tolerance.patience
            if all(ready) or (any(ready) and self.lossy and (slow or not self._rendezvous.counted)):
                return
            self._wait(self.health.absent(running=self.running), self.fault_tolerance.beat / 4)

    # The step

    def begin(self, step: int) -> int:
        """Waits until a step can begin; returns it, a later one where neighbours are ahead, or `STOP` if none will."""
        with self.lock:
            self._validate_open()
            if not self._rendezvous.start_known:
                self.agree([])
            if not self.running and step != self.next and not (self.lossy or self.stopping):
                raise SiteLost(f"all sites start from step {self.next}, whose checkpoint this one could not read.")
            self.next = max(step, self.next)
            if not self.running and not self.stopping:
                self._start_running()
            self._join()
            while not (self.stopping or self._is_left_behind() or self._may_continue()):
                self._wait(self.health.absent(running=self.running))
                self._join()
            if self._is_left_behind():
                self._take_model()
            self.health.awaited = {}
            if self.stopping or self.ended:
                return STOP
            self._catch_up()
            now = self.next
            self.next = self.next + 1
            self.steps_done += 1
            self._at = Position(now, -1)
            return now

    def _catch_up(self) -> None:
        """Skips the steps that neighbours have done without this site, as far as more sites than may be faulty say
        that they have."""
        talking = [edge for edge in self.edges.values() if edge.open and not edge.finished]
        ahead = max((edge.theirs.step for edge in talking), default=0)
        if ahead <= self.next:
            return
        if not self.lossy:
            raise self._lost("its neighbours are ahead of it")
        ahead = min(ahead, self._rendezvous.confirmed, self.goal - 1)
        if ahead > self.next:
            self.log(f"goes on at step {ahead}, where the others are; steps from {self.next} on were not done here")
            self.next = ahead
            for edge in talking:
                edge.send_skip(ahead)

    def _join(self) -> None:
        """Opens the edges that this site dials and whose other end runs. Nobody waits for the answer but at the start:
        one that never comes must not hold up the others."""
        now = self.clock.now()
        for edge in self.edges.values():
            if edge.joining and now > edge.join_sent_at + self.fault_tolerance.patience:
                edge.next_join_at = now + self.fault_tolerance.patience
                edge.hang_up()
            ready = edge.dials and edge.stream and edge.running and not (edge.open or edge.finished or edge.joining)
            if ready and now >= edge.next_join_at and edge.wait_budget.may_join(now):
                edge.joining = True
                edge.join_sent_at = now
                edge.join_step = self.next
                edge.join_epoch = edge.join_epoch or self.clock.nonce()  # the same, as long as no answer came
                edge.send(write(edge.view(self.next, edge.join_epoch)))

    def _is_left_behind(self) -> bool:
        """Whether the run ended without this site: at least `witnesses` sites say that they are done, a neighbour has
        finished, and none still exchanges messages. One that does not count if this site is more steps behind than
        there are sites: a site that takes part cannot lag that far."""
        if self.next >= self.goal or not self._rendezvous.is_over:
            return False
        there = any(edge.open and not edge.finished for edge in self.edges.values())
        far = self.goal - self.next > len(self.federation.sites)
        return any(edge.finished for edge in self.edges.values()) and (far or not there)

    def _may_continue(self) -> bool:
        away = [edge for edge in self.edges.values() if not (edge.open or edge.finished)]
        if not away or not self.edges:
            return True
        if not self.lossy or self.fault_tolerance.quorum == "stop":
            raise self._lost(f"{', '.join(edge.name for edge in away)} cannot be reached")
        if self.fault_tolerance.quorum == "wait":
            return False
        # Alone it would only find its own solution.
        return any(edge.open and not edge.finished for edge in self.edges.values())

    def exchange(
        self,
        others: Sequence[int],
        rows: np.ndarray,
        layout: Layout,
        out: tuple[np.ndarray, np.ndarray, np.ndarray],
        *,
        resting: Sequence[int] = (),
        finite: bool = True,
    ) -> None:
        """Sends a row to every neighbour and waits for theirs.

        Args:
            others: the neighbour of each slot, −1 for none.
            rows: (entries,) the same for all, or (slots, entries).
            layout: where an encoded row has its floats.
            out: receives, by slot, the row, whether one arrived, and the state of the link.
            resting: neighbours whose links rest in this exchange. An empty row goes both ways, so that all keep step.
            finite: whether this site's own encoded rows decode to finite numbers.
        """
        arrived, received, states = out
        if not (finite and all_finite(rows, layout)):
            raise NotFinite(f"{self.name} has a NaN or infinity to send.")
        with self.lock:
            self._validate_open()
            at = self._at = Position(self._at.step, self._at.exchange + 1)
            slots = [(slot, self.edges[other]) for slot, other in enumerate(others) if other >= 0]
            idle = [self.edges[other] for other in resting]
            for slot, edge in slots:
                self._send_row(edge, at, rows if rows.ndim == 1 else rows[slot])
            for edge in idle:
                self._send_row(edge, at, rows.ravel()[:0])
            self._wait_for([*(edge for _, edge in slots), *idle], at)
            received[...] = False
            states[...] = LinkStatus.CONTINUE
            for slot, edge in slots:
                row, states[slot] = edge.take(at)
                if self._is_expected(row, edge, at, arrived[slot]):
                    arrived[slot] = row
                    received[slot] = True
                else:
                    self._validate_may_miss(edge, at)
            for edge in idle:
                row, _ = edge.take(at)
                if row is None:
                    self._validate_may_miss(edge, at)
                else:
                    self._is_expected(row, edge, at, rows.ravel()[:0])
            arrived[~received] = 0

    def _send_row(self, edge: Edge, at: Position, row: np.ndarray) -> None:
        if edge.takes_part(at.step) and not edge.finished:
            edge.send_data(at, write_data(edge.epoch, at, row))

    def _is_expected(self, row: np.ndarray | None, edge: Edge, at: Position, like: np.ndarray) -> bool:
        """Whether a row has come, with the dtype and the shape of this exchange. Another row is not used, and closes
        its stream, as a malformed frame does."""
        if row is None:
            return False
        if row.shape == like.shape and row.dtype == like.dtype:
            return True
        edge.invalid_row = (
            f"a tensor of {row.dtype} and shape {row.shape} in step {at.step}, exchange {at.exchange}, where one of "
            f"{like.dtype} and shape {like.shape} is sent"
        )
        return False

    def _validate_may_miss(self, edge: Edge, at: Position) -> None:
        """Raises where the method needs every message."""
        if self.stopping and not self.lossy:
            raise Stopped(f"step {at.step} was given up: all are told to stop.")
        if not self.lossy:
            raise self._lost(f"no message was received from {edge.name} in step {at.step}")

    def _wait_for(self, edges: list[Edge], at: Position) -> None:
        since = self.clock.now()
        deadline = self.fault_tolerance.deadline
        held_up = {edge.number: 0.0 for edge in edges}  # seconds, in this exchange
        while awaited := [edge for edge in edges if edge.awaited(at)]:
            self._join()  # while this site waits for one neighbour another may wait for it
            left = deadline - max(held_up[edge.number] for edge in awaited)
            self._wait((edge.name for edge in awaited), left if left > 0 else None)
            before = since
            since = self.clock.now()
            few = len(awaited) < min(self._witnesses, sum(edge.takes_part(at.step) for edge in edges))
            self._charge(awaited, since - before, held_up, few=few)
            if self.fault_tolerance.quorum != "wait":
                late = [edge for edge in awaited if edge.awaited(at) and held_up[edge.number] >= deadline]
                self._suspend(late, f"for {deadline:g} seconds (deadline)")
            if self.lossy and self.fault_tolerance.quorum == "continue":
                for edge in awaited:
                    if edge.awaited(at) and (reason := edge.wait_budget.over(since)):
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
            edge.waited += seconds
            before = held_up[edge.number]
            held_up[edge.number] += seconds / 2 if edge.waits else seconds
            if few:
                price = max(0.0, held_up[edge.number] - free) - max(0.0, before - free)
                edge.wait_budget.spend(self.clock.now() - self._suspect_wait, price)

    def _suspend(self, late: list[Edge], reason: str) -> None:
        """Goes on without those that are not waited for any longer."""
        now = self.clock.now()
        for edge in late:
            sentence = f"{edge.name} sent no message {reason}, though alive"
            if not self.lossy or self.fault_tolerance.quorum == "stop":
                raise self._lost(sentence)
            edge.log(f"{sentence}: edge suspended")
            edge.send(write(Bye("aside")))
            edge.close(forget=True)
            edge.wait_budget.suspended(now)

    # What comes by the streams

    def _greet(self, edge: Edge) -> None:
        if edge.dials and edge.open:
            edge.send(write(edge.view(self.next)))
        elif self.bye is not None and not edge.open:
            edge.send(write(self.bye))

    def _converse(self, edge: Edge, frame: Join | Skip) -> None:
        match frame:
            case Skip(step):
                edge.on_skip(step)
            case Join(answer=True):
                self._joined(edge, frame)
            case Join():
                self._answer_join(edge, frame)

    def _answer_join(self, edge: Edge, theirs: Join) -> None:
        if edge.dials:
            raise Rejected("a JOIN from the listening end")
        now = self.clock.now()
        if (self.had_finished or self.bye is not None) and not edge.open:
            return  # it is told that this site has no more to say
        if self.running and (edge.open or edge.wait_budget.may_join(now)):  # or it will ask again
            edge.on_join(theirs, edge.view(self.next, theirs.next, answer=True), now)
            self._tell_returned(edge)

    def _joined(self, edge: Edge, theirs: Join) -> None:
        if not edge.dials:
            raise Rejected("a JOINED from the connecting end")
        edge.on_joined(theirs, self.next, self.clock.now())
        self._tell_returned(edge)

    def _tell_returned(self, edge: Edge) -> None:
        if edge.departed and edge.open:
            edge.departed = False
            edge.log(f"{edge.name} is back at step {self.next}")

    def _say_bye(self, edge: Edge) -> None:
        assert self.bye is not None
        if self.bye.reason == "finished" and edge.open:
            edge.send_in_order(FINISHED, write(self.bye))
        else:
            edge.send(write(self.bye))

    def _needs_no_more(self, edge: Edge) -> bool:
        """Whether a neighbour that has not finished is not waited for at the end."""
        return not edge.alive
