"""sparkle/hyper-cleaning: which SPARKLE trains the best classifier from corrupted labels, and against whom?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..graphs._families import adjusted_ring
from ..methods._dsoba import dsoba
from ..methods._ma_dsbo import ma_dsbo
from ..methods._mdbo import mdbo
from ..methods._method import Method
from ..methods._sparkle import sparkle
from .cleaning import SMALL, SMOKE, Cleaning, search
from .compare import higher, pooled
from .registration import registered
from .results import Results
from .study import Arm, Study
from .verdicts import Check, Claim

OURS = ("SPARKLE-ED", "SPARKLE-EXTRA")
MIXED = ("SPARKLE-ED-GT", "SPARKLE-EXTRA-GT")
OTHERS = ("SPARKLE-GT", "D-SOBA", "MA-DSBO-GT", "MDBO")
REGISTERED = registered("sparkle/hyper-cleaning")


@dataclass(frozen=True)
class Setup(Cleaning):
    corruptions: tuple[float, ...] = (0.1, 0.2, 0.3)
    methods: tuple[str, ...] = (*OURS, *MIXED, *OTHERS)
    seeds: tuple[int, ...] = tuple(range(10))  # five did not settle C3 and C4


SETUPS = {
    "smoke": Setup(**SMOKE, corruptions=(0.3,), methods=("SPARKLE-ED", "SPARKLE-ED-GT", "SPARKLE-GT")),
    "small": Setup(**SMALL, corruptions=(0.1, 0.3)),
    "full": REGISTERED.setup(Setup),
}


def methods(setup: Setup) -> dict[str, Method]:
    """SPARKLE in parallel order, for which one derivative and one message serve all levels."""
    rates, ours = setup.rates, partial(sparkle, **setup.rates, updates="simultaneous")
    known = {
        "SPARKLE-ED": ours("ed"),
        "SPARKLE-EXTRA": ours("extra"),
        "SPARKLE-GT": ours("gt"),
        "SPARKLE-ED-GT": ours("ed", "gt"),
        "SPARKLE-EXTRA-GT": ours("extra", "gt"),
        "D-SOBA": dsoba(**rates),
        "MA-DSBO-GT": ma_dsbo(**rates, tracking=True),
        "MDBO": mdbo(alpha=setup.alpha, beta=0.1, theta=setup.theta),
    }
    return {name: known[name] for name in setup.methods}


def case(corruption: float) -> str:
    return f"p = {corruption:g}"


def arms(setup: Setup) -> list[Arm]:
    graph, samples = adjusted_ring(setup.nodes, setup.weight), 2.0 * setup.batch_size * setup.steps
    return [
        Arm(
            case(p), label, setup.task(p), method, graph, setup.steps, setup.batch_size,
            setup.rows * (4 if label == "MA-DSBO-GT" else 1), samples=samples, tuned=label,
        )
        for p in setup.corruptions for label, method in methods(setup).items()
    ]  # fmt: skip


def best(results: Results[Setup]) -> list[Check]:
    """At equal samples; against gradient tracking, which sends twice the bytes, also at equal bytes."""
    level = REGISTERED.tolerance("C3")
    return [
        _compared(results, ours, theirs, against, level=level)
        for ours in OURS
        for theirs in OTHERS
        for against in (("samples", "bytes") if theirs == "SPARKLE-GT" else ("samples",))
        if {ours, theirs} <= {*results.setup.methods}
    ]


def mixed(results: Results[Setup]) -> list[Check]:
    tolerance = REGISTERED.tolerance("C4")
    return [
        _compared(results, ours, "SPARKLE-GT", against, tolerance=tolerance)
        for ours in MIXED
        for against in ("samples", "bytes")
        if ours in results.setup.methods
    ]


def _compared(results: Results[Setup], ours: str, theirs: str, against: str, **allowed: float) -> Check:
    """Over all rates of corruption together."""
    parts = [
        higher(results[case(p), ours], results[case(p), theirs], "test_accuracy", against=against, **allowed)
        for p in results.setup.corruptions
    ]
    return pooled(f"test accuracy at equal {against}, {ours} less {theirs}", parts)


STUDY = Study(
    name="sparkle/hyper-cleaning",
    title="Data hyper-cleaning on Fashion-MNIST",
    paper="SPARKLE (Zhu et al., 2024), experiment 1",
    about="Ten nodes on a ring with weak links hold different classes, and a share p of the training labels is wrong. "
    "They learn a weight for every training sample (x) and a two-layer network (y), so that the network trained with "
    "these weights does well on clean validation samples. Test accuracy is that of the average of the nodes' networks; "
    "every method gets the same number of samples, but for those of its last row.",
    differs="A corrupted label is always wrong. The slides do not print graph and step sizes.",
    setups=SETUPS,
    arms=arms,
    columns=("test_accuracy", "node_accuracy", "corrupted_weight", "clean_weight"),
    against="samples",
    claims=(
        Claim(
            "C3",
            "SPARKLE with ED or EXTRA reaches a higher test accuracy than with gradient tracking, and than D-SOBA, "
            "MA-DSBO and MDBO, at every rate of corruption.",
            best,
            why="Seeds and set-up. Both are ahead of D-SOBA, MA-DSBO and MDBO by 1.6 to 2.7 points. At equal bytes "
            "they are ahead of gradient tracking too, by 0.60 ± 0.24 and 0.57 ± 0.25. At equal samples, where it "
            "sends twice as much, it is ahead by 0.26 ± 0.22 and 0.29 ± 0.23, which ten seeds do not settle once "
            "corrected. The search skipped β between 0.03 and 0.06 and α below 1,000, where a prototype did best. A "
            "finer search and fresh seeds need a GPU.",
        ),
        Claim(
            "C4",
            "Mixed strategies (ED-GT, EXTRA-GT) do at least as well as gradient tracking.",
            mixed,
            why="Seeds. At equal bytes they are ahead by 0.45 ± 0.22 and 0.42 ± 0.22 points; at equal samples they "
            "are 0.23 ± 0.22 and 0.26 ± 0.21 below, and 0.2 is allowed.",
        ),
    ),
    precision="default",
    search=search(
        cases=lambda setup: (case(setup.corruptions[len(setup.corruptions) // 2]),),
        note="by the loss of the averaged model on the validation samples (f); the test part is not looked at",
    ),
)
