"""Prometheus: SVR-INTERACT for a constrained x, by proximal points that nodes go part of the way to."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import jax.numpy as jnp

from ..oracles import estimators
from ..oracles import hypergradient as inverses
from ..oracles._oracle import Oracle
from ..oracles.hypergradient import LocalHypergradient
from ..strategies._table import Strategy, strategy
from ..strategies._tracked import proximal
from ._entry import register
from ._implicit import Implicit
from ._method import Rate, rate


class Prometheus(Implicit):
    """x⁺ = M x + ν (prox_α(x − α u) − x), where u tracks the hypergradient; y⁺ = y − β v stays at the node."""

    catalog_name = "prometheus"
    summary = "SVR-INTERACT with constraints on x"
    paper = (
        "Liu, Zhang, Khanduri, Lu, Liu, Prometheus: Taming Sample and Communication Complexities in Constrained "
        "Decentralized Stochastic Bilevel Learning, 2023"
    )
    defaults: ClassVar = {"alpha": 0.1}
    takes_prox: ClassVar = True

    relax: Rate

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": proximal(), "y": strategy("local")}

    def levels(self, oracle: Oracle) -> dict[str, Strategy]:
        """With the problem's proximal map and this step's ν on x."""
        strategies = super().levels(oracle)
        return strategies | {"x": replace(strategies["x"], part=rate(self.relax, jnp.asarray(oracle.k)))}


@register(Prometheus)
def prometheus(
    *,
    alpha: Rate,
    beta: Rate,
    relax: Rate = 0.5,
    hypergradient: LocalHypergradient | None = None,
    period: int | None = None,
    terms: int = 10,
    scale: float | None = None,
) -> Prometheus:
    """Prometheus (Liu et al., 2023), reconstructed: x̃ = prox_α(x − α u), x⁺ = M x + ν (x̃ − x) with ν = `relax`, y⁺ =
    y − β ∇_y g, u⁺ = M u + Δ∇̄f, where the problem's `prox_x` is the constraint and ∇̄f and ∇_y g are SPIDER estimates:
    `svr_interact` with a proximal step, which it is exactly for ν = 1 without a constraint. The solution is a fixed
    point with constant step sizes; x stays feasible where ν ≤ w_ii.

    Draws: as SVR-INTERACT. Differs from the paper: its 1/τ is our `alpha`; the tracker runs in flow form.

    Args:
        alpha: the step size of x to the proximal point: a number, or a function of the step.
        relax: ν, the part of the way to the proximal point, from 0 to 1.
        hypergradient: how a node finds its hypergradient, such as `db.hypergradient.cg(10)`; None takes INTERACT's (22)
            on batches and inverts exactly on all samples.
        period: steps between full batches; None takes ⌈√n⌉ for n samples.
    """
    inverse = hypergradient or inverses.personal(terms, scale)
    return Prometheus(alpha, beta, inverse, estimators.spider(period), relax)
