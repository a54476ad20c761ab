"""SLAM: EXTRA on both levels, an inverse at the node."""

from __future__ import annotations

from typing import ClassVar

from ..oracles import estimators
from ..oracles import hypergradient as inverses
from ._entry import register
from ._implicit import Implicit
from ._method import Rate


class Slam(Implicit):
    """y⁺ = EXTRA(y, β v), x⁺ = EXTRA(x, α ∇̄f), both at (x, y)."""

    catalog_name = "slam"
    summary = "EXTRA on both levels, local Neumann hypergradient (biased where nodes differ)"
    paper = (
        "Lu et al., A Stochastic Linearized Augmented Lagrangian Method for Decentralized Bilevel Optimization, 2022"
    )
    strategy_names: ClassVar = dict.fromkeys("xy", "extra")


@register(Slam)
def slam(*, alpha: Rate, beta: Rate, terms: int = 10, scale: float | None = None) -> Slam:
    """SLAM (Lu et al., 2022), reconstructed: EXTRA on both levels with a local Neumann hypergradient; biased for a
    shared lower level, since the inverse is local.

    Draws: an upper and a lower batch, for v and J; a lower batch for each of `terms` − 1 factors; a further one for L
    where `scale` is None.
    """
    return Slam(alpha, beta, inverses.neumann(terms, scale), estimators.plain())
