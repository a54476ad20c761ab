"""Gradient tracking with AdaGrad's steps: AugDGM (Xu, Zhu, Soh and Xie, 2015), which allows a step for each node.

h tracks the direction g itself, and the step D is applied to what is tracked:

    h⁺ = W (h + Δg),   v ← v + (h⁺)²,   D = η/(√v + 1e-12),   s⁺ = W (s − D h⁺).

The tracker does not see D. Where nothing moves, h = W h is common to all nodes and is the mean of g; summed over nodes,
s = W (s − D h) leaves h Σ D_i = 0. So Σ g_i = 0 for any D > 0 by node and coordinate, constant or not. The rows of the
table track D g instead, and end where Σ D_i g_i = 0.
"""

from __future__ import annotations

from ..core._vector import Scalar, Vector
from ._adaptive import TINY, Adaptive, divided, roots, squares
from ._table import STRATEGIES, Carry, Flows


class AdaptiveTracking(Adaptive):
    """AugDGM with the steps of AdaGrad; the carries are c = h − g and the sums of h²."""

    def adapted(self, s: Vector, carry: Carry, g: Vector, η: Scalar) -> Flows:
        c, sums = carry
        δ = yield c + g
        c = c + δ
        h = g + c
        b, sums = self.scales(h, sums)
        φ = s - η * divided(h, b)
        δ = yield φ
        return self.apply_prox(φ + δ, η), c, sums

    def scales(self, h: Vector, sums: Vector) -> tuple[Vector, Vector]:
        """b = η/D, and the sums with h²."""
        sums = sums + squares(h)
        return roots(sums, TINY), sums


STRATEGIES["gt-ada"] = AdaptiveTracking("gt-ada", carries=2, default_rate=0.3, proximal="after")
