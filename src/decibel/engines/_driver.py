"""The one loop that drives every run: of `solve`, `tune`, studies and sites."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

Cost = TypeVar("Cost", covariant=True)


class Advances(Protocol[Cost]):
    """What can be driven: a run, or several in one program."""

    step: int

    def compile(self, length: int) -> object: ...

    def advance(self, length: int) -> Cost: ...


class FinishedChunk(NamedTuple, Generic[Cost]):
    """Consecutive steps that have run: the first step, their number, their cost, and their time in seconds without
    compilation.
    """

    first: int
    length: int
    cost: Cost
    seconds: float


def drive(run: Advances[Cost], steps: int, every: int, *, offset: int = 0) -> Iterator[FinishedChunk[Cost]]:
    """Advances a run to `steps` and yields after each chunk: at step `offset`, and every `every` steps from there.

    Chunks are compiled before the first of them runs. The caller records what it needs, and stops by leaving the loop.
    """

    def length_at(step: int) -> int:
        stop = offset if step < offset else step + every - (step - offset) % every
        return min(stop, steps) - step

    if run.step >= steps:
        return
    remaining = steps - run.step - length_at(run.step)
    lengths = {length_at(run.step), every if remaining >= every else 0, remaining % every} - {0}
    for length in sorted(lengths):
        run.compile(length)
    while run.step < steps:
        first = run.step
        length = length_at(run.step)
        begun = time.perf_counter()
        cost = run.advance(length)
        yield FinishedChunk(first, length, cost, time.perf_counter() - begun)
