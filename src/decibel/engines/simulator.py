"""All nodes on one device."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from .. import keys
from ..algorithms.method import Method
from ..graph import Levels
from ..network import Mixers
from ..problem import Problem
from ..vector import replicate
from .program import Program, Run, step_sizes_as_arrays


class Simulator(eqx.Module):
    """All nodes on one device."""

    def start(self, problem: Problem, method: Method, graphs: Levels, *, batch_size: int | None, seed: int) -> Run:
        nodes = graphs.x.nodes
        problem = problem.bind(nodes)
        program = Program(
            problem,
            step_sizes_as_arrays(method),
            InMemory(Mixers.of(graphs)),
            jnp.arange(nodes, dtype=jnp.int32),
            keys.key(seed),
            batch_size,
        )
        program = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, program)
        y = None if problem.y0 is None else replicate(problem.y0, nodes)
        # A state that shares a buffer (zero carries) could not be donated, hence the copies.
        state = jax.tree.map(jnp.copy, method.start(replicate(problem.x0, nodes), y))
        return Run(program, state, _as_it_is)


class InMemory(eqx.Module):
    """Neighbours are rows of the same arrays."""

    mixers: Mixers

    def __call__(self, k: Array, messages: dict[str, Any]) -> dict[str, Any]:
        return {level: self.mixers.flow(k, level, message) for level, message in messages.items()}

    def sends(self, level: str) -> float:
        return self.mixers.degree(level)


def _as_it_is(chunk: Any, arrays: Any, state: Any) -> Any:
    return chunk
