"""Records which samples a traced step reads, and runs steps on samples that were read before."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from ._problem import Data, Problem
from ._streams import StreamData

Rows = Int[Array, "nodes batch"]  # of one draw
Leaves = tuple[Array, ...]


def streams_of(problem: Problem) -> list[StreamData]:
    """The data that are streams, each once."""
    fields = (problem.upper_data, problem.own_lower_data)
    return [data for data in fields if isinstance(data, StreamData)]


def with_recording(problem: Problem) -> tuple[Problem, list[list[Rows]]]:
    """The problem with streams that give zeros, and a list for each of `streams_of`, to which a step appends the rows
    of its draws.
    """
    recorded: list[list[Rows]] = []

    def change(data: Data, _: str) -> Data:
        if not isinstance(data, StreamData):
            return data
        drawn: list[Rows] = []
        recorded.append(drawn)

        def record(data: StreamData, rows: Rows) -> Leaves:
            drawn.append(rows)
            return tuple(jnp.zeros(shape.shape, shape.dtype) for shape in data.shapes(rows.shape))

        return data.read_by(record)

    return problem.map_data(change), recorded


def with_prefetched(problem: Problem, batches: Sequence[Sequence[Leaves]]) -> Problem:
    """The problem with streams that return these batches: for each of `streams_of` and each draw, its leaves."""
    remaining = iter(batches)

    def change(data: Data, _: str) -> Data:
        if not isinstance(data, StreamData):
            return data
        leaves = iter(next(remaining))
        return data.read_by(lambda data, rows: next(leaves))

    return problem.map_data(change)


def pop_source_error(problem: Problem) -> Exception | None:
    """The first error since the last call of a source that compiled steps read."""
    errors = [data.host.pop_error() for data in streams_of(problem)]
    return next((error for error in errors if error is not None), None)


def validate_streams(problem: Problem, batch_size: int | None, *, shuffle_once: bool) -> None:
    """Raises where a run needs more of its streams than batches that are drawn at random."""
    for data in streams_of(problem):
        argument = data.host.argument
        if batch_size is None:
            raise ValueError(
                f"batch_size is missing, and {argument} is a stream: give the number of samples in a batch."
            )
        if shuffle_once and data.host.ordered:
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
