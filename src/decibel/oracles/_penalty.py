"""The penalty form of the hypergradient: first derivatives only, also where the lower level is not strongly convex.

The problem is replaced by min f(x, ỹ) + λ (g(x, ỹ) − min_y g(x, y)), whose two copies of y lie O(1/λ) apart. As
variables of their own they need steps that shrink with λ. In the coordinates y and z = λ (y − ỹ) no step depends on λ,
and the form is SPARKLE with H z and J z by one-sided differences of width 1/λ and the gradients of f taken at ỹ:

    ỹ = y − z/λ
    u = ∇_x f(x, ỹ) − λ (∇_x g(x, y) − ∇_x g(x, ỹ))
    v = ∇_y g(x, y)
    p = λ (∇_y g(x, y) − ∇_y g(x, ỹ)) − ∇_y f(x, ỹ)

The central version has the copies y ∓ z/λ, minimizers of g ± f/λ, and an error of O(1/λ²). All gradients of a step are
taken on one draw: on different ones the noise would grow with λ.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax

from ..core._types import Loss, PyTree, Scalar
from ..core._vector import Vector
from ..problem._samples import Batch
from ..problem.prox import Prox
from ._oracle import Draw


class Penalty(eqx.Module):
    """Directions from gradients at copies of y that a penalty λ holds together.

    Attributes:
        strength: λ.
        central: copies on both sides of y instead of y and one copy.
    """

    strength: float = eqx.field(static=True)
    central: bool = eqx.field(static=True, default=False)

    def directions(self, draw: Draw, x: Vector, y: Vector, z: Vector) -> tuple[Vector, Vector, Vector]:
        """u, v and p: what x, y and z move against."""
        draw.ledger.add(gradients=4 if self.central else 3)
        problem, config, λ = draw.problem, draw.oracle.config, self.strength

        def gradients(loss: Loss) -> Callable[[PyTree, Vector, Batch], tuple[Vector, Vector]]:
            gradient = config.narrowed(jax.grad(loss, (0, 1)))

            def of(x: PyTree, y: Vector, batch: Batch) -> tuple[Vector, Vector]:
                gx, gy = gradient(x, y.tree, batch)
                return Vector(gx), Vector(gy)

            return of

        f, g = gradients(problem.upper_loss), gradients(problem.lower_loss)

        def forward(x: PyTree, y: PyTree, z: PyTree, upper: Batch, lower: Batch) -> tuple[Vector, Vector, Vector]:
            y, z = Vector(y), Vector(z)
            ahead = y - (1 / λ) * z
            (fx, fy), (gx, gy), (gx_ahead, gy_ahead) = f(x, ahead, upper), g(x, y, lower), g(x, ahead, lower)
            return fx - λ * (gx - gx_ahead), gy, λ * (gy - gy_ahead) - fy

        def central(x: PyTree, y: PyTree, z: PyTree, upper: Batch, lower: Batch) -> tuple[Vector, Vector, Vector]:
            y, z = Vector(y), Vector(z)
            ahead, behind = y - (1 / λ) * z, y + (1 / λ) * z
            (fx_ahead, fy_ahead), (fx_behind, fy_behind) = f(x, ahead, upper), f(x, behind, upper)
            (gx_ahead, gy_ahead), (gx_behind, gy_behind) = g(x, ahead, lower), g(x, behind, lower)
            u = 0.5 * (fx_ahead + fx_behind) - (0.5 * λ) * (gx_behind - gx_ahead)
            v = 0.5 * (gy_ahead + gy_behind) + (0.5 / λ) * (fy_ahead - fy_behind)
            return u, v, (0.5 * λ) * (gy_behind - gy_ahead) - 0.5 * (fy_ahead + fy_behind)

        points = x.tree, y.tree, z.tree
        return config.over_nodes(central if self.central else forward)(*points, draw.upper, draw.lower)

    def nearest(self, y: Vector, z: Vector, prox: Prox, rate: Scalar) -> tuple[Vector, Vector]:
        """y and z after the proximal map of both copies: each takes a step of its own objective, as large for both."""
        λ = self.strength
        ahead, behind = y - (1 / λ) * z, y + (1 / λ) * z if self.central else y
        ahead, behind = (Vector(jax.vmap(lambda tree: prox(tree, rate))(copy.tree)) for copy in (ahead, behind))
        if self.central:
            return 0.5 * (ahead + behind), (0.5 * λ) * (behind - ahead)
        return behind, λ * (behind - ahead)
