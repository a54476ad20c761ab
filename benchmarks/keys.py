"""What `core/_keys.py` saves: steps with threefry written out in one pass, in turns with steps with JAX's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

import decibel as db
from decibel.engines._run import Run

from .cases import Case, label_cleaning, regression
from .records import record
from .timing import against, in_turns, medians, steps_of

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
    runs: dict[str, Run] = {name: case.start(db.Simulator()) for name in (OURS, JAXS)}
    runs[JAXS].program = replace(runs[JAXS].program, key=jax.random.key(0, impl="threefry2x32"))
    seconds = in_turns(steps_of(runs, steps), turns)
    equal = jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), *(r.state for r in runs.values()))
    return {
        "case": case.name,
        "nodes": case.nodes,
        "batch": case.batch,
        "steps": steps,
        "µs": medians(seconds, 1e-6 * steps),
        "against": against(seconds, OURS, JAXS),
        "bit for bit": all(jax.tree.leaves(equal)),
    }
