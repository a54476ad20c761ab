"""Estimators: how stochastic directions are averaged over steps.

An estimator works with any function `directions(draw, point)` that computes directions at a point on one draw. A
recursion that needs the same sample at two points evaluates the same draw at both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from numbers import Real
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from ..core._numbers import validate_count
from ..core._types import PyTree, Scalar, Schedule
from ..core._vector import Vector
from ._oracle import Draw, Oracle

__all__ = ["Estimator", "grace", "momentum", "plain", "spider", "storm"]

Directions: TypeAlias = Callable[[Draw, PyTree], PyTree]
Weight: TypeAlias = Scalar | Schedule

COIN = 2**29  # the draw that decides whether all samples are taken


class Estimator(eqx.Module):
    """Base class of estimators: a recursion that turns stochastic directions into an estimate."""

    @abstractmethod
    def start(self, point: PyTree, directions: PyTree) -> PyTree:
        """The initial memory.

        Args:
            point: the point at which the run starts.
            directions: zeros in the shape of the directions.
        """

    @abstractmethod
    def __call__(
        self, k: Int[Array, ""], memory: PyTree, point: PyTree, oracle: Oracle, directions: Directions
    ) -> tuple[PyTree, PyTree]:
        """The estimate at `point`, and the new memory.

        Args:
            k: the step.
            memory: what `start` or the last call returned.
            point: where the estimate is needed.
            oracle: the step's oracle.
            directions: `directions(draw, point)` computes the directions on one draw.
        """


class Plain(Estimator):
    """A fresh sample each step."""

    def start(self, point: PyTree, directions: PyTree) -> PyTree:
        return ()

    def __call__(
        self, k: Int[Array, ""], memory: PyTree, point: PyTree, oracle: Oracle, directions: Directions
    ) -> tuple[PyTree, PyTree]:
        return directions(oracle.draw(), point), ()


class Momentum(Estimator):
    """m⁺ = (1−θ) m + θ d(ξ; now)"""

    theta: Weight

    def start(self, point: PyTree, directions: PyTree) -> PyTree:
        return directions

    def __call__(
        self, k: Int[Array, ""], memory: PyTree, point: PyTree, oracle: Oracle, directions: Directions
    ) -> tuple[PyTree, PyTree]:
        θ = _weight(self.theta, k)
        new = _map(lambda m, d: (1 - θ) * m + θ * d, memory, directions(oracle.draw(), point))
        return new, new


class Recursive(Estimator):
    """Estimators that add the change of the direction between two points, on the same sample."""

    def start(self, point: PyTree, directions: PyTree) -> PyTree:
        return directions, point

    def change(
        self, draw: Draw, memory_weight: Scalar, memory: PyTree, point: PyTree, directions: Directions
    ) -> PyTree:
        """d(ξ; now) + kept · (m − d(ξ; before))"""
        m, before = memory
        return _map(lambda m, d, e: d + memory_weight * (m - e), m, directions(draw, point), directions(draw, before))


class Storm(Recursive):
    """m⁺ = d(ξ; now) + (1−θ)(m − d(ξ; before)); m⁰ = d(ξ; start)"""

    theta: Weight

    def __call__(
        self, k: Int[Array, ""], memory: PyTree, point: PyTree, oracle: Oracle, directions: Directions
    ) -> tuple[PyTree, PyTree]:
        memory_weight = jnp.where(
            k == 0, 0.0, 1.0 - jnp.asarray(_weight(self.theta, k))
        )  # there is no point before the first
        new = self.change(oracle.draw(), memory_weight, memory, point, directions)
        return new, (new, point)


class Spider(Recursive):
    """Every `period` steps all samples; in between m⁺ = m + d(ξ; now) − d(ξ; before)."""

    period: int | None = eqx.field(static=True)

    def __call__(
        self, k: Int[Array, ""], memory: PyTree, point: PyTree, oracle: Oracle, directions: Directions
    ) -> tuple[PyTree, PyTree]:
        def refresh(_: PyTree) -> PyTree:
            return directions(oracle.draw_all(), point)

        def change(memory: PyTree) -> PyTree:
            m, before = memory
            draw = oracle.draw_for_variance_reduction()
            return _map(lambda m, d, e: m + (d - e), m, directions(draw, point), directions(draw, before))

        period = self.period or oracle.root_of_samples
        restarts = k % period == 0
        new = refresh(memory) if period == 1 else oracle.ledger.cond(restarts, refresh, change, memory)
        return new, (new, point)


class Grace(Recursive):
    """With probability p all samples; otherwise m⁺ = d(ξ; now) + (1−θ)(m − d(ξ; before))."""

    probability: Scalar
    theta: Weight

    def __call__(
        self, k: Int[Array, ""], memory: PyTree, point: PyTree, oracle: Oracle, directions: Directions
    ) -> tuple[PyTree, PyTree]:
        def refresh(_: PyTree) -> PyTree:
            return directions(oracle.draw_all(), point)

        def change(memory: PyTree) -> PyTree:
            return self.change(
                oracle.draw_for_variance_reduction(), 1 - _weight(self.theta, k), memory, point, directions
            )

        coin = jax.random.bernoulli(jax.random.fold_in(oracle.key, COIN), self.probability)  # the same at every node
        new = oracle.ledger.cond((k == 0) | coin, refresh, change, memory)
        return new, (new, point)


def _weight(theta: Weight, k: Int[Array, ""]) -> Scalar:
    return theta(k) if callable(theta) else theta


def _share(theta: Weight) -> Weight:
    _validate_share(theta)
    return theta


def _validate_share(theta: object) -> None:
    if isinstance(theta, Real) and not 0 <= float(theta) <= 1:
        raise ValueError(f"theta={theta!r} must be a number from 0 to 1: it is the newest sample's weight.")


def _map(function: Callable[..., Vector], *trees: PyTree) -> PyTree:
    return jax.tree.map(function, *trees, is_leaf=lambda node: isinstance(node, Vector))


def plain() -> Plain:
    """No averaging: the direction on a new batch in each step."""
    return Plain()


def momentum(theta: Weight) -> Momentum:
    """A moving average, m⁺ = (1−θ) m + θ d(ξ), where d(ξ) is the direction on the new batch ξ.

    Args:
        theta: θ, the weight of the newest batch, from 0 to 1; a number or a schedule.
    """
    return Momentum(_share(theta))


def storm(theta: Weight) -> Storm:
    """STORM, m⁺ = d(ξ; s) + (1−θ) (m − d(ξ; s⁻)), with the same batch ξ at the point s and the previous point s⁻.

    Args:
        theta: θ, from 0 to 1; a number or a schedule.

    References:
        Cutkosky and Orabona, Momentum-Based Variance Reduction in Non-Convex SGD, 2019.
    """
    return Storm(_share(theta))


def spider(period: int | None = None) -> Spider:
    """SPIDER (SARAH), m⁺ = m + d(ξ; s) − d(ξ; s⁻), restarted from all samples every `period` steps.

    Args:
        period: the steps between two full evaluations; None is ⌈√n⌉ for n samples per node.

    References:
        Fang et al., SPIDER: Near-Optimal Non-Convex Optimization via Stochastic Path-Integrated Differential Estimator,
        2018.
    """
    if period is not None:
        validate_count("period", period, ", or None for ⌈√n⌉")
    return Spider(period)


def grace(probability: float, theta: Weight = 0.0) -> Grace:
    """GRACE: with probability p, and at first, all samples; otherwise STORM, m⁺ = d(ξ; s) + (1−θ) (m − d(ξ; s⁻)).

    θ = 0 is PAGE, or loopless SARAH, SPIDER with a random period. One coin serves all nodes.

    Args:
        probability: p, from 0 to 1.
        theta: θ, from 0 to 1; a number or a schedule.

    References:
        Cai, Alghunaim and Sayed, DAMA: A Unified Accelerated Approach for Decentralized Nonconvex Minimax Optimization,
        2025; Li et al., PAGE: A Simple and Optimal Probabilistic Gradient Estimator for Nonconvex Optimization, 2021.
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"probability={probability!r} must be a number from 0 to 1: give the share of full batches.")
    return Grace(float(probability), _share(theta))
