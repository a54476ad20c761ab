"""A run in progress: a program, its state, and its compiled chunks of steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import ShapedArray

from ..core._convolutions import compile_step
from ..core._ledger import Counts, StepCost
from ..core._types import PyTree
from ..methods._method import State
from ..network._links import ExchangeMemory
from ..problem._stream_trace import pop_source_error, streams_of
from . import _memory as device_memory
from ._program import Program

# Called with (arrays, state, first step, *batches).
ChunkFunction = Callable[..., tuple[State, Array, list[Array]]]
Wrap = Callable[[ChunkFunction, Program, State], ChunkFunction]


def no_wrap(chunk: ChunkFunction, arrays: Program, state: State) -> ChunkFunction:
    """Leaves the chunk unchanged, since all nodes are on one device."""
    return chunk


class Compiled(NamedTuple):
    """A compiled chunk, the cost of one step, and the bytes it needs in addition to the program and the state."""

    chunk: jax.stages.Compiled
    step_cost: StepCost
    temp_bytes: int

    @classmethod
    def of(cls, chunk: jax.stages.Compiled, step_cost: StepCost) -> Compiled:
        analysis = chunk.memory_analysis()  # None where a backend cannot say; asked once, since it takes milliseconds
        return cls(chunk, step_cost, analysis.temp_size_in_bytes if analysis else 0)


class KeptState(NamedTuple):
    """A step, and a function that returns the state before it."""

    step: int
    restore: Callable[[], State]


class Run:
    """A run in progress, which `solve` advances chunk by chunk.

    Args:
        program: what is compiled.
        initial_state: makes the state before the first step, placed on the devices; None takes the program's own.
        oom_message: the error message where a device's memory is full.
        wrap: spreads a chunk over devices; the default runs it on one.
        devices: how many devices hold the nodes.
        migrate_links: `migrate_links(memory, before=n)` brings what links remember from n devices to these.
        split: how a node is split over devices, which decides the order of entries in `State.link_memory`.
        keep_copy: whether the state is copied before a chunk. If False, it is computed again when a chunk diverges.

    Attributes:
        state: the current state.
        step: the step that comes next.
        skipped: how many earlier steps were not done here, because other sites did them while this one was away.
        best: the best state so far, if a callback asked to keep it.
    """

    holds_one_node = False  # whether only one of several nodes lives here, so that nodes cannot be compared

    def __init__(
        self,
        program: Program,
        *,
        initial_state: Callable[[], State] | None = None,
        oom_message: str,
        wrap: Wrap = no_wrap,
        devices: int = 1,
        migrate_links: Callable[..., tuple[ExchangeMemory, ...]] | None = None,
        split: str = "",
        keep_copy: bool = True,
    ) -> None:
        self.program = program
        self.step = 0
        self.skipped = 0
        self._oom_message = oom_message
        self._wrap = wrap
        self.devices = devices
        self.migrate_links = migrate_links
        self.split = split
        self._keep_copy = keep_copy
        # It is committed to its device, so that what is compiled for this state also serves those that follow it.
        self._initial_state = initial_state or (
            lambda: jax.device_put(program.initial_state(), program.node_ids.sharding)
        )
        self._compiled: dict[int, Compiled] = {}
        pop_source_error(program.problem)  # drops the error of an earlier run that was interrupted
        self.state = self.initial_state()
        self.best: KeptState | None = None
        # If no copy of the state is kept, steps are repeated from here, in the chunks that have run since.
        self._repeat_from: KeptState | None = None
        self._lengths_since: list[int] = []

    def initial_state(self) -> State:
        """The state before the first step."""
        with device_memory.oom_hint(self._oom_message):
            return self._initial_state()

    def free(self) -> None:
        """Deletes the state's buffers, to make room for another."""
        for leaf in jax.tree.leaves(self.state):
            leaf.delete()

    def remember_best(self) -> None:
        """Keeps a copy of the current state as the best so far."""
        self.best = None
        temp_bytes = max((compiled.temp_bytes for compiled in self._compiled.values()), default=0)
        with device_memory.oom_hint(self._oom_message):
            self.best = KeptState(self.step, device_memory.copied(self.state, temp_bytes))

    def compile(self, length: int) -> Compiled:
        """The chunk of that length, compiled once per program and length."""
        if length not in self._compiled:
            leaves, structure = jax.tree.flatten((self.program, self.state))
            # XLA times kernels while it compiles for a GPU, on arrays as large as the run's.
            with device_memory.oom_hint(self._oom_message):
                self._compiled[length] = compile_chunk(structure, leaf_types(leaves), length, self._wrap)
        return self._compiled[length]

    @property
    def node_ids(self) -> np.ndarray:
        """The ids of its nodes."""
        return np.asarray(self.program.node_ids)

    # The next four serve engines whose members or graph may change between restarts, such as a silo. An engine whose
    # nodes are all here leaves them as they are.

    @property
    def placement(self) -> str:
        """A description of the nodes and graph of this run. Each checkpoint saves it, and `amends` and `adopt` get the
        one that was saved.
        """
        return ""

    def amends(self, placement: str) -> bool:
        """Whether this run amends the saved one: it is the same run, with other members or another graph.

        Args:
            placement: the `placement` of the run that saved the state.

        Raises:
            ValueError: if the run cannot continue from that state.
        """
        return False

    def adopt(self, saved: State, placement: str) -> State:
        """Converts the saved state of a run that this one amends. `placement` is that of the run that saved it."""
        return saved

    def restore_order(self, saved: Sequence[int]) -> Sequence[int]:
        """The steps of the checkpoints to try to continue from, in this order; `saved` has all steps, newest first."""
        return saved

    @property
    def largest_entry(self) -> float:
        """The largest absolute value in x, y and z at the nodes that are here."""
        leaves = jax.tree.leaves([level.s for level in self.state[:3] if level is not None])
        return max((_largest(shard) for leaf in leaves for shard in leaf.addressable_shards), default=0.0)

    def plan_goal(self, steps: int) -> tuple[int, str]:
        """Called once before the first step. Returns the last step that this run may do, and the reason if that is
        before `steps`. A subclass may store it, to know how far to read ahead.
        """
        return steps, ""

    @property
    def steps_done(self) -> int:
        """The steps that were done here."""
        return self.step - self.skipped

    @property
    def end_reason(self) -> str:
        """Why the run stops before its goal; empty while it continues."""
        return ""

    def interrupt(self) -> None:
        """Called by the signal handler: the process is about to end. Stops waiting for other processes."""

    def close(self, *, finished: bool) -> None:
        """Releases what the run holds; `finished` is False if it ended early."""

    def restorer(self, temp_bytes: int) -> Callable[[], State]:
        """A function that restores the current state: from a copy, or by repeating the steps that led to it, which
        gives the same bits."""
        if self._keep_copy:
            return device_memory.copied(self.state, temp_bytes)
        if self._repeat_from is None or self._repeat_from.step + sum(self._lengths_since) != self.step:
            # Not a method of this run, which would keep itself and its state alive until garbage is collected.
            restore = self._initial_state if self.step == 0 else _at_host(self.state)
            self._repeat_from = KeptState(self.step, restore)
            self._lengths_since = []
        origin = self._repeat_from
        lengths = list(self._lengths_since)
        step = self.step

        def repeat_steps() -> State:
            self.state, self.step = origin.restore(), origin.step
            for length in lengths:
                self._run(length)
                self.step += length
            assert self.step == step
            return self.state

        return repeat_steps

    def advance(self, length: int) -> Counts | None:
        """Advances the run and returns the cost. If something diverged, returns None and leaves the state as it was."""
        compiled = self.compile(length)
        with device_memory.oom_hint(self._oom_message):
            # The chunk consumes the state it is given, so this copy is what remains if it diverges.
            restore_state = self.restorer(compiled.temp_bytes)
            try:
                finite, repetitions = self._run(length)
                if (error := pop_source_error(self.program.problem)) is not None:
                    raise error
            except jax.errors.JaxRuntimeError:
                raise  # a device or another process failed, so that steps could not be repeated either
            except Exception:  # of a data source
                self._return_to(restore_state)
                raise
            if not finite:
                self._return_to(restore_state)
                return None
        self.step += length
        self._lengths_since.append(length)
        return compiled.step_cost.total(length, repetitions)

    def _run(self, length: int) -> tuple[bool, list[float]]:
        """Runs a chunk; returns whether the state is then finite, and how often repeated parts ran."""
        arrays = eqx.filter(self.program, eqx.is_array)
        self.state, finite, repetitions = self.compile(length).chunk(arrays, self.state, np.int32(self.step))
        return bool(finite), [float(np.asarray(times, np.float64).sum()) for times in repetitions]

    def _return_to(self, restore_state: Callable[[], State]) -> None:
        self.free()
        self.state = restore_state()


