"""The recursion of methods with two copies of the lower variable: first derivatives only, and a penalty λ."""

from __future__ import annotations

import numpy as np
from jax import Array

from ..core._types import Scalar
from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..oracles._penalty import AtCopies
from ._method import Method, Rate, State, rate


class TwoCopies(Method):
    """y minimizes f + λ g, z minimizes g, and x moves against the derivative of f(x, y) + λ (g(x, y) − g(x, z)).

    All directions are taken at the old point and on one draw. With other samples at the other copy the noise would grow
    with λ; if x followed the new copies on the samples that moved them, the solution would shift. The two copies are
    separate variables, unlike those of `db.hypergradient.penalty`: β must fall as 1/λ, and α too unless
    β λ = γ.
    """

    alpha: Rate
    beta: Rate
    gamma: Rate
    strength: Rate

    def __check_init__(self) -> None:
        validate_strength(self.strength)

    def first_z(self, x: Vector, y: Vector) -> Vector:
        return y

    def directions(self, λ: Scalar, point: AtCopies, y: Vector, z: Vector) -> tuple[Vector, Vector, Vector]:
        """What x, y and z move against."""
        return point.fx + λ * point.gap, point.fy + λ * point.gy, point.gz

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, y, z, *_ = state
        strategies = self.levels(oracle)
        point = AtCopies.of(oracle.draw(), x.s, y.s, z.s)
        u, v, w = self.directions(rate(self.strength, k), point, y.s, z.s)
        α, β, γ = self.rates(k)
        return State(*network(x=strategies["x"](x, u, α), y=strategies["y"](y, v, β), z=strategies["z"](z, w, γ)))


def validate_strength(value: Rate) -> None:
    if isinstance(value, int | float | np.number):
        fits = not isinstance(value, bool) and 0 < float(value) < float("inf")
    else:
        fits = hasattr(value, "dtype") or callable(value)
    if not fits:
        raise ValueError(
            f"strength={value!r} must be a positive number, or a function of the step: 10 is a good start."
        )
