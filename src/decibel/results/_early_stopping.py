"""Stopping when a metric no longer improves."""

from __future__ import annotations

import math
from typing import Literal

from ..core._json import Provenance, Row
from ..core._names import hint
from ..core._numbers import validate_count
from ..graphs._graph import Levels
from ._callbacks import Callback
from ._trace import Trace


class EarlyStopping(Callback):
    """Stops a run when a column of the trace has not improved for some rows, and keeps the best state.

    The run then has the status `stopped`, its `message` says why, and `result.best` is the result at the best row;
    `result.x` and the rest stay those of the last step. A resumed run continues to count from the rows of its trace.

    Args:
        metric: the column, such as `"upper"` or the name of your own metric.
        patience: the number of consecutive rows without improvement after which the run stops.
        mode: `"min"` if smaller is better, or `"max"`.
        min_delta: by how much a row must be better than the best so far to count.
        keep_best: whether `result.best` is kept, which takes the memory of one more state, and its size in every
            checkpoint.

    Attributes:
        best: the best value so far; None before the first row.
        best_step: its step.
        waited: the number of rows since then.
    """

    def __init__(
        self,
        metric: str,
        *,
        patience: int,
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
        keep_best: bool = True,
    ) -> None:
        if not isinstance(metric, str):
            raise TypeError(f"metric={metric!r} must be the name of a column of the trace, such as 'upper'.")
        validate_count("patience", patience)
        if mode not in ("min", "max"):
            raise ValueError(f"mode={mode!r} is not known: choose 'min' or 'max'.")
        if not 0 <= min_delta < math.inf:
            raise ValueError(f"min_delta={min_delta!r} must be finite and not negative.")
        self.metric = metric
        self.patience = patience
        self.mode = mode
        self.min_delta = min_delta
        self.keep_best = keep_best
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.best_step = 0
        self.waited = 0
        self.reason = ""

    def begin(self, about: Provenance, graphs: Levels) -> None:
        self._reset()

    def resume(self, trace: Trace) -> bool:
        stop = False
        for number, step in enumerate(trace["step"].tolist()):
            stop = self(int(step), {name: float(trace[name][number]) for name in trace})
        return stop

    def __call__(self, step: int, row: Row) -> bool:
        if self.metric not in row:
            raise ValueError(f"EarlyStopping({self.metric!r}) needs that column in the trace: {hint(self.metric, row)}")
        value = row[self.metric]
        gain = 0.0 if self.best is None else (self.best - value) * (1 if self.mode == "min" else -1)
        if not math.isnan(value) and (self.best is None or gain > self.min_delta):
            self.best = value
            self.best_step = step
            self.waited = 0
        else:
            self.waited += 1
        if self.waited >= self.patience:
            outcome = (
                "it has no value" if self.best is None else f"the best is {self.best:.6g}, at step {self.best_step}"
            )
            self.reason = f"{self.metric} has not improved in {self.waited} rows: {outcome}"
        return self.waited >= self.patience
