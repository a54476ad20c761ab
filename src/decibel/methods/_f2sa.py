"""F2SA: the centralized method with two copies of the lower variable."""

from __future__ import annotations

from typing import ClassVar

from ._copies import TwoCopies
from ._entry import register
from ._method import Rate


class F2sa(TwoCopies):
    """z⁺ = z − γ ∇_y g(x, z); y⁺ = y − β (∇_y f(x, y) + λ ∇_y g(x, y)); x⁺ = x − α u, averaged exactly over nodes."""

    catalog_name = "f2sa"
    summary = "centralized, first derivatives only: two copies of y and a penalty (error O(1/λ))"
    paper = "Kwon, Kwon, Wright, Nowak, A Fully First-Order Method for Stochastic Bilevel Optimization, 2023"
    centralized = True
    defaults: ClassVar = {"beta": 0.01}
    strategy_names: ClassVar = dict.fromkeys("xyz", "diffusion")


@register(F2sa)
def f2sa(*, alpha: Rate, beta: Rate, gamma: Rate, strength: Rate = 10.0) -> F2sa:
    """F2SA (Kwon et al., 2023): one node, or the complete graph, which averages exactly.

    z⁺ = z − γ ∇_y g(x, z), y⁺ = y − β (∇_y f(x, y) + λ ∇_y g(x, y)), and
    x⁺ = x − α (∇_x f(x, y) + λ (∇_x g(x, y) − ∇_x g(x, z))), which ends O(1/λ) from the solution. First derivatives
    only. β must fall as 1/λ, and so must α unless β λ = γ; `db.sparkle("ed", hypergradient=db.hypergradient.penalty())`
    has steps that do not depend on λ.

    Draws: an upper and a lower batch, the same at both copies. Differs from the paper: x moves at the old copies, not
    at the new ones; one step on y and z in each iteration (the paper's T = 1); one batch of each level for all
    gradients; its λ_{k+1} = λ_k + δ_k is a `strength` that is a function of the step.

    Args:
        beta: the step size of y, the copy that f pulls at, likewise.
        gamma: the step size of z, the copy that minimizes g, likewise.
        strength: λ: a number, or a function of the step such as `lambda k: 10 + 0.1 * k`.
    """
    return F2sa(alpha, beta, gamma, strength)
