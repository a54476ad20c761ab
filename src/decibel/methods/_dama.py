"""DAMA: minimax without an auxiliary level, any strategy, and GRACE."""

from __future__ import annotations

from typing import ClassVar

from ..oracles import estimators
from ..oracles.hypergradient import direct
from ..strategies._table import Strategy
from ..strategies._table import strategy as named
from ._entry import register
from ._implicit import Implicit
from ._method import Rate


class Dama(Implicit):
    """x⁺ = S(x, α ∇_x f), y⁺ = S(y, β ∇_y g), both estimated together at (x, y)."""

    catalog_name = "dama"
    summary = "minimax with one strategy on both levels and randomized variance reduction"
    paper = (
        "Cai, Alghunaim, Sayed, DAMA: A Unified Accelerated Approach for Decentralized Nonconvex Minimax Optimization, "
        "2025"
    )
    takes_prox: ClassVar = True

    mixing: Strategy

    @property
    def strategies(self) -> dict[str, Strategy]:
        return dict.fromkeys("xy", self.mixing)


@register(Dama)
def dama(
    *, alpha: Rate, beta: Rate, strategy: str | Strategy = "ed", probability: float = 0.1, theta: Rate = 0.0
) -> Dama:
    """DAMA (Cai, Alghunaim, Sayed, 2025), for problems of `Problem.minimax`: x descends and y ascends on f, without z,
    each by a strategy such as ED, EXTRA or gradient tracking, along GRACE estimates: all samples with probability p,
    otherwise STORM's recursion with weight θ (`db.estimators.grace`). θ = 0 is PAGE; p = 0 is STORM from a full batch.

    Draws: with probability p, and at first, all samples; otherwise an upper and a lower batch (`batch_size`, or ⌈√n⌉),
    the same at both points of a difference. On other bilevel problems x would follow ∇_x f alone. Differs from the
    paper: ∇_x f and ∇_y f have batches of their own; one coin serves all nodes; strategies run in flow form.
    Reconstructed from the abstract.

    Args:
        strategy: the strategy of both levels, by name or made.
        probability: p, the share of steps that take all samples, from 0 to 1.
        theta: the weight of the newest sample in the other steps, from 0 to 1.
    """
    return Dama(alpha, beta, direct(), estimators.grace(probability, theta), named(strategy))
