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
from ..oracles._eval_config import LOWER, UPPER, EvalConfig
from ..oracles._oracle import Oracle
from ..oracles._records import PrivateOracle, RecordNoise, Records, SeededNoise
from ..problem._problem import Problem
from ..problem._stream_trace import Leaves, validate_streams, with_prefetched
from ..problem._streams import Samples

SHUFFLE_KEYS = 2**31 + 1  # the keys of shuffles, of the upper and the lower level: beyond those of all steps


class RunConfig(NamedTuple):
    """Settings of a run in addition to its problem, method and graphs.

    `batch_size`, `seed`, `sampling`, `precision` and `micro_batch` are the arguments of `solve`.

    Attributes:
        faults: the injected faults.
        members: the ids of the active nodes; None if all are active.
        privacy: how each sample's contribution to a direction is clipped and noised; None does neither.
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

    def link_faults(self, node_ids: Array | np.ndarray, secret: Array | None = None) -> LinkFaults:
        """The faults of messages over links, for the local nodes."""
        schedule = fault_schedule(self.faults, self.seed)
        # NumPy arrays are placed on devices later, as arrays of JAX.
        return LinkFaults(cast(Array, node_ids), schedule, schedule.key if secret is None else secret)


class Program(eqx.Module):
    """The inputs of a compiled chunk in addition to the state. Arrays are its arguments; the rest is compiled in."""

    problem: Problem
    method: Method
    network: Network
    node_ids: Array  # of the local nodes
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
        node_ids: Array,
        run_config: RunConfig,
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
            node_ids: the ids of the local nodes, `run_config.node_ids(count)` if all are local.
            run_config: the settings of the run.
            node_chunk: see `Simulator`.
            sharding: how the samples lie on several devices.
            record_noise: adds the noise of `run_config.privacy`; None takes the noise from the seed.
        """
        if run_config.faults and not network.links:
            raise ValueError(
                f"faults need a network with links, and {type(network).__name__} has none: build it with "
                "with_links(graphs, config.link_faults(node_ids))."
            )
        shuffle_once = run_config.sampling == "shuffle-once"
        validate_streams(problem, run_config.batch_size, shuffle_once=shuffle_once)
        if run_config.privacy is not None and record_noise is None:
            record_noise = SeededNoise(run_config.privacy)
        return cls(
            problem=shuffled(problem, run_config.seed, node_ids, sharding) if shuffle_once else problem,
            method=step_sizes_as_arrays(method),
            network=network,
            node_ids=node_ids,
            key=keys.key(run_config.seed),
            batch_size=run_config.batch_size,
            eval_config=EvalConfig(
                shuffle_once=shuffle_once,
                precision=run_config.precision,
                node_chunk=node_chunk,
                micro_batch=run_config.micro_batch,
            ),
            record_noise=record_noise,
        )

    def initial_state(self) -> State:
        """The state of the local nodes before the first step."""
        node_count = len(self.node_ids)
        x = replicate(self.problem.x0, node_count)
        y = None if self.problem.y0 is None else replicate(self.problem.y0, node_count)
        leaves, structure = jax.tree.flatten(self.method.start(x, y))
        del x, y
        # A state that shares a buffer (zero carries) could not be donated: each leaf is copied, and then dropped.
        copies: list[Array] = []
        leaves.reverse()
        while leaves:
            copies.append(jnp.copy(leaves.pop()))
        state = jax.tree.unflatten(structure, copies)
        return state._replace(link_memory=self._initial_link_memory(state))

    def _initial_link_memory(self, state: State) -> tuple[ExchangeMemory, ...]:
        """What links remember before the first step: zeros, in the shapes that a step's messages need."""
        if not self.network.links:
            return ()

        def link_memory_after_step(program: Program, k: Array, state: State) -> ExchangeMemory:
            new, _ = program.step(k, state._replace(link_memory=None))
            return new.link_memory

        shapes = eqx.filter_eval_shape(link_memory_after_step, self, jnp.int32(0), state)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes) if jax.tree.leaves(shapes) else ()

    def step(self, k: Array, state: State) -> tuple[State, StepCost]:
        """One iteration of every node, and its cost.

        `state.link_memory` has three forms. It is a tuple with a memory for each exchange, or `()` if links remember
        nothing. In a step that is only traced for the shapes of these memories it is None, and nothing is sent.
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
        arguments = (self.problem, self.node_ids, key, self.batch_size, ledger)
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

    def step_cost(self, state: State) -> StepCost:
        """The cost of one step, from tracing it."""
        traced_costs: list[StepCost] = []

        def trace(k: Array, state: State) -> None:
            _, cost = self.step(k, state)
            traced_costs.append(cost.untraced())

        jax.eval_shape(trace, jnp.int32(0), state)
        return traced_costs[0]

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


def shuffled(problem: Problem, seed: int, node_ids: Array, sharding: jax.sharding.Sharding | None = None) -> Problem:
    """The problem with the samples of every node and level shuffled, each in a different order."""
    shuffle = _compiled_shuffle(sharding)

    def shuffled_level(data: Samples | None, loss_index: int) -> Samples | None:
        if data is None:
            return None
        return shuffle(data, node_ids, np.uint32(seed), np.uint32(SHUFFLE_KEYS + loss_index))

    upper = shuffled_level(problem.upper_data, UPPER)
    lower = shuffled_level(problem.lower_data, LOWER)
    return problem.replace_data(upper, lower)


@lru_cache(maxsize=8)
def _compiled_shuffle(sharding: jax.sharding.Sharding | None) -> Callable[..., Samples]:
    """A function that shuffles samples, compiled once per sharding and shape of the data."""

    def shuffle(data: Samples, node_ids: Array, seed: Array, key_number: Array) -> Samples:
        return data.shuffled(jax.random.fold_in(keys.key(seed), key_number), node_ids)

    return jax.jit(shuffle, out_shardings=sharding)


def step_sizes_as_arrays(method: Method) -> Method:
    """Step sizes become arguments of the compiled chunk, so that changing one compiles nothing."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, method)
