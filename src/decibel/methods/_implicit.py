"""Methods that find the hypergradient at each node, from its own Hessian: one loop, two levels.

Exact for a personal lower level (INTERACT and its kin, SPDB). For a shared one (MDBO, VRDBO, SLAM) the local inverse is
biased where nodes differ: J_i H_i⁻¹ ∇_y f_i does not average to J̄ H̄⁻¹ ∇̄_y f.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
from jax import Array

from ..core._vector import Vector
from ..graphs._graph import Levels
from ..network._communicator import Communicator
from ..oracles import estimators
from ..oracles import hypergradient as inverses
from ..oracles._oracle import Draw, Oracle
from ..oracles.estimators import Estimator
from ..oracles.hypergradient import Local
from ..problem._problem import Problem
from ..strategies._table import Strategy, strategy
from ._method import Method, Rate, State, rate


class Implicit(Method):
    """y⁺ = L(y, β v), x⁺ = U(x, α u) with (v, u) an estimate of (∇_y g, ∇̄f) at (x, y); `sequential` takes u at y⁺.

    `relax` moves only that part of the way: s + η (s⁺ − s), on both levels.

    Draws of a step: one upper and one lower batch for v and for J in u, both at the old point, and those that the
    hypergradient takes for H. `sequential` takes u at y⁺, which v made: J and H get lower batches of their own.
    """

    lower: Strategy
    upper: Strategy
    alpha: Rate
    beta: Rate
    hypergradient: Local
    estimator: Estimator
    label: str = eqx.field(static=True)
    sequential: bool = eqx.field(static=True, default=False)
    full_batch: bool = eqx.field(static=True, default=False)
    relax: Rate | None = None

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": self.upper, "y": self.lower}

    def start(self, x: Vector, y: Vector | None) -> State:
        assert y is not None
        memory = self.estimator.start((x, y), (y.zeros(), x.zeros()))
        return State(self.upper.start(x), self.lower.start(y), memory=memory)

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        return (self._sequential if self.sequential else self._parallel)(k, state, oracle, network)

    def _parallel(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        (x, y, _, memory), L, U = state[:4], self.lower, self.upper
        α, β, η = rate(self.alpha, k), rate(self.beta, k), rate(self.relax, k)
        (v, u), memory = self.estimator(k, memory, (x.s, y.s), oracle, self._directions)
        x, y = network(x=U(x, α * u, relax=η), y=L(y, β * v, relax=η))
        return State(x, y, memory=memory)

    def _sequential(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        (x, y, _, _), L, U = state[:4], self.lower, self.upper
        α, β = rate(self.alpha, k), rate(self.beta, k)
        draw = oracle.draw()
        y = network(y=L(y, β * draw.at(x.s, y.s).v))
        x = network(x=U(x, α * self.hypergradient(draw.fresh_lower(0).at(x.s, y.s))))
        return State(x, y)

    def _directions(self, draw: Draw, point: Any) -> Any:
        here = draw.at(*point)
        return here.v, self.hypergradient(here)

    def validate(self, problem: Problem, graphs: Levels, batch_size: int | None) -> None:
        super().validate(problem, graphs, batch_size)
        if self.full_batch and batch_size is not None:
            raise ValueError(
                f"{self.name} uses all samples in every step: leave batch_size out, or use db.gt_dsgd(...)."
            )


def _personal(label: str, upper: str, alpha: Rate, beta: Rate, inverse: Local | None, **options: Any) -> Implicit:
    options = {"estimator": estimators.plain()} | options
    inverse = inverses.personal() if inverse is None else inverse
    return Implicit(strategy("local"), strategy(upper), alpha, beta, inverse, label=label, **options)


def interact(alpha: Rate, beta: Rate, hypergradient: Local | None = None) -> Implicit:
    """INTERACT (Liu et al., 2022): x⁺ = M x − α u, y⁺ = y − β ∇_y g, u⁺ = M u + Δ∇̄f; exact local inverse.

    Draws: none, every step uses all samples. Differs from the paper: the tracker runs in flow form.
    """
    return _personal("interact", "non-gt", alpha, beta, hypergradient, full_batch=True)


def svr_interact(
    alpha: Rate,
    beta: Rate,
    hypergradient: Local | None = None,
    *,
    period: int | None = None,
    terms: int = 10,
    scale: float | None = None,
) -> Implicit:
    """SVR-INTERACT (Liu et al., 2022): INTERACT's directions in a SPIDER estimator. All samples every `period` steps
    (⌈√n⌉), in between differences on the same batch (`batch_size`, or ⌈√n⌉) by the randomized Neumann estimator (22) of
    `terms` terms with L = `scale`, averaged over the batch as in (23); a given `hypergradient` serves both.

    Draws between full batches: one upper and one lower batch S, for v and J; for every sample of S its own number k of
    factors and k lower samples; one lower batch for L where `scale` is None. All are the same at both points of a
    difference.
    """
    hypergradient = inverses.personal(terms, scale) if hypergradient is None else hypergradient
    return _personal("svr-interact", "non-gt", alpha, beta, hypergradient, estimator=estimators.spider(period))


def gt_dsgd(
    alpha: Rate, beta: Rate, hypergradient: Local | None = None, *, terms: int = 10, scale: float | None = None
) -> Implicit:
    """GT-DSGD, a baseline of INTERACT's paper: INTERACT with batches, ∇̄f by (22), averaged over the batch.

    Draws: as SVR-INTERACT between its full batches. Differs from the paper: the tracker runs in flow form.
    """
    hypergradient = inverses.personal(terms, scale) if hypergradient is None else hypergradient
    return _personal("gt-dsgd", "non-gt", alpha, beta, hypergradient)


def dsgd_bilevel(
    alpha: Rate, beta: Rate, hypergradient: Local | None = None, *, terms: int = 10, scale: float | None = None
) -> Implicit:
    """D-SGD, bilevel, a baseline of INTERACT's paper: x⁺ = M x − α ∇̄f, y⁺ = y − β ∇_y g; no tracking, so biased where
    nodes differ. Draws: as GT-DSGD."""
    hypergradient = inverses.personal(terms, scale) if hypergradient is None else hypergradient
    return _personal("d-sgd-bilevel", "consensus", alpha, beta, hypergradient)


def spdb(
    alpha: Rate, beta: Rate, hypergradient: Local | None = None, *, terms: int = 10, scale: float | None = None
) -> Implicit:
    """SPDB (Lu et al., 2022): y⁺ = y − β ∇_y g(x, y); x⁺ = EXTRA(x, α ∇̄f(x, y⁺)). The paper's W is I − (ρ/τ) 𝓛 with
    ρ/τ = 0.2: `weights=db.weights.laplacian(0.2)`. With f = g, `hypergradient.direct()` is the paper's choice.

    Draws: a lower batch for v; an upper batch, a lower one for J and those of H for ∇̄f at y⁺ (`direct()`: the upper
    batch alone). Differs from the paper: its 1/α and 1/n are our `alpha`.
    """
    hypergradient = inverses.personal(terms, scale) if hypergradient is None else hypergradient
    return _personal("spdb", "extra", alpha, beta, hypergradient, sequential=True)


def mdbo(
    alpha: Rate, beta: Rate, theta: Rate, *, relax: Rate = 1.0, terms: int = 10, scale: float | None = None
) -> Implicit:
    """MDBO (Gao et al., 2022), reconstructed: randomized Neumann hypergradient, momentum and gradient tracking on both
    levels, x⁺ = x + η (W x − α p − x) with η = `relax`. Biased for a shared lower level: the inverse is local.

    Draws: an upper and a lower batch, for v and J; one number k < `terms` of factors for a node's batch, and a lower
    batch for each factor; a further one for L where `scale` is None.
    """
    return _tracked("mdbo", alpha, beta, estimators.momentum(theta), relax, terms, scale)


def vrdbo(
    alpha: Rate, beta: Rate, theta: Rate, *, relax: Rate = 1.0, terms: int = 10, scale: float | None = None
) -> Implicit:
    """VRDBO (Gao et al., 2022), reconstructed: MDBO's directions in a STORM estimator; as biased as MDBO.

    Draws: MDBO's, the same (and the same k and L) at both points of a difference.
    """
    return _tracked("vrdbo", alpha, beta, estimators.storm(theta), relax, terms, scale)


def _tracked(
    label: str, alpha: Rate, beta: Rate, estimator: Estimator, relax: Rate, terms: int, scale: float | None
) -> Implicit:
    track = strategy("non-gt")
    inverse = inverses.neumann(terms, scale, randomized=True)
    return Implicit(track, track, alpha, beta, inverse, estimator, label=label, relax=relax)


def slam(alpha: Rate, beta: Rate, *, terms: int = 10, scale: float | None = None) -> Implicit:
    """SLAM (Lu et al., 2022), reconstructed: EXTRA on both levels with a local Neumann hypergradient; biased for a
    shared lower level, since the inverse is local.

    Draws: an upper and a lower batch, for v and J; a lower batch for each of `terms` − 1 factors; a further one for L
    where `scale` is None.
    """
    mix = strategy("extra")
    inverse = inverses.neumann(terms, scale)
    return Implicit(mix, mix, alpha, beta, inverse, estimators.plain(), label="slam")
