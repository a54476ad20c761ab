"""One level: x⁺ = U(x, α r⁺), r⁺ = (1−θ) r + θ ∇f(x) on one batch. SPARKLE without a lower level is exactly this."""

from __future__ import annotations

import equinox as eqx
from jax import Array

from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..strategies._table import Strategy, strategy
from ._method import Method, Rate, State, rate


class SingleLevel(Method):
    upper: Strategy
    alpha: Rate
    theta: Rate
    label: str = eqx.field(static=True)

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": self.upper}

    def start(self, x: Vector, y: Vector | None) -> State:
        return State(self.upper.start(x), memory=x.zeros())

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, r = state.x, state.memory
        α, θ = rate(self.alpha, k), rate(self.theta, k)
        r = (1 - θ) * r + θ * oracle.draw().at(x.s).fx
        return State(network(x=self.upper(x, α * r)), memory=r)


def dsgd(alpha: Rate, *, theta: Rate = 1.0) -> SingleLevel:
    """Decentralized SGD, adapt then combine: x⁺ = W (x − α ∇f). Biased where nodes differ. Draws: one batch."""
    return SingleLevel(strategy("diffusion"), alpha, theta, "dsgd")


def ed(alpha: Rate, *, theta: Rate = 1.0) -> SingleLevel:
    """Exact Diffusion (= D², SPD): x⁺⁺ = W (2 x⁺ − x − α Δ∇f). Draws: one batch."""
    return SingleLevel(strategy("ed"), alpha, theta, "ed")


def extra(alpha: Rate, *, theta: Rate = 1.0) -> SingleLevel:
    """EXTRA (Shi et al., 2015): x⁺⁺ = W (2 x⁺ − x) − α Δ∇f.

    Draws: one batch. Differs from the paper: its W̃ = (I + W)/2 form is `graph.lazy()`'s; here C = W as in SPARKLE's
    table.
    """
    return SingleLevel(strategy("extra"), alpha, theta, "extra")


def gt(alpha: Rate, *, theta: Rate = 1.0) -> SingleLevel:
    """Gradient tracking, adapt then combine: x⁺ = W (x − α h), h⁺ = W (h + Δ∇f). Draws: one batch.

    GNSD does not adapt first: `gnsd`."""
    return SingleLevel(strategy("gt"), alpha, theta, "gt")


def gnsd(alpha: Rate, *, theta: Rate = 1.0) -> SingleLevel:
    """GNSD (Lu et al., 2019): gradient tracking that does not adapt first, x⁺ = W x − α h, h⁺ = W h + Δ∇f. Draws: one
    batch."""
    return SingleLevel(strategy("non-gt"), alpha, theta, "gnsd")
