"""LoPA and LoPA-GT: a personal lower and auxiliary level."""

from __future__ import annotations

from typing import ClassVar

from jax import Array

from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..oracles.hypergradient import auxiliary
from ._auxiliary import Auxiliary
from ._entry import register
from ._method import Rate, State, rate


class LopaBase(Auxiliary):
    """y⁺ = y − β v; z⁺ = z − γ p; q⁺ = (1−θ) q + θ u; x goes the part τ of its way."""

    paper = (
        "Niu, Xu, Sun, Huang, Chai, Distributed Stochastic Bilevel Optimization: Improved Complexity and Heterogeneity "
        "Analysis, 2023"
    )
    defaults: ClassVar = {"theta": 0.3}

    tau: Rate

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        return self.alternating(k, state, oracle, network, rate(self.tau, k))


class Lopa(LopaBase):
    """x⁺ = x + τ (W x − α q⁺ − x)"""

    catalog_name = "lopa"
    summary = "a personal auxiliary level, no tracking (biased where nodes differ)"
    strategy_names: ClassVar = {"x": "consensus", "y": "local", "z": "local"}


class LopaGt(LopaBase):
    """x⁺ = x + τ (W x − h⁺ − x), where h tracks α q."""

    catalog_name = "lopa-gt"
    summary = "LoPA with gradient tracking"
    strategy_names: ClassVar = {"x": "non-gt", "y": "local", "z": "local"}


@register(Lopa, tracking=False)
@register(LopaGt, tracking=True)
def lopa(
    *, alpha: Rate, beta: Rate, gamma: Rate, theta: Rate = 1.0, tau: Rate = 1.0, tracking: bool = False
) -> Lopa | LopaGt:
    """LoPA (Niu et al., 2023), reconstructed from what SPARKLE's paper says of it: y⁺ = y − β ∇_y g and z⁺ = z − γ p
    stay at the node, q⁺ = (1−θ) q + θ u, and x⁺ = x + τ (W x − α q⁺ − x); with `tracking`, q⁺ is tracked (LoPA-GT).

    Draws: an upper batch, and a lower one for each of ∇_y g, H z and J z⁺.

    Args:
        theta: the weight of the newest sample in the running average of the upper direction, from 0 to 1; 1 keeps no
            average.
        tau: τ, the part of its step that x takes, from 0 to 1.
        tracking: track the upper direction: LoPA-GT.
    """
    kind = LopaGt if tracking else Lopa
    return kind(alpha, beta, gamma, theta, auxiliary(), tau)
