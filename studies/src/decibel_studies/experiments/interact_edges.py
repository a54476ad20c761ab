"""interact/edges: how much the density of a random graph matters to INTERACT and SVR-INTERACT."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from decibel.graphs import erdos_renyi

from ..judging.compare import settle
from ..judging.registration import registered
from ..judging.results import Results
from ..judging.verdicts import Check, Claim
from ..testbed.study import Arm, Study
from .interact_meta_learning import OURS, learning, methods

REGISTERED = registered("interact/edges")


@dataclass(frozen=True)
class Setup:
    dataset: str = "mnist"
    nodes: int = 5
    ways: int = 5
    samples: int = 1_000
    hidden: tuple[int, ...] = (20, 20)
    regularization: float = 1e-2
    probability: float = 0.5
    probabilities: tuple[float, ...] = (0.3, 0.7)  # the others to try
    rate: float = 0.5
    steps: int = 500
    rows: int = 5
    seeds: tuple[int, ...] = tuple(range(10))


SETUPS = {
    "smoke": Setup("digits", 3, 2, 8, (2,), probability=1.0, probabilities=(0.99,), steps=4, rows=2, seeds=(0, 1)),
    "small": Setup("digits", samples=100, hidden=(10, 10), steps=300, seeds=(0, 1, 2)),
    "full": REGISTERED.setup(Setup),
}


def arms(setup: Setup) -> list[Arm]:
    task = partial(
        learning,
        setup.dataset,
        setup.nodes,
        ways=setup.ways,
        samples=setup.samples,
        hidden=setup.hidden,
        regularization=setup.regularization,
    )
    few = int(np.ceil((setup.samples / 2) ** 0.5))
    return [
        Arm(
            kind,
            f"p = {p:g}",
            task,
            methods(setup.rate)[kind],
            erdos_renyi(setup.nodes, p, weights="laplacian"),
            setup.steps,
            None if kind == "INTERACT" else few,
            setup.rows,
            ("interact",),
        )
        for kind in OURS
        for p in sorted((setup.probability, *setup.probabilities))
    ]


def edges_matter_little(results: Results[Setup]) -> list[Check]:
    checks: list[Check] = []
    little = REGISTERED.tolerance("C20")
    for kind in OURS:
        middle = np.log10(results[kind, f"p = {results.setup.probability:g}"].last("interact"))
        for p in results.setup.probabilities:
            ends = np.log10(results[kind, f"p = {p:g}"].last("interact"))
            text = f"{kind}: log₁₀ 𝔐 at p = {p:g} less that at p = {results.setup.probability:g}"
            checks.append(Check.within(text, settle(ends - middle, ours=middle, theirs=ends), -little, little))
    return checks


STUDY = Study(
    name="interact/edges",
    title="Meta-learning on sparser and denser random graphs",
    paper="INTERACT (Liu et al., 2022), section 6, figure 4",
    about="Each of five nodes has its own five digits to distinguish, as in interact/meta-learning. The graph is "
    "Erdős–Rényi, with an edge between two nodes with probability 0.3, 0.5 or 0.7. Both step sizes are 0.5, as in "
    "the paper.",
    differs="As in interact/meta-learning; one graph is drawn for each probability.",
    setups=SETUPS,
    arms=arms,
    columns=("interact", "test_accuracy", "adapted_accuracy"),
    claims=(
        Claim(
            "C20",
            "The probability of an edge (0.3, 0.5, 0.7) matters little.",
            edges_matter_little,
            why="𝔐 differs by 6 % on average over 300 steps, and never by more than 1.8 times. Over 500 steps, with "
            "old seeds, one of three runs of SVR-INTERACT at p = 0.3 ended at 3.2 times its value at p = 0.5. Such a "
            "case is rare, or it occurs only later.",
            says="𝔐 is relatively insensitive to the change of network topologies. (INTERACT, figure 4)",
            finding="𝔐 differs by 6 % on average between edge probabilities 0.3, 0.5 and 0.7, and never by more than "
            "1.8 times.",
        ),
    ),
)
