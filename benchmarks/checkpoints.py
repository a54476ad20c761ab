"""What checkpoints cost a run: the same run with and without them, in turns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import decibel as db

from .cases import Case, label_cleaning, regression
from .records import record

CASES: dict[str, tuple[Callable[[], Case], int]] = {  # and steps between checkpoints
    "regression, 10 entries": (lambda: regression("regression, 10 entries", 20, 10, 10, 100), 20_000),
    "MLP 784-300-10": (label_cleaning, 40),
}
SAVES = 4


def measure(turns: int, note: Callable[[str], Any]) -> dict[str, Any]:
    rows = []
    for name, (make, every) in CASES.items():
        note(name)
        rows.append(time_runs(make(), every, turns))
    return record("checkpoint", rows, {f"with ÷ without checkpoints, {row['case']}": row["against"] for row in rows})


def time_runs(case: Case, every: int, turns: int) -> dict[str, Any]:
    """Seconds of whole runs, the last write included; `every` steps lie between two checkpoints."""
    α, β, γ, θ = case.rates
    method = db.sparkle("ed", alpha=α, beta=β, gamma=γ, theta=θ, updates="simultaneous")
    problem, graph = case.problem(), db.graphs.ring(case.nodes)
    options = dict(steps=SAVES * every, eval_every=every, batch_size=case.batch, metrics=[], progress=False)
    times: dict[str, list[float]] = {"without": [], "with": []}
    state = 0
    for turn in range(1 + turns):
        for name, mine in times.items():
            with tempfile.TemporaryDirectory() as folder:
                saved = {"checkpoint": Path(folder) / "run"} if name == "with" else {}
                begun = time.perf_counter()
                result = db.solve(problem, method, graph, **options, **saved)
                jax.block_until_ready(result.state)
                if turn:
                    mine.append(time.perf_counter() - begun)
        state = sum(leaf.nbytes for leaf in jax.tree.leaves(result.state))
    seconds = {name: np.asarray(mine) for name, mine in times.items()}
    return {
        "case": case.name,
        "state_bytes": state,
        "steps_between": every,
        "seconds_between": float(np.median(seconds["without"])) / SAVES,
        "seconds": {name: float(np.median(mine)) for name, mine in seconds.items()},
        "seconds_per_checkpoint": float(np.median(seconds["with"] - seconds["without"])) / SAVES,
        "against": float(np.median(seconds["with"] / seconds["without"])),
    }
