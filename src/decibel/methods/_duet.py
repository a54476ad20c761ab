"""DUET: gradient tracking with a vanishing ridge on the lower level."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..strategies._table import Strategy, strategy
from ._entry import register
from ._method import Method, Rate, State


class Duet(Method):
    """y⁺ = GT(y, β (∇_y g + μ y)); z⁺ = GT(z, γ (H z + μ z − ∇_y f)); x⁺ = GT(x, α (∇_x f − J z)), μ = μ₀ (k+1)^−p."""

    catalog_name = "duet"
    summary = "gradient tracking on every level, g with a vanishing ridge, for lower levels that are only convex"
    paper = (
        "Qin, Liu, Lu, Liang, Liu, DUET: Decentralized Bilevel Optimization without Lower-Level Strong Convexity, 2025"
    )

    alpha: Rate
    beta: Rate
    gamma: Rate
    ridge: float
    decay: float
    personal: bool = eqx.field(static=True)

    @property
    def strategies(self) -> dict[str, Strategy]:
        below = strategy("local" if self.personal else "gt")
        return {"x": strategy("gt"), "y": below, "z": below}

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, y, z, *_ = state
        strategies = self.strategies
        α, β, γ = self.rates(k)
        μ = self.ridge * jnp.asarray(1 + k, float) ** -self.decay
        point = oracle.draw().at(x.s, y.s)
        u = point.u(z.s)
        v = point.v + μ * y.s
        p = point.p(z.s) + μ * z.s
        return State(*network(x=strategies["x"](x, u, α), y=strategies["y"](y, v, β), z=strategies["z"](z, p, γ)))


@register(Duet)
def duet(
    *, alpha: Rate, beta: Rate, gamma: Rate, ridge: float = 0.1, decay: float = 0.5, personal: bool = False
) -> Duet:
    """DUET (Qin et al., 2025), reconstructed from the abstract: a single loop with gradient tracking on every level,
    for g + (μ_k/2) ‖y‖² with μ_k = μ₀ (k+1)^−p. Where g is flat it tends to the y of least norm, and z may grow as
    1/μ_k.

    Draws: an upper and a lower batch. Differs from the paper: a shared lower level by default, where the paper's seems
    to be personal; all directions at the old point and on one lower batch; no running average; trackers run in flow
    form.

    Args:
        ridge: μ₀.
        decay: p; 0 keeps the ridge.
        personal: for a personal lower level: y and z stay at their node.
    """
    for name, value in (("ridge", ridge), ("decay", decay)):
        if not value >= 0:
            raise ValueError(f"{name}={value!r} must not be negative: 0.1 is a good start.")
    return Duet(alpha, beta, gamma, ridge, decay, personal)