def _at_host(state: State) -> Callable[[], State]:
    """Copies a state to the host's memory and returns a function that puts it back on the devices."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    on_host = jax.device_get(state)
    return lambda: jax.device_put(on_host, shardings)


def _largest(shard: jax.Shard) -> float:
    """The largest absolute value in a shard, without another array of its size."""
    assert shard.data is not None
    data = np.asarray(shard.data) if shard.device.platform == "cpu" else shard.data
    return max(float(data.max(initial=0)), float(-data.min(initial=0)))


def leaf_types(leaves: list[PyTree]) -> tuple[PyTree, ...]:
    """What a program of these leaves is compiled for: the type and sharding of each array, and all other leaves."""
    return tuple((jax.typeof(leaf), leaf.sharding) if eqx.is_array(leaf) else leaf for leaf in leaves)


def leaf_shapes(types: tuple[PyTree, ...]) -> list[PyTree]:
    """The leaves of these `leaf_types`, with shapes instead of arrays."""

    def shape(type_and_sharding: tuple[ShapedArray, jax.sharding.Sharding]) -> jax.ShapeDtypeStruct:
        array_type, sharding = type_and_sharding
        return jax.ShapeDtypeStruct(
            array_type.shape, array_type.dtype, weak_type=array_type.weak_type, sharding=sharding
        )

    return [shape(leaf) if isinstance(leaf, tuple) else leaf for leaf in types]


def split_arrays_and_static(program: Program) -> tuple[Program, Program]:
    """A program of shapes in two halves: the arrays, which are arguments of a chunk, and the rest, which is compiled
    in.
    """
    return eqx.partition(program, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))


@lru_cache(maxsize=32)
def compile_chunk(
    structure: Hashable, types: tuple[PyTree, ...], length: int, wrap: Wrap, sizes: tuple[tuple[int, ...], ...] = ()
) -> Compiled:
    """Compiles a chunk ahead of time, so that compiling is never timed as running; the state's buffers are donated.

    A chunk with `sizes` takes the batches of every stream and draw, of these sizes, as a further argument.
    """
    program, state = jax.tree.unflatten(structure, leaf_shapes(types))
    arrays, static = split_arrays_and_static(program)
    traced_costs: list[StepCost] = []

    def chunk(arrays: Program, state: State, first: Array, *batches: PyTree) -> tuple[State, Array, list[Array]]:
        return eqx.combine(arrays, static).chunk(state, first, length, traced_costs, *batches)

    first = jax.ShapeDtypeStruct((), jnp.int32)
    streams = streams_of(program.problem)
    draws = [
        [data.shapes((length, data.nodes, size)) for size in batch_sizes]
        for data, batch_sizes in zip(streams, sizes, strict=False)
    ]
    arguments = (arrays, state, first, *([draws] if sizes else []))
    compiled = compile_step(wrap(chunk, arrays, state), 1, *arguments)
    return Compiled.of(compiled, traced_costs[-1])
