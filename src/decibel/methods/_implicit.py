"""The recursion of methods that find the hypergradient at each node, from its own Hessian: one loop, two levels.

Exact for a personal lower level (INTERACT and related methods). For a shared one (MDBO, VRDBO, SLAM) the local inverse
is biased where nodes differ: J_i H_i⁻¹ ∇_y f_i does not average to J̄ H̄⁻¹ ∇̄_y f.
"""

from __future__ import annotations

from typing import Any

from jax import Array

from ..core._types import PyTree
from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles._oracle import Draw, Oracle
from ..oracles.estimators import Estimator
from ..oracles.hypergradient import LocalHypergradient
from ._method import Method, Rate, State


class Implicit(Method):
    """y⁺ = L(y, β v), x⁺ = U(x, α u) with (v, u) an estimate of (∇_y g, ∇̄f) at (x, y).

    Draws of a step: one upper and one lower batch for v and for J in u, both at the old point, and those that the
    hypergradient takes for H.
    """

    alpha: Rate
    beta: Rate
    hypergradient: LocalHypergradient
    estimator: Estimator

    def first_memory(self, x: Vector, y: Vector | None) -> PyTree:
        assert y is not None
        return self.estimator.start((x, y), (y.zeros(), x.zeros()))

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        return self.simultaneous(k, state, oracle, network)

    def simultaneous(self, k: Array, state: State, oracle: Oracle, network: Communicator, relax: Any = None) -> State:
        """Both levels at (x, y). Each takes the part `relax` of its step; None takes all of it."""
        x, y, _, memory, _ = state
        strategies = self.levels(oracle)
        α, β, *_ = self.rates(k)
        (v, u), memory = self.estimator(k, memory, (x.s, y.s), oracle, self._directions)
        x, y = network(x=strategies["x"](x, u, α, relax=relax), y=strategies["y"](y, v, β, relax=relax))
        return State(x, y, memory=memory)

    def _directions(self, draw: Draw, point: Any) -> Any:
        at_point = draw.at(*point)
        return at_point.v, self.hypergradient(at_point)
