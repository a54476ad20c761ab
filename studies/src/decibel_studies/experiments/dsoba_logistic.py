"""dsoba/logistic: D-SOBA tunes the regularization of a logistic regression, against MA-DSBO and MDBO."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from decibel import Method, dsoba, ma_dsbo, mdbo
from decibel.graphs import ring
from decibel.tasks import logistic_regression

from ..judging.compare import faster, higher, pooled
from ..judging.registration import registered
from ..judging.results import Results
from ..judging.verdicts import Check, Claim, Test
from ..testbed.study import Arm, Rates, Search, Study
from .baselines import other_lengths

OURS = "D-SOBA"
OTHERS = ("MA-DSBO", "MDBO")
REGISTERED = registered("dsoba/logistic")


@dataclass(frozen=True)
class Setup:
    nodes: int = 20
    samples: int = 4_000
    features: int = 20
    informative: int = 5
    classes: int = 4
    batch_size: int = 20
    steps: int = 2_000
    rows: int = 20
    theta: float = 0.2
    levels: tuple[Literal["mild", "severe"], ...] = ("mild", "severe")
    methods: tuple[str, ...] = (OURS, *OTHERS)
    loops: tuple[int, ...] = ()  # other inner steps T = N of MA-DSBO than 5
    series: tuple[int, ...] = ()  # other numbers of terms of MDBO than 10
    seeds: tuple[int, ...] = tuple(range(10))


SETUPS = {
    "smoke": Setup(
        3,
        160,
        4,
        2,
        classes=2,
        batch_size=4,
        steps=8,
        rows=4,
        levels=("severe",),
        methods=(OURS, "MDBO"),
        loops=(1,),
        seeds=(0, 1),
    ),
    "small": Setup(seeds=(0, 1, 2, 3, 4)),
    "full": REGISTERED.setup(Setup),
}


def methods(setup: Setup) -> dict[str, Method]:
    rates: Rates = {"alpha": 1.0, "beta": 0.3, "gamma": 0.3, "theta": setup.theta}
    known = {OURS: dsoba(**rates), "MA-DSBO": ma_dsbo(**rates), "MDBO": mdbo(alpha=1.0, beta=0.3, theta=setup.theta)}
    return {**{name: known[name] for name in setup.methods}, **other_lengths(rates, setup.loops, setup.series)}


def arms(setup: Setup) -> list[Arm]:
    return [
        Arm(
            level,
            label,
            partial(
                logistic_regression,
                setup.nodes,
                heterogeneity=level,
                samples=setup.samples,
                features=setup.features,
                informative=setup.informative,
                classes=setup.classes,
            ),
            method,
            ring(setup.nodes),
            setup.steps,
            setup.batch_size,
            setup.rows * (4 if label.startswith("MA-DSBO") else 1),
            samples=2.0 * setup.batch_size * setup.steps,
            tuned=f"{label}, {level}",
        )
        for level in setup.levels
        for label, method in methods(setup).items()
    ]


def faster_and_better(results: Results[Setup]) -> list[Check]:
    checks = []
    for theirs in (name for name in methods(results.setup) if name != OURS):
        pairs = [(results[level, OURS], results[level, theirs]) for level in results.setup.levels]
        level = REGISTERED.tolerance("C8")
        speed = [faster(ours, other, "validation_loss") for ours, other in pairs]
        accuracy = [higher(ours, other, "test_accuracy", level=level) for ours, other in pairs]
        checks += [
            pooled(f"validation loss averaged over samples, {theirs} less {OURS}", speed),
            pooled(f"test accuracy at the end, {OURS} less {theirs}", accuracy),
        ]
    return checks


def default_lengths(results: Results[Setup]) -> list[Check]:
    return [
        check
        for check in faster_and_better(results)
        if any(f"{name} less" in check.text for name in OTHERS) or check.text.endswith(OTHERS)
    ]


def better_by_the_band(results: Results[Setup]) -> list[Check]:
    """Faster than all, and more accurate by more than the registered band."""
    band = REGISTERED.tolerance("C8")
    return [
        replace(check, low=band, level=0.0) if check.text.startswith("test accuracy") else check
        for check in faster_and_better(results)
    ]


STUDY = Study(
    name="dsoba/logistic",
    title="Hyper-parameter tuning in logistic regression",
    paper="D-SOBA (Kong et al., 2024), experiment 1",
    about="Twenty nodes on a ring learn how strongly to regularize every feature of a linear classifier. Most "
    "features are noise. Every method gets the same number of samples, up to those of its last row. The double loop "
    "of MA-DSBO spends them in fewer iterations.",
    differs="The slides print neither data, graph nor step sizes; data are synthetic and split by class in Dirichlet "
    "shares, α = 1 (mild) and 0.1 (severe).",
    setups=SETUPS,
    arms=arms,
    columns=("validation_loss", "test_accuracy"),
    against="samples",
    claims=(
        Claim(
            "C8",
            "D-SOBA converges faster and reaches a higher test accuracy than MA-DSBO and MDBO.",
            faster_and_better,
            why="D-SOBA is faster than all six rivals. Its accuracy is higher by 0.2 points (MA-DSBO with 5 and 20 "
            "inner steps) to 0.9 points (MDBO with 30 terms). One run of 560 diverges. An earlier registration had "
            "larger step sizes, at which 1 to 8 of 40 runs of every rival diverged. There MA-DSBO with 1 and 5 inner "
            "steps was level with D-SOBA in accuracy.",
            says="D-SOBA achieves a faster convergence and higher test-accuracy than the other two algorithms. "
            "(D-SOBA, experiment 1)",
            finding="D-SOBA is faster than all six rivals. Its accuracy is 0.2 to 0.9 points higher here, and 0.2 to "
            "0.3 points higher than MA-DSBO's. An independent rerun with 20 seeds found 0.07 ± 0.14, so call the "
            "accuracies level.",
            reproduced=Test("against MA-DSBO and MDBO with their usual loops", default_lengths),
            survives=Test(
                "faster than every length of their loops, and more accurate by more than the 0.3 points within "
                "which methods count as level",
                better_by_the_band,
            ),
        ),
    ),
    search=Search(
        alpha=(0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        beta=(0.03, 0.1, 0.3, 1.0),
        metric="upper",
        cases=lambda setup: setup.levels,
        steps=lambda setup: setup.steps,
        seeds=(100, 101, 102, 103, 104, 105),
        margin=True,
        note="by the validation loss f; the test part is not looked at",
    ),
)
