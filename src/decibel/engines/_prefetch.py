"""Runs that read streams ahead: the host gathers the batches of the next steps while earlier steps run.

To find which samples a step reads, it is traced with streams that record the rows of every draw. If these are a
function of the step alone, all rows of a chunk are computed at once, a thread gathers the samples, and the scan of the
chunk takes them as inputs. If a step draws inside its own loop or branch, or depending on what it has computed, it
reads during the step instead (`decibel.problem._streams.read_by_callback`). Both give the same numbers as samples in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, core
from jax.interpreters import partial_eval

from ..core._types import PyTree
from ..methods._method import State
from ..problem._stream_trace import Leaves, streams_of, with_recording
from . import _memory as device_memory
from ._program import Program
from ._run import Compiled, Run, compile_chunk, leaf_shapes, leaf_types, split_arrays_and_static

READ_AHEAD_BYTES = 256 * 2**20  # bytes that are read ahead, of which half are in use while the other half are read
MIN_PARTS = 4  # a long chunk is read in at least this many parts, since nothing runs while the first is read
SPLIT_FROM_STEPS = 64

Batches = list[list[Leaves]]  # for each stream, for each draw: leaves (steps, nodes, batch, ...)


class Reads(NamedTuple):
    """What steps read: `rows(arrays, first, length)` for each stream and draw, (length, nodes, batch)."""

    rows: Callable[[Program, Array, int], list[list[Array]]]
    sizes: tuple[tuple[int, ...], ...]  # of the batches, for each stream and draw


class ReadAhead(NamedTuple):
    """The batches of `length` steps from step `first`, which a thread reads."""

    first: int
    length: int
    batches: Future[Batches]


class StreamedRun(Run):
    """A run of which some samples are read from sources, on one device."""

    def __init__(self, program: Program, **options: PyTree) -> None:
        super().__init__(program, **options)
        leaves, structure = jax.tree.flatten((self.program, self.state))
        self._reads = _find_reads(structure, leaf_types(leaves))
        self._streams = streams_of(program.problem)
        self._goal = 0
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: ReadAhead | None = None

    @property
    def reads_ahead(self) -> bool:
        """Whether batches are read before their steps; otherwise they are read during a step."""
        return self._reads is not None

    def plan_goal(self, steps: int) -> tuple[int, str]:
        self._goal = steps
        return steps, ""

    def close(self, *, finished: bool) -> None:
        self._ahead = None
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def compile(self, length: int) -> Compiled:
        if self._reads is None:
            return super().compile(length)
        for part in sorted(set(self._parts(length))):
            if part not in self._compiled:
                leaves, structure = jax.tree.flatten((self.program, self.state))
                with device_memory.oom_hint(self._oom_message):
                    compiled = compile_chunk(structure, leaf_types(leaves), part, self._wrap, self._reads.sizes)
                    self._compiled[part] = compiled
        return self._compiled[self._parts(length)[0]]

    def _run(self, length: int) -> tuple[bool, list[float]]:
        """Runs a chunk in parts, and reads the next part while one runs."""
        if self._reads is None:
            return super()._run(length)
        arrays = eqx.filter(self.program, eqx.is_array)
        finite = None
        times_of_parts: list[list[Array]] = []
        first = self.step
        parts = self._parts(length)
        for number, part in enumerate(parts):
            batches = self._take(first, part)
            jax.block_until_ready(finite)  # so that no more than two parts are held
            following = parts[number + 1] if number + 1 < len(parts) else self._next_chunk(first + part, length)
            if following:
                self._read_ahead(first + part, following)
            self.state, finite, times = self._compiled[part].chunk(arrays, self.state, np.int32(first), batches)
            del batches
            times_of_parts.append(times)
            first += part
        sums = [[np.asarray(times, np.float64).sum() for times in part] for part in times_of_parts]
        return bool(finite), [float(sum(sums_of_parts)) for sums_of_parts in zip(*sums, strict=True)]

    def _next_chunk(self, first: int, length: int) -> int:
        """The first part of the next chunk, assuming that it is as long as the last one. Otherwise what was read is not
        used.
        """
        remaining = min(length, self._goal - first)
        if remaining <= 0 or any(data.host.ordered for data in self._streams):
            return 0
        return self._parts(remaining)[0]

    def _parts(self, length: int) -> list[int]:
        """The chunk in equal parts within the limit. If that is impossible, the last is shorter."""
        assert self._reads is not None
        step_bytes = sum(
            data.nodes * sum(batch_sizes) * data.host.sample_bytes
            for data, batch_sizes in zip(self._streams, self._reads.sizes, strict=True)
        )
        fewest = max(-(-length * step_bytes * 2 // READ_AHEAD_BYTES), MIN_PARTS if length >= SPLIT_FROM_STEPS else 1)
        fewest = min(fewest, length)
        count = next((count for count in range(fewest, min(2 * fewest, length) + 1) if length % count == 0), fewest)
        part_length = -(-length // count)
        parts = [part_length] * (length // part_length)
        remaining = length % part_length
        return [*parts, remaining] if remaining else parts

    def _take(self, first: int, length: int) -> Batches:
        """The batches of these steps: read ahead, or else read now."""
        ahead = self._ahead
        self._ahead = None
        if ahead is not None and (ahead.first, ahead.length) == (first, length):
            return ahead.batches.result()
        if ahead is not None and not ahead.batches.cancel():
            ahead.batches.exception()  # waits, since one thread at a time reads a source
        return self._batch_reader(first, length)()

    def _read_ahead(self, first: int, length: int) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="decibel-stream")
        self._ahead = ReadAhead(first, length, self._thread.submit(self._batch_reader(first, length)))

    def _batch_reader(self, first: int, length: int) -> Callable[[], Batches]:
        """A function that reads these batches. The row indices are dispatched to the device now, before later steps
        queue up behind them."""
        assert self._reads is not None
        rows = self._reads.rows(eqx.filter(self.program, eqx.is_array), jnp.int32(first), length)
        x64 = jax.dtypes.canonicalize_dtype(np.float64) == np.float64  # a setting that other threads do not inherit
        device = self.program.node_ids.sharding

        def read() -> Batches:
            batches: Batches = []
            for data, draws in zip(self._streams, rows, strict=True):
                gathered = data.host.gather(np.asarray(data.node_ids), [np.asarray(draw) for draw in draws])
                with jax.enable_x64(x64):
                    batches.append(jax.device_put(gathered, device))
            return batches

        return read


@lru_cache(maxsize=32)
def _find_reads(structure: Hashable, types: tuple[PyTree, ...]) -> Reads | None:
    """What steps read, or None if it cannot be known before a step."""
    program, state = jax.tree.unflatten(structure, leaf_shapes(types))
    arrays, static = split_arrays_and_static(program)

    def step(k: Array, arrays: Program, state: State) -> list[list[Array]]:
        program: Program = eqx.combine(arrays, static)
        problem, rows = with_recording(program.problem)
        replace(program, problem=problem).step(k, state)
        return rows

    traced, rows = jax.make_jaxpr(step, return_shape=True)(jax.ShapeDtypeStruct((), jnp.int32), arrays, state)
    # Rows of a draw inside a loop or a branch are constants that belong to another trace.
    if not jax.tree.leaves(rows) or any(isinstance(constant, core.Tracer) for constant in traced.consts):
        return None
    short, used = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    if any(used[len(used) - len(jax.tree.leaves(state)) :]):
        return None

    def evaluate(k: Array, arrays: Program) -> list[list[Array]]:
        arguments = [k, *jax.tree.leaves(arrays)]
        needed = [leaf for leaf, use in zip(arguments, used, strict=False) if use]
        batches = core.eval_jaxpr(short, traced.consts, *needed)
        return jax.tree.unflatten(jax.tree.structure(rows), batches)

    def chunk(arrays: Program, first: Array, length: int) -> list[list[Array]]:
        return jax.vmap(lambda k: evaluate(k, arrays))(first + jnp.arange(length, dtype=jnp.int32))

    sizes = tuple(tuple(int(draw.shape[1]) for draw in draws) for draws in rows)
    return Reads(jax.jit(chunk, static_argnums=2), sizes)
