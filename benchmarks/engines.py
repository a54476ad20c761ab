"""A step of the cluster against a step of the simulator, at the same work: devices of one process, or processes.

In every group of processes the two take turns; the first process runs the simulator while the others wait. Run as a
module it is one of the processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

import decibel as db
from decibel.engines._program import RunConfig

from .cases import Case, label_cleaning, regression
from .processes import answer, join, together
from .records import record

NODES = 8
CASES: dict[str, tuple[Callable[[], Case], int]] = {  # and steps per turn
    "regression, 100 entries": (lambda: regression("regression, 100 entries", NODES, 100, 10, 20), 200),
    "MLP 784-300-10": (lambda: label_cleaning(NODES, samples=8_000), 5),
}
GROUPS = ((1, 2), (1, 8), (2, 1), (4, 1), (8, 1))  # processes, and devices of each


def measure(groups: Sequence[tuple[int, int]], turns: int, note: Callable[[str], Any]) -> dict[str, Any]:
    rows = []
    for processes, devices in groups:
        note(f"{processes} processes of {devices} devices")
        rows += together("benchmarks.engines", processes, {"turns": turns}, devices=devices)[0]
    name = "cluster ÷ simulator, {case}, {processes} processes of {devices} devices".format_map
    return record("engines", rows, {name(row): row["against"] for row in rows})


# In the processes


def time_steps(case: Case, length: int, turns: int) -> dict[str, Any]:
    α, β, γ, θ = case.rates
    method = db.sparkle("ed", alpha=α, beta=β, gamma=γ, theta=θ, updates="simultaneous")
    graph = db.Levels(x=db.graphs.ring(NODES))
    problem, first = case.problem(), jax.process_index() == 0
    engines = {"cluster": db.Cluster(), **({"simulator": db.Simulator()} if first else {})}
    runs = {name: engine.start(problem, method, graph, RunConfig(case.batch)) for name, engine in engines.items()}
    for run in runs.values():
        run.compile(length)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(1 + turns):
        for name, run in runs.items():
            if name == "cluster" and jax.process_count() > 1:
                multihost_utils.sync_global_devices(f"{case.name} {turn}")
            begun = time.perf_counter()
            if run.advance(length) is None:
                raise AssertionError(f"{case.name} diverged: times mean nothing.")
            jax.block_until_ready(run.state)
            times[name].append((time.perf_counter() - begun) / length * 1e6)
    if not first:
        return {}
    µs = {name: np.asarray(values[1:]) for name, values in times.items()}
    return {
        "case": case.name,
        "processes": jax.process_count(),
        "devices": jax.local_device_count(),
        "µs": {name: float(np.median(values)) for name, values in µs.items()},
        "against": float(np.median(µs["cluster"] / µs["simulator"])),
    }


def main() -> None:
    _, told = join()
    answer([time_steps(make(), length, told["turns"]) for make, length in CASES.values()])


if __name__ == "__main__":
    main()
