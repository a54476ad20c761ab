"""The base class of engines."""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx

from ..graphs._graph import Levels
from ..methods._method import Method
from ..problem._problem import Problem
from ._program import RunConfig
from ._run import Run


class Engine(eqx.Module):
    """Base class of engines: where nodes are placed, and how a run starts."""

    @property
    def asynchronous(self) -> bool:
        """Whether nodes use the newest message of each neighbour, whenever that was sent."""
        return False

    @property
    def spans_processes(self) -> bool:
        """Whether several processes run the nodes of one run together."""
        return False

    @abstractmethod
    def active_nodes(self, nodes: int) -> tuple[int, ...] | None:
        """The indices of the nodes that take part.

        Args:
            nodes: the number of nodes of the graph.

        Returns:
            The indices, or None if all nodes take part.
        """

    @abstractmethod
    def start(self, problem: Problem, method: Method, graphs: Levels, config: RunConfig) -> Run:
        """A run at its first step, which `solve` advances; it is compiled when first advanced.

        Args:
            problem: the problem, restricted to the active nodes.
            method: the method.
            graphs: a graph per level, restricted to the active nodes.
            config: batch size, seed, faults, active nodes, sampling and precision of the run.
        """
