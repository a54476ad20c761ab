"""The compiled chunk: the one step function, scanned between evaluations, wherever its nodes live."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..algorithms.method import Method, State
from ..ledger import Counts, Ledger, Page
from ..network import Network
from ..oracles import Oracle
from ..problem import Problem


class Exchange(Protocol):
    """How messages travel; an equinox module, so that its tables are arguments of the compiled chunk."""

    def __call__(self, k: Array, messages: dict[str, Any]) -> dict[str, Any]:
        """δ of every level's message at step k."""
        ...

    def sends(self, level: str) -> float:
        """How many copies of its message a node sends, on average."""
        ...


class Program(eqx.Module):
    """What a compiled chunk is a function of, besides the state: arrays are its arguments, the rest is compiled in."""

    problem: Problem
    method: Method
    exchange: Any  # Exchange
    nodes: Array  # the numbers of the nodes that live here
    key: Array
    batch_size: int | None = eqx.field(static=True)

    def step(self, k: Array, state: State) -> tuple[State, Page]:
        """One iteration of every node, and what it cost."""
        ledger = Ledger()
        oracle = Oracle(self.problem, self.nodes, jax.random.fold_in(self.key, k), self.batch_size, ledger)
        network = Network(lambda messages: self.exchange(k, messages), self.exchange.sends, ledger)
        return self.method.step(k, state, oracle, network), ledger.page

    def chunk(self, state: State, first: Array, length: int) -> tuple[State, Array, list[Array]]:
        """`length` iterations; whether all that came out is finite; and how often what varies was repeated."""

        def body(state: State, k: Array) -> tuple[State, list[Array]]:
            state, page = self.step(k, state)
            return state, page.repetitions

        state, repetitions = jax.lax.scan(body, state, first + jnp.arange(length, dtype=jnp.int32))
        finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]
        return state, jnp.stack(finite).all(), repetitions

    def costs(self, state: State) -> Page:
        """One step's page, from tracing it."""
        pages: list[Page] = []
        jax.eval_shape(lambda k, state: pages.append(self.step(k, state)[1]), jnp.int32(0), state)
        return pages[0]


Wrap = Callable[[Callable[..., Any], Program, State], Callable[..., Any]]


class Run:
    """A run in progress. `wrap` says how a chunk is spread over devices; the simulator leaves it as it is."""

    def __init__(self, program: Program, state: State, wrap: Wrap) -> None:
        self.program, self.state, self.step, self._wrap = program, state, 0, wrap

    def compile(self, length: int) -> Any:
        """The chunk of that length and the page of one step's costs; compiled once per program and length."""
        leaves, structure = jax.tree.flatten((self.program, self.state))
        kinds = tuple((jax.typeof(leaf), leaf.sharding) if eqx.is_array(leaf) else leaf for leaf in leaves)
        return compile_chunk(structure, kinds, length, self._wrap)

    def advance(self, length: int) -> Counts | None:
        """Moves on and returns the cost; None, with the state as it was, where something turned non-finite."""
        chunk, costs = self.compile(length)
        # The chunk consumes the state it is given, so this copy is what remains if it turns non-finite.
        good = jax.tree.map(jnp.copy, self.state)
        arrays = eqx.filter(self.program, eqx.is_array)
        state, finite, repetitions = chunk(arrays, self.state, np.int32(self.step))
        if not bool(finite):
            self.state = good
            return None
        self.state, self.step = state, self.step + length
        return costs.total(length, [np.asarray(times, np.float64).sum() for times in repetitions])


@lru_cache(maxsize=32)
def compile_chunk(structure: Any, kinds: tuple[Any, ...], length: int, wrap: Wrap) -> tuple[Any, Page]:
    """Ahead of time, so that compiling is never timed as running; the state's buffers are donated."""
    shapes = [
        jax.ShapeDtypeStruct(kind[0].shape, kind[0].dtype, weak_type=kind[0].weak_type, sharding=kind[1])
        if isinstance(kind, tuple)
        else kind
        for kind in kinds
    ]
    program, state = jax.tree.unflatten(structure, shapes)
    arrays, static = eqx.partition(program, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    pages: list[Page] = []

    def chunk(arrays: Program, state: State, first: Array) -> tuple[State, Array, list[Array]]:
        here = eqx.combine(arrays, static)
        pages.append(here.costs(state))
        return here.chunk(state, first, length)

    first = jax.ShapeDtypeStruct((), jnp.int32)
    compiled = jax.jit(wrap(chunk, arrays, state), donate_argnums=1).lower(arrays, state, first).compile()
    return compiled, pages[0]


def step_sizes_as_arrays(method: Method) -> Method:
    """Step sizes become arguments of the compiled chunk, so that changing one compiles nothing."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, method)
