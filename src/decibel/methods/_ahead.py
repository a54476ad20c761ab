"""AHEAD: penalties for the lower level and for consensus, on several time scales."""

from __future__ import annotations

from typing import ClassVar

from ._copies import TwoCopies
from ._entry import register
from ._method import Rate


class Ahead(TwoCopies):
    """z⁺ = W z − γ ∇_y g(x, z); y⁺ = W y − β (∇_y f(x, y) + λ ∇_y g(x, y)); x⁺ = W x − α u."""

    catalog_name = "ahead"
    summary = "first derivatives only: penalties for the lower level and for consensus (biased where nodes differ)"
    paper = (
        "Niu, Xu, Sun, Chai, Chen, Hessian-Free Distributed Bilevel Optimization via Penalization with Time-Scale "
        "Separation, 2024"
    )
    defaults: ClassVar = {"alpha": 0.02, "beta": 0.01}  # slow, faster (times λ), fastest
    strategy_names: ClassVar = dict.fromkeys("xyz", "consensus")


@register(Ahead)
def ahead(*, alpha: Rate, beta: Rate, gamma: Rate, strength: Rate = 10.0) -> Ahead:
    """AHEAD (Niu et al., 2024), reconstructed from the abstract: a loopless minimax method on f(x, y) +
    λ (g(x, y) − g(x, z)) with a penalty for consensus on every level, whose gradient step is s ↦ W s − d. Nothing
    corrects for nodes that differ: it is biased, the less the smaller the steps.

    Draws: an upper and a lower batch, the same at both copies. Differs from the paper: the weight of each penalty for
    consensus is one over the step size; z's direction is divided by λ; the time scales are those of the step sizes
    given, α slower than β λ slower than γ.

    Args:
        beta: the step size of y, the copy that f pulls at, likewise; γ/λ is a good start.
        gamma: the step size of z, the copy that minimizes g, likewise.
        strength: λ: a number, or a function of the step.
    """
    return Ahead(alpha, beta, gamma, strength)
