"""The work of `decibel bench`: the time of a step on this machine."""

from __future__ import annotations

from typing import TypedDict

import jax

from ..solver._solve import solve
from ._registry import make_graph, make_method, make_task


class StepTimes(TypedDict):
    """The time of a step by method."""

    nodes: int
    device: str
    microseconds_per_step: dict[str, float]


def measure_steps(nodes: int, steps: int = 500) -> StepTimes:
    """Microseconds per step of three methods on linear regression over a ring: the best of three compiled runs."""
    task = make_task("linear_regression", nodes, 0, {})
    ring = make_graph("ring", nodes)
    microseconds: dict[str, float] = {}
    for name in ("sparkle-ed", "sparkle-gt", "d-soba"):
        method = make_method(name, {"alpha": 1e-3, "beta": 1e-3, "gamma": 1e-3}, task)
        runs = [
            solve(task.problem, method, ring, steps=steps, eval_every=steps, batch_size=10, metrics=[], progress=False)
            for _ in range(3)
        ]
        microseconds[name] = min(float(run.trace.last["seconds"]) for run in runs) / steps * 1e6
    return {"nodes": nodes, "device": jax.devices()[0].device_kind, "microseconds_per_step": microseconds}
