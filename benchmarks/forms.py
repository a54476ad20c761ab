"""What the forms of the hypergradient cost: a step of label cleaning with an MLP, and with a transformer, by Hessian
products, by differences of gradients and by penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import decibel as db
from decibel.engines._program import RunConfig
from decibel.graphs._graph import Levels

from . import scale
from .chunks import language_model
from .records import record
from .timing import against, in_turns, medians, steps_of

NODES = 10
FORMS = {
    "Hessian products": db.hypergradient.auxiliary(),
    "differences": db.hypergradient.difference(),
    "penalty": db.hypergradient.penalty(),
    "central penalty": db.hypergradient.penalty(central=True),
}
CASES: dict[str, tuple[Callable[[], db.Problem], int]] = {
    "MLP 784-300-10, batch 50": (lambda: scale.problem(NODES), 50),
    "MLP 784-300-10, batch 500": (lambda: scale.problem(NODES), 500),
    "transformer, batch 8": (language_model, 8),
}


def measure(turns: int, note: Callable[[str], Any]) -> dict[str, Any]:
    rows = []
    for name, (make, batch) in CASES.items():
        note(name)
        rows += [{"case": name, **row} for row in compare(make(), batch, turns)]
    first = next(iter(FORMS))
    ratios = {f"{row['form']} ÷ {first}, {row['case']}": row["against"] for row in rows if row["form"] != first}
    return record("forms", rows, ratios)


def compare(problem: db.Problem, batch: int, turns: int, steps: int = 4) -> list[dict[str, Any]]:
    """Seconds of a step, and bytes beside the state as the compiler plans them, each against Hessian products."""
    assert problem.nodes is not None
    graphs = Levels(x=db.graphs.ring(problem.nodes))
    runs = {
        name: db.Simulator().start(
            problem,
            db.sparkle("ed", alpha=0.1, beta=0.01, gamma=0.01, hypergradient=form),
            graphs,
            RunConfig(batch),
        )
        for name, form in FORMS.items()
    }
    beside = {name: run.compile(steps).temp_bytes for name, run in runs.items()}
    times = in_turns(steps_of(runs, steps), turns)
    seconds = medians(times, steps)
    first = next(iter(FORMS))
    return [
        {
            "form": name,
            "seconds": seconds[name],
            "against": against(times, name, first),
            "beside_bytes": beside[name],
            "memory_against": beside[name] / beside[first],
        }
        for name in FORMS
    ]
