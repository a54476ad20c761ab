"""adaptive/one-peer: the language model of nodes with one text domain each, with one peer a step and on a ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from decibel import Method, adam_ed, dadam, strategies
from decibel.graphs import complete, one_peer_hypercube, ring

from ..judging.compare import lowest
from ..judging.registration import registered
from ..judging.results import Results, Runs, S
from ..judging.verdicts import Check, Claim
from ..testbed.study import Arm, Study
from ..type_aliases import Rate, Topology
from .text_nodes import Falling, Sizes, text_nodes

CASE = "eight domains"
OURS = "adam-ed, one peer"
RING = "adam-ed, ring"
LOCAL = "DADAM, one peer"
CENTRAL = "Adam on all data"
AVERAGED = "adam-ed, ring, averaged moments"
LOCAL_RING = "DADAM, ring"
REGISTERED = registered("adaptive/one-peer")


@dataclass(frozen=True)
class Setup(Sizes):
    batch_size: int = 16
    steps: int = 1_600
    rows: int = 8
    rates: tuple[float, ...] = (1e-3, 3e-3)
    seeds: tuple[int, ...] = (0, 1, 2)


SETUPS = {
    "smoke": Setup(("counting", "vowels"), 8, 4, 1, 1, None, 40, 4, 2, 2, 1, (1e-3,), (0, 1)),
    "small": Setup(
        context=32, width=32, layers=1, heads=4, compute=None, windows=1_000, test=16, batch_size=8, steps=400
    ),
    "full": REGISTERED.setup(Setup),
}


def averaged(*, alpha: Rate) -> Method:
    """adam-ed with second moments of m̂ − e instead of g − e."""
    return adam_ed(alpha=alpha).with_strategies(lambda _: strategies.adam_ed(averaged=True))


def arms(setup: Setup) -> list[Arm]:
    nodes = len(setup.domains)
    pairs, circle = one_peer_hypercube(nodes), ring(nodes)
    kinds: dict[str, tuple[Callable[..., Method], Topology]] = {
        OURS: (adam_ed, pairs),
        RING: (adam_ed, circle),
        LOCAL: (dadam, pairs),
        CENTRAL: (dadam, complete(1)),
        AVERAGED: (averaged, circle),
        LOCAL_RING: (dadam, circle),
    }
    judged = (OURS, RING, LOCAL, CENTRAL)

    def arm(label: str, size: float) -> Arm:
        make, graph = kinds[label]
        task = partial(text_nodes, setup.sizes, central=label == CENTRAL)
        method = make(alpha=Falling(size, setup.steps))
        return Arm(CASE, named(label, size), task, method, graph, setup.steps, setup.batch_size, setup.rows)

    # The larger steps first, so that the smaller ones find their programs compiled.
    return [
        arm(label, size)
        for group in (judged, (AVERAGED,), (LOCAL_RING,))
        for size in sorted(setup.rates, reverse=True)
        for label in group
    ]


def named(label: str, size: float) -> str:
    return f"{label}, η = {size:g}"


def best(results: Results[S], label: str, rates: Sequence[float]) -> Runs:
    """The step size with the lowest loss on the nodes' own text, on average over seeds."""
    return lowest([results[CASE, named(label, size)] for size in rates], "train_loss")


def behind(results: Results[S], theirs: str, ours: str, rates: Sequence[float], tolerance: float = 0.0) -> Check:
    """Their test loss less ours: above zero, or no lower than minus the tolerance."""
    first, second = best(results, theirs, rates), best(results, ours, rates)
    text = f"test loss, {first.label} less {second.label}"
    return Check.of(
        text, np.nan_to_num(first.last("test_loss"), nan=np.inf) - second.last("test_loss"), 0.0 - tolerance
    )


def one_peer_is_enough(results: Results[Setup]) -> list[Check]:
    rates = results.setup.rates
    return [behind(results, RING, OURS, rates, REGISTERED.tolerance("D6")), behind(results, LOCAL, OURS, rates)]


def averaged_is_better(results: Results[Setup]) -> list[Check]:
    return [behind(results, RING, AVERAGED, results.setup.rates)]


STUDY = Study(
    name="adaptive/one-peer",
    title="A language model with one peer a step",
    paper="ours",
    about="Eight nodes hold one kind of text each. They train one byte-level decoder of 4.8 million weights on all "
    "kinds, in 1,600 steps of 16 windows at each node. With one peer a step a node exchanges with one neighbour on a "
    "hypercube, whose dimension is drawn for each step, and the carry of adam-ed is damped. On a ring it exchanges "
    "with both neighbours, so that it sends twice the bytes. Adam on all data is one node that sees a window of every "
    "kind in each sample. It sends nothing, so the figure shows its loss at the end as a horizontal line. Step sizes "
    "fall linearly to zero. Each method has two step sizes, and is judged at the one with the lower loss on the "
    "nodes' own text. Losses are of the average of the nodes' models, in nats per byte over all kinds, on text that "
    "no node has.",
    differs="All of it is ours. Another decoder and more text than in adaptive/language-model; matrix products are in "
    "bfloat16.",
    setups=SETUPS,
    arms=arms,
    columns=("test_loss", "node_test_loss", "train_loss"),
    claims=(
        Claim(
            "D6",
            "adam-ed with one peer a step ends no higher than on a ring, at half of the bytes, and below DADAM with "
            "one peer a step.",
            one_peer_is_enough,
            why="adam-ed ends at 1.461 with one peer and at 1.457 on the ring, both with the larger step size. The "
            "ring is 0.004 ± 0.007 lower, where 0.005 is allowed: four seeds do not settle it. So we do not confirm a "
            "first trial, whose one seed was 0.021 lower with one peer than on the ring. DADAM with one peer ends "
            "0.039 ± 0.010 above adam-ed with one peer. It sends one vector where adam-ed sends two. DADAM on the "
            "ring sends as many bytes as adam-ed with one peer, and ends at 1.538. Adam on all data ends at 1.411.",
            finding="With one peer and half of the bytes adam-ed ends 0.004 ± 0.007 nats per byte above the ring. "
            "Whether this is within the allowed 0.005 is not settled. It ends 0.039 ± 0.010 below DADAM with one peer.",
        ),
        Claim(
            "D7",
            "Second moments of the averaged difference m̂ − e end below those of the newest one g − e.",
            averaged_is_better,
            why="Here g is a node's gradient, m̂ Adam's running mean of it, and e the carry. Averaged moments do best "
            "with the smaller of the two step sizes: they end at 1.380 with 0.001 and at 1.567 with 0.003. The newest "
            "ones do best with the larger: they end at 1.468 with 0.001 and at 1.457 with 0.003. Step sizes below "
            "0.001 were not tried. Averaged moments are smaller, so that steps are longer. They also end 0.03 below "
            "Adam on all data. Adam on all data has the moments of the newest gradient, and was not run with averaged "
            "ones. In label cleaning with constant steps averaged moments were worse: so the default stays, and "
            "`strategies.adam_ed(averaged=True)` is an option.",
            finding="With Adam's second moments of the averaged difference m̂ − e instead of g − e, adam-ed ends "
            "0.077 ± 0.019 nats per byte lower on a ring, with a third of the step size.",
        ),
    ),
    against="bytes",
    precision="default",
)
