"""The compiled chunk: the one step function, scanned between evaluations, on any engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import _keys as keys
from ..core._ledger import Counts, Ledger, StepCost
from ..core._vector import choose, replicate
from ..methods._method import Method, State
from ..network._exchange import Exchange
from ..network._mixing import Network
from ..network.faults import Fault
from ..oracles._eval_config import EvalConfig
from ..oracles._oracle import Oracle
from ..problem._problem import Problem
from ..problem._samples import NodeData
from ..strategies._table import Coded, Cumulative
from . import _memory as memory


class RunConfig(NamedTuple):
    """Settings of a run besides its problem, method and graphs; see `solve`."""

    batch_size: int | None = None
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    members: tuple[int, ...] | None = None
    sampling: str = "random"
    precision: str | None = None

    def numbers(self, nodes: int) -> np.ndarray:
        """Those of the nodes that take part: of all that there are, or of the members that are left."""
        return np.arange(nodes, dtype=np.int32) if self.members is None else np.asarray(self.members, np.int32)


class Program(eqx.Module):
    """What a compiled chunk is a function of, besides the state: arrays are its arguments, the rest is compiled in."""

    problem: Problem
    method: Method
    exchange: Exchange
    nodes: Array  # the numbers of the nodes that live here
    key: Array
    batch_size: int | None = eqx.field(static=True)
    eval_config: EvalConfig = eqx.field(static=True, default=EvalConfig())

    @classmethod
    def of(
        cls,
        problem: Problem,
        method: Method,
        exchange: Exchange,
        nodes: Array,
        config: RunConfig,
        *,
        node_chunk: int | None = None,
        sharding: Any = None,
    ) -> Program:
        """`problem` holds the data of these nodes, and `sharding` says how its samples lie."""
        walks = config.sampling == "shuffle-once"
        return cls(
            shuffled(problem, config.seed, nodes, sharding) if walks else problem,
            step_sizes_as_arrays(method),
            exchange,
            nodes,
            keys.key(config.seed),
            config.batch_size,
            EvalConfig(walks, config.precision, node_chunk),
        )

    def start(self) -> State:
        """The state before the first step, of the local nodes."""
        nodes, problem = len(self.nodes), self.problem
        x, y = replicate(problem.x0, nodes), None if problem.y0 is None else replicate(problem.y0, nodes)
        leaves, structure = jax.tree.flatten(self.method.start(x, y))
        del x, y
        # A state that shares a buffer (zero carries) could not be donated: each leaf is copied, and then dropped.
        own: list[Array] = []
        leaves.reverse()
        while leaves:
            own.append(jnp.copy(leaves.pop()))
        state = jax.tree.unflatten(structure, own)
        links = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.remembered(state))
        return state._replace(links=links)

    def step(self, k: Array, state: State) -> tuple[State, StepCost]:
        """One iteration of every node, and what it cost."""
        ledger = Ledger()
        oracle = self._oracle(k, ledger)
        now = self.exchange.conditions(k)
        exchanges = Exchanges(self.exchange, now, state.links)
        with self.eval_config.products():
            new = self.method.step(k, state, oracle, Network(exchanges, self.exchange.sends, ledger))
        active = self.exchange.active(now)
        if active is not None:
            new = choose(active, new, state._replace(links=()))
            ledger.scale(active.mean(dtype=jnp.float32))
        return new._replace(links=exchanges.after if state.links else ()), ledger.step_cost

    def _oracle(self, k: Array, ledger: Ledger) -> Oracle:
        key = jax.random.fold_in(self.key, k)
        return Oracle(self.problem, self.nodes, key, self.batch_size, ledger, k=k, config=self.eval_config)

    def remembered(self, state: State) -> tuple[Any, ...]:
        """The shapes of what the exchanges of one step remember; it starts at zero."""
        memory: list[Any] = []

        def trace(program: Program, k: Array, state: State) -> None:
            ledger = Ledger()
            oracle = program._oracle(k, ledger)
            outermost = ledger.step_cost

            def record(messages: dict[str, Any]) -> dict[str, Any]:
                kept = self.exchange.remembers(messages)
                if jax.tree.leaves(kept) and ledger.step_cost is not outermost:
                    raise ValueError(
                        f"{self.method.name} repeats exchanges inside a step, where links cannot remember what "
                        "they carried: choose a single-loop method, or leave out late links, codes and edge-ed."
                    )
                memory.append(kept)
                return {level: m.message if isinstance(m, Cumulative | Coded) else m for level, m in messages.items()}

            program.method.step(k, state, oracle, Network(record, self.exchange.sends, ledger))

        eqx.filter_eval_shape(trace, self, jnp.int32(0), state)
        return tuple(memory) if jax.tree.leaves(memory) else ()

    def chunk(self, state: State, first: Array, length: int) -> tuple[State, Array, list[Array]]:
        """`length` iterations; whether all that came out is finite; and how often what varies was repeated."""

        def body(state: State, k: Array) -> tuple[State, list[Array]]:
            state, page = self.step(k, state)
            return state, page.repetitions

        state, repetitions = jax.lax.scan(body, state, first + jnp.arange(length, dtype=jnp.int32))
        finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]
        return state, jnp.stack(finite).all(), repetitions

    def costs(self, state: State) -> StepCost:
        """The cost of one step, from tracing it."""
        pages: list[StepCost] = []
        jax.eval_shape(lambda k, state: pages.append(self.step(k, state)[1]), jnp.int32(0), state)
        return pages[0]


class Exchanges:
    """The exchanges of one step, in order, each with what it remembers."""

    def __init__(self, exchange: Exchange, now: Any, before: tuple[Any, ...]) -> None:
        self._exchange, self._now, self._before, self.after = exchange, now, before, ()

    def __call__(self, messages: dict[str, Any]) -> dict[str, Any]:
        number = len(self.after)
        memory = self._before[number] if self._before else ()
        answers, after = self._exchange(self._now, number, messages, memory)
        self.after = (*self.after, after)
        return answers


SHUFFLE = 2**31 + 1  # beyond every step's key, as those of faults are
Wrap = Callable[[Callable[..., Any], Program, State], Callable[..., Any]]


def as_it_is(chunk: Callable[..., Any], arrays: Program, state: State) -> Callable[..., Any]:
    """All nodes on one device."""
    return chunk


class Compiled(NamedTuple):
    """A chunk, the cost of one step, and the bytes it takes beside the program and the state."""

    chunk: Any
    costs: StepCost
    beside: int

    @classmethod
    def of(cls, chunk: Any, costs: StepCost) -> Compiled:
        known = chunk.memory_analysis()  # None where a backend cannot say; asked once, since it takes milliseconds
        return cls(chunk, costs, known.temp_size_in_bytes if known else 0)


class Run:
    """A run in progress. `wrap` says how a chunk is spread over devices, `full` what to do where they are full, and
    `begin` makes the state before the first step, placed as it is here. `move(links, before=n)` brings what links
    remember from n devices to these."""

    alone = False  # whether only one of several nodes lives here, so that nodes cannot be compared

    def __init__(
        self,
        program: Program,
        *,
        begin: Callable[[], State] | None = None,
        full: str,
        wrap: Wrap = as_it_is,
        devices: int = 1,
        move: Callable[..., Any] | None = None,
    ) -> None:
        self.program, self.step, self._full, self._wrap = program, 0, full, wrap
        self.devices, self.move = devices, move
        self._begin = begin or program.start
        self.state = self.begin()

    def begin(self) -> State:
        """A state before the first step."""
        with memory.oom_hint(self._full):
            return self._begin()

    def free(self) -> None:
        """Deletes the state's buffers, to make room for another."""
        for leaf in jax.tree.leaves(self.state):
            leaf.delete()

    def compile(self, length: int) -> Compiled:
        """The chunk of that length, compiled once per program and length."""
        leaves, structure = jax.tree.flatten((self.program, self.state))
        kinds = tuple((jax.typeof(leaf), leaf.sharding) if eqx.is_array(leaf) else leaf for leaf in leaves)
        with memory.oom_hint(self._full):  # on a GPU kernels are tried, with arrays as large as the run's
            return compile_chunk(structure, kinds, length, self._wrap)

    def restore_order(self, saved: Sequence[int]) -> Sequence[int]:
        """Of the steps that were saved, newest first, those to continue from, best first."""
        return saved

    def close(self, *, finished: bool) -> None:
        """The run is over, or ended early."""

    def advance(self, length: int) -> Counts | None:
        """Moves on and returns the cost; None, with the state as it was, where something diverged."""
        chunk, costs, beside = self.compile(length)
        with memory.oom_hint(self._full):
            # The chunk consumes the state it is given, so this copy is what remains if it diverges.
            good = memory.copied(self.state, beside)
            arrays = eqx.filter(self.program, eqx.is_array)
            state, finite, repetitions = chunk(arrays, self.state, np.int32(self.step))
            if not bool(finite):
                del state
                self.state = good()
                return None
        self.state, self.step = state, self.step + length
        return costs.total(length, [np.asarray(times, np.float64).sum() for times in repetitions])


