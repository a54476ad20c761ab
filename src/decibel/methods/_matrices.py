"""Methods that are defined by full second derivatives and send matrices: Gossip-DSBO and DSBO."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core._vector import Vector, flatten
from ..graphs._graph import Levels
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle, Point
from ..problem._problem import Problem
from ..strategies._table import Level, Strategy, strategy
from ._method import Method, Rate, State, rate

LARGEST = 2**30  # bytes of matrices a node may hold


class MatrixMethod(Method):
    """Both levels mix by consensus; flattened, x has p entries and y has q."""

    @abstractmethod
    def matrices(self, p: int, q: int) -> int:
        """Entries of the matrices one node holds."""

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": strategy("consensus"), "y": strategy("consensus")}

    def validate(self, problem: Problem, graphs: Levels, batch_size: int | None) -> None:
        super().validate(problem, graphs, batch_size)
        p, q = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (problem.x0, problem.y0))
        need = self.matrices(p, q) * jax.tree.leaves(problem.x0)[0].dtype.itemsize
        if need > LARGEST:
            raise ValueError(
                f"{self.name} holds and sends matrices of {need / 2**30:.1f} GiB per node for x of {p} and y of {q} "
                f"entries, more than {LARGEST / 2**30:.0f} GiB: choose a method that sends vectors, such as db.sparkle."
            )


class GossipDsbo(MatrixMethod):
    """x⁺ = W x − α (s − U Q h), y⁺ = W y − β ∇_y g; then at the old point s, h, U, V_1..V_b each become
    (1−θ) W(·) + θ × a fresh sample of ∇_x f, ∇_y f, J, H; Q = (1/L) Q_b, Q_i = I + (I − V_i/L) Q_{i−1}, Q_0 = I.

    Draws: an upper batch for both gradients of f; independent lower batches for ∇_y g, for J and for each of b Hessians
    (Assumption 3.1). Were that of ∇_y g the one of J, the error of y would enter h and meet itself in U Q h.
    """

    alpha: Rate
    beta: Rate
    theta: Rate
    smoothness: float | Array
    convexity: float | Array
    terms: int = eqx.field(static=True)
    label: str = eqx.field(static=True, default="gossip-dsbo")

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


class Dsbo(MatrixMethod):
    """T steps y ← W y − β v; N steps of gradient tracking on Z ≈ J̄ H̄⁻¹ (p×q) along Z H − J, then
    x⁺ = W x − α (∇_x f − Z ∇_y f).

    Draws: a lower batch for every inner step on y, another for every step on Z, and an upper batch for ∇f.
    """

    alpha: Rate
    beta: Rate
    gamma: Rate
    lower_steps: int = eqx.field(static=True)
    auxiliary_steps: int = eqx.field(static=True)
    label: str = eqx.field(static=True, default="dsbo")

    @property
    def strategies(self) -> dict[str, Strategy]:
        return super().strategies | {"z": strategy("non-gt")}

    def matrices(self, p: int, q: int) -> int:
        return 4 * p * q + q * q  # Z, its two carries and J; H

    def start(self, x: Vector, y: Vector | None) -> State:
        assert y is not None
        flat_x, flat_y = flatten(x)[0], flatten(y)[0]
        Z = Vector(jnp.zeros((*flat_x.shape, flat_y.shape[1]), flat_x.dtype))
        levels = self.strategies
        return State(levels["x"].start(x), levels["y"].start(y), levels["z"].start(Z))

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        (x, y, z, _), mix, track = state[:4], self.strategies["x"], self.strategies["z"]
        α, β, γ = (rate(value, k) for value in (self.alpha, self.beta, self.gamma))

        def lower(j: Array, y: Level) -> Level:
            return network(y=mix(y, β * oracle.draw(3 * j).at(x.s, y.s).v))

        def auxiliary(j: Array, z: Level) -> Level:
            here = oracle.draw(3 * j + 1).at(x.s, y.s)
            return network(z=track(z, γ * Vector(_times(z.s.tree, here.hessian_matrix()) - here.jacobian_matrix())))

        y = oracle.ledger.loop(self.lower_steps, lower, y)
        z = oracle.ledger.loop(self.auxiliary_steps, auxiliary, z)
        here = oracle.draw(2).at(x.s, y.s)
        fy, _ = flatten(here.fy)
        correction = flatten(here.fx)[1](_times(z.s.tree, fy[..., None])[..., 0])
        return State(network(x=mix(x, α * (here.fx - correction))), y, z)


def _times(a: Any, b: Any) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def gossip_dsbo(alpha: Rate, beta: Rate, theta: Rate, terms: int, smoothness: float, convexity: float) -> GossipDsbo:
    """Gossip-DSBO (Yang et al., 2022), Algorithm 1. Its β and γ are our `theta` and `beta`; `terms` is b, `smoothness`
    L_g and `convexity` μ_g. It sends ∇_x f, ∇_y f, a p×q and b q×q matrices per step; sizes
    beyond 1 GiB raise.

    Draws: an upper batch; a lower one for each of ∇_y g, J and b Hessians.
    """
    if not smoothness >= convexity > 0:
        raise ValueError(f"smoothness={smoothness} and convexity={convexity} must satisfy smoothness ≥ convexity > 0.")
    return GossipDsbo(alpha, beta, theta, float(smoothness), float(convexity), terms)


def dsbo(alpha: Rate, beta: Rate, gamma: Rate, *, lower_steps: int = 5, auxiliary_steps: int = 5) -> Dsbo:
    """DSBO (Chen et al., 2022), reconstructed. It sends p×q matrices; sizes beyond 1 GiB raise.

    Draws: a lower batch for each inner step on y and on Z, and an upper one for ∇f.
    """
    return Dsbo(alpha, beta, gamma, lower_steps, auxiliary_steps)
