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
from ..network._links import ExchangeMemory, LinkFaults
from ..network._network import Network
from ..network.faults import Fault, fault_schedule
from ..oracles._eval_config import EvalConfig
from ..oracles._oracle import Oracle
from ..oracles._records import PrivateOracle, RecordNoise, Records, SeededNoise
from ..problem._problem import Problem
from ..problem._stream_trace import Leaves, validate_streams, with_prefetched
from ..problem._streams import Samples

SHUFFLE = 2**31 + 1  # beyond every step's key, as those of faults are


class RunConfig(NamedTuple):
    """Settings of a run in addition to its problem, method and graphs.

    Attributes:
        batch_size: see `solve`, as for `seed`, `sampling` and `precision`.
        seed: of the batches and the faults.
        faults: the injected faults.
        members: the ids of the active nodes; None if all are active.
        sampling: `"random"` or `"shuffle-once"`.
        precision: of the computation.
        privacy: how each sample's contribution to a direction is clipped and noised; None does neither.
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

    def node_ids(self, nodes: int) -> np.ndarray:
        """The ids of the active nodes: 0 … `nodes` − 1, or those of `members`."""
        return np.arange(nodes, dtype=np.int32) if self.members is None else np.asarray(self.members, np.int32)

    def link_faults(self, nodes: Array | np.ndarray, secret: Array | None = None) -> LinkFaults:
        """The faults of messages over links, for the local nodes."""
        schedule = fault_schedule(self.faults, self.seed)
        # NumPy's are placed on devices later, as arrays of JAX.
        return LinkFaults(cast(Array, nodes), schedule, schedule.key if secret is None else secret)


class Program(eqx.Module):
    """The inputs of a compiled chunk in addition to the state. Arrays are its arguments; the rest is compiled in."""

    problem: Problem
    method: Method
    network: Network
    nodes: Array  # the ids of the local nodes
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
            problem: with the data of the local nodes.
            method: the method; its step sizes become arguments of what is compiled.
            network: how messages travel.
            nodes: the ids of the local nodes, `config.node_ids(count)` if all are local.
            config: the settings of the run.
            node_chunk: see `Simulator`.
            sharding: how the samples lie on several devices.
            record_noise: adds the noise of `config.privacy`; None takes it from the seed.
        """
        if config.faults and not network.links:
            raise ValueError(
                f"faults need a network with links, and {type(network).__name__} has none: build it with "
                "with_links(graphs, config.link_faults(node_ids))."
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
        copies: list[Array] = []
        leaves.reverse()
        while leaves:
            copies.append(jnp.copy(leaves.pop()))
        state = jax.tree.unflatten(structure, copies)
        return state._replace(link_memory=self._link_memory(state))

    def _link_memory(self, state: State) -> tuple[ExchangeMemory, ...]:
        """What links remember before the first step: zeros, in the shapes that a step's messages need."""
        if not self.network.links:
            return ()

        def after(program: Program, k: Array, state: State) -> ExchangeMemory:
            return program.step(k, state._replace(link_memory=None))[0].link_memory

        shapes = eqx.filter_eval_shape(after, self, jnp.int32(0), state)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes) if jax.tree.leaves(shapes) else ()

    def step(self, k: Array, state: State) -> tuple[State, StepCost]:
        """One iteration of every node, and its cost. If `state.link_memory` is None, nothing is sent: such a step is
        only traced for shapes.
        """
        ledger = Ledger()
        oracle = self.oracle(k, ledger)
        network = Communicator(self.network, k, state.link_memory, ledger, self.method.intervals, self.key)
        with self.eval_config.matmul_precision():
            new = self.method.step(k, state, oracle, network)
        active = self.network.active(k)
        if active is not None:
            new = choose(active, new, state._replace(link_memory=()))
            ledger.scale(active.mean(dtype=jnp.float32))
        return new._replace(link_memory=() if state.link_memory == () else network.link_memories), ledger.step_cost

    def oracle(self, k: Array, ledger: Ledger) -> Oracle:
        """The oracle of step k."""
        key = jax.random.fold_in(self.key, k)
        arguments = (self.problem, self.nodes, key, self.batch_size, ledger)
        if self.record_noise is None:
            return Oracle(*arguments, k=k, config=self.eval_config)
        return PrivateOracle(*arguments, k=k, config=self.eval_config, noise=self.record_noise)

    def chunk(
        self,
        state: State,
        first: Array,
        length: int,
        traced_costs: list[StepCost],
        batches: Sequence[Sequence[Leaves]] = (),
    ) -> tuple[State, Array, list[Array]]:
        """Runs `length` iterations; returns the state, whether it is finite, and how often repeated parts ran.

        Tracing it appends the cost of one step to `traced_costs`. `batches` are what the steps would read from streams,
        with leaves (steps, ...).
        """

        def body(state: State, inputs: tuple[Array, Sequence[Sequence[Leaves]]]) -> tuple[State, list[Array]]:
            k, batches = inputs
            program = replace(self, problem=with_prefetched(self.problem, batches)) if batches else self
            state, cost = program.step(k, state)
            traced_costs.append(cost.untraced())
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
        """Whether a step depends on the run's key, by batches or by its own random numbers; found by tracing it."""
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
    """The problem with the samples of every node and level shuffled, each in a different order."""
    shuffle, levels = _shuffle(sharding), (problem.upper_data, problem.lower_data)
    levels = (data and shuffle(data, nodes, np.uint32(seed), np.uint32(SHUFFLE + i)) for i, data in enumerate(levels))
    return problem.replace_data(*levels)


@lru_cache(maxsize=8)
def _shuffle(sharding: jax.sharding.Sharding | None) -> Callable[..., Samples]:
    """Compiled once per sharding and shape of the data."""

    def order(data: Samples, nodes: Array, seed: Array, level: Array) -> Samples:
        return data.shuffled(jax.random.fold_in(keys.key(seed), level), nodes)

    return jax.jit(order, out_shardings=sharding)


def step_sizes_as_arrays(method: Method) -> Method:
    """Step sizes become arguments of the compiled chunk, so that changing one compiles nothing."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, method)