@lru_cache(maxsize=32)
def compile_chunk(structure: Any, kinds: tuple[Any, ...], length: int, wrap: Wrap) -> Compiled:
    """Ahead of time, so that compiling is never timed as running; the state's buffers are donated."""
    shapes = [
        jax.ShapeDtypeStruct(kind[0].shape, kind[0].dtype, weak_type=kind[0].weak_type, sharding=kind[1])
        if isinstance(kind, tuple)
        else kind
        for kind in kinds
    ]
    program, state = jax.tree.unflatten(structure, shapes)
    arrays, static = eqx.partition(program, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    pages: list[StepCost] = []

    def chunk(arrays: Program, state: State, first: Array) -> tuple[State, Array, list[Array]]:
        here = eqx.combine(arrays, static)
        pages.append(here.costs(state))
        return here.chunk(state, first, length)

    first = jax.ShapeDtypeStruct((), jnp.int32)
    compiled = jax.jit(wrap(chunk, arrays, state), donate_argnums=1).lower(arrays, state, first).compile()
    return Compiled.of(compiled, pages[0])


def shuffled(problem: Problem, seed: int, nodes: Array, sharding: Any = None) -> Problem:
    """The problem with every node's samples in an order of its own, another for each level."""
    shuffle, both = _shuffle(sharding), (problem.upper_data, problem.lower_data)
    both = (data and shuffle(data, nodes, np.uint32(seed), np.uint32(SHUFFLE + i)) for i, data in enumerate(both))
    return problem.on_data(*both)


@lru_cache(maxsize=8)
def _shuffle(sharding: Any) -> Callable[..., Any]:
    """Compiled once per sharding and shape of the data."""

    def order(data: NodeData, nodes: Array, seed: Array, level: Array) -> NodeData:
        return data.shuffled(jax.random.fold_in(keys.key(seed), level), nodes)

    return jax.jit(order, out_shardings=sharding)


def step_sizes_as_arrays(method: Method) -> Method:
    """Step sizes become arguments of the compiled chunk, so that changing one compiles nothing."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, method)
