"""The recursion of SPARKLE and its kin: one loop, with an auxiliary level z in place of the inverse Hessian."""

from __future__ import annotations

from typing import Any, ClassVar

from jax import Array

from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles._eval_config import Products
from ..oracles._oracle import Oracle
from ._method import Method, Rate, State, rate


class Auxiliary(Method):
    """v(x, y) moves y, p(x, y, z) moves z, and r⁺ = (1−θ) r + θ u(x, y, z) moves x, each by the strategy of its level.

    Draws of a step: one upper batch, for both gradients of f. Simultaneous updates take one lower batch for v, H z and
    J z, since no direction depends on another. In alternating ones v, H z and J z⁺ have a lower batch each: z⁺ depends
    on the samples of H, and multiplied by J on the same samples it would shift the fixed point by γ Cov(J, H) z.
    """

    alpha: Rate
    beta: Rate
    gamma: Rate
    theta: Rate
    hypergradient: Products
    takes_prox: ClassVar = True

    def start(self, x: Vector, y: Vector | None) -> State:
        assert y is not None
        levels = self.strategies
        return State(levels["x"].start(x), levels["y"].start(y), levels["z"].start(y.zeros()), memory=x.zeros())

    def rates(self, k: Array) -> tuple[Any, Any, Any, Any]:
        """α, β, γ and θ of step k."""
        return rate(self.alpha, k), rate(self.beta, k), rate(self.gamma, k), rate(self.theta, k)

    def simultaneous(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        """All directions at (x, y, z), so that one vjp serves them and one message carries them."""
        (x, y, z, r), levels = state[:4], self.levels(oracle)
        α, β, γ, θ = self.rates(k)
        here = oracle.draw().at(x.s, y.s, self.hypergradient)
        r = (1 - θ) * r + θ * here.u(z.s)
        x, y, z = network(x=levels["x"](x, r, α), y=levels["y"](y, here.v, β), z=levels["z"](z, here.p(z.s), γ))
        return State(x, y, z, r)

    def alternating(self, k: Array, state: State, oracle: Oracle, network: Communicator, part: Any = None) -> State:
        """Each direction at the newest point: v(x, y), p(x, y⁺, z), u(x, y⁺, z⁺). x goes that `part` of its way."""
        (x, y, z, r), levels = state[:4], self.levels(oracle)
        α, β, γ, θ = self.rates(k)
        draw = oracle.draw()
        y = network(y=levels["y"](y, draw.at(x.s, y.s).v, β))
        here = draw.fresh_lower(0).at(x.s, y.s, self.hypergradient)
        z = network(z=levels["z"](z, here.p(z.s), γ))
        u = here.fx - here.moved_to(draw.fresh_lower(1)).jacobian(z.s)
        r = (1 - θ) * r + θ * u
        x = network(x=levels["x"](x, r, α, relax=part))
        return State(x, y, z, r)
