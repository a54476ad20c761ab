"""MA-DSBO and MA-DSBO-GT: inner loops on y and z, then a moving average above."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
from jax import Array

from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..strategies._table import Level
from ._entry import register
from ._method import Method, Rate, State


class MaDsboBase(Method):
    """`lower_steps` times y ← L(y, β v(x, y)), warm-started; `auxiliary_steps` times z ← L(z, γ p(x, y, z)); then
    r⁺ = (1−θ) r + θ u(x, y, z) and x⁺ = W x − α r⁺.

    Draws, all independent: a lower batch for every inner step on y; an upper and a lower batch for every inner step on
    z; an upper and a lower batch for u.
    """

    paper = (
        "Chen, Huang, Ma, Balasubramanian, Decentralized Stochastic Bilevel Optimization with Improved Per-Iteration "
        "Complexity, 2023"
    )
    loops = 2
    defaults: ClassVar = {"theta": 0.3}

    alpha: Rate
    beta: Rate
    gamma: Rate
    theta: Rate
    lower_steps: int = eqx.field(static=True)
    auxiliary_steps: int = eqx.field(static=True)

    def first_memory(self, x: Vector, y: Vector | None) -> Vector:
        return x.zeros()

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, y, z, r, _ = state
        strategies = self.strategies
        α, β, γ, θ = self.rates(k)

        def lower(j: Array, y: Level) -> Level:
            move = strategies["y"](y, oracle.draw(3 * j).at(x.s, y.s).v, β)
            return network(k * self.lower_steps + j, y=move)

        def auxiliary(j: Array, z: Level) -> Level:
            move = strategies["z"](z, oracle.draw(3 * j + 1).at(x.s, y.s).p(z.s), γ)
            return network(k * self.auxiliary_steps + j, z=move)

        y = oracle.ledger.loop(self.lower_steps, lower, y)
        z = oracle.ledger.loop(self.auxiliary_steps, auxiliary, z)
        r = (1 - θ) * r + θ * oracle.draw(2).at(x.s, y.s).u(z.s)
        return State(network(x=strategies["x"](x, r, α)), y, z, r)


class MaDsbo(MaDsboBase):
    """y ← W y − β v, z ← W z − γ p"""

    catalog_name = "ma-dsbo"
    summary = "inner loops on y and z, moving average on the upper level (biased where nodes differ)"
    strategy_names: ClassVar = dict.fromkeys("xyz", "consensus")

    @property
    def sends(self) -> str:
        return "p + (T + N) q numbers"


class MaDsboGt(MaDsboBase):
    """With gradient tracking in the inner loops."""

    catalog_name = "ma-dsbo-gt"
    summary = "MA-DSBO with gradient tracking in the inner loops (biased on the upper level)"
    strategy_names: ClassVar = {"x": "consensus", "y": "non-gt", "z": "non-gt"}

    @property
    def sends(self) -> str:
        return "p + 2 (T + N) q numbers"


@register(MaDsbo, tracking=False)
@register(MaDsboGt, tracking=True)
def ma_dsbo(
    *,
    alpha: Rate,
    beta: Rate,
    gamma: Rate,
    theta: Rate,
    lower_steps: int = 5,
    auxiliary_steps: int = 5,
    tracking: bool = False,
) -> MaDsbo | MaDsboGt:
    """MA-DSBO (Chen et al., 2023), reconstructed: T steps y ← W y − β v, N steps z ← W z − γ p, a moving average of u,
    x⁺ = W x − α r⁺; with `tracking`, gradient tracking inside the loops (MA-DSBO-GT).

    Draws: a lower batch for each of T steps, an upper and a lower one for each of N, and both for u.

    Args:
        theta: the weight of the newest sample in the running average of the upper direction, from 0 to 1; 1 keeps no
            average.
        lower_steps: T, the inner steps on y in each iteration.
        auxiliary_steps: N, the inner steps on z in each iteration.
        tracking: track the directions of the inner loops: MA-DSBO-GT.
    """
    kind = MaDsboGt if tracking else MaDsbo
    return kind(alpha, beta, gamma, theta, lower_steps, auxiliary_steps)
