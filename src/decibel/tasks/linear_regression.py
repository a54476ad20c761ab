"""Linear regression whose targets are learned: synthetic, with adjustable heterogeneity and a known solution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..problem._problem import Problem
from ..results.metrics import distance
from .synthetic import counts_of, deviations, spread_of
from .task import Task

STEP_SIZES = {"alpha": 0.1, "beta": 0.3, "gamma": 0.3}

Batch = tuple[Array, Array]  # A (samples, p, q), b (samples, p)


def fit(x: Array, y: Array, batch: Batch) -> Array:
    """f: mean ‖A y − b‖²."""
    a, b = batch
    return jnp.square(a @ y - b).sum(-1).mean()


class Aim(eqx.Module):
    """g: mean ‖A y − x‖² + C‖y‖²."""

    regularization: float

    def __call__(self, x: Array, y: Array, batch: Batch) -> Array:
        a, _ = batch
        return jnp.square(a @ y - x).sum(-1).mean() + self.regularization * jnp.square(y).sum()


@dataclass(frozen=True, eq=False)
class Regression:
    """`solution`: x*; `lower`: y*(x*); `targets`: the y that node i's b were made from, (nodes, q)."""

    solution: np.ndarray
    lower: np.ndarray
    targets: np.ndarray


def linear_regression(
    nodes: int = 20,
    *,
    dimension: int = 10,
    heterogeneity: float | Literal["mild", "severe"] = "mild",
    samples: int | Sequence[int] = 100,
    regularization: float = 1e-3,
    noise: float = 0.1,
    seed: int = 0,
) -> Task:
    """Synthetic bilevel linear regression with a known solution (SPARKLE's experiment 2).

        f_i(x, y) = mean ‖A y − b‖²,    g_i(x, y) = mean ‖A y − x‖² + C‖y‖²

    over node i's samples (A, b). Each sample has a matrix A, with a row per entry of x and b and a column per entry of
    y. Node i has A = I + h D_i + noise · E and b = A (y° + h d_i) + noise · e, where D_i and d_i average to zero over
    nodes. `truth.solution` is x* of these samples in closed form, and the metric `distance` is measured from it.
    Differs from the paper, whose slides do not state how A and b are made; its error Σ_i ‖x_i − x*‖² is `nodes` times
    `distance`.

    Args:
        nodes: the number of nodes.
        dimension: of x and of y.
        heterogeneity: h; 0 makes nodes identical, `"mild"` is 0.1, `"severe"` is 1.
        samples: per node, one number or one for each node.
        regularization: C.
        noise: the standard deviation of the difference between a node's samples.
        seed: of the data.

    References:
        Zhu et al., SPARKLE, 2024.
    """
    h, counts = spread_of(heterogeneity), counts_of(samples, nodes)
    if dimension < 1 or not noise >= 0 or not regularization >= 0:
        raise ValueError(
            f"dimension={dimension} must be at least 1, noise={noise} and regularization={regularization} not negative."
        )
    rng = np.random.default_rng(seed)
    size = (dimension, dimension)
    design = np.eye(dimension) + h * deviations(rng, nodes, size) / np.sqrt(dimension)
    targets = rng.normal(size=dimension) + h * deviations(rng, nodes, (dimension,))
    parts = [
        _draw(np.random.default_rng([seed, node]), design[node], targets[node], noise, count)
        for node, count in enumerate(counts)
    ]
    x, y = _solve(parts, regularization)
    problem = Problem(
        fit,
        Aim(regularization),
        upper_data=parts,
        lower_data=parts,
        x0=jnp.zeros(dimension),
        y0=jnp.zeros(dimension),
    )
    summary = {
        "dimension": dimension,
        "samples": {"smallest_node": min(counts), "largest_node": max(counts), "total": sum(counts)},
        "heterogeneity": h,
        "noise": noise,
        "regularization": regularization,
        "convention": "both levels see the same samples; distance is a mean over nodes",
        "seed": seed,
    }
    return Task(
        problem,
        (distance(x),),
        "linear-regression",
        summary,
        truth=Regression(x, y, targets),
        step_sizes=STEP_SIZES,
    )


def _draw(
    rng: np.random.Generator, design: np.ndarray, target: np.ndarray, noise: float, count: int
) -> tuple[np.ndarray, np.ndarray]:
    a = design + noise * rng.normal(size=(count, *design.shape)) / np.sqrt(len(target))
    return a, a @ target + noise * rng.normal(size=(count, len(design)))


def _solve(parts: list[tuple[np.ndarray, np.ndarray]], regularization: float) -> tuple[np.ndarray, np.ndarray]:
    """y*(x) = B x with B = (E AᵀA + C)⁻¹ E Aᵀ, so x* solves Bᵀ (E AᵀA) B x = Bᵀ E Aᵀb; E: the mean over nodes."""
    gram = np.mean([np.einsum("spq,spr->qr", a, a) / len(a) for a, _ in parts], 0)
    across = np.mean([a.mean(0) for a, _ in parts], 0).T
    moment = np.mean([np.einsum("spq,sp->q", a, b) / len(a) for a, b in parts], 0)
    response = np.linalg.solve(gram + regularization * np.eye(len(gram)), across)
    x = np.linalg.solve(response.T @ gram @ response, response.T @ moment)
    return x, response @ x
