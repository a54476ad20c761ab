"""All nodes on one device."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .. import keys
from ..algorithms.method import Method
from ..faults import Fault, weather
from ..graph import Graph, GraphSequence, Levels
from ..network import Mixers
from ..oracles import Computing
from ..problem import Problem
from ..vector import replicate
from .links import Arrived, LinkByLink, Slots
from .program import Exchange, Program, Run, shuffled, step_sizes_as_arrays


class Simulator(eqx.Module):
    """All nodes on one device; or only `members`, their numbers, as if the others were lost.

    `node_chunk` computes the derivatives of that many nodes at a time: the same numbers in less memory, for another
    forward pass.
    """

    members: tuple[int, ...] | None = eqx.field(static=True, default=None)
    node_chunk: int | None = eqx.field(static=True, default=None)

    def taking_part(self, nodes: int) -> tuple[int, ...] | None:
        return self.members

    def start(
        self,
        problem: Problem,
        method: Method,
        graphs: Levels,
        *,
        batch_size: int | None,
        seed: int,
        faults: tuple[Fault, ...] = (),
        members: tuple[int, ...] | None = None,
        sampling: str = "random",
        precision: str | None = None,
    ) -> Run:
        nodes = graphs.x.nodes
        numbers = jnp.arange(nodes, dtype=jnp.int32) if members is None else jnp.asarray(members, jnp.int32)
        problem = problem.bind(nodes)
        if sampling == "walk":
            problem = shuffled(problem, seed, numbers)
        program = Program(
            problem,
            step_sizes_as_arrays(method),
            _exchange(method, graphs, faults, seed, numbers),
            numbers,
            keys.key(seed),
            batch_size,
            Computing(sampling == "walk", precision, self.node_chunk),
        )
        program = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, program)
        y = None if problem.y0 is None else replicate(problem.y0, nodes)
        # A state that shares a buffer (zero carries) could not be donated, hence the copies.
        state = jax.tree.map(jnp.copy, method.start(replicate(problem.x0, nodes), y))
        links = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), program.remembered(state))
        state = state._replace(links=links)
        return Run(program, state, _as_it_is)


def _exchange(method: Method, graphs: Levels, faults: tuple[Fault, ...], seed: int, numbers: Array) -> Exchange:
    if not (faults or method.per_link):
        return InMemory(Mixers.of(graphs))

    def carry(graph: Graph | GraphSequence, links: Slots) -> tuple[Array, Array, RowsInMemory]:
        neighbours, back = jnp.asarray(links.neighbours, jnp.int32), jnp.asarray(links.back, jnp.int32)
        rows = RowsInMemory(neighbours, back, float(np.mean(graph.degrees)))
        return numbers[neighbours], jnp.asarray(links.weights), rows

    return LinkByLink.of(graphs, numbers, weather(faults, seed), carry)


class InMemory(Exchange):
    """Neighbours are rows of the same arrays."""

    mixers: Mixers

    def __call__(self, now: Array, number: int, messages: dict[str, Any], memory: Any) -> tuple[dict[str, Any], Any]:
        return {level: self.mixers.flow(now, level, message) for level, message in messages.items()}, ()

    def sends(self, level: str, per_link: bool = False) -> float:
        return self.mixers.degree(level)


class RowsInMemory(eqx.Module):
    """Fills slots from the same arrays."""

    neighbours: Array
    back: Array
    degree: float = eqx.field(static=True)

    def rows(self, k: Array, buffer: Array) -> Arrived:
        return Arrived(buffer[self.neighbours])

    def links(self, k: Array, buffer: Array) -> Arrived:
        return Arrived(buffer[self.neighbours, self.back])

    def sends(self, per_link: bool) -> float:
        return self.degree


def _as_it_is(chunk: Any, arrays: Any, state: Any) -> Any:
    return chunk
