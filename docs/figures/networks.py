"""Measures the factors of `decibel.theory.plans`, and compares its predictions with runs: docs/evidence/networks.md.

    python docs/figures/networks.py     # about five minutes on two cores; writes networks.json

Quadratics on 16 nodes, whose curvatures lie between L/κ and L and differ by a factor of up to three from node to node.
Full batches, float64. A run ends when every node is at a millionth of its first distance from the solution. Step sizes
are the predicted one, its half and its quarter; the best counts.
"""

from __future__ import annotations

from typing import Any

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402
from common import quadratic, worst_of, write  # noqa: E402
from printed import thousands  # noqa: E402

import decibel as db  # noqa: E402
from decibel.solver import _plans  # noqa: E402

NODES, SIZE, TARGET, MOST = 16, 10, 1e-6, 6_000
CONDITIONS = (10.0, 100.0)
LOSS, SLOW = 0.3, 10.0


def conditioned(condition: float) -> tuple[db.Problem, np.ndarray]:
    """The problem and its solution."""
    source = np.random.default_rng(0)
    h = np.geomspace(1 / condition, 1, SIZE) * source.uniform(0.5, 1.5, (NODES, SIZE)) / 1.5
    return quadratic(h, source.normal(size=(NODES, SIZE)))


def exchanges(plan: _plans.Plan, condition: float, **options: Any) -> float | None:
    """How many exchanges a run takes, or its column `time`; None where no step size arrives."""
    problem, solution = conditioned(condition)
    found = []
    for part in (1.0, 0.5, 0.25):
        trace = db.solve(
            problem, plan.make(alpha=part * plan.step_size), plan.graph, steps=MOST, eval_every=5,
            metrics=[worst_of(solution)], callbacks=[Near(TARGET * np.abs(solution).max())], **options,
        ).trace  # fmt: skip
        if trace.last["worst"] <= TARGET * np.abs(solution).max():
            found.append(float(trace.last.get("simulated_time", trace.last["step"])))
    return min(found, default=None)


class Near(db.Callback):
    """Ends a run at the target, or where it has gone astray."""

    reason = "near enough"

    def __init__(self, target: float) -> None:
        self.target = target

    def __call__(self, step: int, row: dict[str, Any]) -> bool:
        return not self.target < row["worst"] < 1e3


def case(plan: _plans.Plan) -> str:
    steps = f", {plan.local_steps} local steps" if plan.local_steps > 1 else ""
    bits = f", {plan.bits} bits" if plan.bits else ""
    rounds = f", {plan.rounds} rounds" if plan.rounds > 1 else ""
    return f"{plan.strategy}{steps}{bits}, {plan.graph.name}{rounds}"


def ideal(condition: float, links: _plans.Links) -> list[_plans.Plan]:
    options = {"condition": condition, "target": TARGET, "single": True, "degree": 4}
    found = _plans.plans(NODES, (SIZE, 0), links, **options)
    return [plan for plan in found if plan.graph.name in GRAPHS and plan.exchanges < MOST]


GRAPHS = (
    "ring",
    "accelerated ring",
    "torus 4×4",
    "one-peer exponential",
    "one-peer hypercube",
    "random matchings",
    "one-way, hops 1, 2, 4",
    "one-way, hops 1, 2, 4, 8",
)


def without_faults() -> list[list[Any]]:
    """Case, strategy, κ, exchanges by the model, and those of the run."""
    rows: list[list[Any]] = []
    for condition in CONDITIONS:
        for links in (_plans.Links(), _plans.Links(one_way=True)):
            for plan in ideal(condition, links):
                predicted = plan.exchanges / _plans.STRETCH
                rows.append([case(plan), plan.strategy, condition, predicted, exchanges(plan, condition)])
                print(rows[-1], flush=True)
    return rows


def with_faults() -> list[dict[str, Any]]:
    """Exchanges with messages lost; and the time with a slow node, of a strategy without a common clock."""
    rows: list[dict[str, Any]] = []
    lossy = [ideal(10.0, _plans.Links(loss=LOSS, one_way=one_way)) for one_way in (False, True)]
    for plan in (plan for plans in lossy for plan in plans if plan.bits is None and plan.local_steps == 1):
        row = {"case": case(plan), "none": exchanges(plan, 10.0)}
        row["lost"] = exchanges(plan, 10.0, faults=db.faults.drop(LOSS, one_way=True))
        if plan.strategy == "wave":
            row["slow"] = exchanges(plan, 10.0, faults=db.faults.slow(0, SLOW))
        rows.append(row)
        print(row, flush=True)
    return rows


def table(found: dict[str, Any]) -> list[str]:
    """The rows of docs/evidence/networks.md."""
    cases: dict[str, list[str]] = {}
    for name, _, _, predicted, measured in found["exchanges"]:
        cases.setdefault(name, []).extend([thousands(predicted), thousands(measured)])
    return [f"| {name} | {' | '.join(numbers)} |" for name, numbers in sorted(cases.items())]


def main() -> None:
    write("networks", {"exchanges": without_faults(), "faults": with_faults()})


if __name__ == "__main__":
    main()
