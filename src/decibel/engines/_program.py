"""The compiled program: the one step function, scanned between evaluations, on any engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.interpreters import partial_eval

from ..core import _keys as keys
from ..core._ledger import Ledger, StepCost
from ..core._vector import choose, replicate
from ..methods._method import Method, State
from ..network._communicator import Communicator
from ..network._links import LinkFaults, LinkStates
from ..network._network import Network
from ..network.faults import Fault, fault_schedule
from ..oracles._eval_config import EvalConfig
from ..oracles._oracle import Oracle
from ..oracles._records import PrivateOracle, RecordNoise, Records, SeededNoise
from ..problem._problem import Problem
from ..problem._stream_trace import Leaves, fed, validate_streams
from ..problem._streams import Samples

SHUFFLE = 2**31 + 1  # beyond every step's key, as those of faults are


class RunConfig(NamedTuple):
    """Settings of a run besides its problem, method and graphs.

    Attributes:
        batch_size: see `solve`, as for `seed`, `sampling` and `precision`.
        seed: of the batches and the faults.
        faults: the injected faults.
        members: the numbers of the nodes that take part; None if all do.
        sampling: `"random"` or `"shuffle-once"`.
        precision: of what is computed.
        privacy: how every record's part of a direction is hidden; None hides nothing.
        micro_batch: see `solve`.
    """

    batch_size: int | None = None
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    members: tuple[int, ...] | None = None
    sampling: str = "random"
    precision: str | None = None
    privacy: Records | None = None
    micro_batch: int | None = None

    def numbers(self, nodes: int) -> np.ndarray:
        """Those of the nodes that take part: of all that there are, or of the members that are left."""
        return np.arange(nodes, dtype=np.int32) if self.members is None else np.asarray(self.members, np.int32)

    def link_faults(self, nodes: Array | np.ndarray, secret: Array | None = None) -> LinkFaults:
        """What messages over links depend on, for the nodes that live here."""
        schedule = fault_schedule(self.faults, self.seed)
        # NumPy's are placed on devices later, as arrays of JAX.
        return LinkFaults(cast(Array, nodes), schedule, schedule.key if secret is None else secret)


class Program(eqx.Module):
    """What a compiled chunk is a function of, besides the state: arrays are its arguments, the rest is compiled in."""

    problem: Problem
    method: Method
    network: Network
    nodes: Array  # the numbers of the nodes that live here
    key: Array
    batch_size: int | None = eqx.field(static=True)
    eval_config: EvalConfig = eqx.field(static=True, default=EvalConfig())
    record_noise: RecordNoise | None = eqx.field(static=True, default=None)

    @classmethod
    def of(
        cls,
        problem: Problem,
        method: Method,
        network: Network,
        nodes: Array,
        config: RunConfig,
        *,
        node_chunk: int | None = None,
        sharding: jax.sharding.Sharding | None = None,
        record_noise: RecordNoise | None = None,
    ) -> Program:
        """The program of a run.

        Args:
            problem: with the data of the nodes that live here.
            method: the method; its step sizes become arguments of what is compiled.
            network: how messages travel.
            nodes: the numbers of the nodes that live here, `config.numbers(count)` if all do.
            config: the settings of the run.
            node_chunk: see `Simulator`.
            sharding: how the samples lie on several devices.
            record_noise: adds the noise of `config.privacy`; None takes it from the seed.
        """
        if config.faults and not network.links:
            raise ValueError(
                f"faults need a network with links, and {type(network).__name__} has none: build it with "
                "by_link(graphs, config.link_faults(numbers))."
            )
        shuffle_once = config.sampling == "shuffle-once"
        validate_streams(problem, config.batch_size, in_order=shuffle_once)
        return cls(
            shuffled(problem, config.seed, nodes, sharding) if shuffle_once else problem,
            step_sizes_as_arrays(method),
            network,
            nodes,
            keys.key(config.seed),
            config.batch_size,
            EvalConfig(shuffle_once, config.precision, node_chunk, config.micro_batch),
            record_noise if config.privacy is None or record_noise else SeededNoise(config.privacy),
        )

    def start(self) -> State:
        """The state before the first step, of the local nodes."""
        nodes, problem = len(self.nodes), self.problem
        x, y = replicate(problem.x0, nodes), None if problem.y0 is None else replicate(problem.y0, nodes)
        leaves, structure = jax.tree.flatten(self.method.start(x, y))
        del x, y
        # A state that shares a buffer (zero carries) could not be donated: each leaf is copied, and then dropped.
        step_sizes: list[Array] = []
        leaves.reverse()
        while leaves:
            step_sizes.append(jnp.copy(leaves.pop()))
        state = jax.tree.unflatten(structure, step_sizes)
        return state._replace(links=self._link_states(state))

    def _link_states(self, state: State) -> tuple[LinkStates, ...]:
        """What links remember before the first step: zeros, of the shapes that a step's messages ask for."""
        if not self.network.links:
            return ()

        def after(program: Program, k: Array, state: State) -> LinkStates:
            return program.step(k, state._replace(links=None))[0].links

        shapes = eqx.filter_eval_shape(after, self, jnp.int32(0), state)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes) if jax.tree.leaves(shapes) else ()

    def step(self, k: Array, state: State) -> tuple[State, StepCost]:
        """One iteration of every node, and what it cost. With `links` of None nothing is sent: a trace for shapes."""
        ledger = Ledger()
        oracle = self.oracle(k, ledger)
        network = Communicator(self.network, k, state.links, ledger, self.method.intervals)
        with self.eval_config.products():
            new = self.method.step(k, state, oracle, network)
        active = self.network.active(k)
        if active is not None:
            new = choose(active, new, state._replace(links=()))
            ledger.scale(active.mean(dtype=jnp.float32))
        return new._replace(links=() if state.links == () else network.link_states), ledger.step_cost

    def oracle(self, k: Array, ledger: Ledger) -> Oracle:
        """What step k draws and derives from."""
        key = jax.random.fold_in(self.key, k)
        arguments = (self.problem, self.nodes, key, self.batch_size, ledger)
        if self.record_noise is None:
            return Oracle(*arguments, k=k, config=self.eval_config)
        return PrivateOracle(*arguments, k=k, config=self.eval_config, noise=self.record_noise)

    def chunk(
        self, state: State, first: Array, length: int, costs: list[StepCost], batches: Sequence[Sequence[Leaves]] = ()
    ) -> tuple[State, Array, list[Array]]:
        """`length` iterations; whether all that came out is finite; and how often what varies was repeated.

        Tracing it appends the cost of one step to `costs`. `batches` are what the steps would read from streams, with
        leaves (steps, ...).
        """

        def body(state: State, inputs: tuple[Array, Sequence[Sequence[Leaves]]]) -> tuple[State, list[Array]]:
            k, batches = inputs
            program = replace(self, problem=fed(self.problem, batches)) if batches else self
            state, cost = program.step(k, state)
            costs.append(cost.untraced())
            return state, cost.repetitions

        steps = first + jnp.arange(length, dtype=jnp.int32)
        state, repetitions = jax.lax.scan(body, state, (steps, batches))
        return state, all_finite(state), repetitions

    def costs(self, state: State) -> StepCost:
        """The cost of one step, from tracing it."""
        step_costs: list[StepCost] = []
        jax.eval_shape(lambda k, state: step_costs.append(self.step(k, state)[1].untraced()), jnp.int32(0), state)
        return step_costs[0]

    def is_random(self, state: State) -> bool:
        """Whether a step depends on the run's key, from tracing it: on batches, or on random numbers of its own."""
        arrays, static = eqx.partition(self, eqx.is_array)

        def step(key: Array, arrays: Program, k: Array, state: State) -> State:
            program = eqx.combine(arrays, static)
            return eqx.tree_at(lambda program: program.key, program, key).step(k, state)[0]

        traced = jax.make_jaxpr(step)(self.key, arrays, jnp.int32(0), state).jaxpr
        _, used = partial_eval.dce_jaxpr(traced, [True] * len(traced.outvars))
        return used[0]


def all_finite(state: State) -> Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]).all()


def shuffled(problem: Problem, seed: int, nodes: Array, sharding: jax.sharding.Sharding | None = None) -> Problem:
    """The problem with every node's samples in an order of its own, another for each level."""
    shuffle, levels = _shuffle(sharding), (problem.upper_data, problem.lower_data)
    levels = (data and shuffle(data, nodes, np.uint32(seed), np.uint32(SHUFFLE + i)) for i, data in enumerate(levels))
    return problem.on_data(*levels)


@lru_cache(maxsize=8)
def _shuffle(sharding: jax.sharding.Sharding | None) -> Callable[..., Samples]:
    """Compiled once per sharding and shape of the data."""

    def order(data: Samples, nodes: Array, seed: Array, level: Array) -> Samples:
        return data.shuffled(jax.random.fold_in(keys.key(seed), level), nodes)

    return jax.jit(order, out_shardings=sharding)


def step_sizes_as_arrays(method: Method) -> Method:
    """Step sizes become arguments of the compiled chunk, so that changing one compiles nothing."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, method)
