"""DSBO: the p×q matrix J̄ H̄⁻¹ by gradient tracking."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core._vector import Vector, flatten
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..strategies._table import Level
from ._dense_hessian import MatrixMethod
from ._entry import register
from ._method import Rate, State


class Dsbo(MatrixMethod):
    """T steps y ← W y − β v; N steps of gradient tracking on Z ≈ J̄ H̄⁻¹ (p×q) along Z H − J, then
    x⁺ = W x − α (∇_x f − Z ∇_y f).

    Draws: a lower batch for every inner step on y, another for every step on Z, and an upper batch for ∇f.
    """

    catalog_name = "dsbo"
    summary = "tracks the matrix J H⁻¹ (biased where nodes differ)"
    paper = "Chen, Huang, Ma, Decentralized Bilevel Optimization, 2022"
    loops = 2
    strategy_names: ClassVar = {"x": "consensus", "y": "consensus", "z": "non-gt"}

    alpha: Rate
    beta: Rate
    gamma: Rate
    lower_steps: int = eqx.field(static=True)
    auxiliary_steps: int = eqx.field(static=True)

    @property
    def sends(self) -> str:
        return "p + T q + 2 N pq numbers"

    def matrices(self, p: int, q: int) -> int:
        return 4 * p * q + q * q  # Z, its two carries and J; H

    def first_z(self, x: Vector, y: Vector) -> Vector:
        flat_x, flat_y = flatten(x)[0], flatten(y)[0]
        return Vector(jnp.zeros((*flat_x.shape, flat_y.shape[1]), flat_x.dtype))

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, y, z, *_ = state
        mix = self.strategies["x"]
        track = self.strategies["z"]
        α, β, γ = self.rates(k)

        def lower(j: Array, y: Level) -> Level:
            move = mix(y, oracle.draw(3 * j).at(x.s, y.s).v, β)
            return network(k * self.lower_steps + j, y=move)

        def auxiliary(j: Array, z: Level) -> Level:
            point = oracle.draw(3 * j + 1).at(x.s, y.s)
            residual = Vector(_times(z.s.tree, point.hessian_matrix()) - point.jacobian_matrix())
            return network(k * self.auxiliary_steps + j, z=track(z, residual, γ))

        y = oracle.ledger.loop(self.lower_steps, lower, y)
        z = oracle.ledger.loop(self.auxiliary_steps, auxiliary, z)
        point = oracle.draw(2).at(x.s, y.s)
        fy, _ = flatten(point.fy)
        correction = flatten(point.fx)[1](_times(z.s.tree, fy[..., None])[..., 0])
        return State(network(x=mix(x, point.fx - correction, α)), y, z)


def _times(a: Any, b: Any) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


@register(Dsbo)
def dsbo(*, alpha: Rate, beta: Rate, gamma: Rate, lower_steps: int = 5, auxiliary_steps: int = 5) -> Dsbo:
    """DSBO (Chen et al., 2022), reconstructed. It sends p×q matrices; sizes beyond 1 GiB raise.

    Biased if nodes differ, in proportion to its step sizes: x and y move by W s − d, which nothing corrects.

    Draws: a lower batch for each inner step on y and on Z, and an upper one for ∇f.

    Args:
        gamma: the step size of Z, likewise.
        lower_steps: T, the inner steps on y in each iteration.
        auxiliary_steps: N, the inner steps on Z in each iteration.
    """
    return Dsbo(alpha, beta, gamma, lower_steps, auxiliary_steps)
