"""Gossip-DSBO: running averages of gradients and of second derivatives, mixed over the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core._vector import Vector, flatten
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle, Point
from ..strategies._table import Level, Strategy, strategy
from ._entry import register
from ._matrix import MatrixMethod
from ._method import Rate, State, rate


class GossipDsbo(MatrixMethod):
    """x⁺ = W x − α (s − U Q h), y⁺ = W y − β ∇_y g; then at the old point s, h, U, V_1..V_b each become
    (1−θ) W(·) + θ × a fresh sample of ∇_x f, ∇_y f, J, H; Q = (1/L) Q_b, Q_i = I + (I − V_i/L) Q_{i−1}, Q_0 = I.

    Draws: an upper batch for both gradients of f; independent lower batches for ∇_y g, for J and for each of b Hessians
    (Assumption 3.1). Were that of ∇_y g the one of J, the error of y would enter h and meet itself in U Q h.
    """

    catalog_name = "gossip-dsbo"
    summary = "averages gradients and second derivatives over the network"
    paper = (
        "Yang, Zhang, Wang, Decentralized Gossip-Based Stochastic Bilevel Optimization over Communication Networks, "
        "2022"
    )
    defaults: ClassVar = {
        "alpha": 0.02, "beta": 0.1, "theta": 0.1, "terms": 20, "smoothness": 4.0, "convexity": 0.1,
    }  # fmt: skip

    alpha: Rate
    beta: Rate
    theta: Rate
    smoothness: float | Array
    convexity: float | Array
    terms: int = eqx.field(static=True)

    @property
    def strategies(self) -> dict[str, Strategy]:
        return dict.fromkeys("xy", strategy("consensus"))

    @property
    def sends(self) -> str:
        return "2p + 2q + pq + b q² numbers"

    def matrices(self, p: int, q: int) -> int:
        return p * q + self.terms * q * q

    def start(self, x: Vector, y: Vector | None) -> State:
        assert y is not None
        flat_x, flat_y = flatten(x)[0], flatten(y)[0]
        (nodes, p), q = flat_x.shape, flat_y.shape[1]
        U = jnp.zeros((nodes, p, q), flat_x.dtype)
        identity = jnp.asarray(self.convexity, flat_y.dtype) * jnp.eye(q, dtype=flat_y.dtype)
        V = jnp.broadcast_to(identity, (nodes, self.terms, q, q))
        memory = (x.zeros(), y.zeros(), Vector(U), Vector(V))
        return State(strategy("consensus").start(x), strategy("consensus").start(y), memory=memory)

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        (x, y, _, (s, h, U, V)), draw = state[:4], oracle.draw()
        α, β, θ = (rate(value, k) for value in (self.alpha, self.beta, self.theta))
        here = draw.at(x.s, y.s)
        fresh_V = Vector(self._hessians(here))
        δ = network.flow({"x": (x.s, s, U), "y": (y.s, h, V)})
        (δx, δs, δU), (δy, δh, δV) = δ["x"], δ["y"]
        x_new = x.s + δx - α * (s - self._inverse_times(U, V, h, s))
        y_new = y.s + δy - β * here.v
        s = (1 - θ) * (s + δs) + θ * here.fx
        h = (1 - θ) * (h + δh) + θ * here.fy
        U = (1 - θ) * (U + δU) + θ * Vector(here.moved_to(draw.fresh_lower(0)).jacobian_matrix())
        V = (1 - θ) * (V + δV) + θ * fresh_V
        return State(Level(x_new, ()), Level(y_new, ()), memory=(s, h, U, V))

    def _hessians(self, here: Point) -> Array:
        """(nodes, b, q, q): H on b independent samples."""
        if here.draw.full:
            return jnp.repeat(here.hessian_matrix()[:, None], self.terms, 1)
        flat, _ = flatten(here.fy)
        nodes, q = flat.shape

        def fill(j: Array, V: Array) -> Array:
            return V.at[:, j].set(here.moved_to(here.draw.again(j)).hessian_matrix())

        return here.ledger.loop(self.terms, fill, jnp.zeros((nodes, self.terms, q, q), flat.dtype))

    def _inverse_times(self, U: Vector, V: Vector, h: Vector, like: Vector) -> Vector:
        """U Q h by b matrix-vector products: Q_i h = h + (I − V_i/L) Q_{i−1} h."""
        flat_h, _ = flatten(h)
        L = jnp.asarray(self.smoothness, flat_h.dtype)
        highest = jax.lax.Precision.HIGHEST

        def grow(q: Array, V_i: Array) -> tuple[Array, None]:
            return flat_h + q - jnp.einsum("nij,nj->ni", V_i, q, precision=highest) / L, None

        q, _ = jax.lax.scan(grow, flat_h, jnp.swapaxes(V.tree, 0, 1))
        return flatten(like)[1](jnp.einsum("npq,nq->np", U.tree, q, precision=highest) / L)


@register(GossipDsbo)
def gossip_dsbo(*, alpha: Rate, beta: Rate, theta: Rate, terms: int, smoothness: float, convexity: float) -> GossipDsbo:
    """Gossip-DSBO (Yang et al., 2022), Algorithm 1. Its β and γ are our `theta` and `beta`; `terms` is b, `smoothness`
    L_g and `convexity` μ_g. It sends ∇_x f, ∇_y f, a p×q and b q×q matrices per step; sizes beyond 1 GiB raise.

    Draws: an upper batch; a lower one for each of ∇_y g, J and b Hessians.

    Args:
        alpha: the step size of x: a number, or a function of the step.
        beta: the step size of y, likewise.
        theta: the weight of the newest sample in all running averages, from 0 to 1.
        terms: b, the number of Hessians.
        smoothness: L_g, at least the largest eigenvalue of H.
        convexity: μ_g, at most the smallest eigenvalue of H.
    """
    if not smoothness >= convexity > 0:
        raise ValueError(f"smoothness={smoothness} and convexity={convexity} must satisfy smoothness ≥ convexity > 0.")
    return GossipDsbo(alpha, beta, theta, float(smoothness), float(convexity), terms)


def gossip_rates(nodes: int, steps: int, *, scale: float = 0.1, factor: float = 1.0) -> dict[str, float]:
    """Gossip-DSBO's (5) for general objectives: α = `scale` √(K/T), β = θ = `factor` √(K/T) (0.1 and 10 in the paper's
    hyper-parameter experiment), never above 1."""
    root = (nodes / steps) ** 0.5
    return {"alpha": scale * root, "beta": min(1.0, factor * root), "theta": min(1.0, factor * root)}


def gossip_decay(convexity: float, offset: float) -> dict[str, Callable[[Array], Array]]:
    """Gossip-DSBO's (6) under the PL condition: α_t = 2 / (μ (C + t)), β_t = θ_t = C / (C + t), as schedules."""

    def alpha(t: Array) -> Array:
        return 2.0 / (convexity * (offset + jnp.asarray(t, float)))

    def weight(t: Array) -> Array:
        return offset / (offset + jnp.asarray(t, float))

    return {"alpha": alpha, "beta": weight, "theta": weight}
