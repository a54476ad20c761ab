"""GT-HSGD: gradient tracking of a STORM estimate, one level."""

from __future__ import annotations

from typing import Any, ClassVar

from jax import Array

from ..core._types import PyTree
from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles import estimators
from ..oracles._oracle import Draw, Oracle
from ..oracles.estimators import Estimator
from ._entry import register
from ._method import Method, Rate, State, rate


class GtHsgd(Method):
    """v⁺ = ∇f(ξ; x) + (1−θ)(v − ∇f(ξ; x before)); h⁺ = W (h + Δv); x⁺ = W (x − α h⁺)."""

    catalog_name = "gt-hsgd"
    summary = "gradient tracking, adapt then combine, with STORM"
    paper = (
        "Xin, Khan, Kar, A Hybrid Variance-Reduced Method for Decentralized Stochastic Non-Convex Optimization, 2021"
    )
    strategy_names: ClassVar = {"x": "gt"}
    defaults: ClassVar = {"theta": 0.1}

    alpha: Rate
    estimator: Estimator

    def first_memory(self, x: Vector, y: Vector | None) -> PyTree:
        return self.estimator.start(x, x.zeros())

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x = state.x
        v, memory = self.estimator(k, state.memory, x.s, oracle, _gradient)
        return State(network(x=self.strategies["x"](x, v, rate(self.alpha, k))), memory=memory)


def _gradient(draw: Draw, x: Any) -> Vector:
    return draw.at(x).fx


@register(GtHsgd)
def gt_hsgd(*, alpha: Rate, theta: Rate) -> GtHsgd:
    """GT-HSGD (Xin, Khan, Kar, 2021): gradient tracking, adapt then combine, of the hybrid (STORM) estimate
    v⁺ = ∇f(ξ; x) + (1−θ)(v − ∇f(ξ; x before)); h⁺ = W (h + Δv), x⁺ = W (x − α h⁺), v⁰ = ∇f(ξ; x⁰), h⁰ = 0.

    Draws: one batch, the same at both points. Differs from the paper: its β is our `theta`; the first batch is as large
    as the others; the tracker runs in flow form.

    Args:
        theta: the weight of the newest sample in STORM, from 0 to 1.
    """
    return GtHsgd(alpha, estimators.storm(theta))
