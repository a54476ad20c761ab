"""Drives one run: advances it, records rows, saves checkpoints, and returns why it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from ..core._ledger import Counts
from ..engines._checkpoint import Checkpoints
from ..engines._driver import FinishedChunk, drive
from ..engines._run import Run
from ..network._simulated_time import SimulatedTime
from ..results._callbacks import CallbackList
from ..results._progress import Progress
from ..results._recorder import TraceRecorder
from ..results._status import Status
from ..results.metrics import Snapshot

GROWTH = 1e8  # a completed run is in doubt if a value exceeds this many times the largest initial value (at least 1)


class Ending(NamedTuple):
    """How a run ended, and why if that was early."""

    status: Status
    message: str = ""


class RunPlan(NamedTuple):
    """The last step of a run, the steps between two rows, and the rows between two checkpoints."""

    steps: int
    eval_every: int
    checkpoint_every: int


@dataclass
class Session:
    """Drives one run: advances it, records rows, saves checkpoints, and returns why it ended.

    Attributes:
        run: the run.
        plan: the last step, and how often rows are recorded and checkpoints saved.
        recorder: measures rows.
        callbacks: observe rows and may stop the run.
        progress: shows rows.
        checkpoints: where states are saved; None saves none.
        simulated_time: the simulated time of a run with slow nodes; None if no node is slow.
        was_interrupted: returns whether the process received SIGTERM or Ctrl-C.
        values_grew: whether all steps were done, but values grew as in a run that diverges.
    """

    run: Run
    plan: RunPlan
    recorder: TraceRecorder
    callbacks: CallbackList
    progress: Progress
    checkpoints: Checkpoints | None
    simulated_time: SimulatedTime | None
    was_interrupted: Callable[[], bool]
    values_grew: bool = False

    def restore(self) -> bool:
        """Continues from the newest checkpoint; returns whether there is one."""
        saved = None if self.checkpoints is None else self.checkpoints.restore(self.run)
        if saved is None:
            return False
        self.recorder.restore(saved)
        self.progress.begin(self.run.step)
        return True

    def run_to_end(self) -> Ending:
        """Runs to the goal, or to the first reason to stop."""
        ending = self._first_row()
        self._forget_stale_best()
        if self.run.step > 0 and self.run.steps_done == 0:
            # A site that joins a federation late begins at the others' step, without having done any. This checkpoint
            # keeps a restart from going back behind that step.
            self._save()
        goal, reason = self.run.plan_goal(self.plan.steps)
        if ending is None and self.run.end_reason:
            ending = self._stopped(self.run.end_reason)
        ending = self._interruption() or ending
        if ending is not None:
            return ending
        for chunk in drive(self.run, goal, self.plan.eval_every):
            ending = self._record_chunk(chunk)
            if chunk.cost is not None and (ending is not None or self._is_save_due(goal)):
                self._save()
            if ending is not None:
                return ending
        if self.run.step < self.plan.steps:
            return self._stopped(reason)
        return self._completed(self._skipped_steps_note())

    def _skipped_steps_note(self) -> str:
        """A sentence if other sites have done some of the steps; empty otherwise."""
        if not self.run.skipped:
            return ""
        return f"{self.run.steps_done} of {self.run.step} steps were done here, and the rest by other sites"

    def _first_row(self) -> Ending | None:
        if self.recorder.trace.rows == 0:
            return self._record()
        stops = self.callbacks.resume(self.recorder.trace)
        return self._stopped(self.callbacks.reason) if stops else None

    def _record_chunk(self, chunk: FinishedChunk[Counts | None]) -> Ending | None:
        """Records a chunk of steps. Returns why the run ends with it, or None."""
        if chunk.cost is None:
            last = self.run.step + chunk.length
            return Ending(Status.DIVERGED, f"non-finite values between steps {self.run.step} and {last}")
        done = self.run.step - chunk.first
        cost = chunk.cost
        if self.simulated_time is not None:
            cost = cost | {"simulated_time": self.simulated_time.between(chunk.first, done)}
        self.recorder.spend(cost, chunk.seconds)
        ending = self._record() if done > 0 else None
        if self.run.end_reason:
            reasons = [self.run.end_reason] if ending is None else [ending.message, self.run.end_reason]
            ending = self._stopped("; ".join(filter(None, reasons)))
        return self._interruption() or ending

    def _record(self) -> Ending | None:
        """Records a row. Returns an ending if a callback stops the run, else None."""
        run = self.run
        snapshot = Snapshot(run.program.problem, run.state)
        row = self.recorder.record(run.step, snapshot)
        self.progress.show(run.step, row)
        stops = self.callbacks.notify(run.step, snapshot, row)
        if self.callbacks.best_step == run.step:
            run.remember_best()
        return self._stopped(self.callbacks.reason) if stops else None

    def _stopped(self, message: str) -> Ending:
        """An ending with a message; in the last step the run counts as completed, and keeps the message."""
        return self._completed(message) if self.run.step >= self.plan.steps else Ending(Status.STOPPED, message)

    def _completed(self, message: str) -> Ending:
        """All steps are done. The message says so if values grew as in a run that diverges."""
        problem = self.run.program.problem
        start = max(float(np.abs(leaf).max(initial=0)) for leaf in jax.tree.leaves((problem.x0, problem.y0, 1.0)))
        largest = self.run.largest_entry
        self.values_grew = largest > GROWTH * start
        sentence = f"values grew to {largest:.2g}, as in a run that diverges" if self.values_grew else ""
        return Ending(Status.COMPLETED, "; ".join(filter(None, (message, sentence))))

    def _interruption(self) -> Ending | None:
        if not self.was_interrupted():
            return None
        return Ending(Status.INTERRUPTED, f"the process received a signal to terminate at step {self.run.step}")

    def _forget_stale_best(self) -> None:
        """Drops a restored best state unless the callbacks name its step: it was best in another metric."""
        if self.run.best is not None and self.run.best.step != self.callbacks.best_step:
            self.run.best = None

    def _is_save_due(self, goal: int) -> bool:
        return self.run.step >= goal or self.recorder.trace.rows % self.plan.checkpoint_every == 0

    def _save(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.save(self.run, self.recorder.trace, self.recorder.spent)
