"""Graphs and step sizes for which `"wave"` is stable when messages are late (docs/evidence/proofs.md).

With R_i = 2 (1 − w_ii) and a loss of curvature at most L_i, every node must have α L_i + 3/2 R_i < 2. For quadratic
losses that is enough for constant delays of any length, and two nodes diverge beyond it without any delay.

With τ local steps a direction of curvature λ moves as in one step of size u/λ, u = 1 − (1 − αλ)^τ, over links of
ρ u/(αλ), so that u + 3/2 R u/(τ αλ) < 2 takes its place, for every curvature up to L_i.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..engines._program import Program
from ..graphs._graph import Graph, GraphSequence, Levels
from ..methods._method import Method, rate
from ..problem._check import node_curvatures

STABLE = 2.0
LEAST_SELF_WEIGHT = 1 / 3  # where 3/2 R alone reaches 2
STEP_SIZES = {"x": "alpha", "y": "beta", "z": "gamma"}


class DelayWarning(UserWarning):
    """Warns that late messages may make a run diverge."""


class StepSize(NamedTuple):
    """A node's step size times curvature, and how large it may be."""

    node: int
    product: float
    largest: float


def wave_step_size(self_weight: float, *, quadratic: bool = False, local_steps: int = 1) -> float:
    """The largest α L for which `"wave"` is proven to converge with constant delays of any length.

    Args:
        self_weight: w_ii of the node, above 1/3.
        quadratic: whether losses are quadratic; they may be any convex, smooth functions otherwise.
        local_steps: τ, for quadratic losses only where it is more than 1.

    Returns:
        2 (4 − 3R)/(4 + R) with R = 2 (1 − w_ii), or 2 − 3/2 R for quadratic losses. With local steps it is the smallest
        a with u + 3/2 R u/(τ a) = 2 for u = 1 − (1 − a)^τ, or 2 if there is none below.

    References:
        "What is proven" in the documentation, Theorems 1 and 2.
    """
    if not LEAST_SELF_WEIGHT < self_weight <= 1:
        raise ValueError(f"self_weight={self_weight!r} must be above 1/3 and at most 1: use graph.lazy().")
    if local_steps > 1 and not quadratic:
        raise ValueError(f"local_steps={local_steps} has a proof for quadratic losses only: add quadratic=True.")
    R = 2 * (1 - self_weight)
    return _largest_step(R, local_steps) if quadratic else 2 * (4 - 3 * R) / (4 + R)


def _largest_step(R: float, τ: int) -> float:
    """α L up to which every smaller curvature is stable, too, for quadratic losses."""
    if τ == 1:
        return STABLE - 1.5 * R

    a = np.concatenate([np.geomspace(1e-5 / τ, 1, 20_000), np.linspace(1, STABLE, 20_000)])
    u = 1 - (1 - a) ** τ
    beyond = np.flatnonzero(u + 1.5 * R * u / (τ * a) >= STABLE)
    return float(a[max(beyond[0] - 1, 0)]) if beyond.size else STABLE


def validate_delays(method: Method, graphs: Levels) -> None:
    """Raises ValueError if no step size is stable on this graph with late messages."""
    for level in _wave_levels(method):
        graph = getattr(graphs, level)
        least = float(_self_weights(graph).min())
        if least <= LEAST_SELF_WEIGHT + 1e-9:
            raise ValueError(
                f"'wave' on level {level} diverges with late messages where w_ii ≤ 1/3, and {graph.name} has "
                f"{least:.4g}: use graph.lazy()."
            )


def warn_about_delays(program: Program, graphs: Levels, places: np.ndarray) -> None:
    """Warns where the step size of a level is too large for late messages, by the curvature at the start. `places` are
    those of the program's nodes in the graph."""
    method = program.method
    measured = [level for level in _wave_levels(method) if level != "x" or program.problem.single_level]
    curvatures = node_curvatures(program.problem) if measured else None
    if curvatures is None:
        return
    for level in measured:
        name = STEP_SIZES[level]
        size = float(rate(getattr(method, name), jnp.int32(0)))
        worst = _worst(size * curvatures, graphs, level, places, method.strategies[level].local_steps)
        if worst.product >= worst.largest:
            warnings.warn(
                f"{name}={size:.3g} is too large for late messages at node {worst.node}, where the loss has curvature "
                f"{worst.product / size:.3g}: use {name} below {size * worst.largest / worst.product:.3g}, or "
                "graph.lazy() for longer steps.",
                DelayWarning,
                stacklevel=4,
            )


def _worst(products: np.ndarray, graphs: Levels, level: str, nodes: np.ndarray, local_steps: int) -> StepSize:
    self_weights, of_node = np.unique(_self_weights(getattr(graphs, level))[nodes], return_inverse=True)
    largest = np.array([_largest_step(2 * (1 - weight), local_steps) for weight in self_weights])[of_node]
    index = int(np.argmax(products - largest))
    return StepSize(int(nodes[index]), float(products[index]), float(largest[index]))


def _wave_levels(method: Method) -> list[str]:
    return [level for level, strategy in method.strategies.items() if strategy.asynchronous]


def _self_weights(graph: Graph | GraphSequence) -> np.ndarray:
    """Of every node, averaged over the phases of a changing graph."""
    return np.mean([phase.matrix.diagonal() for phase in graph.phases], axis=0)
