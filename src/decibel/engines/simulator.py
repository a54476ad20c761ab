"""All nodes on one device: a vmapped oracle, and chunks of `lax.scan` between evaluations."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..algorithms.method import Method, State
from ..graph import Levels
from ..ledger import Counts, Ledger, Page
from ..network import Mixers, Network
from ..oracles import Oracle
from ..problem import Problem
from ..vector import replicate


class Program(eqx.Module):
    """What a compiled chunk is a function of, besides the state: arrays are its arguments, the rest is compiled in."""

    problem: Problem
    method: Method
    mixers: Mixers
    key: Array
    batch_size: int | None = eqx.field(static=True)

    def step(self, k: Array, state: State) -> tuple[State, Page]:
        """One iteration of every node, and what it cost."""
        ledger = Ledger()
        nodes = jnp.arange(self.problem.nodes, dtype=jnp.int32)
        oracle = Oracle(self.problem, nodes, jax.random.fold_in(self.key, k), self.batch_size, ledger)

        def exchange(messages: dict[str, Any]) -> dict[str, Any]:
            return {level: self.mixers.flow(k, level, message) for level, message in messages.items()}

        state = self.method.step(k, state, oracle, Network(exchange, self.mixers.degree, ledger))
        return state, ledger.page

    def chunk(self, state: State, first: Array, length: int) -> tuple[State, Array, list[Array]]:
        """`length` iterations; whether all that came out is finite; and how often what varies was repeated."""

        def body(state: State, k: Array) -> tuple[State, list[Array]]:
            state, page = self.step(k, state)
            return state, page.repetitions

        state, repetitions = jax.lax.scan(body, state, first + jnp.arange(length, dtype=jnp.int32))
        finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]
        return state, jnp.stack(finite).all(), repetitions

    def costs(self, state: State) -> Page:
        """The page of one step, from tracing it."""
        pages: list[Page] = []
        jax.eval_shape(lambda k, state: pages.append(self.step(k, state)[1]), jnp.int32(0), state)
        return pages[0]


class SimulatorRun:
    """A run in progress."""

    def __init__(self, program: Program, state: State, step: int = 0) -> None:
        self.program, self.state, self.step = program, state, step
        self._costs = program.costs(state)

    def compile(self, length: int) -> Any:
        """The chunk of that length, compiled once per program and length."""
        leaves, structure = jax.tree.flatten((self.program, self.state))
        kinds = tuple(jax.typeof(leaf) if eqx.is_array(leaf) else leaf for leaf in leaves)
        return _compile(structure, kinds, length)

    def advance(self, length: int) -> Counts | None:
        """Moves on and returns the cost; None, with the state as it was, where something turned non-finite."""
        chunk = self.compile(length)
        # The chunk consumes the state it is given, so this copy is what remains if it turns non-finite.
        good = jax.tree.map(jnp.copy, self.state)
        arrays = eqx.filter(self.program, eqx.is_array)
        state, finite, repetitions = chunk(arrays, self.state, jnp.asarray(self.step, jnp.int32))
        if not bool(finite):
            self.state = good
            return None
        self.state, self.step = state, self.step + length
        return self._costs.total(length, [np.asarray(times, np.float64).sum() for times in repetitions])


class Simulator(eqx.Module):
    """All nodes on one device."""

    def start(
        self, problem: Problem, method: Method, graphs: Levels, *, batch_size: int | None, seed: int
    ) -> SimulatorRun:
        nodes = graphs.x.nodes
        problem = problem.bind(nodes)
        program = Program(problem, _as_arrays(method), Mixers.of(graphs), jax.random.key(seed), batch_size)
        y = None if problem.y0 is None else replicate(problem.y0, nodes)
        # A state that shares a buffer (zero carries) could not be donated, hence the copies.
        state = jax.tree.map(jnp.copy, method.start(replicate(problem.x0, nodes), y))
        return SimulatorRun(program, state)


def _as_arrays(method: Method) -> Method:
    """Step sizes become arguments of the compiled chunk, so that changing one compiles nothing."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, method)


@lru_cache(maxsize=32)
def _compile(structure: Any, kinds: tuple[Any, ...], length: int) -> Any:
    """Ahead of time, so that compiling is never timed as running; the state's buffers are donated."""
    shapes = [
        jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type) if hasattr(kind, "weak_type") else kind
        for kind in kinds
    ]
    program, state = jax.tree.unflatten(structure, shapes)
    arrays, static = eqx.partition(program, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def chunk(arrays: Program, state: State, first: Array) -> tuple[State, Array, list[Array]]:
        return eqx.combine(arrays, static).chunk(state, first, length)

    first = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.jit(chunk, donate_argnums=1).lower(arrays, state, first).compile()
