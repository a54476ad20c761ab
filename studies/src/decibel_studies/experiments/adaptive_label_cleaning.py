"""adaptive/label-cleaning: a network below, with step sizes that were searched and with those that need no search."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from decibel import Method, hypergradient, sparkle
from decibel.graphs import adjusted_ring

from ..judging.compare import higher
from ..judging.registration import registered
from ..judging.results import Results
from ..judging.verdicts import Check, Claim
from ..testbed.study import Arm, Study
from .cleaning import SMALL, SMOKE, CleaningSetup

CASE = "30 % of the labels are wrong"
TUNED = "ED, searched"
ADAM = "adam-ed below, ada-ed above"
ADAGRAD = "ada-ed"
PENALTY = "the same with the penalty form"
REGISTERED = registered("adaptive/label-cleaning")


@dataclass(frozen=True)
class Setup(CleaningSetup):
    corruption: float = 0.3
    # Found for SPARKLE-ED by the first search of sparkle/hyper-cleaning, among 15 candidates.
    alpha: float = 3_000.0
    beta: float = 0.03
    seeds: tuple[int, ...] = (0, 1, 2)


SETUPS = {"smoke": Setup(**SMOKE), "small": Setup(**SMALL), "full": REGISTERED.setup(Setup)}


def methods(setup: Setup) -> dict[str, Method]:
    """All but the first with the step sizes that they have where none are given."""
    adam = partial(sparkle, "adam-ed", "ada-ed", theta=setup.theta)
    return {
        TUNED: sparkle("ed", alpha=setup.alpha, beta=setup.beta, gamma=setup.beta, theta=setup.theta),
        ADAM: adam(),
        PENALTY: adam(hypergradient=hypergradient.penalty()),
        ADAGRAD: sparkle("ada-ed", theta=setup.theta),
    }


def arms(setup: Setup) -> list[Arm]:
    graph = adjusted_ring(setup.nodes, setup.weight)
    return [
        Arm(CASE, label, setup.task(setup.corruption), method, graph, setup.steps, setup.batch_size, setup.rows)
        for label, method in methods(setup).items()
    ]


def untuned(results: Results[Setup]) -> list[Check]:
    return [
        higher(results[CASE, ADAM], results[CASE, TUNED], column, tolerance=REGISTERED.tolerance("D3"))
        for column in ("test_accuracy", "node_accuracy")
    ]


STUDY = Study(
    name="adaptive/label-cleaning",
    title="Label cleaning with a network, without a search for step sizes",
    paper="ours",
    about="Ten nodes on a ring with weak links hold different classes of Fashion-MNIST, and 30 % of the labels for "
    "training are wrong. They learn a weight for every training sample (x) and a two-layer network (y). Adaptive "
    "Exact Diffusion takes adam-ed on the lower level and ada-ed on the upper one, with default step sizes. It is "
    "compared with Exact Diffusion with the best of fifteen pairs.",
    setups=SETUPS,
    arms=arms,
    columns=("test_accuracy", "node_accuracy", "corrupted_weight", "clean_weight"),
    claims=(
        Claim(
            "D3",
            "Without a search, adam-ed does at least as well as Exact Diffusion with searched steps.",
            untuned,
            why="adam-ed is ahead by 1.6 ± 0.8 points for the average of the networks, 84.4 against 82.8 %, and by "
            "0.6 ± 0.3 for the nodes' own networks. The standard deviation over seeds is 0.8 points for adam-ed and "
            "2.5 for ED. ED's step sizes are those of a first search. Later searches, in shorter runs, chose larger β "
            "(0.08, 0.16) in sparkle/hyper-cleaning. With AdaGrad instead of Adam on the lower level, accuracy is 7 "
            "points below that of adam-ed, and 12 for the nodes' own networks. AdaGrad's steps shrink too soon.",
            finding="Without a search adam-ed reaches a test accuracy of 84.4 %. Exact Diffusion with step sizes "
            "found by a first search reaches 82.8 %.",
        ),
    ),
    precision="default",
)
