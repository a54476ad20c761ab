"""What a task is: a problem, how it is judged, and how it came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..problem._problem import Problem
from ..results.metrics import Metric
from .partition import Partition


@dataclass(frozen=True, eq=False)
class Task:
    """A real problem with its own evaluation: `db.solve(task.problem, method, graph, metrics=task.metrics, ...)`.

    - `metrics`: what the task is judged by, as functions of a snapshot that hold their own held-out data.
    - `summary`: sizes, seed and conventions in plain types, for a report.
    - `partition`: which samples each node trains on; it draws itself. None where nothing was assigned.
    - `truth`: what is known here and hidden from the nodes, to judge by: true labels, an exact solution.
    """

    problem: Problem
    metrics: tuple[Metric, ...]
    name: str
    summary: Mapping[str, Any]
    partition: Partition | None = None
    truth: Any = field(default=None, repr=False)

    @property
    def nodes(self) -> int | None:
        return self.problem.nodes
