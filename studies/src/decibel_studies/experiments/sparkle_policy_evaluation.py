"""sparkle/policy-evaluation: SPARKLE on the Bellman residual, against two bilevel baselines and a single level."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict, Unpack

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from decibel import Method, Problem, ed, ma_dsbo, mdbo, sparkle
from decibel.graphs import ring
from decibel.tasks import Task, policy_evaluation

from ..judging.compare import pooled, smaller
from ..judging.registration import registered
from ..judging.results import Results
from ..judging.verdicts import Check, Claim, Test
from ..testbed.study import Arm, Rates, Search, Study
from .baselines import other_lengths
from .subsets import average_error

OURS = ("SPARKLE-ED", "SPARKLE-EXTRA")
OTHERS = ("MDBO", "MA-DSBO (double loop)")
SINGLE = "ED, single level"
REGISTERED = registered("sparkle/policy-evaluation")


@dataclass(frozen=True)
class Setup:
    nodes: tuple[int, ...] = (10, 20)
    states: int = 100
    features: int = 10
    sweeps: int = 500
    discount: float = 0.9
    noise: float = 0.1
    batch_size: int = 4
    steps: int = 6_000
    rows: int = 40
    theta: float = 0.2
    methods: tuple[str, ...] = (*OURS, *OTHERS, SINGLE)
    loops: tuple[int, ...] = ()  # other inner steps T = N of MA-DSBO than 5, with the first number of nodes
    series: tuple[int, ...] = ()  # other numbers of terms of MDBO than 10, likewise
    seeds: tuple[int, ...] = tuple(range(10))


FEW = ("SPARKLE-ED", "MDBO", SINGLE)
SETUPS = {
    "smoke": Setup(
        (3,), states=6, features=2, sweeps=8, batch_size=2, steps=8, rows=4, methods=FEW, loops=(1,), seeds=(0, 1)
    ),
    "small": Setup((10,), states=30, features=5, sweeps=100, steps=2_000, seeds=(0, 1, 2, 3, 4)),
    "full": REGISTERED.setup(Setup),
}


class SquaredResidual(eqx.Module):
    """1/(2|S|) Σ_s of the product of two independent estimates of the Bellman residual, from the halves of the batch:
    its mean is the square, where the square of one estimate would add its variance."""

    features: Array
    discount: float

    def __call__(self, x: Array, batch: tuple[Array, Array]) -> Array:
        rewards, following = batch
        half = rewards.shape[0] // 2 or 1
        parts = ((rewards[:half], following[:half]), (rewards[-half:], following[-half:]))
        first, second = (self.features @ x - r.mean(0) - self.discount * f.mean(0) @ x for r, f in parts)
        return 0.5 * (first * second).mean()


class Environment(TypedDict):
    """Of the environment."""

    states: int
    features: int
    sweeps: int
    discount: float
    noise: float


def single_level(nodes: int, *, seed: int, **options: Unpack[Environment]) -> Task:
    """The same data and the same minimiser, without a lower level."""
    task = policy_evaluation(nodes, seed=seed, **options)
    features = jnp.asarray(task.truth.features, task.problem.x0.dtype)
    loss = SquaredResidual(features, options["discount"])
    problem = Problem(loss, upper_data=task.problem.lower_data, x0=task.problem.x0)
    return replace(task, problem=problem)


def guesses(setup: Setup) -> Rates:
    return {"alpha": 0.1, "beta": 0.1, "gamma": 0.1, "theta": setup.theta}


def methods(setup: Setup) -> dict[str, Method]:
    rates = guesses(setup)
    known = {
        "SPARKLE-ED": sparkle("ed", **rates),
        "SPARKLE-EXTRA": sparkle("extra", **rates),
        "MDBO": mdbo(alpha=0.1, beta=0.1, theta=setup.theta),
        "MA-DSBO (double loop)": ma_dsbo(**rates),
        SINGLE: ed(alpha=0.1, theta=setup.theta),
    }
    return {name: known[name] for name in setup.methods}


def others(setup: Setup) -> dict[str, Method]:
    """The baselines with other loops."""
    return other_lengths(guesses(setup), setup.loops, setup.series, double="MA-DSBO (double loop)")


def arms(setup: Setup) -> list[Arm]:
    every: list[Arm] = []
    for nodes in setup.nodes:
        options: Environment = {
            "states": setup.states,
            "features": setup.features,
            "sweeps": setup.sweeps,
            "discount": setup.discount,
            "noise": setup.noise,
        }
        more = others(setup) if nodes == setup.nodes[0] else {}
        for label, method in {**methods(setup), **more}.items():
            single = label == SINGLE
            every.append(
                Arm(
                    f"{nodes} nodes",
                    label,
                    partial(single_level if single else policy_evaluation, nodes, **options),
                    method,
                    ring(nodes),
                    setup.steps * (2 if single else 1),
                    setup.batch_size,
                    setup.rows * (4 if "double" in label else 1),
                    measures=average_error,
                    samples=2.0 * setup.batch_size * setup.steps,
                    tuned=f"{label}, {nodes} nodes",
                )
            )
    return every


def beats_and_matches(results: Results[Setup]) -> list[Check]:
    """Within a factor, the same for all, methods are level; "matches" allows as much."""
    level = 10 ** REGISTERED.tolerance("C7")
    checks = []
    for mine in (name for name in OURS if name in results.setup.methods):
        for other in (name for name in (*OTHERS, SINGLE) if name in results.setup.methods):
            cases = [f"{nodes} nodes" for nodes in results.setup.nodes]
            factor, band = (level, 1.0) if other == SINGLE else (1.0, level)
            parts = [
                smaller(results[case, mine], results[case, other], "distance", factor=factor, level=band)
                for case in cases
            ]
            checks.append(pooled(f"log₁₀ of distance at equal samples, {other} less {mine}", parts))
        case = f"{results.setup.nodes[0]} nodes"
        checks += [
            smaller(results[case, mine], results[case, other], "distance", level=level)
            for other in others(results.setup)
        ]
    return checks


STUDY = Study(
    name="sparkle/policy-evaluation",
    title="Distributed policy evaluation",
    paper="SPARKLE (Zhu et al., 2024), experiment 3",
    about="Every node has its own rewards. Together they learn the value function of a Markov decision process, "
    "linear in the features of a state, by minimising the Bellman residual. y is the target value of every state. "
    "The error is the mean over nodes of ‖x_i − x*‖². Every method gets the same number of samples, up to those of "
    "its last row.",
    differs="The environment is ours, since the slides print none. The double-loop method is MA-DSBO. The single "
    "level takes unbiased double samples of the residual. After a first run, in which the claim held as well, the "
    "single level got twice the iterations and a wider search: it had used half the samples.",
    setups=SETUPS,
    arms=arms,
    columns=("distance", "error", "value_error"),
    claims=(
        Claim(
            "C7",
            "SPARKLE beats MDBO and a double-loop method, and matches single-level ED.",
            beats_and_matches,
            why="These are errors relative to SPARKLE-ED's. On ten nodes MDBO's is 2.2 (three terms), 3.0 (ten) and "
            "7.9 times (30). The double loop's is 4.1 (one inner step), 2.5 (five) and 5.7 times (20). On twenty "
            "nodes MDBO's with ten terms is 7 times, and the double loop's with five inner steps 48 times. "
            "SPARKLE-ED more than matches the single level, whose error is 2.8 times as large. In earlier searches α "
            "started at 0.01, and nothing was settled against MDBO with three terms. SPARKLE's best α is 0.003.",
            says="Experiment 3: distributed policy evaluation in reinforcement learning. (SPARKLE; a figure)",
            finding="SPARKLE-ED's error is 2.2 times smaller than MDBO's and 2.5 times smaller than a double loop's, "
            "each with the best of three inner-loop lengths. It is 2.8 times smaller than single-level ED's.",
            reproduced=Test(
                "with the usual inner loops, of ten terms and five steps",
                lambda results: [
                    check
                    for check in beats_and_matches(results)
                    if not any(name in check.text for name in others(results.setup))
                ],
            ),
        ),
    ),
    search=Search(
        alpha=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
        beta=(0.001, 0.003, 0.01, 0.03, 0.1),
        metric=lambda task: task.metrics[0],
        cases=lambda setup: [f"{nodes} nodes" for nodes in setup.nodes],
        alone=(0.0005, 0.1),
        steps=lambda setup: 2 * setup.steps,
        seeds=(100, 101, 102),
        note="by the final distance to x*, on data of seeds that are not judged",
    ),
)
