"""What `node_chunk` saves: the memory beside the state of a step that takes some nodes' derivatives at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import decibel as db
from decibel.engines._program import RunConfig
from decibel.engines._run import Run
from decibel.graphs._graph import Levels

from . import scale
from .records import record

NODES, PART = 32, 4


def language_model() -> db.Problem:
    """Much is computed from few weights: a small transformer over bytes."""
    texts = {"counting": ["one two three four. " * 9_000], "vowels": ["a e i o u. " * 18_000]}
    return db.tasks.domain_reweighting(texts, NODES, windows=400, validation=8, test=8).problem


CASES: dict[str, tuple[Callable[[], db.Problem], int]] = {  # and the size of a batch
    "transformer, batch 8": (language_model, 8),
    "MLP 784-300-10, batch 50": (lambda: scale.problem(NODES), 50),
    "MLP 784-300-10, batch 500": (lambda: scale.problem(NODES), 500),
}


def measure(turns: int, note: Callable[[str], Any]) -> dict[str, Any]:
    rows = []
    for name, (make, batch) in CASES.items():
        note(name)
        rows.append({"case": name, "nodes": NODES, "node_chunk": PART, **compare(make(), batch, turns)})
    return record("chunks", rows, {f"memory in parts ÷ at once, {row['case']}": row["against"] for row in rows})


def compare(problem: db.Problem, batch: int, turns: int, steps: int = 2) -> dict[str, Any]:
    """Bytes beside the state, as the compiler plans them, and what the smaller plan costs in time, in turns."""
    method = db.sparkle("ed", alpha=0.1, beta=0.01, gamma=0.01, theta=0.3, updates="simultaneous")
    runs: dict[str, Run] = {
        name: db.Simulator(node_chunk=part).start(problem, method, Levels(x=db.graphs.ring(NODES)), RunConfig(batch))
        for name, part in (("at once", None), ("in parts", PART))
    }
    beside = {name: run.compile(steps).beside for name, run in runs.items()}
    times = in_turns(runs, steps, turns)
    return {
        "state_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(runs["at once"].state)),
        "beside_bytes": beside,
        "against": beside["in parts"] / beside["at once"],
        "time_against": float(np.median(np.divide(times["in parts"], times["at once"]))),
    }


def in_turns(runs: dict[str, Run], steps: int, turns: int) -> dict[str, list[float]]:
    """Seconds of so many steps of each run, which take turns; the first turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(1 + turns):
        for name, run in runs.items():
            begun = time.perf_counter()
            run.advance(steps)
            jax.block_until_ready(run.state)
            if turn:
                times[name].append(time.perf_counter() - begun)
    return times
