"""Records which samples a traced step reads, and runs steps on samples that were read before."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from ._problem import Data, Problem
from ._streams import StreamData

Leaves = tuple[Array, ...]  # of one draw


class RecordingReader:
    """Records the rows of every draw, and returns zeros."""

    def __init__(self) -> None:
        self.rows: list[Int[Array, "nodes batch"]] = []

    def take(self, data: StreamData, rows: Int[Array, "nodes batch"]) -> Leaves:
        self.rows.append(rows)
        return tuple(jnp.zeros(shape.shape, shape.dtype) for shape in data.shapes(rows.shape))


class PrefetchedReader:
    """Returns the batches that were read for the draws, in order."""

    def __init__(self, batches: Sequence[Leaves]) -> None:
        self._left = list(batches)

    def take(self, data: StreamData, rows: Int[Array, "nodes batch"]) -> Leaves:
        return self._left.pop(0)


def streams_of(problem: Problem) -> list[StreamData]:
    """The data that are streams, each once."""
    fields = (problem.upper_data, problem.own_lower_data)
    return [data for data in fields if isinstance(data, StreamData)]


def with_recording(problem: Problem) -> tuple[Problem, list[RecordingReader]]:
    """The problem with recording streams, and their recorders, in the order of `streams_of`."""
    notes: list[RecordingReader] = []

    def change(data: Data, _: str) -> Data:
        if not isinstance(data, StreamData):
            return data
        notes.append(RecordingReader())
        return data.read_by(notes[-1])

    return problem.map_data(change), notes


def with_prefetched(problem: Problem, batches: Sequence[Sequence[Leaves]]) -> Problem:
    """The problem with streams that return these batches: for each of `streams_of` and each draw, its leaves."""
    remaining = list(batches)

    def change(data: Data, _: str) -> Data:
        return data.read_by(PrefetchedReader(remaining.pop(0))) if isinstance(data, StreamData) else data

    return problem.map_data(change)


def pop_source_error(problem: Problem) -> Exception | None:
    """The first error since the last call of a source that compiled steps read."""
    errors = [data.host.pop_error() for data in streams_of(problem)]
    return next((error for error in errors if error is not None), None)


def validate_streams(problem: Problem, batch_size: int | None, *, in_order: bool) -> None:
    """Raises where a run needs more of its streams than batches that are drawn at random."""
    for data in streams_of(problem):
        argument = data.host.argument
        if batch_size is None:
            raise ValueError(
                f"batch_size is missing, and {argument} is a stream: give the number of samples in a batch."
            )
        if in_order and data.host.ordered:
            raise ValueError(
                f"sampling='shuffle-once' cannot order the iterators of {argument}: leave it out, or give sources."
            )


def validate_indexed(problem: Problem, use: str) -> None:
    """Raises where streams are iterators, which give every batch once."""
    for data in streams_of(problem):
        if data.host.ordered:
            raise ValueError(
                f"{use} needs batches that can be drawn by index, and {data.host.argument} has iterators: give sources "
                "with __len__ and __getitem__, such as db.sources.arrays(...)."
            )
