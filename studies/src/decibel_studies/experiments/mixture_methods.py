"""Rivals of a learned mixture, which train the same decoder with the same strategy.

`Planned` follows shares that are known before the run. `Aligned` raises the share of a domain whose gradient agrees
with that of the target, as DoGE (Fan, Pagliardini and Jaggi, 2023) and dynamic gradient alignment (Fan, Grangier and
Ablin, 2024) do. Both take the decoder's step y⁺ = L(y, β ∇_y g(p, y)) under a mixture p.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decibel import Communicator, Method, Oracle, State, Strategy, Vector
from decibel.methods import rate
from decibel.strategies import Level, strategy

from ..type_aliases import PyTree, Rate


class Path(eqx.Module):
    """Shares along a run: rows of a table at equal distances, and in between their linear interpolation."""

    table: Array  # (rows, domains)
    steps: int = eqx.field(static=True)

    @classmethod
    def through(cls, *shares: np.ndarray, steps: int) -> Path:
        return cls(jnp.asarray(np.stack(shares), float), steps)

    def __call__(self, k: Array) -> Array:
        last = len(self.table) - 1
        place = jnp.clip(k.astype(self.table.dtype) / self.steps, 0, 1) * last
        before = jnp.minimum(place.astype(jnp.int32), max(last - 1, 0))
        after = jnp.minimum(before + 1, last)
        part = place - before.astype(place.dtype)
        return (1 - part) * self.table[before] + part * self.table[after]

    def __repr__(self) -> str:
        rows = [" ".join(f"{share:.4g}" for share in row) for row in np.asarray(self.table)]
        return f"Path({', '.join(rows)}; {self.steps} steps)"


class Planned(Method):
    """y⁺ = L(y, β ∇_y g(p(k), y)) under shares p that were planned. x is p(k), which is not sent."""

    beta: Rate
    plan: Path
    lower: Strategy

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": strategy("diffusion"), "y": self.lower}

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        shares = self.plan(k)
        x = Vector(jnp.broadcast_to(shares, state.x.s.tree.shape).astype(state.x.s.tree.dtype))
        direction = _lower_gradient(oracle, x, state.y.s, oracle.draw().lower)
        y = network(y=self.levels(oracle)["y"](state.y, direction, rate(self.beta, k)))
        return State(Level(x, state.x.carry), y)


class Aligned(Method):
    """Scores x⁺ = U(x, −α ⟨∇L_d, ∇L_target⟩) of domains d in every k-th step; p is their softmax, with a floor.

    A node has one domain, and compares its own gradient with that of its own sample of the target. For that only scores
    travel. A step that compares costs two gradients, any other one.
    """

    alpha: float
    beta: Rate
    every: int = eqx.field(static=True)
    lower: Strategy

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": strategy("ed"), "y": self.lower}

    @property
    def intervals(self) -> Mapping[str, int]:
        return {} if self.every == 1 else {"x": self.every}

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        strategies = self.levels(oracle)
        batch = oracle.draw().lower
        own = batch.parts[0]["domain"][:, 0]
        point = state.y.s
        direction = _lower_gradient(oracle, state.x.s, point, batch)
        y = network(y=strategies["y"](state.y, direction, rate(self.beta, k)))

        def compared(x: Level, loop_index: Array, network: Communicator) -> Level:
            oracle.ledger.add(gradients=1)
            gradient = oracle.config.over_nodes(jax.grad(oracle.problem.upper_loss, 1))
            target = gradient(x.s.tree, point.tree, oracle.inside(loop_index).draw(1).upper)
            agreement = _inner_products(direction, Vector(target))
            shares = jax.vmap(cast(PyTree, oracle.problem.lower).mixture)(x.s.tree)
            # The direction is that of N p_d L_d, and the mean over nodes divides by N.
            one_hot = jax.nn.one_hot(own, shares.shape[1], dtype=shares.dtype)
            gain = one_hot * (agreement / (one_hot * shares).sum(1))[:, None]
            return network(x=strategies["x"](x, Vector(-gain), self.alpha))

        if self.every == 1:
            return State(compared(state.x, k, network), y)
        return State(network.cond(k % self.every == 0, compared, rest, state.x), y)


def rest(x: Level, _: Array, __: Communicator) -> Level:
    """The level as it is."""
    return x


def _lower_gradient(oracle: Oracle, x: Vector, y: Vector, batch: PyTree) -> Vector:
    oracle.ledger.add(gradients=1)
    gradient = oracle.config.over_nodes(jax.grad(oracle.problem.lower_loss, 1))
    return Vector(gradient(x.tree, y.tree, batch))


def _inner_products(a: Vector, b: Vector) -> Array:
    """(nodes,)"""

    def of_leaf(a: Array, b: Array) -> Array:
        return (a * b).reshape(len(a), -1).sum(1)

    parts: PyTree = jax.tree.map(of_leaf, a.tree, b.tree)
    return jax.tree.reduce(jnp.add, parts)
