"""All nodes on one device."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..graphs._graph import Graph, GraphSequence, Levels
from ..methods._method import Method
from ..network._exchange import Exchange
from ..network._incidence import Sums, slots
from ..network._links import Carrier, LinkByLink, Links, Received, moved
from ..network._mixing import Mixers
from ..network.faults import fault_schedule
from ..problem._problem import Problem
from . import _memory as memory
from ._engine import Engine
from ._program import Program, Run, RunConfig


class Simulator(Engine):
    """All nodes on one device.

    Args:
        members: indices of the nodes that take part, as if the others had failed; None is all of them.
        node_chunk: evaluate batches and derivatives for this many nodes at a time: the same numbers in less memory, at
            the cost of recomputing gradients for products. None evaluates all nodes at once.
    """

    members: tuple[int, ...] | None = eqx.field(static=True, default=None)
    node_chunk: int | None = eqx.field(static=True, default=None)

    def active_nodes(self, nodes: int) -> tuple[int, ...] | None:
        return self.members

    def start(self, problem: Problem, method: Method, graphs: Levels, config: RunConfig) -> Run:
        nodes = graphs.x.nodes
        full = (
            f"{nodes:,} nodes and the temporary arrays of a step do not fit into the device's memory: use fewer nodes, "
            "smaller batches, Simulator(node_chunk=...), or Cluster() over more devices."
        )
        with memory.oom_hint(full):
            numbers = jnp.asarray(config.numbers(nodes))
            exchange = _exchange(method, graphs, config, numbers)
            program = Program.of(problem.bind(nodes), method, exchange, numbers, config, node_chunk=self.node_chunk)
            program = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, program)
            return Run(program, full=full, move=partial(moved, graphs=graphs, now=1))


def _exchange(method: Method, graphs: Levels, config: RunConfig, numbers: Array) -> Exchange:
    if not (config.faults or method.per_link):
        return InMemory(Mixers.of(graphs))

    def carry(graph: Graph | GraphSequence) -> Links:
        made = slots(graph)
        neighbours, back = (jnp.asarray(made.shaped(table), jnp.int32) for table in (made.neighbours, made.back))
        rows = RowsInMemory(neighbours, back, float(np.mean(graph.degrees)), len(made.places) / graph.nodes)
        sums = Sums(made.width, jax.tree.map(lambda table: jnp.asarray(table, jnp.int32), made.rest))
        return Links(numbers[neighbours], jnp.asarray(made.shaped(made.weights)), sums, rows)

    return LinkByLink.of(graphs, numbers, fault_schedule(config.faults, config.seed), carry)


class InMemory(Exchange):
    """Neighbours are rows of the same arrays."""

    mixers: Mixers

    def __call__(self, now: Array, number: int, messages: dict[str, Any], memory: Any) -> tuple[dict[str, Any], Any]:
        return {level: self.mixers.flow(now, level, message) for level, message in messages.items()}, ()

    def sends(self, level: str, *, per_link: bool = False, coded: bool = False) -> float:
        return self.mixers.degree(level)


class RowsInMemory(Carrier):
    """Fills slots from the same arrays."""

    neighbours: Array
    back: Array
    degree: float = eqx.field(static=True)
    degree_of_all: float = eqx.field(static=True)  # with the links of all phases

    def rows(self, k: Array, buffer: Array) -> Received:
        return Received(buffer[self.neighbours])

    def links(self, k: Array, buffer: Array) -> Received:
        return Received(buffer.reshape(-1, buffer.shape[-1])[self.back])

    def sends(self, *, per_link: bool, coded: bool) -> float:
        return self.degree_of_all if coded else self.degree
