"""Methods that solve the lower level anew in every iteration: inner loops of gossip, then one upper step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles import hypergradient as inverses
from ..oracles._oracle import Oracle
from ..oracles.hypergradient import Local
from ..strategies._table import Level, Strategy, strategy
from ._method import Method, Rate, State, rate

Repeats = int | Callable[[Array], Array]


class DoubleLoop(Method):
    """`lower_steps` times y ← L(y, β v(x, y)), warm-started, each on fresh samples. Then either `auxiliary_steps` times
    z ← L(z, γ p(x, y, z)), r⁺ = (1−θ) r + θ u(x, y, z) and x⁺ = U(x, α r⁺); or x⁺ = U(x, α ∇̄f(x, y)) with a local
    `hypergradient`.

    Draws, all independent: a lower batch for every inner step on y; an upper and a lower batch for every inner step on
    z, or those of the local hypergradient; an upper and a lower batch for u.
    """

    lower: Strategy
    upper: Strategy
    alpha: Rate
    beta: Rate
    gamma: Rate
    theta: Rate
    lower_steps: Repeats = eqx.field(static=True)
    auxiliary_steps: int = eqx.field(static=True)
    hypergradient: Local | None
    label: str = eqx.field(static=True)

    @property
    def strategies(self) -> dict[str, Strategy]:
        levels = {"x": self.upper, "y": self.lower}
        return levels if self.hypergradient else levels | {"z": self.lower}

    def start(self, x: Vector, y: Vector | None) -> State:
        assert y is not None
        z = None if self.hypergradient else self.lower.start(y.zeros())
        return State(self.upper.start(x), self.lower.start(y), z, memory=x.zeros())

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        (x, y, z, r), L, U = state[:4], self.lower, self.upper
        α, β, γ, θ = (rate(value, k) for value in (self.alpha, self.beta, self.gamma, self.theta))

        def lower(j: Array, y: Level) -> Level:
            return network(y=L(y, β * oracle.draw(3 * j).at(x.s, y.s).v))

        def auxiliary(j: Array, z: Level) -> Level:
            return network(z=L(z, γ * oracle.draw(3 * j + 1).at(x.s, y.s).p(z.s)))

        y = oracle.ledger.loop(rate(self.lower_steps, k), lower, y)
        if self.hypergradient:
            r = self.hypergradient(oracle.draw(2).at(x.s, y.s))
        else:
            z = oracle.ledger.loop(self.auxiliary_steps, auxiliary, z)
            r = (1 - θ) * r + θ * oracle.draw(2).at(x.s, y.s).u(z.s)
        return State(network(x=U(x, α * r)), y, z, r)


def ma_dsbo(
    tracking: bool = False,
    *,
    alpha: Rate,
    beta: Rate,
    gamma: Rate,
    theta: Rate,
    lower_steps: int = 5,
    auxiliary_steps: int = 5,
) -> DoubleLoop:
    """MA-DSBO (Chen et al., 2023), reconstructed: T steps y ← W y − β v, N steps z ← W z − γ p, a moving average of u,
    x⁺ = W x − α r⁺; with `tracking`, gradient tracking inside the loops (MA-DSBO-GT).

    Draws: a lower batch for each of T steps, an upper and a lower one for each of N, and both for u.
    """
    label, mix = ("ma-dsbo-gt", "non-gt") if tracking else ("ma-dsbo", "consensus")
    return DoubleLoop(
        strategy(mix), strategy("consensus"), alpha, beta, gamma, theta, lower_steps, auxiliary_steps, None, label
    )


def dbsa(
    alpha: Rate, beta: Rate, *, lower_steps: int | None = None, terms: int = 10, scale: float | None = None
) -> DoubleLoop:
    """DBSA, Gossip-DSBO's baseline: iteration t takes ⌈√(t+1)⌉ gossip steps on y (or `lower_steps`), then a local
    Neumann hypergradient on fresh samples, x⁺ = W x − α ∇̄f. Biased where nodes differ: the inverse is local.

    Draws: a lower batch for each inner step; then an upper and a lower one, and one for each factor of the series.
    """
    inverse = inverses.neumann(terms, scale)
    return _local("dbsa", alpha, beta, lower_steps or _root, inverse)


def double_loop_dsgd(alpha: Rate, beta: Rate, *, terms: int = 10, scale: float | None = None) -> DoubleLoop:
    """Double-loop DSGD, Gossip-DSBO's baseline for policy evaluation: iteration t estimates y*(x_t) from t batches
    (at least one), then x⁺ = W x − α ∇̄f with a local Neumann hypergradient. Draws: as DBSA."""
    return _local("double-loop-dsgd", alpha, beta, _growing, inverses.neumann(terms, scale))


def _local(label: str, alpha: Rate, beta: Rate, steps: Repeats, inverse: Any) -> DoubleLoop:
    mix = strategy("consensus")
    return DoubleLoop(mix, mix, alpha, beta, 0.0, 1.0, steps, 0, inverse, label)


def _root(k: Array) -> Array:
    """⌈√(k+1)⌉"""
    return jnp.ceil(jnp.sqrt(k.astype(jnp.float32) + 1)).astype(jnp.int32)


def _growing(k: Array) -> Array:
    return jnp.maximum(k, 1)
