"""SOBA: the centralized method that the decentralized ones are measured against."""

from __future__ import annotations

from typing import ClassVar

from ..oracles.hypergradient import auxiliary
from ._auxiliary import Auxiliary
from ._entry import register
from ._method import Rate


class Soba(Auxiliary):
    """y⁺ = y − β v; z⁺ = z − γ p; r⁺ = (1−θ) r + θ u; x⁺ = x − α r⁺, averaged exactly over nodes."""

    catalog_name = "soba"
    summary = "centralized: one node or exact averaging"
    paper = (
        "Dagréou, Ablin, Vaiter, Moreau, A Framework for Bilevel Optimization that Enables Stochastic and Global "
        "Variance Reduction Algorithms, 2022"
    )
    centralized = True
    strategy_names: ClassVar = dict.fromkeys("xyz", "diffusion")


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
