"""SUN-DSBO: the lower level by its Moreau envelope, and any strategy on every level."""

from __future__ import annotations

from typing import ClassVar

from ..core._types import Scalar
from ..core._vector import Vector
from ..oracles._penalty import AtCopies
from ..strategies._table import Strategy
from ..strategies._table import strategy as named
from ._copies import TwoCopies
from ._entry import register
from ._method import Rate


class SunDsbo(TwoCopies):
    """z⁺ = S(z, γ (∇_y g(x, z) + (z − y)/ρ)); y⁺ = S(y, β (∇_y f/c + ∇_y g(x, y) − (y − z)/ρ)); x⁺ = S(x, α u)."""

    catalog_name = "sun-dsbo"
    summary = "first derivatives only: the lower level by its Moreau envelope, g need not be convex (error O(1/c))"
    paper = (
        "Ma, Wang, Yao, Zhang, SUN-DSBO: A Structured Unified Framework for Nonconvex Decentralized Stochastic Bilevel "
        "Optimization, 2026"
    )
    defaults: ClassVar = {"alpha": 0.2}

    envelope: float
    strategy: Strategy

    @property
    def strategies(self) -> dict[str, Strategy]:
        return dict.fromkeys("xyz", self.strategy)

    def directions(self, λ: Scalar, point: AtCopies, y: Vector, z: Vector) -> tuple[Vector, Vector, Vector]:
        pull = (1 / self.envelope) * (y - z)
        return (1 / λ) * point.fx + point.gap, (1 / λ) * point.fy + point.gy - pull, point.gz - pull


@register(SunDsbo)
def sun_dsbo(
    *,
    alpha: Rate,
    beta: Rate,
    gamma: Rate,
    strength: Rate = 10.0,
    envelope: float = 1.0,
    strategy: str | Strategy = "gt",
) -> SunDsbo:
    """SUN-DSBO (Ma et al., 2026), reconstructed from the abstract: min over x and y of f(x, y)/c + g(x, y) − v(x, y),
    with the Moreau envelope v(x, y) = min_z g(x, z) + ‖z − y‖²/(2ρ), in a single loop. First derivatives only, and g
    need not be convex in y where ρ is small enough.

    Draws: an upper and a lower batch, the same at both copies. Differs from the paper: all directions at the old point;
    its c_k and γ are our `strength` and `envelope`; any strategy takes the place of its two, `"diffusion"` for
    SUN-DSBO-SE and `"gt"` for SUN-DSBO-GT.

    Args:
        alpha: the step size of x: a number, or a function of the step. It may grow as c, since x's direction is divided
            by it.
        gamma: the step size of z, which follows the minimizer of the envelope, likewise.
        strength: c, a number or a function of the step.
        envelope: ρ; below 1/κ where the least curvature of g in y is −κ.
        strategy: of every level, by name or made.
    """
    if not envelope > 0:
        raise ValueError(f"envelope={envelope!r} must be positive: 1.0 is a good start.")
    return SunDsbo(alpha, beta, gamma, strength, envelope, named(strategy))
