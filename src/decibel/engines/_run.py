"""A run in progress: a program, its state, and the chunks that are compiled of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._ledger import Counts, StepCost
from ..core._types import PyTree
from ..methods._method import State
from ..network._links import LinkStates
from ..problem._stream_trace import source_error, streams_of
from . import _memory as memory
from ._convolutions import compile_step
from ._program import Program

Chunk = Callable[
    ..., tuple[State, Array, list[Array]]
]  # of arrays, state, first step, and batches where they are given
Wrap = Callable[[Chunk, Program, State], Chunk]


def as_it_is(chunk: Chunk, arrays: Program, state: State) -> Chunk:
    """All nodes on one device."""
    return chunk


class Compiled(NamedTuple):
    """A chunk, the cost of one step, and the bytes it takes beside the program and the state."""

    chunk: jax.stages.Compiled
    costs: StepCost
    beside: int

    @classmethod
    def of(cls, chunk: jax.stages.Compiled, costs: StepCost) -> Compiled:
        memory = chunk.memory_analysis()  # None where a backend cannot say; asked once, since it takes milliseconds
        return cls(chunk, costs, memory.temp_size_in_bytes if memory else 0)


class Best(NamedTuple):
    """The state of a step that is kept, and how to have it."""

    step: int
    state: Callable[[], State]


class Run:
    """A run in progress, which `solve` advances chunk by chunk.

    Args:
        program: what is compiled.
        begin: makes the state before the first step, placed on the devices; None takes the program's own.
        full: the error message where a device's memory is full.
        wrap: spreads a chunk over devices; the default runs it on one.
        devices: how many devices hold the nodes.
        move: `move(links, before=n)` brings link states from n devices to these.
        split: how a node is split over devices, on which the order of entries in link states depends.
        keep_copy: whether the state is copied before a chunk; False computes it again where a chunk diverges.

    Attributes:
        state: the current state.
        step: where it is: the number of the step that comes next.
        skipped: how many steps before it were not done here, since other sites did them while this one was away.
        best: the best state so far, where one is kept.
    """

    alone = False  # whether only one of several nodes lives here, so that nodes cannot be compared

    def __init__(
        self,
        program: Program,
        *,
        begin: Callable[[], State] | None = None,
        full: str,
        wrap: Wrap = as_it_is,
        devices: int = 1,
        move: Callable[..., tuple[LinkStates, ...]] | None = None,
        split: str = "",
        keep_copy: bool = True,
    ) -> None:
        self.program = program
        self.step = 0
        self.skipped = 0
        self._full = full
        self._wrap = wrap
        self.devices = devices
        self.move = move
        self.split = split
        self._keep_copy = keep_copy
        self._begin = begin or program.start
        self._compiled: dict[int, Compiled] = {}
        source_error(program.problem)  # of a run before, which was interrupted
        self.state = self.begin()
        self.best: Best | None = None
        self._origin: Best | None = None  # from where steps are repeated, and the lengths of the chunks since
        self._done: list[int] = []

    def begin(self) -> State:
        """A state before the first step."""
        with memory.oom_hint(self._full):
            return self._begin()

    def free(self) -> None:
        """Deletes the state's buffers, to make room for another."""
        for leaf in jax.tree.leaves(self.state):
            leaf.delete()

    def keep(self) -> None:
        """Keeps a copy of the state, in place of the one kept before."""
        self.best = None
        beside = max((compiled.beside for compiled in self._compiled.values()), default=0)
        with memory.oom_hint(self._full):
            self.best = Best(self.step, memory.copied(self.state, beside))

    def compile(self, length: int) -> Compiled:
        """The chunk of that length, compiled once per program and length."""
        if length not in self._compiled:
            leaves, structure = jax.tree.flatten((self.program, self.state))
            with memory.oom_hint(self._full):  # on a GPU kernels are tried, with arrays as large as the run's
                self._compiled[length] = compile_chunk(structure, kinds_of(leaves), length, self._wrap)
        return self._compiled[length]

    @property
    def places(self) -> np.ndarray:
        """Where its nodes are in the graph."""
        return np.asarray(self.program.nodes)

    @property
    def placement(self) -> str:
        """Where a state of this run belongs, besides its shapes: saved with it, and given to `amends` and `adopt`."""
        return ""

    def amends(self, placement: str) -> bool:
        """Whether a saved state is of the same run with other members or another graph; raises `ValueError` where it
        cannot go on."""
        return False

    def adopt(self, saved: State, placement: str) -> State:
        """A saved state that `amends`, as it is here."""
        return saved

    def restore_order(self, saved: Sequence[int]) -> Sequence[int]:
        """Of the steps that were saved, newest first, those to continue from, best first."""
        return saved

    def reach(self, steps: int) -> tuple[int, str]:
        """The last of so many steps that the run may do, and, where it is earlier, why."""
        return steps, ""

    @property
    def steps_done(self) -> int:
        """The steps that were done here."""
        return self.step - self.skipped

    @property
    def ended(self) -> str:
        """Why no further step will be done before the goal; nothing if there will be."""
        return ""

    def interrupt(self) -> None:
        """The process is to end; one that waits for others waits no longer. A signal's handler calls it."""

    def close(self, *, finished: bool) -> None:
        """The run is over, or ended early."""

    def kept(self, beside: int) -> Callable[[], State]:
        """How to have the present state again: from a copy, or by the steps that led to it, which repeat exactly."""
        if self._keep_copy:
            return memory.copied(self.state, beside)
        if self._origin is None or self._origin.step + sum(self._done) != self.step:
            # Not a method of this run, which would keep itself and its state alive until garbage is collected.
            begin = self._begin if self.step == 0 else _at_host(self.state)
            self._origin, self._done = Best(self.step, begin), []
        origin = self._origin
        lengths = list(self._done)
        step = self.step

        def again() -> State:
            self.state, self.step = origin.state(), origin.step
            for length in lengths:
                self._repeat(length)
                self.step += length
            assert self.step == step
            return self.state

        return again

    def _repeat(self, length: int) -> None:
        """A chunk that was done before, once more."""
        arrays = eqx.filter(self.program, eqx.is_array)
        self.state = self.compile(length).chunk(arrays, self.state, np.int32(self.step))[0]

    def advance(self, length: int) -> Counts | None:
        """Moves on and returns the cost; None, with the state as it was, where something diverged."""
        chunk, costs, beside = self.compile(length)
        with memory.oom_hint(self._full):
            # The chunk consumes the state it is given, so this copy is what remains if it diverges.
            good = self.kept(beside)
            arrays = eqx.filter(self.program, eqx.is_array)
            state, finite, repetitions = chunk(arrays, self.state, np.int32(self.step))
            finite = bool(finite)  # waits until all is computed
            error = source_error(self.program.problem)
            if error is not None or not finite:
                del state
                self.state = good()
                if error is not None:
                    raise error
                return None
        self.state, self.step = state, self.step + length
        if not self._keep_copy:
            self._done.append(length)
        return costs.total(length, [np.asarray(times, np.float64).sum() for times in repetitions])


