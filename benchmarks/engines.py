"""A step of the cluster against a step of the simulator, at the same work: devices of one process, or processes.

In every group of processes the two take turns; the first process runs the simulator while the others wait. Run as a
module it is one of the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import multihost_utils

import decibel as db

from .cases import Case, label_cleaning, regression
from .processes import answer, join, together
from .records import record
from .timing import against, in_turns, medians, steps_of

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
    first = jax.process_index() == 0
    engines = {"cluster": db.Cluster(), **({"simulator": db.Simulator()} if first else {})}
    runs = {name: case.start(engine) for name, engine in engines.items()}
    for run in runs.values():
        run.compile(length)

    def meet(name: str) -> None:
        if name == "cluster" and jax.process_count() > 1:
            multihost_utils.sync_global_devices(case.name)

    seconds = in_turns(steps_of(runs, length), turns, before=meet)
    if not first:
        return {}
    return {
        "case": case.name,
        "processes": jax.process_count(),
        "devices": jax.local_device_count(),
        "µs": medians(seconds, 1e-6 * length),
        "against": against(seconds, "cluster", "simulator"),
    }


def main() -> None:
    _, told = join()
    answer([time_steps(make(), length, told["turns"]) for make, length in CASES.values()])


if __name__ == "__main__":
    main()
