"""SPARKLE-ED with simultaneous and with alternating updates: the error left for the same samples, bytes or seconds.

A simultaneous step takes one upper and one lower batch, one linearization and one message; an alternating one three
lower batches, three linearizations and three messages, but newer values. Each gets its own step sizes, the best of
the same candidates for the same budget, on seeds that are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

import decibel as db
from decibel.engines._program import RunConfig

from .records import record
from .timing import seconds_of, steps_of

UPDATES = ("simultaneous", "alternating")
BUDGETS = ("samples", "bytes", "seconds")
SEEDS, SEARCHED = (10, 11, 12, 13, 14, 15), (0, 1, 2)
MOMENTS = 5
TASKS: dict[str, tuple[Callable[[], db.tasks.Task], str, tuple[float, ...], tuple[float, ...], int]] = {
    # task, metric, candidates of α, of β = γ, batch size
    "linear regression": (db.tasks.linear_regression, "distance", (0.01, 0.03, 0.1, 0.3), (0.03, 0.1, 0.3), 10),
    "policy evaluation": (db.tasks.policy_evaluation, "distance", (0.01, 0.03, 0.1, 0.3), (0.1, 0.3, 0.9), 10),
    "logistic regression": (db.tasks.logistic_regression, "upper", (0.3, 1.0, 3.0, 10.0), (0.1, 0.3, 1.0), 32),
    "hyper-parameters": (db.tasks.hyperparameter_tuning, "upper", (0.03, 0.1, 0.3, 1.0), (0.03, 0.1, 0.3), 10),
    "label cleaning": (db.tasks.label_cleaning, "upper", (30.0, 100.0, 300.0, 1000.0), (0.3, 0.6, 1.2), 32),
}


def measure(steps: int, note: Callable[[str], Any]) -> dict[str, Any]:
    rows, ratios = [], {}
    for name, (make, metric, alphas, betas, batch) in TASKS.items():
        note(name)
        task = make()
        graph = db.graphs.ring(task.problem.nodes)
        chosen = task.metrics[0] if metric == "distance" else metric
        methods = {o: db.sparkle("ed", alpha=1.0, beta=1.0, gamma=1.0, theta=0.3, updates=o) for o in UPDATES}
        costs = {o: db.cost(task.problem, m, graph, batch_size=batch) for o, m in methods.items()}
        for o in methods:
            costs[o]["seconds"] = _seconds(task.problem, o, graph, batch, steps)
        candidates = [{"alpha": a, "beta": b, "gamma": b} for a, b in product(alphas, betas)]
        for budget in BUDGETS:
            found = {}
            for o, method in methods.items():
                afforded = max(MOMENTS * 2, round(steps * costs["simultaneous"][budget] / costs[o][budget]))
                settings = dict(steps=afforded, batch_size=batch, metric=chosen, moments=MOMENTS)
                tuned = db.tune(task.problem, method, graph, search=candidates, seeds=SEARCHED, **settings)
                best = {key: tuned.table[0][key] for key in candidates[0]}
                try:
                    judged = db.tune(task.problem, method, graph, search=[best], seeds=SEEDS, **settings).table[0]
                except ValueError:  # some seed diverged
                    judged = {tuned.metric: np.inf, "spread": np.inf}
                found[o] = judged[tuned.metric]
                step = {key: costs[o][key] for key in (*BUDGETS, "rounds")}
                row = {"task": name, "budget": budget, "updates": o, "steps": afforded, **best, "metric": tuned.metric}
                rows.append(row | {"value": found[o], "spread": judged["spread"], "step": step})
            ratios[f"{name}, equal {budget}: simultaneous / alternating"] = found["simultaneous"] / found["alternating"]
    setting = {"method": "sparkle-ed", "graph": "ring", "steps": steps, "seeds": SEEDS}
    return record("updates", rows, ratios, setting=setting)


def _seconds(problem: db.Problem, updates: str, graph: Any, batch: int, steps: int) -> float:
    """Per step, the least of some turns; step sizes of zero keep all finite."""
    still = db.sparkle("ed", alpha=0.0, beta=0.0, gamma=0.0, theta=0.3, updates=updates)
    run = db.Simulator().start(problem, still, db.Levels(x=graph), RunConfig(batch))
    return float(np.min(seconds_of(steps_of({"": run}, steps)[""], 5))) / steps
