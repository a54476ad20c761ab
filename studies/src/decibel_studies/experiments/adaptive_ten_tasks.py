"""adaptive/ten-tasks: steps until a target, without a step size to choose and with the best of a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import equinox as eqx
import numpy as np
from jax import Array

from decibel import metrics, sparkle
from decibel.graphs import ring
from decibel.tasks import (
    Task,
    hyperparameter_tuning,
    label_cleaning,
    linear_regression,
    logistic_regression,
    policy_evaluation,
)

from ..judging.registration import registered
from ..judging.results import Results
from ..judging.verdicts import Check, Claim
from ..testbed.study import Arm, Search, Study
from ..type_aliases import Metric, Snapshot

TUNED = "ED, searched"
COORDINATE = "ada-ed"
SCALAR = "ada-ed-scalar"
REACHED = 0.95  # of what ED gains in all its steps
FACTOR = 1.5
ENOUGH = 8
REGISTERED = registered("adaptive/ten-tasks")

TASKS: dict[str, tuple[Callable[..., Task], int]] = {  # and the number of nodes
    "linear regression": (partial(linear_regression, 10), 10),
    "linear regression, nodes differ more": (partial(linear_regression, 10, heterogeneity=3.0), 10),
    "logistic regression": (partial(logistic_regression, 10), 10),
    "logistic regression, digits": (partial(logistic_regression, 10, dataset="digits"), 10),
    "hyperparameters, australian": (partial(hyperparameter_tuning, "australian", 5), 5),
    "policy evaluation, target": (partial(policy_evaluation, 10), 10),
    "policy evaluation, residual": (partial(policy_evaluation, 10, form="residual"), 10),
    "label cleaning, linear": (partial(label_cleaning, "digits", 10), 10),
    "label cleaning, MLP": (partial(label_cleaning, "digits", 10, model="mlp", hidden=16), 10),
    "logistic regression, nodes differ more": (partial(logistic_regression, 10, heterogeneity="severe"), 10),
}


@dataclass(frozen=True)
class Setup:
    tasks: tuple[str, ...] = tuple(TASKS)
    steps: int = 500
    rows: int = 100
    seeds: tuple[int, ...] = (0, 1, 2)


SETUPS = {
    "smoke": Setup(("linear regression", "logistic regression"), 4, 2, (0, 1)),
    "small": Setup(("linear regression", "logistic regression, digits", "policy evaluation, target"), 300, 100),
    "full": REGISTERED.setup(Setup),
}


class Goal(eqx.Module):
    """What should fall: the distance from the solution where it is known, else f at the averages of x and y."""

    distance: Metric | None

    def __call__(self, snapshot: Snapshot) -> Array:
        return metrics.upper(snapshot) if self.distance is None else self.distance(snapshot)["distance"]


def measured(make: Callable[..., Task], *, seed: int) -> Task:
    """A task with its goal as the only metric."""
    task = make(seed=seed)
    solution = getattr(task.truth, "solution", None)
    return replace(task, metrics=(Goal(None if solution is None else metrics.distance(solution)),))


def error(task: Task) -> Metric:
    """What a search compares."""
    return task.metrics[0]


def arms(setup: Setup) -> list[Arm]:
    every: list[Arm] = []
    for case in setup.tasks:
        task, nodes = TASKS[case]
        methods = {
            TUNED: sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1),
            COORDINATE: sparkle("ada-ed"),
            SCALAR: sparkle("ada-ed-scalar"),
        }
        every += [
            Arm(
                case,
                label,
                partial(measured, task),
                method,
                ring(nodes),
                setup.steps,
                None,
                setup.rows,
                tuned=case if label == TUNED else None,
            )
            for label, method in methods.items()
        ]
    return every


def steps_needed(results: Results[Setup], label: str) -> np.ndarray:
    """(tasks, seeds) steps until the level that ED reaches with `REACHED` of its gain."""
    rows = []
    for case in results.setup.tasks:
        tuned = results[case, TUNED]
        start = tuned.first("goal")
        end = np.array([trace["goal"].min() for trace in tuned.traces])
        levels = start - REACHED * (start - end)
        needed: list[float] = []
        for trace, level in zip(results[case, label].traces, levels, strict=True):
            below = np.flatnonzero(np.asarray(trace["goal"]) <= level)
            needed.append(float(trace["step"][below[0]]) if below.size else np.inf)
        rows.append(needed)
    return np.array(rows)


def within(results: Results[Setup]) -> list[Check]:
    counts = (steps_needed(results, COORDINATE) <= FACTOR * np.maximum(steps_needed(results, TUNED), 1)).sum(0)
    share = ENOUGH / 10 * len(results.setup.tasks)
    text = f"tasks, of {len(results.setup.tasks)}, where {COORDINATE} needs at most {FACTOR} times the steps"
    return [Check.of(text, counts, share - 0.5)]


STUDY = Study(
    name="adaptive/ten-tasks",
    title="Ten tasks without a step size",
    paper="ours",
    about="SPARKLE with adaptive Exact Diffusion and default step sizes is compared with SPARKLE-ED with the best of "
    "24 pairs of step sizes, on all samples. We count the steps until the error has fallen by 95 % of what searched "
    "ED gains in 500 steps. The error is the distance from the solution where that is known, and the upper loss "
    "elsewhere.",
    setups=SETUPS,
    arms=arms,
    columns=("goal",),
    claims=(
        Claim(
            "D4",
            "Without a step size, ada-ed needs at most 1.5 times the steps of searched ED on eight of ten tasks.",
            within,
            why="The reason is the method. ada-ed is fast enough on five tasks with every seed. On logistic "
            "regression and linear label cleaning it needs a sixth to three quarters of the steps. Linear regression "
            "with nodes that differ more is solved with three of six seeds, and not within 500 steps with the others. "
            "ada-ed is too slow where searched ED is nearly done in 5 to 15 steps: a small well-conditioned "
            "quadratic, and policy evaluation twice (2 to 26 times the steps). It is also too slow on the "
            "hyper-parameters of the australian data (1.6 to 3.5 times). There x has to move from 0 to about 10. The "
            "first steps are of size 1, and AdaGrad's steps shrink meanwhile. Two seeds are exceptions: with them "
            "searched ED diverges after 105 and 75 steps, so its gain is small.",
            finding="Without a step size, ada-ed needed at most 1.5 times the steps of searched ED on 5.8 of ten "
            "tasks on average. The claim was eight.",
        ),
    ),
    search=Search(
        alpha=(0.01, 0.1, 1.0, 10.0, 100.0, 1000.0),
        beta=(0.03, 0.1, 0.3, 1.0),
        metric=error,
        cases=lambda setup: setup.tasks,
        steps=lambda setup: setup.steps,
        seeds=(0, 1, 2),
        note="by the error itself, on data of seeds that are not judged",
    ),
)
