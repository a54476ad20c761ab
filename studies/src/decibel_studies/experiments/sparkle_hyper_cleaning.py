"""sparkle/hyper-cleaning: which SPARKLE trains the best classifier from corrupted labels, and against whom?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from decibel import Method, dsoba, ma_dsbo, mdbo, sparkle
from decibel.graphs import adjusted_ring
from decibel.tasks import Task

from ..judging.compare import higher, pooled
from ..judging.registration import registered
from ..judging.results import Results
from ..judging.verdicts import Check, Claim, Test, only
from ..testbed.study import Arm, Search, Study
from ..type_aliases import PyTree, Snapshot
from .baselines import other_lengths
from .cleaning import SMALL, SMOKE, CleaningSetup
from .sparkle_linear_regression import TWICE, squared

OURS = ("SPARKLE-ED", "SPARKLE-EXTRA")
MIXED = ("SPARKLE-ED-GT", "SPARKLE-EXTRA-GT")
OTHERS = ("D-SOBA", "MA-DSBO-GT", "MDBO")
FEW = ("SPARKLE-ED", TWICE, "SPARKLE-ED-GT", "SPARKLE-GT")
REGISTERED = registered("sparkle/hyper-cleaning")
Judge = Callable[[Results[Any]], list[Check]]


@dataclass(frozen=True)
class Setup(CleaningSetup):
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
    "small": Setup(**SMALL, corruptions=(0.1, 0.3), loops=(1,), series=(3,)),
    "full": REGISTERED.setup(Setup),
}


def methods(setup: Setup) -> dict[str, Method]:
    """SPARKLE in parallel order, for which one derivative and one message serve all levels."""
    rates = setup.rates
    ours = partial(sparkle, **rates, updates="simultaneous")
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
    samples = 2.0 * setup.batch_size * setup.steps
    rest = lengths(setup)
    every = list(cases(setup))

    def arm(name: str, label: str, method: Method) -> Arm:
        p, weight = cases(setup)[name]
        graph = adjusted_ring(setup.nodes, weight)
        return Arm(
            name,
            label,
            setup.task(p),
            method,
            squared(graph) if label == TWICE else graph,
            setup.steps,
            setup.batch_size,
            setup.rows * (4 if label.startswith("MA-DSBO-GT") else 1),
            samples=samples,
            tuned=label if weight == setup.weight else f"{label}, links {weight:g}",
            shift=setup.apart * every.index(name),
        )

    return [
        arm(name, label, method)
        for name in every
        for label, method in {**methods(setup), **(rest if name == case(setup, setup.middle) else {})}.items()
    ]


class BalancedError(eqx.Module):
    """`balanced_error`: the share of a class's clean validation samples, those of all nodes, that the average of the
    nodes' models takes for another class; averaged over classes, of which nodes hold unequal shares."""

    model: Callable[[PyTree, Array], Array]  # weights and inputs to logits

    @classmethod
    def of(cls, task: Task) -> BalancedError:
        """With the model of the task's test accuracy, its first metric."""
        return cls(cast(Any, task.metrics[0]).model)

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        samples = snapshot.problem.upper_data
        inputs, labels = samples.tree  # (nodes, most samples of any node, ...)
        logits = self.model(snapshot.y, inputs)
        wrong = logits.argmax(-1).astype(labels.dtype) != labels
        first = jnp.arange(labels.shape[1], dtype=jnp.int32) < samples.counts[:, None]  # others are repeated
        each = jax.nn.one_hot(jnp.where(first, labels, -1), logits.shape[-1], dtype=logits.dtype)
        held = each.sum((0, 1))
        missed = jnp.where(wrong[..., None], each, 0).sum((0, 1))
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


def no_worse_than_tracking(results: Results[Setup]) -> list[Check]:
    """Mixed strategies against gradient tracking for both levels."""
    return [
        _compared(results, ours, "SPARKLE-GT", against, tolerance=REGISTERED.tolerance("C4"))
        for ours in MIXED
        for against in ("samples", "bytes")
        if ours in results.setup.methods
    ]


def on_rings(names: Sequence[str], *, weak: bool, bytes_too: bool = False, **allowed: float) -> Judge:
    """Methods against gradient tracking at equal samples on the rings with weak links alone, or on the others."""

    def judge(results: Results[Setup]) -> list[Check]:
        setup = results.setup
        rings = [name for name, (_, weight) in cases(setup).items() if (weight == setup.weight) == weak]
        against = ("samples", "bytes") if bytes_too else ("samples",)
        found = [name for name in names if name in setup.methods and rings]
        return [_compared(results, name, "SPARKLE-GT", cost, rings, **allowed) for name in found for cost in against]

    return judge


