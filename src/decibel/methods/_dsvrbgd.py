"""DSVRBGD and its normalised form: STORM on all three levels, then gradient tracking; one loop."""

from __future__ import annotations

from typing import ClassVar

from jax import Array

from ..core._types import PyTree
from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles import estimators
from ..oracles._oracle import Draw, Oracle
from ..oracles.estimators import Estimator
from ..strategies._table import Strategy
from ..strategies._tracked import normalized
from ._entry import register
from ._method import Method, Rate, State


class DsvrbgdBase(Method):
    """y, z and x move by STORM estimates of v, p and u at (x, y, z), each by the strategy of its level."""

    defaults: ClassVar = {"theta": 0.3}

    alpha: Rate
    beta: Rate
    gamma: Rate
    estimator: Estimator
    relax: Rate

    def first_memory(self, x: Vector, y: Vector | None) -> PyTree:
        assert y is not None
        z = y.zeros()
        return self.estimator.start((x, y, z), (x.zeros(), y.zeros(), z))

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, y, z, memory, _ = state
        strategies = self.strategies
        α, β, γ, η = self.rates(k)
        (u, v, p), memory = self.estimator(k, memory, (x.s, y.s, z.s), oracle, _directions)
        x, y, z = network(
            x=strategies["x"](x, u, α, relax=η),
            y=strategies["y"](y, v, β, relax=η),
            z=strategies["z"](z, p, γ, relax=η),
        )
        return State(x, y, z, memory)


class Dsvrbgd(DsvrbgdBase):
    """s⁺ = s + η (W s − h − s) on every level, where h tracks the step and η is `relax`."""

    catalog_name = "dsvrbgd"
    summary = "STORM and gradient tracking on all three levels"
    paper = "Zhang, Thai, Wu, Gao, On the Communication Complexity of Decentralized Bilevel Optimization, 2023"

    strategy_names: ClassVar = dict.fromkeys("xyz", "non-gt")


class NormalizedDsvrbgd(DsvrbgdBase):
    """s⁺ = s + η (W s − α h/‖h‖ − s) on every level, where h tracks the direction and η is `relax`."""

    catalog_name = "normalized-dsvrbgd"
    summary = "DSVRBGD with steps of equal length, for noise of infinite variance"
    paper = "Zhang, Zhang, Gao, Nonconvex Decentralized Stochastic Bilevel Optimization under Heavy-Tailed Noises, 2025"
    defaults: ClassVar = {"alpha": 0.01, "beta": 0.02, "gamma": 0.02, "theta": 0.3}

    @property
    def strategies(self) -> dict[str, Strategy]:
        return dict.fromkeys("xyz", normalized())


def _directions(draw: Draw, point: PyTree) -> PyTree:
    x, y, z = point
    at_point = draw.at(x, y)
    return at_point.u(z), at_point.v, at_point.p(z)


@register(Dsvrbgd)
def dsvrbgd(*, alpha: Rate, beta: Rate, gamma: Rate, theta: Rate, relax: Rate = 1.0) -> Dsvrbgd:
    """DSVRBGD (Zhang, Thai, Wu, Gao, 2023), its simultaneous updates, reconstructed: m⁺ = d(ξ; s) + (1−θ) (m − d(ξ; s
    before)) for every direction d of v = ∇_y g, p = H z − ∇_y f and u = ∇_x f − J z; h⁺ = W h + Δm; s⁺ = s + η (W s −
    h⁺ − s) with η = `relax`. It is `sparkle("non-gt")` with STORM on every level, which it is exactly for θ = η = 1;
    `vrdbo` is the same recursion with a local inverse in place of z, and biased.

    Draws: an upper and a lower batch, for all directions, the same at both points of a difference. Differs from the
    paper: the first batch is as large as the others; trackers have the units of steps and run in flow form; z is
    not projected.

    Args:
        theta: the weight of the newest sample in STORM, from 0 to 1.
    """
    return Dsvrbgd(alpha, beta, gamma, estimators.storm(theta), relax)


@register(NormalizedDsvrbgd)
def normalized_dsvrbgd(*, alpha: Rate, beta: Rate, gamma: Rate, theta: Rate, relax: Rate = 1.0) -> NormalizedDsvrbgd:
    """Normalised DSVRBGD for heavy-tailed noise (Zhang, Zhang, Gao, 2025), reconstructed from the abstract: DSVRBGD
    whose tracked directions are divided by their norm at each node, x⁺ = x + η (W x − α h/‖h‖ − x), and the same on y
    and z. No sample moves a node further than its step size, and nothing is clipped.

    Draws: as DSVRBGD. Steps do not shrink near the solution: with constant step sizes it ends within their order of
    it, so let them decrease. Differs from the paper: its lower level need not be strongly convex; here z is H⁻¹ ∇_y f.

    Args:
        alpha: the length of x's steps: a number, or a function of the step.
        beta: the length of y's steps, likewise.
        gamma: the length of z's steps, likewise.
        theta: the weight of the newest sample in STORM, from 0 to 1.
    """
    return NormalizedDsvrbgd(alpha, beta, gamma, estimators.storm(theta), relax)
