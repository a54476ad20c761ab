"""sparkle/mixed-strategies: does ED or EXTRA below, with gradient tracking above, cost accuracy?"""

from __future__ import annotations

from dataclasses import dataclass

from decibel import sparkle
from decibel.graphs import adjusted_ring

from ..judging.compare import higher
from ..judging.registration import registered
from ..judging.results import Results
from ..judging.verdicts import Check, Claim
from ..testbed.study import Arm, Rates, Study
from .cleaning import SMALL, SMOKE, CleaningSetup

TRACKING = "SPARKLE-GT"
BELOW = {"SPARKLE-ED-GT": "ed", "SPARKLE-EXTRA-GT": "extra", TRACKING: "gt"}  # the strategy of the lower level
REGISTERED = registered("sparkle/mixed-strategies")


@dataclass(frozen=True)
class Setup(CleaningSetup):
    corruption: float = 0.2
    chosen: tuple[tuple[str, float, float], ...] = ()  # α, and β = γ, of every method; none: guesses
    end: float = 0.25  # share of the rows that are the end of a run
    trim: float = 0.2  # share of the seeds that is left out at either end: single runs come out very differently
    seeds: tuple[int, ...] = tuple(range(10))

    @property
    def case(self) -> str:
        return f"p = {self.corruption:g}, links {self.weight:g}"


SETUPS = {
    "smoke": Setup(**SMOKE, weight=0.25, chosen=tuple((name, 1.0, 0.1) for name in BELOW)),
    "small": Setup(**SMALL, weight=0.25),
    "full": REGISTERED.setup(Setup),
}


def arms(setup: Setup) -> list[Arm]:
    return [
        Arm(
            setup.case,
            label,
            setup.task(setup.corruption),
            sparkle(below, "gt", **rates(setup, label)),
            adjusted_ring(setup.nodes, setup.weight),
            setup.steps,
            setup.batch_size,
            setup.rows,
        )
        for label, below in BELOW.items()
    ]


def rates(setup: Setup, label: str) -> Rates:
    if not setup.chosen:
        return setup.rates
    alpha, beta = {name: pair for name, *pair in setup.chosen}[label]
    return {"alpha": alpha, "beta": beta, "gamma": beta, "theta": setup.theta}


def as_good_as_tracking(results: Results[Setup]) -> list[Check]:
    setup = results.setup
    tolerance = REGISTERED.tolerance("C4b")
    return [
        higher(
            results[setup.case, ours],
            results[setup.case, TRACKING],
            "test_accuracy",
            against=against,
            tolerance=tolerance,
            share=setup.end,
            trim=setup.trim,
        )
        for ours in BELOW
        if ours != TRACKING
        for against in ("samples", "bytes")
    ]


STUDY = Study(
    name="sparkle/mixed-strategies",
    title="Gradient tracking above, ED or EXTRA below",
    paper="SPARKLE (Zhu et al., 2024), experiment 1",
    about="The label cleaning of sparkle/hyper-cleaning on the ring with links of weight 1/4, where a fifth of the "
    "labels is wrong. It compares gradient tracking for both levels with ED or EXTRA for the lower one. All take the "
    "same number of samples. Gradient tracking sends the most bytes.",
    differs="The slides print neither graph nor step sizes. The ring is one of two of sparkle/hyper-cleaning, and "
    "step sizes are those that the search there found. It is the ring where EXTRA-GT did worst. Over all four cases "
    "there, with 30 seeds each and at equal samples, EXTRA-GT ended 0.38 ± 0.15 points below gradient tracking, and "
    "ED-GT 0.10 ± 0.18, which settled nothing. With weak links alone EXTRA-GT was 0.1 to 0.2 below. At equal bytes "
    "gradient tracking is taken at the last row within the budget, after 1,000 of 1,095 steps.",
    setups=SETUPS,
    arms=arms,
    columns=("test_accuracy", "node_accuracy", "corrupted_weight", "clean_weight"),
    against="samples",
    claims=(
        Claim(
            "C4b",
            "On a ring with links of 1/4 mixed strategies (ED-GT, EXTRA-GT) do at least as well as gradient tracking.",
            as_good_as_tracking,
            why="One of four checks fails because of the method: EXTRA is slower, on this ring and in runs of this "
            "length. At equal samples EXTRA-GT ends 1.0 ± 0.2 points below gradient tracking, where 0.2 is allowed. "
            "(The mean leaves out a fifth of the seeds at either end. Over all seeds it is 1.0, too.) It is below "
            "with 19 of 20 seeds. In the four quarters of a run it lags by 2.8, 2.1, 1.4 and 1.0 points. In runs of "
            "4,000 steps that were judged before, where gradient tracking had a larger α, it lagged by 0.9 ± 0.3 "
            "after 2,000 steps and by 0.4 ± 0.2 in the last quarter. So longer runs bring the two closer, but do not "
            "show that they meet. Larger steps do not help. In the search with α = 1,000, its validation error is "
            "above gradient tracking's: by 0.7 to 0.9 points with β of 0.04 to 0.08, and by 1.7 and 2.1 with 0.113 "
            "and 0.16. With 0.226 it diverges.\n\nED-GT ends 0.1 ± 0.2 below, which alone settles nothing: it is "
            "ahead with 7 of 20 seeds. At equal bytes ED-GT is 1.1 ± 0.3 points ahead. EXTRA-GT is 0.2 ± 0.2 ahead, "
            "which is not settled once p = 0.005 is corrected for four checks and five judgements (0.07).",
            finding="At equal samples EXTRA-GT ends 1.0 ± 0.2 points below gradient tracking, and ED-GT 0.1 ± 0.2. "
            "At equal bytes ED-GT is 1.1 points ahead.",
        ),
    ),
    precision="default",
)
