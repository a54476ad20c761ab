"""What checkpoints cost a run: the same run with and without them, in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import decibel as db

from .cases import Case, label_cleaning, regression
from .records import record
from .timing import against, bytes_of, in_turns, medians

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
    problem, graph = case.problem(), db.graphs.ring(case.nodes)
    options = dict(steps=SAVES * every, eval_every=every, batch_size=case.batch, metrics=[], progress=False)
    numbers = count()
    with tempfile.TemporaryDirectory() as folder:

        def run(**more: Any) -> Any:
            return db.solve(problem, case.method(), graph, **options, **more).state

        programs = {"without": run, "with": lambda: run(checkpoint=Path(folder) / f"run {next(numbers)}")}
        seconds = in_turns(programs, turns)
        state = bytes_of(run())
    middle = medians(seconds)
    return {
        "case": case.name,
        "state_bytes": state,
        "steps_between": every,
        "seconds_between": middle["without"] / SAVES,
        "seconds": middle,
        "seconds_per_checkpoint": medians({"": seconds["with"] - seconds["without"]}, SAVES)[""],
        "against": against(seconds, "with", "without"),
    }
