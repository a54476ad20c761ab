"""sparkle/hyper-cleaning: which SPARKLE trains the best classifier from corrupted labels, and against whom?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..graphs._families import adjusted_ring
from ..methods._dsoba import dsoba
from ..methods._ma_dsbo import ma_dsbo
from ..methods._mdbo import mdbo
from ..methods._method import Method
from ..methods._sparkle import sparkle
from ..results.metrics import Snapshot
from ..tasks.evaluation import predict
from .baselines import other_lengths
from .cleaning import SMALL, SMOKE, Cleaning
from .compare import higher, pooled
from .registration import registered
from .results import Results
from .sparkle_linear_regression import TWICE, squared
from .study import Arm, Search, Study
from .verdicts import Check, Claim

OURS = ("SPARKLE-ED", "SPARKLE-EXTRA")
MIXED = ("SPARKLE-ED-GT", "SPARKLE-EXTRA-GT")
OTHERS = ("D-SOBA", "MA-DSBO-GT", "MDBO")
FEW = ("SPARKLE-ED", TWICE, "SPARKLE-ED-GT", "SPARKLE-GT")
REGISTERED = registered("sparkle/hyper-cleaning")


@dataclass(frozen=True)
class Setup(Cleaning):
    corruptions: tuple[float, ...] = (0.1, 0.2, 0.3)
    methods: tuple[str, ...] = (*OURS, TWICE, *MIXED, "SPARKLE-GT", *OTHERS)
    other_weights: tuple[float, ...] = ()  # of rings with stronger links, at the middle rate
    loops: tuple[int, ...] = ()  # other inner steps T = N of MA-DSBO-GT than 5, at the middle rate
    series: tuple[int, ...] = ()  # other numbers of terms of MDBO than 10, likewise
    apart: int = 0  # how far the seeds of a case are from those of the next
    end: float = 0.1  # share of the rows that are the end of a run
    seeds: tuple[int, ...] = tuple(range(10))

    @property
    def middle(self) -> float:
        return self.corruptions[len(self.corruptions) // 2]


SETUPS = {
    "smoke": Setup(**SMOKE, corruptions=(0.3,), methods=FEW, other_weights=(0.25,), loops=(1,), series=(3,)),
    "small": Setup(**SMALL, corruptions=(0.1, 0.3)),
    "full": REGISTERED.setup(Setup),
}


def methods(setup: Setup) -> dict[str, Method]:
    """SPARKLE in parallel order, for which one derivative and one message serve all levels."""
    rates, ours = setup.rates, partial(sparkle, **setup.rates, updates="simultaneous")
    known = {
        "SPARKLE-ED": ours("ed"),
        "SPARKLE-EXTRA": ours("extra"),
        TWICE: ours("ed"),
        "SPARKLE-GT": ours("gt"),
        "SPARKLE-ED-GT": ours("ed", "gt"),
        "SPARKLE-EXTRA-GT": ours("extra", "gt"),
        "D-SOBA": dsoba(**rates),
        "MA-DSBO-GT": ma_dsbo(**rates, tracking=True),
        "MDBO": mdbo(alpha=setup.alpha, beta=0.1, theta=setup.theta),
    }
    return {name: known[name] for name in setup.methods}


def lengths(setup: Setup) -> dict[str, Method]:
    """The baselines with other loops."""
    return other_lengths(setup.rates, setup.loops, setup.series, double="MA-DSBO-GT", tracking=True)


def case(setup: Setup, corruption: float, weight: float | None = None) -> str:
    return f"p = {corruption:g}" if weight in (None, setup.weight) else f"p = {corruption:g}, links {weight:g}"


def cases(setup: Setup) -> dict[str, tuple[float, float]]:
    """The rate of corruption and the weight of a link by case."""
    every = [*((p, setup.weight) for p in setup.corruptions), *((setup.middle, w) for w in setup.other_weights)]
    return {case(setup, *pair): pair for pair in every}


def arms(setup: Setup) -> list[Arm]:
    samples, rest, every = 2.0 * setup.batch_size * setup.steps, lengths(setup), list(cases(setup))

    def arm(name: str, label: str, method: Method) -> Arm:
        p, weight = cases(setup)[name]
        graph = adjusted_ring(setup.nodes, weight)
        return Arm(
            name, label, setup.task(p), method, squared(graph) if label == TWICE else graph, setup.steps,
            setup.batch_size, setup.rows * (4 if label.startswith("MA-DSBO-GT") else 1), samples=samples,
            tuned=label if weight == setup.weight else f"{label}, links {weight:g}",
            shift=setup.apart * every.index(name),
        )  # fmt: skip

    return [
        arm(name, label, method)
        for name in every
        for label, method in {**methods(setup), **(rest if name == case(setup, setup.middle) else {})}.items()
    ]


class BalancedError(eqx.Module):
    """`balanced_error`: the share of a class's clean validation samples, those of all nodes, that the average of the
    nodes' models takes for another class; averaged over classes, of which nodes hold unequal shares."""

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        samples = snapshot.problem.upper_data
        inputs, labels = samples.tree  # (nodes, most samples of any node, ...)
        logits = predict(snapshot.y, inputs)
        wrong = logits.argmax(-1).astype(labels.dtype) != labels
        own = jnp.arange(labels.shape[1], dtype=jnp.int32) < samples.counts[:, None]  # others are repeated
        each = jax.nn.one_hot(jnp.where(own, labels, -1), logits.shape[-1], dtype=logits.dtype)
        held, missed = each.sum((0, 1)), jnp.where(wrong[..., None], each, 0).sum((0, 1))
        return {"balanced_error": jnp.mean(missed / held, where=held > 0)}


