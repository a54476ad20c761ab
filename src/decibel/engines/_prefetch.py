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
from ._run import Compiled, Run, compile_chunk, kinds_of, shapes_apart, shapes_of

READ_AHEAD_BYTES = 256 * 2**20  # bytes that are read ahead, of which half are in use while the other half are read
MIN_PARTS = 4  # a long chunk is read in at least this many parts, since nothing runs while the first is read
SPLIT_FROM_STEPS = 64

Batches = list[list[Leaves]]  # for each stream, for each draw: leaves (steps, nodes, batch, ...)


class ReadPlan(NamedTuple):
    """What steps read: `rows(arrays, first, length)` for each stream and draw, (length, nodes, batch)."""

    rows: Callable[[Program, Array, int], list[list[Array]]]
    sizes: tuple[tuple[int, ...], ...]  # of the batches, for each stream and draw


class StreamedRun(Run):
    """A run of which some samples are read from sources, on one device."""

    def __init__(self, program: Program, **options: PyTree) -> None:
        super().__init__(program, **options)
        leaves, structure = jax.tree.flatten((self.program, self.state))
        self._plan = _plan(structure, kinds_of(leaves))
        self._streams = streams_of(program.problem)
        self._goal = 0
        self._thread: ThreadPoolExecutor | None = None
        self._ready: tuple[tuple[int, int], Future[Batches]] | None = None  # first step, length; and the batches

    @property
    def reads_ahead(self) -> bool:
        """Whether batches are read before their steps; otherwise they are read during a step."""
        return self._plan is not None

    def plan_goal(self, steps: int) -> tuple[int, str]:
        self._goal = steps
        return steps, ""

    def close(self, *, finished: bool) -> None:
        self._ready = None
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def compile(self, length: int) -> Compiled:
        if self._plan is None:
            return super().compile(length)
        for part in sorted(set(self._parts(length))):
            if part not in self._compiled:
                leaves, structure = jax.tree.flatten((self.program, self.state))
                with device_memory.oom_hint(self._oom_message):
                    compiled = compile_chunk(structure, kinds_of(leaves), part, self._wrap, self._plan.sizes)
                    self._compiled[part] = compiled
        return self._compiled[self._parts(length)[0]]

    def _run(self, length: int) -> tuple[bool, list[float]]:
        """A chunk in parts, of which the next is read while one runs."""
        if self._plan is None:
            return super()._run(length)
        arrays, finite = eqx.filter(self.program, eqx.is_array), None
        repeated: list[list[Array]] = []
        first, parts = self.step, self._parts(length)
        for number, part in enumerate(parts):
            batches = self._take(first, part)
            jax.block_until_ready(finite)  # so that no more than two parts are held
            following = parts[number + 1] if number + 1 < len(parts) else self._next_chunk(first + part, length)
            if following:
                self._read_ahead(first + part, following)
            self.state, finite, times = self._compiled[part].chunk(arrays, self.state, np.int32(first), batches)
            del batches
            repeated.append(times)
            first += part
        sums = [[np.asarray(times, np.float64).sum() for times in each] for each in repeated]
        return bool(finite), [float(sum(each)) for each in zip(*sums, strict=True)]

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
        assert self._plan is not None
        sizes = zip(self._streams, self._plan.sizes, strict=True)
        step = sum(data.nodes * sum(each) * data.host.sample_bytes for data, each in sizes)
        fewest = max(-(-length * step * 2 // READ_AHEAD_BYTES), MIN_PARTS if length >= SPLIT_FROM_STEPS else 1)
        fewest = min(fewest, length)
        count = next((count for count in range(fewest, min(2 * fewest, length) + 1) if length % count == 0), fewest)
        each = -(-length // count)
        return [each] * (length // each) + [length % each] * (length % each > 0)

    def _take(self, first: int, length: int) -> Batches:
        """The batches of these steps: read ahead, or else read now."""
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] == (first, length):
            return ready[1].result()
        if ready is not None and not ready[1].cancel():
            ready[1].exception()  # sources are read by one at a time
        return self._batch_reader(first, length)()

    def _read_ahead(self, first: int, length: int) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="decibel-stream")
        self._ready = (first, length), self._thread.submit(self._batch_reader(first, length))

    def _batch_reader(self, first: int, length: int) -> Callable[[], Batches]:
        """A function that reads these batches. The row indices are dispatched to the device now, before later steps
        queue up behind them."""
        assert self._plan is not None
        rows = self._plan.rows(eqx.filter(self.program, eqx.is_array), jnp.int32(first), length)
        # Settings that other threads do not inherit.
        x64, device = jax.dtypes.canonicalize_dtype(np.float64) == np.float64, self.program.nodes.sharding

        def read() -> Batches:
            batches: Batches = []
            for data, each in zip(self._streams, rows, strict=True):
                gathered = data.host.gather(np.asarray(data.node_ids), [np.asarray(draw) for draw in each])
                with jax.enable_x64(x64):
                    batches.append(jax.device_put(gathered, device))
            return batches

        return read


@lru_cache(maxsize=32)
def _plan(structure: Hashable, kinds: tuple[PyTree, ...]) -> ReadPlan | None:
    """What steps read, or None if it cannot be known before a step."""
    program, state = jax.tree.unflatten(structure, shapes_of(kinds))
    arrays, static = shapes_apart(program)

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

    sizes = tuple(tuple(int(draw.shape[1]) for draw in each) for each in rows)
    return ReadPlan(jax.jit(chunk, static_argnums=2), sizes)
