"""Several steps of Adam at every node, then one exchange: plain averaging, DiLoCo or NoLoCo.

With f the variable after τ steps of Adam from s, Δ = f − s, and all averages over neighbours,

    average   s⁺ = W f                                                (DADAM with τ steps; Nazari et al., 2019)
    DiLoCo    u⁺ = μ u + Δ̄,                        s⁺ = s + β (μ u⁺ + Δ̄)     (Douillard et al., 2023)
    NoLoCo    u⁺ = μ u + β W Δ + γ (W − I) s,      s⁺ = s + u⁺               (Kolehmainen et al., 2025)

where Δ̄ is the mean over all nodes, which a complete graph gives. Moments of Adam stay at the node.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from decibel import Communicator, Method, Oracle, State, Strategy, Vector
from decibel.methods import rate
from decibel.strategies import Level, strategy

from ..type_aliases import PyTree, Rate

DILOCO_RATE, DILOCO_MOMENTUM = 0.7, 0.9  # β and μ as in the paper
NOLOCO_RATE, NOLOCO_MOMENTUM = 0.7, 0.5


class Outer(Strategy):
    """A strategy that keeps s of the last exchange, from which f − s follows, and a momentum u."""

    def start(self, s: Vector) -> Level:
        return Level(s, (s, s.zeros()))


def diloco_step(f: Vector, d: Vector, s: Vector, u: Vector) -> PyTree:
    """On the complete graph, where f + δ is the mean over all nodes."""
    δ = yield f
    difference = f + δ - s
    u = DILOCO_MOMENTUM * u + difference
    s = s + DILOCO_RATE * (DILOCO_MOMENTUM * u + difference)
    return s, (s, u)


def noloco_step(f: Vector, d: Vector, s: Vector, u: Vector) -> PyTree:
    """With one peer, γ = β, and both vectors in one message."""
    difference = f - s
    δ_difference, δ_s = yield difference, s
    u = NOLOCO_MOMENTUM * u + NOLOCO_RATE * (difference + δ_difference + δ_s)
    s = s + u
    return s, (s, u)


AVERAGE = strategy("diffusion")
DILOCO = Outer("diloco", diloco_step, carries=2)
NOLOCO = Outer("noloco", noloco_step, carries=2)


class LocalAdam(Method):
    """τ steps of Adam at every node for each exchange, with Adam's bias corrections and the same β₂ as adam-ed.

    The memory is both moments.
    """

    mixing: Strategy
    alpha: Rate
    local_steps: int
    momentum: float = 0.9
    decay: float = 0.99
    epsilon: float = 1e-8

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": self.mixing}

    def start(self, x: Vector, y: Vector | None) -> State:
        return State(self.mixing.start(x), memory=(x.zeros(), x.zeros()))

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        α = rate(self.alpha, k)

        def adam(j: Array, held: tuple[Vector, Vector, Vector]) -> tuple[Vector, Vector, Vector]:
            f, m, v = held
            g = oracle.draw(j).at(f).fx
            m = self.momentum * m + (1 - self.momentum) * g
            v = self.decay * v + (1 - self.decay) * Vector(jax.tree.map(jnp.square, g.tree))
            steps = jnp.asarray(k * self.local_steps + j + 1, float)
            m_weight, v_weight = 1 - self.momentum**steps, 1 - self.decay**steps

            def move(f: Array, m: Array, v: Array) -> Array:
                return f - α * (m / m_weight) / (jnp.sqrt(v / v_weight) + self.epsilon)

            return Vector(jax.tree.map(move, f.tree, m.tree, v.tree)), m, v

        f, *moments = oracle.ledger.loop(self.local_steps, adam, (state.x.s, *state.memory))
        x = network(x=self.mixing(Level(f, state.x.carry), f.zeros(), 0.0))
        return State(x, memory=tuple(moments))
