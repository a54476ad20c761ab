"""What an engine is: the place where nodes live."""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx

from ..graphs._graph import Levels
from ..methods._method import Method
from ..problem._problem import Problem
from ._program import RunConfig
from ._run import Run


class Engine(eqx.Module):
    """Places nodes and starts runs; `solve` drives the run that it returns."""

    @abstractmethod
    def active_nodes(self, nodes: int) -> tuple[int, ...] | None:
        """The numbers of the nodes that take part, of so many; None if all do."""

    @abstractmethod
    def start(self, problem: Problem, method: Method, graphs: Levels, config: RunConfig) -> Run:
        """A run at its first step, compiled when it is first advanced."""
