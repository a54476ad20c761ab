"""What `core/_keys.py` saves: steps with threefry written out in one pass, in turns with steps with JAX's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

import decibel as db
from decibel.engines._program import RunConfig
from decibel.engines._run import Run

from .cases import Case, label_cleaning, regression
from .records import record

OURS, JAXS = "written out", "JAX's"
RINGS = ((10, 1000), (100, 300), (1000, 50), (10_000, 5))  # nodes, and steps per turn


def measure(turns: int, note: Callable[[str], Any]) -> dict[str, Any]:
    """SPARKLE-ED in float32 on the cases of `step`."""
    cases = [(regression("small, 20 nodes", 20, 10, 10, 100), 2000), (label_cleaning(), 5)]
    cases += [(regression(f"ring of {nodes:,}", nodes, 100, 10, 20), steps) for nodes, steps in RINGS]
    rows = []
    for case, steps in cases:
        note(case.name)
        rows.append(compare(case, steps, turns))
    return record("keys", rows, {f"{row['case']}: time ÷ {JAXS} keys": row["against"] for row in rows})


def compare(case: Case, steps: int, turns: int) -> dict[str, Any]:
    """Microseconds per step (medians), and their ratio (median over turns)."""
    α, β, γ, θ = case.rates
    method, graphs = db.sparkle("ed", alpha=α, beta=β, gamma=γ, theta=θ), db.Levels(x=db.graphs.ring(case.nodes))
    runs: dict[str, Run] = {
        name: db.Simulator().start(case.problem(), method, graphs, RunConfig(case.batch)) for name in (OURS, JAXS)
    }
    runs[JAXS].program = replace(runs[JAXS].program, key=jax.random.key(0, impl="threefry2x32"))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(1 + turns):
        for name, run in runs.items():
            run.compile(steps)
            begun = time.perf_counter()
            run.advance(steps)
            jax.block_until_ready(run.state)
            if turn:
                times[name].append((time.perf_counter() - begun) / steps * 1e6)
    equal = jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), *(r.state for r in runs.values()))
    return {
        "case": case.name,
        "nodes": case.nodes,
        "batch": case.batch,
        "steps": steps,
        "µs": {name: float(np.median(values)) for name, values in times.items()},
        "against": float(np.median(np.divide(times[OURS], times[JAXS]))),
        "bit for bit": all(jax.tree.leaves(equal)),
    }
