"""Gradient tracking with AdaGrad's step sizes: AugDGM (Xu, Zhu, Soh and Xie, 2015), which allows one for each node.

h tracks the direction g itself, and the step sizes D are applied to what is tracked:

    h⁺ = W (h + Δg),   v ← v + (h⁺)²,   D = η/(√v + 1e-12),   s⁺ = W (s − D h⁺).

The tracker does not see D. Where nothing moves, h = W h is common to all nodes and is the mean of g; summed over nodes,
s = W (s − D h) leaves h Σ D_i = 0. So Σ g_i = 0 for any D > 0 by node and coordinate, constant or not. The rows of the
table track D g instead, and end where Σ D_i g_i = 0.
"""

from __future__ import annotations

from ..core._vector import Scalar, Vector
from ..network._communicator import Move
from ._adaptive import TINY, Adaptive, divide, roots, squares
from ._table import STRATEGIES, Carry


class AdaptiveTracking(Adaptive):
    """AugDGM with the step sizes of AdaGrad; the carries are c = h − g and the sums of h²."""

    def adaptive_update(self, s: Vector, carry: Carry, g: Vector, η: Scalar) -> Move:
        c, sums = carry
        δ = yield c + g
        c = c + δ
        h = g + c
        b, sums = self.next_scale(h, sums)
        φ = s - η * divide(h, b)
        δ = yield φ
        return self.apply_prox(φ + δ, η), c, sums

    def next_scale(self, h: Vector, sums: Vector) -> tuple[Vector, Vector]:
        """b = η/D, and the sums with h²."""
        sums = sums + squares(h)
        return roots(sums, TINY), sums


STRATEGIES["gt-ada"] = AdaptiveTracking("gt-ada", carries=2, default_rate=0.3, proximal="after")
