"""Callbacks: plain functions of a row, and `Callback`s that also observe the beginning, the states and the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

from ..core._json import Provenance, Row
from ..core._names import accepts
from ..graphs._graph import Levels
from ._status import Status
from ._trace import Trace
from .metrics import Snapshot


class Callback:
    """Base class of callbacks for `solve(..., callbacks=[...])`.

    `solve` calls `begin` once, then `see` and the callback itself for every row of the trace, and `end` in every case.
    Every method does nothing by default. If calling it returns True, the run stops.

    Attributes:
        reason: why it stops the run; becomes `result.message`.
        keep_best: whether the state of `best_step` is kept as `result.best`.
        best_step: the step of the best row so far.
    """

    reason: str = ""
    keep_best: bool = False
    best_step: int = 0

    def begin(self, about: Provenance, graphs: Levels) -> None:
        """Called before the first row.

        Args:
            about: the provenance of the trace. If the run is resumed, `about["resumed"]` is the step it resumes from;
                rows up to that step are not repeated.
            graphs: a graph per level.
        """

    def resume(self, trace: Trace) -> object:
        """Called after `begin` if the run is resumed.

        Args:
            trace: the rows so far, which are not repeated.

        Returns:
            True to stop the run at once.
        """

    def see(self, step: int, snapshot: Snapshot) -> None:
        """Called with every node's state, before the row of the same step.

        Args:
            step: the steps done so far.
            snapshot: the state of the run.
        """

    def __call__(self, step: int, row: Row) -> object:
        """Called with a row of the trace.

        Args:
            step: the steps done so far.
            row: the columns of the trace, by name.

        Returns:
            True to stop the run.
        """

    def end(self, status: Status, message: str | None) -> None:
        """Called when the run is over, also after an exception.

        Args:
            status: how the run ended; `Status.FAILED` after an exception.
            message: why the run ended early; None if it did not.
        """


class FunctionCallback(Callback):
    """A plain function of a row, as a callback."""

    def __init__(self, function: Callable[[int, Row], object]) -> None:
        self._function = function

    def __call__(self, step: int, row: Row) -> object:
        return self._function(step, row)


class CallbackList:
    """All callbacks of one run, called in order. On exit `end(status, message)` is called on every callback that
    has begun, even if one of them fails."""

    def __init__(self, callbacks: Sequence[Callback | Callable[[int, Row], object]]) -> None:
        if callable(callbacks) or isinstance(callbacks, str):
            raise TypeError("callbacks is a single callback: give a list, such as [callback].")
        for callback in callbacks:
            if isinstance(callback, type):
                raise TypeError(f"callbacks holds the class {callback.__name__}: make one, {callback.__name__}(...).")
            if callable(callback) and not accepts(callback, 0, {}):
                name = getattr(callback, "__name__", type(callback).__name__)
                raise TypeError(
                    f"callbacks holds {name}, which is called as {name}(step, row): give it these two arguments."
                )
            if not callable(callback):
                kind = type(callback).__name__
                raise TypeError(f"callbacks holds a {kind}: give functions of (step, row), or db.loggers.")
        self._members = [
            callback if isinstance(callback, Callback) else FunctionCallback(callback) for callback in callbacks
        ]
        self._leaving = ExitStack()
        self.status = Status.COMPLETED
        self.message = ""
        self.reason = ""
        if sum(member.keep_best for member in self._members) > 1:
            raise ValueError("callbacks holds two that keep the best state: give one of them keep_best=False.")

    def begin(self, about: Provenance, graphs: Levels) -> None:
        for member in self._members:
            member.begin(dict(about), graphs)
            self._leaving.callback(lambda member=member: member.end(self.status, self.message or None))

    def resume(self, trace: Trace) -> bool:
        """Gives the rows so far to all callbacks; returns whether one of them stops the run."""
        return self._stopped([member.resume(trace) for member in self._members])

    def notify(self, step: int, snapshot: Snapshot, row: Row) -> bool:
        """Calls all callbacks; returns whether one of them stops the run."""
        for member in self._members:
            member.see(step, snapshot)
        return self._stopped([member(step, dict(row)) for member in self._members])

    def _stopped(self, answers: list[object]) -> bool:
        stopping = [member for member, answer in zip(self._members, answers, strict=True) if answer is True]
        self.reason = next((member.reason for member in stopping if member.reason), "")
        return bool(stopping)

    @property
    def best_step(self) -> int | None:
        """The step whose state is to be kept, as far as the callbacks know; None if no state is."""
        return next((member.best_step for member in self._members if member.keep_best), None)

    def __enter__(self) -> CallbackList:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            interrupted = isinstance(error, KeyboardInterrupt)
            self.status, self.message = Status.INTERRUPTED if interrupted else Status.FAILED, _words(error)
        self._leaving.__exit__(kind, error, trace)


def _words(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted from the keyboard"
    text = str(error.args[0] if error.args else error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
