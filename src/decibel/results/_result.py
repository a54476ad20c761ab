"""What `solve` returns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..core import _html as html
from ..core._json import JSON
from ..core._ledger import COSTS
from ..core._types import PyTree
from ..methods._method import Method, State
from ..problem._problem import Problem
from ._saved import SavedResult, load, save
from ._status import Status
from ._trace import Trace
from .metrics import Nodes, Snapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Result:
    """The outcome of a run.

    Attributes:
        x: the average of x over nodes.
        y: the average of y over nodes, or every node's y if the lower level is personal; None for a single level.
        nodes: every node's copies: `nodes.x`, `nodes.y`, `nodes.z`.
        trace: the metrics and costs along the run.
        step: the last step.
        steps_done: how many steps were done here: fewer than `step`, where other sites of a silo did some without this
            one.
        status: how the run ended.
        message: why it ended early; empty if it did not.
        problem: the problem that was solved.
        method: the method that was run.
        state: the final state of the method.
        best: the result at the best row, where `EarlyStopping` kept it; None otherwise.
    """

    best: Result | None = None

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
        self.problem = problem
        self.method = method
        self.state = state
        self.step = step
        self.steps_done = step
        self.trace = trace
        self.status = status
        self.message = message
        snapshot = Snapshot(problem, state)
        self.x: PyTree = snapshot.x
        self.y: PyTree = snapshot.y
        self.nodes: Nodes = snapshot.nodes

    def plot(self, *columns: str, against: str = "step") -> Figure:
        """Plots columns of the trace.

        Args:
            *columns: names of columns; by default all metrics.
            against: the column of the horizontal axis: `"step"` or a cost such as `"bytes"`.

        Returns:
            A matplotlib figure.
        """
        from ._plots import plot_traces

        return plot_traces({self.method.name: self.trace}, *columns, against=against)

    @property
    def moved(self) -> float:
        """How far x is from its start: the root mean square over its entries."""
        gap = jax.tree.map(jnp.subtract, self.x, self.problem.x0)
        return float(jnp.sqrt(jnp.mean(jnp.square(ravel_pytree(gap)[0]))))

    @property
    def stuck(self) -> bool:
        """Whether x has barely moved: its steps are too small, or it started at a solution."""
        size = float(jnp.sqrt(jnp.mean(jnp.square(ravel_pytree(self.problem.x0)[0]))))
        return self.step > 0 and self.moved < 0.01 * max(1.0, size)

    def save(self, path: str | os.PathLike[str], *, trace: bool = True) -> Path:
        """Writes the model (`x` and `y`), the trace and the status to an .npz file, atomically and without pickling.

        In a run of several processes all of them call it, and the first one writes. `result.best.save(path)` writes the
        best model.

        Args:
            path: the file; the suffix .npz is appended if missing.
            trace: whether to write the rows of the trace. They are computed from samples, without noise.

        Returns:
            The path written.
        """
        rows = self.trace if trace else Trace(provenance=self.trace.provenance)
        about: dict[str, JSON] = {
            "method": self.method.name,
            "step": self.step,
            "steps_done": self.steps_done,
            "status": str(self.status),
            "message": self.message,
        }
        return save(path, {"x": self.x, "y": self.y}, about, rows)

    @staticmethod
    def load(path: str | os.PathLike[str], problem: Problem | None = None) -> SavedResult:
        """Reads a model that `save` wrote.

        Args:
            path: the file.
            problem: the problem that was solved, whose `x0` and `y0` give the structure; without it x and y are nested
                dictionaries and lists, by the names of their parts.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if the file is not a saved result, or does not fit the problem.
        """
        return load(path, problem)

    @property
    def _end(self) -> str:
        end = f"{self.status}: {self.message}" if self.message else str(self.status)
        return f"{end}, x has barely moved (by {self.moved:.2g})" if self.stuck else end

    def _repr_html_(self) -> str:
        last = self.trace.last if self.trace.rows else {}
        rows = [
            ("status", self._end),
            ("step", self.step),
            *((name, html.number(value)) for name, value in last.items()),
        ]
        drawn = html.picture(self.plot, "the metrics along the run") if set(self.trace) - set(COSTS) else ""
        return html.table(f"Result of {self.method.name}", dict(rows).items()) + drawn

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={value:.4g}" for name, value in self.trace.last.items()) if self.trace else ""
        return f"Result({self.method.name}, {self._end} at step {self.step}{', ' + numbers if numbers else ''})"
