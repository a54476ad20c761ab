"""What `solve` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core._types import PyTree
from ..methods._method import Method, State
from ..problem._problem import Problem
from ._status import Status
from ._trace import Trace
from .metrics import Nodes, Snapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Result:
    """The end of a run: `x` and `y` averaged over nodes (y per node where personal), `nodes.x`, `nodes.y`, `nodes.z`
    with every node's copy, the `trace`, the last `step`, the `status`, and a `message` where a run ended early."""

    def __init__(
        self,
        problem: Problem,
        method: Method,
        state: State,
        step: int,
        trace: Trace,
        status: Status = Status.COMPLETED,
        message: str = "",
    ) -> None:
        self.problem, self.method, self.state, self.step = problem, method, state, step
        self.trace, self.status, self.message = trace, status, message
        snapshot = Snapshot(problem, state)
        self.x: PyTree = snapshot.x
        self.y: PyTree = snapshot.y
        self.nodes: Nodes = snapshot.nodes

    def plot(self, *columns: str, against: str = "step") -> Figure:
        """A figure of columns of the trace (default: all metrics) against `step` or any cost."""
        from ._plots import plot_traces

        return plot_traces({self.method.name: self.trace}, *columns, against=against)

    def __repr__(self) -> str:
        end = f"{self.status}: {self.message}" if self.message else str(self.status)
        numbers = ", ".join(f"{name}={value:.4g}" for name, value in self.trace.last.items()) if self.trace else ""
        return f"Result({self.method.name}, {end} at step {self.step}{', ' + numbers if numbers else ''})"
