"""How programs are timed: in turns, so that what else the machine does disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from decibel.engines._run import Run

Program = Callable[[], Any]


def in_turns(
    programs: Mapping[str, Program], turns: int, *, warm_up: int = 1, before: Callable[[str], Any] = lambda name: None
) -> dict[str, np.ndarray]:
    """Seconds of every program in every turn.

    Args:
        programs: by name; each returns arrays, and its time ends when they are there.
        turns: that are counted.
        warm_up: turns before them, in which programs are compiled.
        before: is called with a program's name before its time begins.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(warm_up + turns):
        for name, program in programs.items():
            before(name)
            begun = time.perf_counter()
            jax.block_until_ready(program())
            seconds[name].append(time.perf_counter() - begun)
    return {name: np.array(each[warm_up:]) for name, each in seconds.items()}


def seconds_of(program: Program, turns: int, *, warm_up: int = 1) -> np.ndarray:
    """(turns,)"""
    return in_turns({"": program}, turns, warm_up=warm_up)[""]


def steps_of(runs: Mapping[str, Run], steps: int) -> dict[str, Program]:
    """So many steps of each run, as programs."""

    def program_of(run: Run) -> Program:
        def program() -> Any:
            if run.advance(steps) is None:
                raise AssertionError("a run diverged: times mean nothing.")
            return run.state

        return program

    return {name: program_of(run) for name, run in runs.items()}


def medians(seconds: Mapping[str, np.ndarray], unit: float = 1.0) -> dict[str, float]:
    return {name: float(np.median(each)) / unit for name, each in seconds.items()}


def against(seconds: Mapping[str, np.ndarray], one: str, other: str) -> float:
    """The median over turns of the ratio of two programs."""
    return float(np.median(seconds[one] / seconds[other]))


def bytes_of(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
