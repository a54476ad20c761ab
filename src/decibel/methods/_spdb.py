"""SPDB: EXTRA on x, a personal lower level."""

from __future__ import annotations

from typing import ClassVar

from jax import Array

from ..network._communicator import Communicator
from ..oracles import hypergradient as inverses
from ..oracles._oracle import Oracle
from ..oracles.hypergradient import LocalHypergradient
from ._entry import register
from ._method import Method, Rate, State


class Spdb(Method):
    """y⁺ = y − β v(x, y); x⁺ = EXTRA(x, α ∇̄f(x, y⁺)): alternating, so J and H get lower batches of their own."""

    catalog_name = "spdb"
    summary = "EXTRA on x, a personal lower level"
    paper = "Lu et al., Decentralized Bilevel Optimization for Personalized Client Learning, 2022"
    strategy_names: ClassVar = {"x": "extra", "y": "local"}

    alpha: Rate
    beta: Rate
    hypergradient: LocalHypergradient

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, y = state.x, state.y
        strategies = self.strategies
        α, β = self.rates(k)
        draw = oracle.draw()
        y = network(y=strategies["y"](y, draw.at(x.s, y.s).v, β))
        x = network(x=strategies["x"](x, self.hypergradient(draw.fresh_lower(0).at(x.s, y.s)), α))
        return State(x, y)


@register(Spdb)
def spdb(
    *,
    alpha: Rate,
    beta: Rate,
    hypergradient: LocalHypergradient | None = None,
    terms: int = 10,
    scale: float | None = None,
) -> Spdb:
    """SPDB (Lu et al., 2022): y⁺ = y − β ∇_y g(x, y); x⁺ = EXTRA(x, α ∇̄f(x, y⁺)). The paper's W is I − (ρ/τ) 𝓛 with
    ρ/τ = 0.2: `weights=db.weights.laplacian(0.2)`. With f = g, `hypergradient.direct()` is the paper's choice.

    Draws: a lower batch for v; an upper batch, a lower one for J and those of H for ∇̄f at y⁺ (`direct()`: the upper
    batch alone). Differs from the paper: its 1/α and 1/n are our `alpha`.

    Args:
        hypergradient: how a node finds its hypergradient, such as `db.hypergradient.cg(10)`; None takes INTERACT's
            (22).
    """
    return Spdb(alpha, beta, hypergradient or inverses.personal(terms, scale))
