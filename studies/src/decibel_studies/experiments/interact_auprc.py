"""interact/auprc: average precision optimized itself, against cross entropy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import numpy as np
from jax import Array

from decibel import Method, gt, gt_dsgd, hypergradient
from decibel.graphs import erdos_renyi
from decibel.tasks import Task, auprc

from ..judging.compare import higher, pooled
from ..judging.registration import registered
from ..judging.results import Results
from ..judging.verdicts import Check, Claim
from ..testbed.study import Arm, Search, Study, validated
from ..type_aliases import Metric, Snapshot
from .subsets import part

OURS = "average precision"
OTHER = "cross entropy"
REGISTERED = registered("interact/auprc")


@dataclass(frozen=True)
class Setup:
    dataset: str = "a9a"
    nodes: int = 5
    positives: tuple[float | None, ...] = (0.01, 0.05)  # share of the samples, by leaving others out; None: as it is
    hidden: tuple[int, ...] = (0,)  # units of the scoring model; 0 is linear
    surrogate: str = "sigmoid"  # of "scores above"
    anchors: tuple[int, ...] = (24, 180)  # positives of a node that its precision is averaged over, for each share
    heterogeneity: str | None = None  # partitioned evenly, so that all seeds have one shape
    probability: float = 0.5
    batch_size: int = 128
    steps: int = 2_000
    rows: int = 40
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


SETUPS = {
    "smoke": Setup("synthetic", 3, (0.2,), anchors=(4,), probability=0.9, batch_size=8, steps=8, rows=4, seeds=(0, 1)),
    "small": Setup(positives=(0.05,), anchors=(128,), batch_size=64, steps=600, rows=10, seeds=(0, 1, 2)),
    "full": REGISTERED.setup(Setup),
}


def rarer(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """The places of all negatives and of as many positives, drawn with the seed, as make `share` of what is kept."""
    positives, negatives = np.flatnonzero(labels == 1), np.flatnonzero(labels != 1)
    count = round(share / (1 - share) * len(negatives))
    if count > len(positives):
        raise ValueError(
            f"share={share} is more than there is, {len(positives) / len(labels):.2g}: give a smaller one."
        )
    return np.sort(np.concatenate([negatives, np.random.default_rng(seed).choice(positives, count, replace=False)]))


def ranking(
    dataset: str, nodes: int, *, positives: float | None, validation: bool = False, seed: int, **options: Any
) -> Task:
    source = part(dataset, validation=validation)
    if positives is not None:
        train, test = (rarer(labels, positives, seed) for labels in (source.y_train, source.y_test))
        source = replace(
            source,
            x_train=source.x_train[train],
            y_train=source.y_train[train],
            x_test=source.x_test[test],
            y_test=source.y_test[test],
        )
    return auprc(source, nodes, seed=seed, **options)


def methods() -> dict[str, Method]:
    """The Hessian of g in y is the identity, so one step of conjugate gradients inverts it."""
    return {OURS: gt_dsgd(alpha=3.0, beta=0.3, hypergradient=hypergradient.cg(1)), OTHER: gt(alpha=0.3)}


def case(hidden: int, positives: float | None) -> str:
    share = "" if positives is None else f", {100 * positives:g} % positive"
    return (f"{hidden} hidden units" if hidden else "linear model") + share


def arms(setup: Setup) -> list[Arm]:
    graph = erdos_renyi(setup.nodes, setup.probability, weights="laplacian")
    return [
        Arm(
            case(hidden, share),
            label,
            partial(
                ranking,
                setup.dataset,
                setup.nodes,
                positives=share,
                objective=label.replace(" ", "-"),
                hidden=hidden,
                heterogeneity=setup.heterogeneity,
                surrogate=setup.surrogate,
                anchors=anchors,
            ),
            method,
            graph,
            setup.steps,
            setup.batch_size,
            setup.rows,
            tuned=f"{label}, {case(hidden, share)}",
        )
        for hidden in setup.hidden
        for share, anchors in zip(setup.positives, setup.anchors, strict=True)
        for label, method in methods().items()
    ]


class Missed(eqx.Module):
    """`missed`: one less the average precision."""

    precision: Metric

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        return {"missed": 1 - self.precision(snapshot)["average_precision"]}


def _cases(setup: Setup) -> list[str]:
    return [case(hidden, share) for hidden in setup.hidden for share in setup.positives]


def above(results: Results[Setup]) -> list[Check]:
    level = REGISTERED.tolerance("C22")
    cases = _cases(results.setup)
    parts = [higher(results[name, OURS], results[name, OTHER], "average_precision", level=level) for name in cases]
    return [pooled(f"average precision at the end, {OURS} less {OTHER}", parts)]


STUDY = Study(
    name="interact/auprc",
    title="Average precision on a9a",
    paper="INTERACT (Liu et al., 2022), the AUPRC form; Qi et al., 2021",
    about="Five nodes share a model that ranks incomes above 50,000 first. All but a few of these are left out, so "
    "that 1 or 5 % of the samples are positive. The bilevel form maximises average precision by a surrogate, and "
    "each node keeps the counts behind its precision. The baseline minimises cross entropy with the same model, "
    "graph, batches and number of iterations.",
    differs="INTERACT's paper names the problem but does not run it, so the whole set-up is ours. The surrogate is a "
    "sigmoid. With the squared hinge of Qi et al. and 64 anchors, average precision was 1.4 percentage points below "
    "that of cross entropy, and 1.9 with 32 hidden units.",
    setups=SETUPS,
    arms=arms,
    columns=("average_precision",),
    claims=(
        Claim(
            "C22",
            "The area under the precision-recall curve is above that of the cross-entropy baseline.",
            above,
            why="The reason is the method: optimizing average precision gains nothing with few positives. It ends 0.7 "
            "± 0.3 points below cross entropy with 1 % positives (12.9 against 13.7 %), and 0.4 ± 0.1 with 5 % (40.5 "
            "against 40.9 %). With a quarter, in an earlier run, both were level. With step sizes that were searched "
            "by a wrong metric and on a narrower grid, it was 1.5 and 1.1 points below. It is ahead in the first 300 "
            "(1 %) and 700 steps (5 %). Precision is averaged over some of a node's positives only, its anchors. That "
            "explains a part of the loss with 1 %, and nothing with 5 %: with half as many anchors (ten of the seeds, "
            "not registered) it loses 0.4 and 0.0 points. With 5 % β is 0.004, the smallest that was tried.",
            finding="Optimizing average precision itself ends 0.7 points below cross entropy with 1 % positives, and "
            "0.4 with 5 %.",
        ),
    ),
    search=Search(
        alpha=(1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
        beta=(0.1, 0.3, 0.9),
        alone=(0.03, 10.0),
        metric=lambda task: Missed(task.metrics[0]),
        cases=_cases,
        steps=lambda setup: setup.steps,
        seeds=(100, 101, 102),
        task=validated,
        widen=True,
        note="by the average precision on a sixth of the training part, held out; the test part is not looked at",
    ),
)
