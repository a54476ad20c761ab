"""Who is told about a run: plain functions of a row, and `Callback`s that also see its begin, states and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

from ..core._json import Provenance, Row
from ..graphs._graph import Levels
from ._status import Status
from .metrics import Snapshot


class Callback:
    """What `solve` tells: `begin` once, `see` and then a call for every row, `end` in every case. All do nothing here;
    a subclass overrides what it needs. A call that returns True ends the run."""

    def begin(self, about: Provenance, graphs: Levels) -> None:
        """Before the first row. `about` is the trace's provenance; where a run is continued, `about["resumed"]` is the
        step from which, and rows up to that step are not told again."""

    def see(self, step: int, snapshot: Snapshot) -> None:
        """Every node's state, before the row of the same step."""

    def __call__(self, step: int, row: Row) -> object:
        """A row of the trace."""

    def end(self, status: Status, message: str | None) -> None:
        """The run is over: how, and in `message` why it ended early; None where it did not."""


class FunctionCallback(Callback):
    """A plain function of a row, as a callback."""

    def __init__(self, function: Callable[[int, Row], object]) -> None:
        self._function = function

    def __call__(self, step: int, row: Row) -> object:
        return self._function(step, row)


class CallbackList:
    """All callbacks of one run, told in order. Leaving it tells everyone who has begun that the run is over, even if
    one of them fails at that. `status` and `message` are what they receive then."""

    def __init__(self, callbacks: Sequence[Callback | Callable[[int, Row], object]]) -> None:
        if callable(callbacks) or isinstance(callbacks, str):
            raise TypeError("callbacks is a single one: give a list of them, such as [callback].")
        for callback in callbacks:
            if not callable(callback):
                kind = type(callback).__name__
                raise TypeError(f"callbacks holds a {kind}: give functions of (step, row), or db.loggers.")
        self._members = [
            callback if isinstance(callback, Callback) else FunctionCallback(callback) for callback in callbacks
        ]
        self._leaving = ExitStack()
        self.status, self.message = Status.COMPLETED, ""

    def begin(self, about: Provenance, graphs: Levels) -> None:
        for member in self._members:
            member.begin(dict(about), graphs)
            self._leaving.callback(lambda member=member: member.end(self.status, self.message or None))

    def tell(self, step: int, snapshot: Snapshot, row: Row) -> bool:
        """Whether one of them wants to end here; all are told."""
        for member in self._members:
            member.see(step, snapshot)
        return any([member(step, dict(row)) is True for member in self._members])

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
