"""What a task is: a problem, its metrics, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..problem._problem import Problem
from ..results.metrics import Metric
from .partition import Partition


@dataclass(frozen=True, eq=False)
class Task:
    """A problem with its own metrics: `db.solve(task.problem, method, graph, metrics=task.metrics, ...)`.

    Attributes:
        problem: the problem.
        metrics: functions of a snapshot, which hold their own test data.
        name: the name of the task.
        summary: sizes, seed and conventions in plain types.
        partition: which samples each node trains on, which can be drawn; None if no samples were assigned.
        truth: what is known here but hidden from the nodes, such as true labels or an exact solution.
    """

    problem: Problem
    metrics: tuple[Metric, ...]
    name: str
    summary: Mapping[str, Any]
    partition: Partition | None = None
    truth: Any = field(default=None, repr=False)

    @property
    def nodes(self) -> int | None:
        """The number of nodes."""
        return self.problem.nodes