def better_than_tracking(results: Results[Setup]) -> list[Check]:
    """At equal samples, and at equal bytes, of which gradient tracking sends twice as many; and ED with two rounds of
    mixing a step, which sends as much."""
    pairs = [*((ours, against) for ours in OURS for against in ("samples", "bytes")), (TWICE, "samples")]
    return [
        _compared(results, ours, "SPARKLE-GT", against, level=REGISTERED.tolerance("C3"))
        for ours, against in pairs
        if ours in results.setup.methods
    ]


def better_than_others(results: Results[Setup]) -> list[Check]:
    setup = results.setup
    return [
        _compared(results, ours, theirs, "samples", level=REGISTERED.tolerance("C3b"))
        for ours in OURS
        for theirs in (*OTHERS, *lengths(setup))
        if {ours, theirs} <= {*setup.methods, *lengths(setup)}
    ]


def _compared(results: Results[Setup], ours: str, theirs: str, against: str, **allowed: float) -> Check:
    """Over all cases together that have both."""
    setup = results.setup
    both = [case(setup, setup.middle)] if theirs in lengths(setup) else cases(setup)
    parts = [
        higher(results[name, ours], results[name, theirs], "test_accuracy", against=against, share=setup.end, **allowed)
        for name in both
    ]
    words = "samples and bytes" if ours == TWICE else against
    return pooled(f"test accuracy at equal {words}, {ours} less {theirs}", parts)


STUDY = Study(
    name="sparkle/hyper-cleaning",
    title="Data hyper-cleaning on Fashion-MNIST",
    paper="SPARKLE (Zhu et al., 2024), experiment 1",
    about="Ten nodes on a ring hold different classes, and a share p of the training labels is wrong. They learn a "
    "weight for every training sample (x) and a two-layer network (y), so that the network trained with these weights "
    "does well on clean validation samples. Links are weak, of weight 0.1; at the middle rate there is a ring with "
    "links of 0.25 as well. Test accuracy is that of the average of the nodes' networks; every method gets the same "
    "number of samples, but for those of its last row.",
    differs="A corrupted label is always wrong. The slides do not print graph and step sizes. The end of a run is the "
    "last tenth of its rows: four for SPARKLE and D-SOBA, two for MA-DSBO and one for MDBO, which spend their samples "
    "in fewer iterations.",
    setups=SETUPS,
    arms=arms,
    columns=("test_accuracy", "node_accuracy", "corrupted_weight", "clean_weight"),
    against="samples",
    claims=(
        Claim(
            "C3",
            "SPARKLE with ED or EXTRA reaches a higher test accuracy than with gradient tracking.",
            better_than_tracking,
            why="Statistics, in five of 15 checks, four of them against gradient tracking: data and start of a seed "
            "move accuracies by one to two points, so that 20 seeds tell half a point. At equal samples gradient "
            "tracking, which sends twice the bytes, is ahead of ED by 0.5 ± 0.5 points and of EXTRA by 0.2 ± 0.3; at "
            "equal bytes EXTRA is 0.5 ± 0.2 ahead of it, which is settled, ED 0.2 ± 0.4, and ED on W², which sends as "
            "much, 0.3 ± 0.5. Rings differ: at equal samples ED is behind by 0.6, 0.9 and 1.1 points with weak links, "
            "and 0.2 ± 0.6 ahead with stronger ones. The nodes' own networks (not registered) are 2.1 points worse "
            "with ED than with gradient tracking on the weak ring (79.5 against 81.6 %), and 0.3 better on the other; "
            "EXTRA's are level with it. ED and EXTRA are ahead of D-SOBA by 2.9 and 3.2 points, of MA-DSBO by 1.7 and "
            "2.1, of MDBO by 1.9 and 2.3. Shorter loops, tried at the middle rate, do better: one inner step in the "
            "place of five leaves 1.1 and 1.8 points instead of 1.4 and 2.0, three terms instead of ten 0.6, which is "
            "not settled, and 1.2 instead of 1.8 and 2.5. Set-up: step sizes were searched on one seed. For ED on the "
            "weak ring that gave β = 0.16, twice gradient tracking's, and one run of 80 diverged, so that signs decide "
            "in its pooled checks; MA-DSBO's lie next to others that diverge, as seven of its 80 runs do. With small "
            "steps strategies differ less: in the search on the weak ring, with α = 10⁴, validation errors of ED, "
            "EXTRA, both mixtures and gradient tracking are up to 0.1 points apart with β = 0.04, and up to 1.4 with "
            "0.113 and more; on the other ring EXTRA and its mixture lag behind with 0.04.",
        ),
        Claim(
            "C3b",
            "SPARKLE with ED or EXTRA reaches a higher test accuracy than D-SOBA, MA-DSBO and MDBO.",
            better_than_others,
            why="",
        ),
    ),
    precision="default",
    search=Search(
        alpha=(1_000.0, 10_000.0, 100_000.0),
        beta=(0.04, 0.0566, 0.08, 0.113, 0.16, 0.226),
        metric=lambda task: BalancedError(),
        cases=lambda setup: tuple(name for name, (p, _) in cases(setup).items() if p == setup.middle),
        steps=lambda setup: setup.steps,
        seeds=(100, 101, 102),
        margin=True,
        widen=True,
        note="by the error of the averaged model on the validation samples, averaged over classes; the test part is not "
        "looked at",
    ),
)
