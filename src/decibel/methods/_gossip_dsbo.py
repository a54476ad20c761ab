"""Gossip-DSBO: running averages of gradients and of second derivatives, mixed over the network."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core._vector import Vector, flatten
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle, Point
from ..strategies._table import Level
from ._dense_hessian import MatrixMethod
from ._entry import register
from ._method import Rate, State


class GossipDsbo(MatrixMethod):
    """x⁺ = W x − α (s − U Q h), y⁺ = W y − β ∇_y g; then at the old point s, h, U, V_1..V_b each become
    (1−θ) W(·) + θ × a fresh sample of ∇_x f, ∇_y f, J, H; Q = (1/L) Q_b, Q_i = I + (I − V_i/L) Q_{i−1}, Q_0 = I.

    Draws: an upper batch for both gradients of f; independent lower batches for ∇_y g, for J and for each of b Hessians
    (Assumption 3.1). Were that of ∇_y g the one of J, the error of y would enter h and meet itself in U Q h.
    """

    catalog_name = "gossip-dsbo"
    summary = "averages gradients and second derivatives over the network (biased where nodes differ)"
    paper = (
        "Yang, Zhang, Wang, Decentralized Gossip-Based Stochastic Bilevel Optimization over Communication Networks, "
        "2022"
    )
    strategy_names: ClassVar = dict.fromkeys("xy", "consensus")
    defaults: ClassVar = {"alpha": 0.02, "theta": 0.1, "terms": 20, "smoothness": 4.0, "convexity": 0.1}

    alpha: Rate
    beta: Rate
    theta: Rate
    smoothness: float | Array
    convexity: float | Array
    terms: int = eqx.field(static=True)

    @property
    def sends(self) -> str:
        return "2p + 2q + pq + b q² numbers"

    def matrices(self, p: int, q: int) -> int:
        return p * q + self.terms * q * q

    def first_memory(self, x: Vector, y: Vector | None) -> tuple[Vector, ...]:
        assert y is not None
        flat_x, flat_y = flatten(x)[0], flatten(y)[0]
        (nodes, p), q = flat_x.shape, flat_y.shape[1]
        U = jnp.zeros((nodes, p, q), flat_x.dtype)
        identity = jnp.asarray(self.convexity, flat_y.dtype) * jnp.eye(q, dtype=flat_y.dtype)
        V = jnp.broadcast_to(identity, (nodes, self.terms, q, q))
        return x.zeros(), y.zeros(), Vector(U), Vector(V)

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, y, _, (s, h, U, V), _ = state
        draw = oracle.draw()
        α, β, θ = self.rates(k)
        point = draw.at(x.s, y.s)
        fresh_V = Vector(self._hessians(point))
        δ = network.flow({"x": (x.s, s, U), "y": (y.s, h, V)})
        (δx, δs, δU), (δy, δh, δV) = δ["x"], δ["y"]
        x_new = x.s + δx - α * (s - self._inverse_times(U, V, h, s))
        y_new = y.s + δy - β * point.v
        s = (1 - θ) * (s + δs) + θ * point.fx
        h = (1 - θ) * (h + δh) + θ * point.fy
        U = (1 - θ) * (U + δU) + θ * Vector(point.moved_to(draw.fresh_lower(0)).jacobian_matrix())
        V = (1 - θ) * (V + δV) + θ * fresh_V
        return State(Level(x_new, ()), Level(y_new, ()), memory=(s, h, U, V))

    def _hessians(self, point: Point) -> Array:
        """(nodes, b, q, q): H on b independent samples."""
        if point.draw.takes_all:
            return jnp.repeat(point.hessian_matrix()[:, None], self.terms, 1)
        flat, _ = flatten(point.fy)
        nodes, q = flat.shape

        def fill(j: Array, V: Array) -> Array:
            return V.at[:, j].set(point.moved_to(point.draw.again(j)).hessian_matrix())

        return point.ledger.loop(self.terms, fill, jnp.zeros((nodes, self.terms, q, q), flat.dtype))

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

    Biased if nodes differ, in proportion to its step sizes, besides the terms that b leaves out: steps 4 to 8 and 11
    of the algorithm mix without a correction, so that neither x and y nor the averages agree. It shrinks as its
    schedules (5) and (6) do.

    Draws: an upper batch; a lower one for each of ∇_y g, J and b Hessians. Differs from the paper: its step 3 has one
    sample for ∇_y g and J, so that what y and U draw would meet in U Q h.

    Args:
        theta: the weight of the newest sample in all running averages, from 0 to 1.
        terms: b, the number of Hessians.
        smoothness: L_g, at least the largest eigenvalue of H.
        convexity: μ_g, at most the smallest eigenvalue of H.
    """
    if not smoothness >= convexity > 0:
        raise ValueError(f"smoothness={smoothness} and convexity={convexity} must satisfy smoothness ≥ convexity > 0.")
    return GossipDsbo(alpha, beta, theta, float(smoothness), float(convexity), terms)
