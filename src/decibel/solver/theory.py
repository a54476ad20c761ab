"""Results of the papers as functions: bounds, transients, step sizes, rates and complexities, and advice from them.

A decentralized stochastic method is asymptotically as fast as a centralized one; the *transient* is the number of steps
before it is. The formulas give its order with constants dropped: they rank methods and graphs, and do not predict
numbers of steps. n is the number of nodes and ρ = ‖W − 11ᵀ/n‖₂. docs/evidence/theorems.md lists all theorems of the
papers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..core._html import table
from ..graphs._graph import Graph, GraphSequence, Levels, Topology
from ..methods._catalog import CATALOG
from ..methods._method import Method
from ..methods._single_level import SingleLevel
from ..methods._sparkle import Sparkle
from ..results._trace import Trace
from ._bounds import Bound, Term, diminishing, dsoba, gossip_dsbo, sparkle
from ._complexity import (
    Samples,
    asymptotic_rate,
    communication,
    computation,
    positive_integer,
    rival_samples,
    spectral_gap,
    uncovered_form,
)
from ._delays import wave_step_size
from ._interact_theory import (
    Constants,
    contraction,
    interact_bias,
    interact_rounds,
    interact_step_sizes,
    neumann_bias,
    svr_interact_rounds,
    svr_interact_step_sizes,
    svr_interact_terms,
)
from ._plans import Links, Plan, busiest, plans, undirected

UNCORRECTED = ("d-soba", "d-soba-fo", "dsgd")
# Powers of n and of 1/(1−ρ) where a paper prints the transient and no bound from which it follows. MDBO: D-SOBA (talk),
# slide "Comparison with existing algorithms". SPDB: §4, Theorem 1, which asks for T ≥ O(n⁴).
PRINTED = {"mdbo": (3, 8), "spdb": (4, 0)}
WITHOUT_NOISE = "INTERACT's rate is 1/T at constant step sizes, with no 1/√(nT) to reach"
NO_TRANSIENT = {"interact": WITHOUT_NOISE, "svr-interact": WITHOUT_NOISE}

__all__ = [
    "Advice",
    "Bound",
    "Constants",
    "Links",
    "Measured",
    "Plan",
    "Samples",
    "Term",
    "advise",
    "asymptotic_rate",
    "communication",
    "computation",
    "contraction",
    "diminishing",
    "dsoba",
    "gossip_dsbo",
    "interact_bias",
    "interact_rounds",
    "interact_step_sizes",
    "measured_transient",
    "neumann_bias",
    "plans",
    "rates",
    "rival_samples",
    "sparkle",
    "svr_interact_rounds",
    "svr_interact_step_sizes",
    "svr_interact_terms",
    "transient",
    "wave_step_size",
]


def transient(
    method: str | Method, nodes: int, network: float | Topology | Levels, heterogeneity: float = 1.0
) -> float:
    """The order of the transient of a method on a network, to rank methods and graphs.

    SPARKLE takes the ρ of x and the larger of those of y and z; for other methods ρ is the largest of all, as in
    SPARKLE's table. The papers assume a fixed W; for a sequence of graphs ρ is its contraction per step, which is our
    reading. Strategies whose carry is damped there raise an error. D-SOBA's and D-SGD's is max{n³/(1−ρ)²,
    n³b⁴/(1−ρ)⁴}, without the factor ρ⁴ ≤ 1 of `dsoba(...).transient`, which other orders do not have either. For SPDB
    it is n⁴, which its Theorem 1 requires of T; of the network it requires only connectedness. For κ, σ, G and the PL
    condition see `sparkle` and `gossip_dsbo`.

    Args:
        method: a method by its name in `db.CATALOG`, or as an object.
        nodes: n.
        network: a graph, a graph per level, or ρ itself.
        heterogeneity: b, for D-SOBA and D-SGD.

    Raises:
        ValueError: if none is published: INTERACT's rate is 1/T, no theorem covers the penalty form or SPARKLE with
            differences of gradients, and the tables have none for SLAM, DSBO, MA-DSBO and LoPA.

    References:
        SPARKLE (talk), Corollaries 1 to 4 and slide "Unified convergence analysis: Comparison", column Tran. Iter.;
        D-SOBA (talk), slide "Theorem 1"; Gossip-DSBO, §5.1, Theorem 5.1; SPDB, §4, Theorem 1.
    """
    method = CATALOG[method]() if isinstance(method, str) else method
    nodes = positive_integer("nodes", nodes)
    rhos = _rhos(nodes, network, method)
    rho = max(rhos.values())
    name = method.name
    if name in UNCORRECTED:
        gap = spectral_gap(rho)
        return max(nodes**3 / gap**2, nodes**3 * heterogeneity**4 / gap**4)
    if name == "gossip-dsbo":
        return gossip_dsbo(nodes, rho).transient
    if name in PRINTED:
        power, gaps = PRINTED[name]
        return nodes**power / spectral_gap(rho) ** gaps
    if isinstance(method, SingleLevel):  # a single level has the order of SPARKLE on one graph, by its table
        return sparkle(nodes, rho, lower=method.strategies["x"].name).transient
    form = uncovered_form(method)
    if isinstance(method, Sparkle) and form is None:
        below = max(rhos["y"], rhos["z"])
        return sparkle(nodes, rhos["x"], below, lower=method.lower.name, upper=method.upper.name).transient
    why = NO_TRANSIENT.get(name, "the papers' tables have none") if form is None else f"no theorem covers {form}"
    choice = "choose SPARKLE, D-SOBA, Gossip-DSBO, MDBO, SPDB or a single level"
    raise ValueError(f"method={name!r} has no published transient ({why}): {choice}.")


def rates(
    nodes: int,
    steps: int,
    *,
    alpha: float | None = None,
    beta: float | None = None,
    gamma: float | None = None,
    theta: float | None = None,
) -> dict[str, float]:
    """Step sizes of order √(n/T): each given constant times √(nodes/steps), constant over the run.

    For example `db.sparkle("ed", **db.theory.rates(16, 10_000, alpha=1.0, beta=2.0, gamma=2.0, theta=5.0))`.

    - D-SOBA's Theorem 1 requires α = Θ(√(n/T)), and β, γ, θ multiples of α. SPARKLE's Theorem 1 only states that
      constant step sizes exist.
    - Gossip-DSBO's (5) has C₀ √(n/T) for α and √(n/T) for the others; its β and γ are our `theta` and `beta`.
    - SPDB's Theorem 1 has steps of order √(n/T) on both levels. Its upper gradient is divided by n, so use
      alpha=c/nodes.

    Args:
        nodes: n.
        steps: T.
        alpha: the constant of α; None leaves it out.
        beta: the constant of β.
        gamma: the constant of γ.
        theta: the constant of θ, which is at most 1.

    Returns:
        The step sizes by name.

    References:
        D-SOBA (talk), slide "Theorem 1"; SPARKLE (talk), slide "Unified convergence analysis: Assumptions", Theorem 1;
        Gossip-DSBO, §5.1, (5); SPDB, §4, Theorem 1.
    """
    given = {"alpha": alpha, "beta": beta, "gamma": gamma, "theta": theta}
    constants = {name: value for name, value in given.items() if value is not None}
    if not constants:
        raise ValueError("rates needs a constant to scale: give alpha, beta, gamma or theta.")
    for name, value in constants.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name}={value} must be positive and finite.")
    root = math.sqrt(positive_integer("nodes", nodes) / positive_integer("steps", steps))
    return {name: min(1.0, value * root) if name == "theta" else value * root for name, value in constants.items()}


class Advice(NamedTuple):
    """The recommendation of `advise`.

    Attributes:
        method: its name in `db.CATALOG`.
        settings: its settings.
        graphs: a graph per level.
        transient: the order of its transient; None if none is published.
        bytes_per_step: the largest number of bytes that a node sends per step; None without `dimension`.
        reasons: why, in sentences.
    """

    method: str
    settings: dict[str, Any]
    graphs: Levels
    transient: float | None
    bytes_per_step: int | None
    reasons: tuple[str, ...]

    def make(self, **settings: Any) -> Method:
        """The method, with its settings and those given."""
        return CATALOG[self.method](**{**self.settings, **settings})

    def __str__(self) -> str:
        return "\n".join((self.method, *(f"- {reason}" for reason in self.reasons)))

    def _repr_html_(self) -> str:
        return table(self.method, [(reason,) for reason in self.reasons], ("why",))


DIFFER = {"shared": "sparkle-ed", "personal": "spdb", "single": "ed"}
ALIKE = {"shared": "d-soba", "personal": "d-sgd-bilevel", "single": "dsgd"}
THEOREM = {
    "sparkle-ed": "SPARKLE's Corollary 2",
    "spdb": "SPDB's Theorem 1",
    "ed": "SPARKLE's table",
    "d-soba": "D-SOBA's Theorem 1",
    "d-soba-fo": "D-SOBA's Theorem 1",
    "dsgd": "D-SOBA's Theorem 1",
}
WHY_CORRECT = (
    "Nodes are heterogeneous: ED or EXTRA corrects for it, with one vector sent where gradient tracking sends two."
)
WHY_PLAIN = "Nodes are homogeneous (b = 0), so no correction is needed."
WHY_FIRST_ORDER = (
    "D-SOBA-FO needs no second derivatives; if nodes are heterogeneous it is biased and has a longer transient."
)


def advise(
    nodes: int,
    *,
    degree: int | None = None,
    bytes_per_step: float | None = None,
    dimension: tuple[int, int] | None = None,
    personal: bool = False,
    single: bool = False,
    heterogeneous: bool = True,
    second_derivatives: bool = True,
    itemsize: int = 4,
    candidates: Sequence[Graph] | None = None,
) -> Advice:
    """Recommends a method and a graph per level.

    Of the candidates within the budget it takes those with the smallest transient, and of these the ones that send
    least: x gets a sparser graph as long as (1−ρ_x)⁻¹ ≤ √n (1−ρ_y)⁻¹. With a personal lower level the transient does
    not depend on the graph, and the largest spectral gap decides.

    Args:
        nodes: n.
        degree: the largest number of neighbours of a node.
        bytes_per_step: the most that a node may send per step; needs `dimension`.
        dimension: (p, q), the numbers of entries of x and y.
        personal: whether the lower level is personal.
        single: whether there is a single level.
        heterogeneous: whether the nodes' data come from different distributions.
        second_derivatives: whether products with Hessians are affordable.
        itemsize: bytes per entry.
        candidates: undirected graphs to choose from; None is families of `db.graphs` and random regular graphs.

    References:
        SPARKLE (talk), slide "SPARKLE with the different topologies across levels", and the transients of `transient`.
    """
    form = "single" if single else "personal" if personal else "shared"
    if bytes_per_step is not None and dimension is None:
        raise ValueError("bytes_per_step needs dimension=(p, q), the numbers of entries of x and y.")
    if personal and (single or not second_derivatives):
        raise ValueError("personal=True needs a lower level and second derivatives: drop personal, or allow them.")
    first_order = form == "shared" and not second_derivatives
    name = "d-soba-fo" if first_order else (DIFFER if heterogeneous else ALIKE)[form]
    method, (p, q) = CATALOG[name](), dimension or (1, 1)
    most = positive_integer("nodes", nodes) - 1 if degree is None else degree
    graphs = candidates or undirected(nodes, most)
    fixed = any(strategy.requires_fixed_graph for strategy in method.strategies.values())
    fits = [graph for graph in graphs if graph.nodes == nodes and graph.symmetric and busiest(graph) <= most]
    pool = [graph for graph in fits if not (fixed and graph.changes)]
    if not pool:
        kind = "undirected candidate that stays the same" if fixed else "undirected candidate"
        fix = "allow more, or take db.theory.plans, which knows graphs that change or go one way"
        raise ValueError(f"no {kind} has {nodes} nodes and at most {most} neighbours: {fix}.")
    # ED and EXTRA need λ_min above −1/3, and lazy graphs suit all.
    pool = [g if g.lambda_min_bound > -0.3 or g.lambda_min > -0.3 else g.lazy() for g in pool]
    options = [Levels(x=x, y=y) for x, y in product(pool, pool)] if form == "shared" else [Levels(x=x) for x in pool]

    def sent(levels: Levels) -> int:
        entries = {}
        for s, strategy in method.strategies.items():
            vectors, numbers = strategy.message_size or (0, 0)
            entries[s] = vectors * (p if s == "x" else q) + numbers
        messages = {s: busiest(getattr(levels, s)) * getattr(levels, s).rounds for s in entries}
        return sum(itemsize * count * messages[s] for s, count in entries.items())

    def order(levels: Levels) -> float:  # SPDB's transient has no graph in it, D-SGD's is unpublished: the largest gap
        return 1 / levels.x.spectral_gap if personal else transient(method, nodes, levels, float(heterogeneous))

    within = [levels for levels in options if bytes_per_step is None or sent(levels) <= bytes_per_step]
    if not within:
        least = min(map(sent, options))
        raise ValueError(f"bytes_per_step={bytes_per_step} is too little: {name} sends at least {least} on any graph.")
    best = min(within, key=lambda o: (round(math.log(order(o)), 9), sent(o), o.x.rho + o.y.rho))
    known = name in PRINTED or not personal
    number = transient(method, nodes, best, float(heterogeneous)) if known else None
    total = sent(best) if dimension else None
    why = WHY_FIRST_ORDER if first_order else WHY_CORRECT if heterogeneous else WHY_PLAIN
    reasons = (why, *_graph_reasons(best, total), _transient_reason(name, number, personal))
    return Advice(name, dict(CATALOG[name].defaults), best, number, total, reasons)


def _graph_reasons(best: Levels, total: int | None) -> list[str]:
    def told(graph: Topology) -> str:
        return f"{graph.name}, up to {busiest(graph)} neighbours and 1−ρ = {graph.spectral_gap:.3g}"

    who = "y and z" if best.x != best.y else "all levels"
    reasons = [f"For {who}: {told(best.y)}, the best within the budget."]
    if best.x != best.y:
        reach, room = 1 / best.x.spectral_gap, math.sqrt(best.nodes) / best.y.spectral_gap
        rule = f"up to √n (1−ρ_y)⁻¹ = {room:.3g} a sparser graph for x does not lengthen the transient"
        reasons.append(f"For x: {told(best.x)}, (1−ρ_x)⁻¹ = {reach:.3g}; {rule}.")
    return reasons + ([] if total is None else [f"The busiest node sends {total} bytes per step."])


def _transient_reason(name: str, number: float | None, personal: bool) -> str:
    if number is None:
        return f"No transient is published for {name}, so the largest spectral gap decides."
    order = f"By {THEOREM[name]} the transient is of order {number:.2g} steps, constants dropped"
    if personal:
        return f"{order}: n⁴ on every connected graph, so the largest spectral gap decides."
    return f"{order}: it ranks methods and graphs, and does not predict a number of steps."


class Measured(NamedTuple):
    """The outcome of `measured_transient`.

    Attributes:
        step: the step from which the run stays close to its reference; None if it does not.
        sentence: the same in words.
    """

    step: int | None
    sentence: str


def measured_transient(
    trace: Trace, reference: Trace, column: str = "stationarity", factor: float = 2.0, *, window: int = 1
) -> Measured:
    """The measured transient: the first step from which a column stays within a factor of a reference run.

    The reference is the same method with the same batches and step sizes on the complete graph. Use stochastic runs:
    without noise the slower of two linear rates falls behind for ever. The reference is interpolated to the steps of
    `trace` on a logarithmic scale.

    Args:
        trace: of the run.
        reference: the trace of the reference.
        column: the column to compare.
        factor: how much larger than the reference the column may be.
        window: rows over which the ratio is smoothed by a running geometric mean.
    """
    if not factor >= 1 or window < 1:
        raise ValueError(f"factor={factor} and window={window} must be at least 1.")
    own_steps, steps_of_reference = (np.asarray(run["step"], float) for run in (trace, reference))
    values, goal = (np.asarray(run[column], float) for run in (trace, reference))
    if (values < 0).any() or (goal < 0).any():
        raise ValueError(f"column {column!r} holds negative values: a factor needs a measure that is never negative.")
    common = (own_steps >= steps_of_reference.min(initial=math.inf)) & (
        own_steps <= steps_of_reference.max(initial=-math.inf)
    )
    if not common.any() or not np.isfinite(goal).all():
        return Measured(None, f"The reference has no finite {column} at the steps of this run.")
    steps, (high, low) = own_steps[common], (np.log(np.maximum(a, np.finfo(float).tiny)) for a in (values, goal))
    ratio, kernel = high[common] - np.interp(steps, steps_of_reference, low), np.ones(min(window, steps.size))
    ratio = np.convolve(ratio, kernel, "same") / np.convolve(np.ones_like(ratio), kernel, "same")
    outside = np.flatnonzero(~(ratio <= math.log(factor) + 1e-12))  # NaN is outside too
    if outside.size and outside[-1] == steps.size - 1:
        end = f"{math.exp(ratio[-1]):.3g} times the reference" if np.isfinite(ratio[-1]) else "not finite"
        return Measured(None, f"{column} does not settle within {factor:g}: at step {steps[-1]:.0f} it is {end}.")
    first = int(steps[outside[-1] + 1 if outside.size else 0])
    return Measured(first, f"{column} stays within {factor:g} times the reference from step {first} on.")


def _rhos(nodes: int, network: float | Topology | Levels, method: Method) -> dict[str, float]:
    network = Levels(x=network) if isinstance(network, Graph | GraphSequence) else network
    if not isinstance(network, Levels):
        return dict.fromkeys("xyz", network)
    if network.nodes != nodes:
        raise ValueError(f"nodes={nodes}, but the graph has {network.nodes}: give the same number.")
    for graph in (network.x, network.y, network.z):
        if not graph.doubly_stochastic:
            raise ValueError(
                f"theorems are for a doubly stochastic W, and {graph.name} has one-way links: give an undirected graph."
            )
    for level, strategy in method.strategies.items():
        graph = getattr(network, level)
        if graph.changes and strategy.requires_fixed_graph:
            raise ValueError(
                f"theorems for {strategy.name!r} are for a W that never changes, and {graph.name} does: give 'gt', or "
                "take db.theory.plans."
            )
    return {level: getattr(network, level).rho for level in "xyz"}
