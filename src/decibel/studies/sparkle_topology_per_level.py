"""sparkle/topology-per-level: whose graph matters more, that of x or that of y and z?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graphs._families import adjusted_ring, complete
from ..graphs._graph import Levels
from ..methods._sparkle import sparkle
from .cleaning import SMALL, SMOKE, TOLERANCE, Cleaning, search
from .compare import higher, settle
from .results import Results
from .study import Arm, Study
from .verdicts import Check, Claim

CASE, METHOD = "hyper-cleaning", "SPARKLE-ED"
DENSE, SPARSE_X, SPARSE_YZ, SPARSE = "both dense", "x sparse", "y, z sparse", "both sparse"
GRAPHS = {DENSE: (False, False), SPARSE_X: (True, False), SPARSE_YZ: (False, True), SPARSE: (True, True)}


@dataclass(frozen=True)
class Setup(Cleaning):
    corruption: float = 0.3
    weight: float = 0.02  # the dense graph is complete
    graphs: tuple[str, ...] = tuple(GRAPHS)
    seeds: tuple[int, ...] = tuple(range(10))  # five did not settle C6


SETUPS = {"smoke": Setup(**SMOKE, graphs=(DENSE, SPARSE_X, SPARSE_YZ)), "small": Setup(**SMALL), "full": Setup()}


def arms(setup: Setup) -> list[Arm]:
    graphs = {False: complete(setup.nodes), True: adjusted_ring(setup.nodes, setup.weight)}
    task, method = setup.task(setup.corruption), sparkle("ed", **setup.rates, updates="simultaneous")
    return [
        Arm(
            CASE, name, task, method, Levels(x=graphs[x], y=graphs[y]), setup.steps, setup.batch_size, setup.rows,
            metrics=("consensus_x", "consensus_y", "upper"), tuned=METHOD,
        )
        for name in setup.graphs for x, y in (GRAPHS[name],)
    ]  # fmt: skip


def lower_level_matters_more(results: Results[Setup]) -> list[Check]:
    """Harm: how far the average over the run of the nodes' accuracy lies below that with dense graphs."""
    dense, x, yz = (results[CASE, name].mean("node_accuracy") for name in (DENSE, SPARSE_X, SPARSE_YZ))
    text = "node accuracy averaged over the run"
    more = "the cost of a sparse y, z-graph less that of a sparse x-graph"
    return [
        Check.of(f"{text}: what a sparse y, z-graph costs", settle(dense - yz, ours=dense, theirs=yz)),
        Check.of(f"{text}: {more}", settle(x - yz, ours=x, theirs=yz)),
    ]


def sparse_x_saves(results: Results[Setup]) -> list[Check]:
    sparse, dense = results[CASE, SPARSE_X], results[CASE, DENSE]
    spent = lambda runs: np.array([trace["bytes"][-1] for trace in runs.traces])  # noqa: E731
    saved = "bytes with a sparse x-graph over bytes with dense graphs"
    return [
        higher(sparse, dense, "test_accuracy", tolerance=TOLERANCE),
        Check.of(saved, spent(sparse) / spent(dense), 1.0, above=False),
    ]


STUDY = Study(
    name="sparkle/topology-per-level",
    title="A graph per level",
    paper="SPARKLE (Zhu et al., 2024), experiment 1",
    about="Hyper-cleaning as in sparkle/hyper-cleaning, with a complete graph or a ring of very weak links, chosen "
    "apart for x and for y and z.",
    differs="The slides do not print which graphs were used.",
    setups=SETUPS,
    arms=arms,
    columns=("node_accuracy", "test_accuracy", "consensus_y", "consensus_x"),
    claims=(
        Claim("C5", "The graph of y and z influences convergence more than that of x.", lower_level_matters_more),
        Claim("C6", "A sparser graph for x saves bytes at equal accuracy.", sparse_x_saves),
    ),
    precision="default",
    search=search(
        cases=lambda setup: (CASE,), note="by the validation loss f on dense graphs; the same step sizes on all graphs"
    ),
)
