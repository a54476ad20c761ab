"""interact/auprc-tasks: average precision where every node has a task of its own, as INTERACT's paper puts it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from decibel import Method, gt, hypergradient, interact, svr_interact
from decibel.graphs import erdos_renyi
from decibel.tasks import Task, auprc

from ..judging.compare import higher
from ..judging.registration import registered
from ..judging.results import Results
from ..judging.verdicts import Check, Claim
from ..testbed.study import Arm, Search, Study, validated
from .interact_auprc import Missed
from .subsets import part

CASE = "a class for every node"
BASELINE = "cross entropy"
OURS = ("INTERACT", "SVR-INTERACT")
REGISTERED = registered("interact/auprc-tasks")


@dataclass(frozen=True)
class Setup:
    dataset: str = "digits"
    nodes: int = 10
    hidden: int = 16
    anchors: int = 4
    surrogate: Literal["squared-hinge", "sigmoid"] = "sigmoid"
    probability: float = 0.5
    batch_size: int = 12  # ⌈√n⌉ of SVR-INTERACT and of the baseline; INTERACT takes all samples
    steps: int = 600
    rows: int = 20
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


SETUPS = {
    "smoke": Setup(nodes=3, hidden=2, anchors=4, probability=1.0, steps=4, rows=2, seeds=(0, 1)),
    "small": Setup(steps=200, rows=10, seeds=(0, 1, 2)),
    "full": REGISTERED.setup(Setup),
}


def ranking(
    dataset: str,
    nodes: int,
    *,
    hidden: int,
    anchors: int,
    surrogate: Literal["squared-hinge", "sigmoid"],
    baseline: bool,
    validation: bool = False,
    seed: int,
) -> Task:
    return auprc(
        part(dataset, validation=validation),
        nodes,
        hidden=hidden,
        anchors=anchors,
        surrogate=surrogate,
        objective="cross-entropy" if baseline else "average-precision",
        own_tasks=True,
        seed=seed,
    )


def methods() -> dict[str, Method]:
    """The Hessian of g in y is the identity, so one step of conjugate gradients inverts it."""
    exact = hypergradient.cg(1)
    return {
        "INTERACT": interact(alpha=1.0, beta=0.3, hypergradient=exact),
        "SVR-INTERACT": svr_interact(alpha=1.0, beta=0.3, hypergradient=exact),
        BASELINE: gt(alpha=0.3),
    }


def arms(setup: Setup) -> list[Arm]:
    graph = erdos_renyi(setup.nodes, setup.probability, weights="laplacian")
    return [
        Arm(
            CASE,
            label,
            partial(
                ranking,
                setup.dataset,
                setup.nodes,
                hidden=setup.hidden,
                anchors=setup.anchors,
                surrogate=setup.surrogate,
                baseline=label == BASELINE,
            ),
            method,
            graph,
            setup.steps,
            None if label == "INTERACT" else setup.batch_size,
            setup.rows,
            tuned=label,
        )
        for label, method in methods().items()
    ]


def above(results: Results[Setup]) -> list[Check]:
    level = REGISTERED.tolerance("C22b")
    plain = results[CASE, BASELINE]
    return [higher(results[CASE, label], plain, "average_precision", level=level) for label in OURS]


STUDY = Study(
    name="interact/auprc-tasks",
    title="Average precision of a task for every node",
    paper="INTERACT (Liu et al., 2022), the AUPRC form",
    about="Ten nodes share a network with a hidden layer. Node i ranks digit i before all others by output i. The "
    "bilevel form maximises the nodes' average precisions by a surrogate. The baseline minimises their cross "
    "entropies with the same network, graph and number of iterations. Average precision is that of held-out samples, "
    "averaged over the ten tasks.",
    differs="INTERACT's paper names the problem but does not run it, so the whole set-up is ours.",
    setups=SETUPS,
    arms=arms,
    columns=("average_precision",),
    claims=(
        Claim(
            "C22b",
            "With a task for every node, average precision is above that of the cross-entropy baseline.",
            above,
            why="INTERACT is ahead at first (77 against 49 % after 60 steps) and ends 1.6 ± 1.2 points above (92.2 "
            "against 90.6 %). Precision is averaged over four of a node's about fourteen positives. The result "
            "depends on the seeds. With the present step sizes, ten earlier seeds give 0.5 ± 0.7 points below (92.8 "
            "against 93.4 %). The earlier step sizes, with a larger β, give 1.1 ± 1.2 points above on the new seeds, "
            "where some runs of cross entropy end at 82 %. Neither was registered. For SVR-INTERACT the reason is the "
            "method. Its runs rise more slowly, and four of twenty suddenly fall back to chance. We looked at three "
            "such runs of the earlier seeds. In two of them y, a count by which precision is divided, became negative "
            "in the twenty steps before, and x then grew tenfold. In the third y was 0.05.",
            finding="INTERACT ends 1.6 ± 1.2 points above cross entropy, but not with other seeds. Four of 20 runs "
            "of SVR-INTERACT fall back to chance.",
        ),
    ),
    search=Search(
        alpha=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
        beta=(0.1, 0.3, 0.9),
        alone=(0.01, 10.0),
        metric=lambda task: Missed(task.metrics[0]),
        cases=lambda setup: (CASE,),
        steps=lambda setup: setup.steps,
        seeds=(100, 101, 102),
        task=validated,
        widen=True,
        note="by the average precision on a sixth of the training part, held out; the test part is not looked at",
    ),
)