def _at_host(state: State) -> Callable[[], State]:
    """A state that was restored, in the host's memory."""
    places, held = jax.tree.map(lambda leaf: leaf.sharding, state), jax.device_get(state)
    return lambda: jax.device_put(held, places)


def kinds_of(leaves: list[PyTree]) -> tuple[PyTree, ...]:
    """What a program of these leaves is compiled for."""
    return tuple((jax.typeof(leaf), leaf.sharding) if eqx.is_array(leaf) else leaf for leaf in leaves)


def shapes_of(kinds: tuple[PyTree, ...]) -> list[PyTree]:
    """The leaves of these kinds, without their contents."""
    return [
        jax.ShapeDtypeStruct(kind[0].shape, kind[0].dtype, weak_type=kind[0].weak_type, sharding=kind[1])
        if isinstance(kind, tuple)
        else kind
        for kind in kinds
    ]


@lru_cache(maxsize=32)
def compile_chunk(
    structure: Hashable, kinds: tuple[PyTree, ...], length: int, wrap: Wrap, sizes: tuple[tuple[int, ...], ...] = ()
) -> Compiled:
    """Ahead of time, so that compiling is never timed as running; the state's buffers are donated.

    A chunk with `sizes` is given the batches of that size, for every stream and draw, beside the first step.
    """
    program, state = jax.tree.unflatten(structure, shapes_of(kinds))
    arrays, static = eqx.partition(program, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    costs: list[StepCost] = []

    def chunk(arrays: Program, state: State, first: Array, *batches: PyTree) -> tuple[State, Array, list[Array]]:
        return eqx.combine(arrays, static).chunk(state, first, length, costs, *batches)

    first = jax.ShapeDtypeStruct((), jnp.int32)
    streams = streams_of(program.problem)
    draws = [
        [data.shapes((length, data.nodes, size)) for size in each] for data, each in zip(streams, sizes, strict=False)
    ]
    arguments = (arrays, state, first, *([draws] if sizes else []))
    compiled = compile_step(wrap(chunk, arrays, state), 1, *arguments)
    return Compiled.of(compiled, costs[-1])
