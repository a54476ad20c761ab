"""The penalty form of the hypergradient: first derivatives only, also where the lower level is not strongly convex.

The problem is replaced by min f(x, ỹ) + λ (g(x, ỹ) − min_y g(x, y)), whose two copies of y lie O(1/λ) apart, as in F2SA
(Kwon et al., 2023) and other value-function methods. In the coordinates y and z = λ (y − ỹ) the form is SPARKLE with
H z and J z by one-sided differences of width 1/λ and the gradients of f taken at ỹ:

    ỹ = y − z/λ
    u = ∇_x f(x, ỹ) − λ (∇_x g(x, y) − ∇_x g(x, ỹ))
    v = ∇_y g(x, y)
    p = λ (∇_y g(x, y) − ∇_y g(x, ỹ)) − ∇_y f(x, ỹ)

With γ = β it is two copies with equal steps on g and on g + f/λ. The coordinates keep the digits of the difference,
suggest one draw for both copies, and give z a step size γ of its own.

The central version has the copies y ∓ z/λ, minimizers of g ± f/λ, and an error of O(1/λ²): F2SA-p with p = 2 (Chen,
Li, Chayti and Zhang, 2025), or equilibrium propagation that is nudged both ways (Laborieux et al., 2021). All gradients
of a step are taken on one draw: on different ones the noise would grow with λ.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
from jax import Array

from ..core._types import PyTree, Scalar
from ..core._vector import Vector
from ..problem._batch import Batch
from ..problem.prox import Prox
from ._oracle import Draw


class AtCopies(NamedTuple):
    """Gradients at two copies y and z of the lower variable that are variables of their own, all on one draw.

    Attributes:
        fx: ∇_x f(x, y).
        fy: ∇_y f(x, y).
        gap: ∇_x g(x, y) − ∇_x g(x, z).
        gy: ∇_y g(x, y).
        gz: ∇_y g(x, z).
    """

    fx: Vector
    fy: Vector
    gap: Vector
    gy: Vector
    gz: Vector

    @classmethod
    def of(cls, draw: Draw, x: Vector, y: Vector, z: Vector) -> AtCopies:
        """At every node's own point."""
        draw.ledger.add(gradients=3)
        config, problem = draw.oracle.config, draw.problem
        f, g = (jax.grad(loss, (0, 1)) for loss in (problem.upper_loss, problem.lower_loss))

        def node(x: PyTree, y: PyTree, z: PyTree, upper: Batch, lower: Batch) -> AtCopies:
            fx, fy = f(x, y, upper)
            gx, gy = g(x, y, lower)
            gx_there, gz = g(x, z, lower)
            return cls(Vector(fx), Vector(fy), Vector(gx) - Vector(gx_there), Vector(gy), Vector(gz))

        return config.over_nodes(node)(x.tree, y.tree, z.tree, draw.upper, draw.lower)


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
        problem = draw.problem
        config = draw.oracle.config
        λ = self.strength

        def gradients(sign: int, x: PyTree, y: Vector, upper: Batch, lower: Batch) -> tuple[Vector, Vector]:
            """Of λ g ± f, or of λ g alone."""

            def loss(x: PyTree, y: PyTree, upper: Batch, lower: Batch) -> Array:
                g = problem.lower_loss(x, y, lower)
                return λ * g + sign * problem.upper_loss(x, y, upper) if sign else λ * g

            gx, gy = jax.grad(loss, (0, 1))(x, y.tree, upper, lower)
            return Vector(gx), Vector(gy)

        def node(x: PyTree, y: PyTree, z: PyTree, upper: Batch, lower: Batch) -> tuple[Vector, Vector, Vector]:
            y, shift = Vector(y), (1 / λ) * Vector(z)
            ahead_x, ahead_y = gradients(1, x, y - shift, upper, lower)
            if not self.central:
                gx, gy = gradients(0, x, y, upper, lower)
                return ahead_x - gx, (1 / λ) * gy, gy - ahead_y
            behind_x, behind_y = gradients(-1, x, y + shift, upper, lower)
            return 0.5 * (ahead_x - behind_x), (0.5 / λ) * (ahead_y + behind_y), 0.5 * (behind_y - ahead_y)

        return config.over_nodes(node)(x.tree, y.tree, z.tree, draw.upper, draw.lower)

    def lower_direction(self, draw: Draw, x: Vector, y: Vector, z: Vector) -> Vector:
        """v alone: a gradient of g, unless copies are on both sides."""
        if self.central:
            return self.directions(draw, x, y, z)[1]
        draw.ledger.add(gradients=1)
        gradient = jax.grad(draw.problem.lower_loss, 1)
        return Vector(draw.oracle.config.over_nodes(gradient)(x.tree, y.tree, draw.lower))

    def apply_prox(self, y: Vector, z: Vector, prox: Prox, rate: Scalar) -> tuple[Vector, Vector]:
        """y and z after the proximal map of both copies: each takes a step of its own objective, as large for both."""
        λ = self.strength
        ahead, behind = y - (1 / λ) * z, y + (1 / λ) * z if self.central else y
        ahead, behind = (Vector(jax.vmap(lambda tree: prox(tree, rate))(copy.tree)) for copy in (ahead, behind))
        if self.central:
            return 0.5 * (ahead + behind), (0.5 * λ) * (behind - ahead)
        return behind, λ * (behind - ahead)
