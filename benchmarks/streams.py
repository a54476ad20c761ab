"""What it costs to read samples from a memory-mapped file while a run lasts, against samples on the device.

    python -m benchmarks streams [--full]

The same run three times, in turns: samples in memory, samples that a thread reads ahead of the steps, and samples that
each step reads by a callback. Results are compared before anything is timed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import decibel as db
from decibel.engines._prefetch import StreamedRun
from decibel.engines._program import RunConfig
from decibel.engines._run import Run
from decibel.graphs._graph import Levels

from . import scale
from .records import record
from .timing import Program, against, in_turns

MEMORY, AHEAD, CALLS = "in memory", "read ahead", "by callback"
CHUNKS = 5  # of a turn
# Hidden units, nodes, samples of each, batch, and steps of a chunk.
SMALL = {"MLP 784-300-10, 8 nodes": (300, 8, 2_000, 50, 10)}
LARGE = {
    "MLP 784-300-10, 8 nodes": (300, 8, 20_000, 50, 100),
    "MLP 784-300-10, 32 nodes": (300, 32, 20_000, 50, 100),
    "MLP 784-20000-10, 8 nodes": (20_000, 8, 20_000, 50, 100),
}


def measure(cases: dict[str, tuple[int, int, int, int, int]], turns: int, note: Callable[[str], Any]) -> dict[str, Any]:
    rows, ratios = [], {}
    for name, sizes in cases.items():
        note(name)
        rows.append({"case": name, **compare(*sizes, turns)})
        ratios |= {f"{kind} ÷ in memory, {name}": against for kind, against in rows[-1]["against"].items()}
    return record("streams", rows, ratios)


def compare(hidden: int, nodes: int, samples: int, batch: int, steps: int, turns: int) -> dict[str, Any]:
    """Samples per second of both levels, and the time of each kind of reading against samples in memory."""
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder), nodes, samples)
        runs = start(files, batch, hidden)
        for run in runs.values():
            run.plan_goal(steps)
            run.advance(steps)
        check({name: run.state for name, run in runs.items()})
        times = in_turns(chunks_of(runs, steps), turns, warm_up=0)
        for run in runs.values():
            run.close(finished=True)
    taken = 2 * nodes * batch * steps * CHUNKS
    return {
        "nodes": nodes,
        "batch": batch,
        "steps": steps * CHUNKS,
        "stream_bytes": nodes * samples * (784 + 2) * 4,
        "samples_per_second": {name: taken / float(np.median(each)) for name, each in times.items()},
        "against": {name: against(times, name, MEMORY) for name in times if name != MEMORY},
    }


def check(states: dict[str, Any]) -> None:
    """Bit by bit. On a GPU a program that calls back sums in another order, and is not compared."""
    compared = [AHEAD, CALLS] if jax.default_backend() == "cpu" else [AHEAD]
    for name in compared:
        pairs = zip(jax.tree.leaves(states[MEMORY]), jax.tree.leaves(states[name]), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs), f"samples {name} do not give the numbers of those in memory"


def write(folder: Path, nodes: int, samples: int) -> list[tuple[np.ndarray, ...]]:
    """Images with a class in their mean, their labels and numbers, of every node as memory-mapped files."""
    files = []
    for node in range(nodes):
        rng = np.random.default_rng(node)
        labels = rng.integers(0, 10, samples, np.int32)
        images = rng.random((samples, 784), np.float32) + 0.1 * labels[:, None].astype(np.float32)
        numbers = (node * samples + np.arange(samples, dtype=np.int32)) % np.int32(scale.WEIGHTS)
        paths = [folder / f"{name}{node}.npy" for name in ("images", "labels", "numbers")]
        for path, array in zip(paths, (images, labels, numbers), strict=True):
            np.save(path, array)
        files.append(tuple(np.load(path, mmap_mode="r") for path in paths))
    return files


def start(files: list[tuple[np.ndarray, ...]], batch: int, hidden: int) -> dict[str, Run]:
    method = db.sparkle("ed", alpha=0.1, beta=0.01, gamma=0.01, theta=0.3, updates="simultaneous")
    like = scale.problem(len(files), hidden)
    levels, config = Levels(x=db.graphs.ring(len(files))), RunConfig(batch)

    def begin(data: list[Any]) -> Run:
        given = {"upper_data": data, "lower_data": data, "x0": like.x0, "y0": like.y0}
        return db.Simulator().start(db.Problem(scale.upper, scale.lower, **given), method, levels, config)

    sources = [db.sources.arrays(arrays) for arrays in files]
    runs = {MEMORY: begin(files), AHEAD: begin(sources), CALLS: begin(list(sources))}
    ahead, calls = runs[AHEAD], runs[CALLS]
    assert isinstance(ahead, StreamedRun) and isinstance(calls, StreamedRun) and ahead.reads_ahead
    calls._reads = None
    return runs


def chunks_of(runs: dict[str, Run], steps: int) -> dict[str, Program]:
    """`CHUNKS` chunks of each run, as programs; nothing is read ahead into another's turn."""

    def program_of(run: Run) -> Program:
        def program() -> Any:
            run.plan_goal(run.step + CHUNKS * steps)
            for _ in range(CHUNKS):
                run.advance(steps)
            return run.state

        return program

    return {name: program_of(run) for name, run in runs.items()}
