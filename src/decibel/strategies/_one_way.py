"""Strategies for one-way links. Nodes alone then cannot find a W whose rows and columns both sum to one.

Push-pull tracks the sum of the steps with a column-stochastic C, which preserves sums, and agrees with a row-stochastic
R, which preserves what all nodes have in common:

    c⁺ = c + (C − I)(c + d),   s⁺ = R (s − d − c⁺).

Columns of C − I sum to zero, so Σ c = 0 whatever R is and whatever was sent. At a fixed point s is common, since R
leaves nothing else unchanged, and c + d = 0; summed over nodes, Σ d = 0. No node needs to know an eigenvector of R or
C. With R = C = W it is gradient tracking, adapt then combine (`"gt"`).

Push-sum corrects for C by a weight of each node: both x = w s and w are pushed, and s = x/w. It does not correct for
nodes that differ.
"""

from __future__ import annotations

import jax.numpy as jnp

from ..core._vector import Vector, scale_nodes
from ..network._communicator import Move
from ..network._messages import Pull
from ..network._push import Push
from ._table import I_W2, STRATEGIES, W2, Level, Strategy


def push_pull(s: Vector, d: Vector, c: Vector) -> Move:
    """h⁺ = C (h + Δd), s⁺ = R (s − h⁺)

    with h = d + c.
    """
    δ = yield Push(c + d)
    c = c + δ
    φ = s - d - c
    δ = yield Pull(φ)
    return φ + δ, (c,)


def push_sum(s: Vector, d: Vector, c: Vector) -> Move:
    """(w⁺ s⁺, w⁺) = C (w s − d, w), with w = 1 + c."""
    w = Vector(1 + c.tree)
    x = scale_nodes(w.tree, s) - d
    δx, δw = yield Push((x, w))
    x = x + δx
    w = w + δw
    return scale_nodes(1 / w.tree, x), (c + δw,)


class PushSum(Strategy):
    """Diffusion with C; the carry is a node's weight less one."""

    def start(self, s: Vector) -> Level:
        return Level(s, (Vector(jnp.zeros_like(s.squared_norms())),))


STRATEGIES |= {
    strategy.name: strategy
    for strategy in (
        Strategy("push-pull", push_pull, 1, W2, I_W2, W2),
        PushSum("push-sum", push_sum, 1),
    )
}
