"""A run from its first row to its end, which has one reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..core._ledger import Counts
from ..engines._checkpoint import Checkpoints
from ..engines._driver import Chunk, drive
from ..engines._run import Run
from ..network._simulated_time import SimulatedTime
from ..results._callbacks import CallbackList
from ..results._progress import Progress
from ..results._recorder import TraceRecorder
from ..results._status import Status
from ..results.metrics import Snapshot


class Ending(NamedTuple):
    """How a run ended, and why if that was early."""

    status: Status
    message: str = ""


class Schedule(NamedTuple):
    """The goal of a run, in steps, the steps between two rows, and the rows between two checkpoints."""

    steps: int
    eval_every: int
    checkpoint_every: int


class Session:
    """Advances a run, records its rows and saves its states, until there is a reason to end.

    Args:
        run: the run.
        schedule: how far, and how often something is recorded and saved.
        recorder: measures rows.
        callbacks: observe rows and may stop the run.
        progress: shows rows.
        checkpoints: where states are saved; None saves none.
        clock: the simulated time of nodes that are slow; None if none is.
        interrupted: whether the process was told to end.
    """

    def __init__(
        self,
        run: Run,
        schedule: Schedule,
        recorder: TraceRecorder,
        callbacks: CallbackList,
        progress: Progress,
        checkpoints: Checkpoints | None,
        clock: SimulatedTime | None,
        interrupted: Callable[[], bool],
    ) -> None:
        self.run = run
        self.schedule = schedule
        self.recorder = recorder
        self.callbacks = callbacks
        self.progress = progress
        self.checkpoints = checkpoints
        self.clock = clock
        self.interrupted = interrupted

    def restore(self) -> bool:
        """Continues from the newest checkpoint; whether there is one."""
        saved = None if self.checkpoints is None else self.checkpoints.restore(self.run)
        if saved is None:
            return False
        self.recorder.restore(saved)
        self.progress.begin(self.run.step)
        return True

    def finish(self) -> Ending:
        """Runs until the goal, or until there is an earlier reason to end."""
        ending = self._first_row()
        self._forget_stale_best()
        if self.run.step > 0 and self.run.steps_done == 0:
            self._save()  # a new member of a federation begins where the others are, and must not be set back further
        goal, limit = self.run.reach(self.schedule.steps)
        if ending is None and self.run.ended:
            ending = self._stopped(self.run.ended)
        ending = self._interruption() or ending
        if ending is not None:
            return ending
        for chunk in drive(self.run, goal, self.schedule.eval_every):
            ending = self._after(chunk)
            if chunk.cost is not None and (ending is not None or self._is_save_due(goal)):
                self._save()
            if ending is not None:
                return ending
        if self.run.step < self.schedule.steps:
            return self._stopped(limit)
        return Ending(Status.COMPLETED, self._skipped())

    def _skipped(self) -> str:
        """A sentence, where a site has not done all the steps before the one at which it is."""
        if not self.run.skipped:
            return ""
        return f"{self.run.steps_done} of {self.run.step} steps were done here, and the rest by other sites"

    def _first_row(self) -> Ending | None:
        if self.recorder.trace.rows == 0:
            return self._record()
        stops = self.callbacks.resume(self.recorder.trace)
        return self._stopped(self.callbacks.reason) if stops else None

    def _after(self, chunk: Chunk[Counts | None]) -> Ending | None:
        """Records a chunk of steps; why the run ends with it, if it does."""
        if chunk.cost is None:
            last = self.run.step + chunk.length
            return Ending(Status.DIVERGED, f"non-finite values between steps {self.run.step} and {last}")
        done = self.run.step - chunk.first
        simulated = {} if self.clock is None else {"simulated_time": self.clock.between(chunk.first, done)}
        self.recorder.spend(chunk.cost | simulated, chunk.seconds)
        ending = self._record() if done > 0 else None
        if self.run.ended:
            reasons = [self.run.ended] if ending is None else [ending.message, self.run.ended]
            ending = self._stopped("; ".join(filter(None, reasons)))
        return self._interruption() or ending

    def _record(self) -> Ending | None:
        """One more row; why the run ends with it, if a callback stops it."""
        run = self.run
        snapshot = Snapshot(run.program.problem, run.state)
        row = self.recorder.record(run.step, snapshot)
        self.progress.show(run.step, row)
        stops = self.callbacks.notify(run.step, snapshot, row)
        if self.callbacks.best_step == run.step:
            run.keep()
        return self._stopped(self.callbacks.reason) if stops else None

    def _stopped(self, message: str) -> Ending:
        """The reason is kept in the last step, too, although all steps were done then."""
        return Ending(Status.COMPLETED if self.run.step >= self.schedule.steps else Status.STOPPED, message)

    def _interruption(self) -> Ending | None:
        if not self.interrupted():
            return None
        return Ending(Status.INTERRUPTED, f"the process received a signal to terminate at step {self.run.step}")

    def _forget_stale_best(self) -> None:
        """A restored best state is of another metric, unless the callbacks name its step."""
        if self.run.best is not None and self.run.best.step != self.callbacks.best_step:
            self.run.best = None

    def _is_save_due(self, goal: int) -> bool:
        return self.run.step >= goal or self.recorder.trace.rows % self.schedule.checkpoint_every == 0

    def _save(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.save(self.run, self.recorder.trace, self.recorder.spent)
