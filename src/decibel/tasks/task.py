"""What a task is: a problem, its metrics, and how it was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core._json import JSON
from ..methods._catalog import CATALOG
from ..methods._method import Method
from ..problem._problem import Problem
from ..results.metrics import Metric
from .partition import Partition

DEFAULT_METHODS = {"shared": "sparkle-ada-ed", "personal": "spdb", "single": "ada-ed"}


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
        step_sizes: `alpha`, `beta` and `gamma` that work here, found by a search with SPARKLE-ED or, where the lower
            level is personal, SPDB.
        own_method: makes the method of `method()` where the usual one does not fit.
    """

    problem: Problem
    metrics: tuple[Metric, ...]
    name: str
    summary: Mapping[str, Any]
    partition: Partition | None = None
    truth: Any = field(default=None, repr=False)
    step_sizes: Mapping[str, float] = field(default_factory=dict[str, float])
    own_method: Callable[..., Method] | None = field(default=None, repr=False)

    @property
    def nodes(self) -> int | None:
        """The number of nodes."""
        return self.problem.nodes

    def settings(self, name: str) -> dict[str, JSON]:
        """The settings of a method of `db.CATALOG` where none are given: its own, with this task's step sizes in the
        place of the usual ones."""
        entry = CATALOG[name]
        usual = {key: size for key, size in self.step_sizes.items() if key in entry.usual_steps}
        return {**entry.defaults, **usual}

    def method(self, name: str | None = None, **settings: JSON) -> Method:
        """A method of `db.CATALOG` with step sizes that work on this task.

        Args:
            name: the method's name; None is one that adapts its own step sizes or, for a personal lower level, `spdb`;
                or one of the task's own.
            **settings: of the method, instead of the task's.
        """
        if name is None and self.own_method is not None:
            return self.own_method(**settings)
        name = name or DEFAULT_METHODS[self.problem.form]
        return CATALOG[name](**{**self.settings(name), **settings})
