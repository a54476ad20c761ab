"""sparkle/mixed-strategies: does ED or EXTRA below, with gradient tracking above, cost accuracy?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..graphs._families import adjusted_ring
from ..methods._sparkle import sparkle
from .cleaning import SMALL, SMOKE, Cleaning
from .compare import higher
from .registration import registered
from .results import Results
from .study import Arm, Study
from .verdicts import Check, Claim

MIXED, TRACKING = {"SPARKLE-ED-GT": "ed", "SPARKLE-EXTRA-GT": "extra"}, "SPARKLE-GT"
REGISTERED = registered("sparkle/mixed-strategies")


@dataclass(frozen=True)
class Setup(Cleaning):
    corruption: float = 0.2
    chosen: tuple[tuple[str, float, float], ...] = ()  # α and β = γ of a method; else guesses
    end: float = 0.25  # share of the rows that are the end of a run
    seeds: tuple[int, ...] = tuple(range(10))

    @property
    def case(self) -> str:
        return f"p = {self.corruption:g}, links {self.weight:g}"


SETUPS = {
    "smoke": replace(Setup(**SMOKE), weight=0.25),
    "small": replace(Setup(**SMALL), weight=0.25),
    "full": REGISTERED.setup(Setup),
}


def arms(setup: Setup) -> list[Arm]:
    known = {name: {"alpha": alpha, "beta": beta, "gamma": beta} for name, alpha, beta in setup.chosen}
    return [
        Arm(
            setup.case, label, setup.task(setup.corruption),
            sparkle(below, "gt", updates="simultaneous", **{**setup.rates, **known.get(label, {})}),
            adjusted_ring(setup.nodes, setup.weight), setup.steps, setup.batch_size, setup.rows,
        )
        for label, below in {**MIXED, TRACKING: "gt"}.items()
    ]  # fmt: skip


def as_good_as_tracking(results: Results[Setup]) -> list[Check]:
    setup, tolerance = results.setup, REGISTERED.tolerance("C4")
    return [
        higher(
            results[setup.case, ours], results[setup.case, TRACKING], "test_accuracy", against=against,
            tolerance=tolerance, share=setup.end,
        )
        for ours in MIXED
        for against in ("samples", "bytes")
    ]  # fmt: skip


STUDY = Study(
    name="sparkle/mixed-strategies",
    title="Gradient tracking above, ED or EXTRA below",
    paper="SPARKLE (Zhu et al., 2024), experiment 1",
    about="The label cleaning of sparkle/hyper-cleaning on the ring with links of weight 1/4, where a fifth of the "
    "labels is wrong: gradient tracking for both levels, or ED or EXTRA for the lower one. All take as many samples; "
    "gradient tracking sends the most bytes.",
    differs="The slides do not print graph and step sizes: the ring is one of two of sparkle/hyper-cleaning, and step "
    "sizes are those that its search found there.",
    setups=SETUPS,
    arms=arms,
    columns=("test_accuracy", "node_accuracy", "corrupted_weight", "clean_weight"),
    against="samples",
    claims=(
        Claim(
            "C4",
            "Mixed strategies (ED-GT, EXTRA-GT) do at least as well as gradient tracking.",
            as_good_as_tracking,
            why="",
        ),
    ),
    precision="default",
)
