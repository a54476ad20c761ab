"""The trace of a run as it grows, with what has been spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core._ledger import COLUMNS, Counts
from ._trace import Trace
from .metrics import Metric, Snapshot, evaluate


class TraceRecorder:
    """Measures snapshots of a run and appends them, with the cost so far, to its trace; `timed` has a column of
    simulated time."""

    def __init__(self, metrics: Mapping[str, Metric], trace: Trace, *, timed: bool = False) -> None:
        self.metrics, self.trace = dict(metrics), trace
        self.spent: Counts = dict.fromkeys((*COLUMNS, "seconds", *(("simulated_time",) if timed else ())), 0.0)

    def spend(self, cost: Counts, seconds: float) -> None:
        more = {**cost, "seconds": seconds}
        self.spent = {name: amount + more[name] for name, amount in self.spent.items()}

    def record(self, step: int, snapshot: Snapshot) -> dict[str, float]:
        """One more row."""
        row = {"step": step, **evaluate(self.metrics, snapshot), **self.spent}
        self.trace.append(row)
        return row

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continues the trace and the costs of the run that was saved."""
        self.trace = Trace(saved["trace"], self.trace.provenance)
        self.spent = dict(saved["spent"])
