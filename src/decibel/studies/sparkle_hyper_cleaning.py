"""sparkle/hyper-cleaning: which SPARKLE trains the best classifier from corrupted labels, and against whom?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ..algorithms.double_loop import ma_dsbo
from ..algorithms.implicit import mdbo
from ..algorithms.method import Method
from ..algorithms.sparkle import dsoba, sparkle
from ..graphs import adjusted_ring
from .compare import higher
from .sources import cleaning
from .study import Arm, Search, Study
from .verdicts import Check, Claim

OURS = ("SPARKLE-ED", "SPARKLE-EXTRA")
MIXED = ("SPARKLE-ED-GT", "SPARKLE-EXTRA-GT")
OTHERS = ("SPARKLE-GT", "D-SOBA", "MA-DSBO-GT", "MDBO")
TOLERANCE = 0.002  # "at least as good" allows a fifth of a percentage point


@dataclass(frozen=True)
class Setup:
    dataset: str = "fashion-mnist"
    train: int | None = None  # all 60,000, a sixth of them for validation
    test: int | None = None
    nodes: int = 10
    hidden: int = 300
    corruptions: tuple[float, ...] = (0.1, 0.2, 0.3)
    heterogeneity: float = 0.1  # α of the Dirichlet shares
    regularization: float = 1e-3
    weight: float = 0.1  # of each neighbour on the ring
    batch_size: int = 50
    steps: int = 8_000
    rows: int = 40
    theta: float = 0.2
    alpha: float = 100.0
    methods: tuple[str, ...] = (*OURS, *MIXED, *OTHERS)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


SETUPS = {
    "smoke": Setup(
        "digits",
        300,
        60,
        nodes=3,
        hidden=0,
        corruptions=(0.3,),
        batch_size=4,
        steps=4,
        rows=2,
        alpha=1.0,
        methods=(*OURS, "SPARKLE-ED-GT", "SPARKLE-GT"),
        seeds=(0, 1),
    ),
    "small": Setup(
        train=6_000, test=2_000, hidden=16, corruptions=(0.1, 0.3), batch_size=32, steps=600, rows=10, seeds=(0, 1, 2)
    ),
    "full": Setup(),
}


def methods(setup: Setup) -> dict[str, Method]:
    """Guesses; SPARKLE in parallel order, for which one derivative and one message serve all levels."""
    rates: dict[str, Any] = {"alpha": setup.alpha, "beta": 0.1, "gamma": 0.1, "theta": setup.theta}
    ours: dict[str, Any] = {**rates, "order": "parallel"}
    known = {
        "SPARKLE-ED": sparkle("ed", **ours),
        "SPARKLE-EXTRA": sparkle("extra", **ours),
        "SPARKLE-GT": sparkle("gt", **ours),
        "SPARKLE-ED-GT": sparkle("ed", "gt", **ours),
        "SPARKLE-EXTRA-GT": sparkle("extra", "gt", **ours),
        "D-SOBA": dsoba(**rates),
        "MA-DSBO-GT": ma_dsbo(True, **rates),
        "MDBO": mdbo(alpha=setup.alpha, beta=0.1, theta=setup.theta),
    }
    return {name: known[name] for name in setup.methods}


def case(corruption: float) -> str:
    return f"p = {corruption:g}"


def arms(setup: Setup) -> list[Arm]:
    graph, samples = adjusted_ring(setup.nodes, setup.weight), 2.0 * setup.batch_size * setup.steps
    return [
        Arm(
            case(p), label,
            partial(
                cleaning, setup.dataset, setup.nodes, train=setup.train, test=setup.test, hidden=setup.hidden,
                corruption=p, heterogeneity=setup.heterogeneity, regularization=setup.regularization,
            ),
            method, graph, setup.steps, setup.batch_size, setup.rows * (4 if label == "MA-DSBO-GT" else 1),
            samples=samples, tuned=label,
        )
        for p in setup.corruptions for label, method in methods(setup).items()
    ]  # fmt: skip


def best(results: Any) -> list[Check]:
    return [
        higher(results[case(p), ours], results[case(p), theirs], "test_accuracy")
        for p in results.setup.corruptions
        for ours in OURS
        for theirs in OTHERS
        if theirs in results.setup.methods
    ]


def mixed(results: Any) -> list[Check]:
    return [
        higher(results[case(p), ours], results[case(p), "SPARKLE-GT"], "test_accuracy", tolerance=TOLERANCE)
        for p in results.setup.corruptions
        for ours in MIXED
        if ours in results.setup.methods
    ]


STUDY = Study(
    name="sparkle/hyper-cleaning",
    title="Data hyper-cleaning on Fashion-MNIST",
    paper="SPARKLE (Zhu et al., 2024), experiment 1",
    about="Ten nodes on a ring with weak links hold different classes, and a share p of the training labels is wrong. "
    "They learn a weight for every training sample (x) and a two-layer network (y), so that the network trained with "
    "these weights does well on clean validation samples. Test accuracy is that of the average of the nodes' networks; "
    "every method gets the same number of samples.",
    differs="A corrupted label is always wrong. The slides do not print graph and step sizes.",
    setups=SETUPS,
    arms=arms,
    columns=("test_accuracy", "node_accuracy", "corrupted_weight", "clean_weight"),
    claims=(
        Claim(
            "C3",
            "SPARKLE with ED or EXTRA reaches a higher test accuracy than with gradient tracking, and than D-SOBA, "
            "MA-DSBO and MDBO, at every rate of corruption.",
            best,
        ),
        Claim("C4", "Mixed strategies (ED-GT, EXTRA-GT) do at least as well as gradient tracking.", mixed),
    ),
    search=Search(
        alpha=(30.0, 100.0, 300.0, 1_000.0, 3_000.0),
        beta=(0.03, 0.1, 0.3, 1.0),
        metric="upper",
        cases=lambda setup: (case(setup.corruptions[len(setup.corruptions) // 2]),),
        steps=lambda setup: setup.steps // 2,
        seeds=(100,),
        note="by the loss of the averaged model on the validation samples (f); the test part is not looked at",
    ),
)
