"""SOBA: the centralized method that the decentralized ones are measured against."""

from __future__ import annotations

from jax import Array

from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..oracles.hypergradient import auxiliary
from ..strategies._table import Strategy, strategy
from ._auxiliary import Auxiliary
from ._entry import register
from ._method import Rate, State


class Soba(Auxiliary):
    """y⁺ = y − β v; z⁺ = z − γ p; r⁺ = (1−θ) r + θ u; x⁺ = x − α r⁺, averaged exactly over nodes."""

    catalog_name = "soba"
    summary = "centralized: one node or exact averaging"
    paper = (
        "Dagréou, Ablin, Vaiter, Moreau, A Framework for Bilevel Optimization that Enables Stochastic and Global "
        "Variance Reduction Algorithms, 2022"
    )
    centralized = True

    @property
    def strategies(self) -> dict[str, Strategy]:
        return dict.fromkeys("xyz", strategy("diffusion"))

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        return self.simultaneous(k, state, oracle, network)


@register(Soba)
def soba(*, alpha: Rate, beta: Rate, gamma: Rate, theta: Rate = 1.0) -> Soba:
    """SOBA (Dagréou et al., 2022): one node, or the complete graph, which averages exactly.

    Draws: an upper and a lower batch. Differs from the paper: `theta` below 1 adds a running average of the upper
    direction.

    Args:
        theta: the weight of the newest sample in the running average of the upper direction, from 0 to 1; 1 keeps no
            average.
    """
    return Soba(alpha, beta, gamma, theta, auxiliary())
