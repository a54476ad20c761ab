"""dsoba/topology: what a sparser graph costs D-SOBA, and whether time makes up for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from decibel import Graph, dsoba
from decibel.graphs import adjusted_ring, complete, exponential, torus
from decibel.tasks import linear_regression

from ..judging.compare import less
from ..judging.registration import registered
from ..judging.results import Results
from ..judging.verdicts import Check, Claim
from ..testbed.study import Arm, Study

GRAPHS = ("complete", "exponential", "torus", "adjusted ring")  # by their ρ
REGISTERED = registered("dsoba/topology")


@dataclass(frozen=True)
class Setup:
    sides: tuple[int, int] = (2, 5)  # of the torus; as many nodes in the other graphs
    weight: float = 0.1  # of each neighbour on the adjusted ring
    dimension: int = 10
    samples: int = 500
    noise: float = 0.5
    heterogeneity: float | Literal["mild", "severe"] = "mild"
    batch_size: int = 10
    horizons: tuple[int, ...] = (2_000, 8_000, 32_000, 128_000)  # T
    rate: float = 0.03  # of all levels at the shortest T; at others it is √(shortest / T) times that
    rows: int = 40
    theta: float = 0.2
    graphs: tuple[str, ...] = GRAPHS
    seeds: tuple[int, ...] = tuple(range(10))


SETUPS = {
    "smoke": Setup(
        (2, 2),
        dimension=2,
        samples=10,
        batch_size=2,
        horizons=(8, 16),
        rows=4,
        graphs=("complete", "adjusted ring"),
        seeds=(0, 1),
    ),
    "small": Setup(horizons=(1_000, 4_000, 16_000), seeds=(0, 1, 2, 3, 4)),
    "full": REGISTERED.setup(Setup),
}


def graphs(setup: Setup) -> dict[str, Graph]:
    nodes = setup.sides[0] * setup.sides[1]
    known: dict[str, Graph] = {
        "complete": complete(nodes),
        "exponential": exponential(nodes),
        "torus": torus(*setup.sides),
        "adjusted ring": adjusted_ring(nodes, setup.weight),
    }
    return {name: known[name] for name in setup.graphs}


def case(steps: int) -> str:
    return f"T = {steps:,}"


def arms(setup: Setup) -> list[Arm]:
    """All graphs at the shortest T; the densest and the sparsest at all."""
    first = setup.horizons[0]
    every: list[Arm] = []
    for steps in setup.horizons:
        rate = setup.rate * (first / steps) ** 0.5
        method = dsoba(alpha=rate, beta=rate, gamma=rate, theta=setup.theta)
        for name, graph in graphs(setup).items():
            if steps == first or name in (GRAPHS[0], GRAPHS[-1]):
                task = partial(
                    linear_regression,
                    graph.nodes,
                    dimension=setup.dimension,
                    heterogeneity=setup.heterogeneity,
                    samples=setup.samples,
                    noise=setup.noise,
                )
                every.append(Arm(case(steps), name, task, method, graph, steps, setup.batch_size, setup.rows))
    return every


def in_order(results: Results[Setup]) -> list[Check]:
    """At the shortest T, where step sizes are largest."""
    first = case(results.setup.horizons[0])
    height = {name: results[first, name].mean("distance", log=True) for name in results.setup.graphs}
    return [
        less(
            f"{first}: log₁₀ of distance averaged over the run, {sparse} less {dense}",
            height[dense],
            height[sparse],
            level=REGISTERED.tolerance("C9"),
        )
        for dense, sparse in pairwise(results.setup.graphs)
    ]


def gap_closes(results: Results[Setup]) -> list[Check]:
    """The gap: log₁₀ of the distance at the end on the adjusted ring, less that on the complete graph."""
    horizons = results.setup.horizons
    gaps = []
    for steps in horizons:
        dense, sparse = (np.log10(results[case(steps), name].last("distance")) for name in (GRAPHS[0], GRAPHS[-1]))
        gaps.append(np.where(np.isnan(sparse), np.inf, sparse - dense))
    text = f"log₁₀ of distance at the end, {GRAPHS[-1]} less {GRAPHS[0]}"
    last, first = (f"T = {horizons[i]:,}" for i in (-1, 0))
    return [
        Check.of(f"{text}: slope against log₁₀ T", np.polyfit(np.log10(horizons), gaps, 1)[0], above=False),
        Check.of(f"{text}: {last} less half of that at {first}", gaps[-1] - 0.5 * gaps[0], above=False),
    ]


STUDY = Study(
    name="dsoba/topology",
    title="D-SOBA on sparser and sparser graphs",
    paper="D-SOBA (Kong et al., 2024), experiment 2",
    about="The task is linear regression with a known solution, over ten nodes and four graphs. Their ρ is in the "
    "order complete < exponential < torus < adjusted ring. All graphs get the same step sizes. Longer runs take "
    "smaller steps, at all levels in proportion to √(N/T), as in the theory. The distance is the mean over nodes of "
    "‖x_i − x*‖².",
    differs="The slides show hyper-cleaning, and print neither the torus nor the weight of the adjusted ring. Here "
    "they are 2×5 and 0.1. That the gap closes is our reading of the theory. The slides show no run that is long "
    "enough.",
    setups=SETUPS,
    arms=arms,
    columns=("distance",),
    claims=(
        Claim(
            "C9",
            "Sparser is worse, in that order.",
            in_order,
            why="The paper's order is right where differences are visible. The adjusted ring (ρ = 0.96) is worse "
            "than the torus (0.77), and the torus is worse than the exponential graph (0.67). The exponential graph "
            "is level with the complete one within 0.02 in log₁₀.",
            says="ρ_fully-connected < ρ_exp < ρ_torus < ρ_adjusted-ring. Sparser topology leads to worse "
            "convergence performance. (D-SOBA, experiment 2)",
            finding="The ring is worse than the torus, and the torus worse than the exponential graph. The "
            "exponential graph is not worse than the complete one: their errors are level within 5 %.",
        ),
        Claim(
            "C9b",
            "With step sizes ∝ √(N/T) the gap between the sparsest and the densest graph closes.",
            gap_closes,
            finding="The error on a weak ring is 41 times that on the complete graph after 2,000 steps, and 2.3 times"
            " after 128,000.",
        ),
    ),
)