def _compared(
    results: Results[Setup], ours: str, theirs: str, against: str, rings: Sequence[str] = (), **allowed: float
) -> Check:
    """Over all cases together that have both, or over those named."""
    setup = results.setup
    both = rings or ([case(setup, setup.middle)] if theirs in lengths(setup) else list(cases(setup)))
    parts = [
        higher(results[name, ours], results[name, theirs], "test_accuracy", against=against, share=setup.end, **allowed)
        for name in both
    ]
    words = "samples and bytes" if ours == TWICE else against
    where = f"{'; '.join(rings)}: " if rings else ""
    return pooled(f"{where}test accuracy at equal {words}, {ours} less {theirs}", parts)


STUDY = Study(
    name="sparkle/hyper-cleaning",
    title="Data hyper-cleaning on Fashion-MNIST",
    paper="SPARKLE (Zhu et al., 2024), experiment 1",
    about="Ten nodes on a ring hold different classes, and a share p of the training labels is wrong. They learn a "
    "weight for every training sample (x) and a two-layer network (y), so that the network trained with these weights "
    "does well on clean validation samples. Links are weak, with weight 0.1. With p = 0.2 there is also a ring with "
    "links of 1/4. Test accuracy is that of the average of the nodes' networks. Every method gets the same number of "
    "samples, up to those of its last row.",
    differs="A corrupted label is always wrong. The slides do not print graph and step sizes. The end of a run is "
    "the last quarter of its rows: ten rows for SPARKLE and D-SOBA, 3 to 17 for the others, which spend their "
    "samples in fewer iterations. Every case has its own data and seeds. Mixed strategies are shown here and judged "
    "in sparkle/mixed-strategies.",
    setups=SETUPS,
    arms=arms,
    columns=("test_accuracy", "node_accuracy", "corrupted_weight", "clean_weight"),
    against="samples",
    claims=(
        Claim(
            "C3",
            "SPARKLE with ED or EXTRA reaches a higher test accuracy than with gradient tracking.",
            better_than_tracking,
            why="One of five checks fails because of the method: EXTRA is slower on one of two rings, in runs of this "
            "length. At equal samples EXTRA ends 0.4 ± 0.2 points below gradient tracking, which sends twice the "
            "bytes. On the ring with links of 1/4 it is 1.0 ± 0.2 below. With weak links it is 0.2 ± 0.2 below, which "
            "is not settled.\n\nOn the ring with links of 1/4 EXTRA is slower: in the four quarters of a run it lags "
            "by 3.5, 2.0, 1.3 and 1.0 points. In the runs that were judged before, with the same step sizes, it "
            "lagged by 0.9 after 2,000 steps and by 0.4 ± 0.2 after 4,000. So longer runs bring the two closer, but "
            "do not show that they meet. Larger steps do not help. In the search with α = 1,000, EXTRA's validation "
            "error is above gradient tracking's: by 0.7 to 0.8 points with β of 0.04 to 0.08, and by 1.8 to 2.3 with "
            "larger β.\n\nED ends 0.05 ± 0.21 below gradient tracking. That settles neither that it is ahead nor that "
            "both are level within 0.2. Of 120 pairs of runs ED is ahead in 75. In 7 it is more than two points "
            "behind, and in one of them 11.\n\nAt equal bytes gradient tracking ends after half of the steps. There "
            "ED is 1.2 ± 0.2 points ahead and EXTRA 0.9 ± 0.2. In the earlier runs, after 4,000 steps, these were 0.2 "
            "± 0.4 and 0.5 ± 0.2. ED on W², which sends as much as gradient tracking, is 0.6 ± 0.2 ahead (0.3 ± 0.5 "
            "in the earlier runs).\n\nThe accuracy of the nodes' own networks was not registered. Where links are "
            "weak it is 80.6 % with ED, 80.7 with EXTRA and 80.3 with gradient tracking. On the other ring it is "
            "82.1, 81.1 and 82.0.",
            says="SPARKLE with ED/EXTRA communication can achieve higher test accuracy than GT. (SPARKLE, "
            "experiment 1)",
            finding="At equal samples there is no visible difference on weak rings. On a ring with links of 1/4 EXTRA "
            "is 1.0 point behind gradient tracking. At equal bytes ED is 1.2 points ahead of it, and EXTRA 0.9.",
            reproduced=Test(
                "higher at equal samples on the three weak rings, as on the slides", on_rings(OURS, weak=True)
            ),
            survives=Test(
                "also on the ring with links of 1/4 at equal samples, and over all rings at equal bytes",
                lambda results: [*on_rings(OURS, weak=False)(results), *only(better_than_tracking, "bytes")(results)],
            ),
        ),
        Claim(
            "C4",
            "Mixed strategies (ED-GT, EXTRA-GT) do at least as well as gradient tracking.",
            no_worse_than_tracking,
            why="There are four cases with 30 seeds each. At equal samples ED-GT ends 0.10 ± 0.18 points below "
            "gradient tracking and EXTRA-GT 0.38 ± 0.15, where 0.2 is allowed. On the three rings with weak links "
            "alone, the regime of the slides (ρ → 1), they end 0.00 ± 0.21 and 0.17 ± 0.20 below. At equal bytes "
            "ED-GT is 0.9 to 1.4 points ahead on every ring. EXTRA-GT is 1.0 to 1.2 points ahead on the weak rings, "
            "and 0.3 on the ring with links of 1/4. C4b asks the same about the ring with links of 1/4 alone.",
            says="Mixed strategies outperform employing GT only! (SPARKLE, slide on Corollary 4)",
            finding="On weak rings at equal samples ED-GT ends level with gradient tracking and EXTRA-GT 0.2 points "
            "below, and neither is settled. At equal bytes, over all rings, ED-GT is 1.2 points ahead and EXTRA-GT "
            "0.9.",
            reproduced=Test(
                "no more than 0.2 points lower at equal samples on the three weak rings",
                on_rings(MIXED, weak=True, tolerance=0.002),
            ),
            survives=Test(
                "also on the ring with links of 1/4, and at equal bytes",
                lambda results: [
                    *on_rings(MIXED, weak=False, tolerance=0.002)(results),
                    *only(no_worse_than_tracking, "bytes")(results),
                ],
            ),
        ),
        Claim(
            "C3b",
            "SPARKLE with ED or EXTRA reaches a higher test accuracy than D-SOBA, MA-DSBO and MDBO.",
            better_than_others,
            why="ED and EXTRA are ahead of D-SOBA by 2.4 and 2.1 points, of MA-DSBO by 2.7 and 2.4, and of MDBO by "
            "2.3 and 2.0. Four of MA-DSBO's 120 runs diverged, so there the sign test decides. Other inner loops and "
            "series were tried where a fifth of the labels is wrong and links are weak. The two numbers are the "
            "distances to ED and EXTRA. MA-DSBO with one inner step instead of five does worse: it is 2.8 and 2.6 "
            "points behind instead of 2.5 and 2.2. MDBO with three terms instead of ten does better: it is 1.0 ± 0.5 "
            "and 0.7 ± 0.4 behind instead of 2.6 and 2.3. D-SOBA's nodes disagree: their own networks reach 66 to 72 "
            "%, and their average 78 to 81.",
            says="Comparing SPARKLE variants with other baseline methods across different data heterogeneity. "
            "(SPARKLE, experiment 1; a figure)",
            finding="ED and EXTRA end 2.0 to 2.7 points of test accuracy above D-SOBA, MA-DSBO and MDBO, and 0.7 to "
            "1.0 above MDBO with three terms.",
            reproduced=Test(
                "higher than each with its usual loops",
                lambda results: [
                    check
                    for check in better_than_others(results)
                    if not any(name in check.text for name in lengths(results.setup))
                ],
            ),
        ),
    ),
    precision="default",
    search=Search(
        alpha=(1_000.0, 10_000.0, 100_000.0),
        beta=(0.04, 0.0566, 0.08, 0.113, 0.16, 0.226),
        metric=BalancedError.of,
        cases=lambda setup: tuple(name for name, (p, _) in cases(setup).items() if p == setup.middle),
        steps=lambda setup: setup.steps,
        seeds=(100, 101, 102),
        margin=True,
        widen=True,
        note="by the error of the averaged model on the validation samples, averaged over classes; the test part is "
        "not looked at",
    ),
)
