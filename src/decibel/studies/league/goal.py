"""What the league measures: Φ at the average of x, with the lower level solved, and the least value that is known."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from ...core._types import PyTree
from ...problem import _exact as exact
from ...problem._problem import Problem

NEWTON = 12  # steps of Newton's method; the lower levels here have at most 100 entries
LENGTHS = (1.0, 0.5, 0.25, 0.1, 0.02)  # of a step, of which the best is taken


def value(problem: Problem, x: PyTree) -> Array:
    """Φ(x)."""
    return exact.upper_mean(problem, x, _lower(problem, x))


def _lower(problem: Problem, x: PyTree) -> PyTree:
    """y*(x), or every node's, by Newton's method: cheap to compile, where `problem.solve_lower` is for any size."""
    if problem.single_level:
        return None
    if not problem.personal:
        return _newton(lambda y: exact.lower_mean(problem, x, y), problem.y0)
    batch = problem.lower_data.full()
    return jax.vmap(lambda own: _newton(lambda y: problem.lower_loss(x, y, own), problem.y0))(batch)


def _newton(loss: Callable[[PyTree], Array], start: PyTree) -> PyTree:
    flat, back = ravel_pytree(start)
    g = lambda y: loss(back(y))  # noqa: E731
    lengths = jnp.asarray(LENGTHS, flat.dtype)

    def step(y: Array, _: None) -> tuple[Array, None]:
        slope, curvature = jax.grad(g)(y), jax.hessian(g)(y)
        towards = jax.scipy.linalg.solve(curvature + 1e-7 * jnp.eye(y.size, dtype=y.dtype), slope, assume_a="pos")
        tried = jnp.concatenate([y - lengths[:, None] * towards, (y - 0.1 * slope)[None]])
        values = jax.vmap(g)(tried)
        best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
        return jnp.where(values[best] < g(y), tried[best], y), None

    y, _ = jax.lax.scan(step, flat, None, length=NEWTON)
    return back(y)


@eqx.filter_jit
def values(problem: Problem, x: PyTree) -> Array:
    """Φ for several runs, whose axis is the first of the problem's arrays and of x."""
    return eqx.filter_vmap(value)(problem, x)


@eqx.filter_jit
def _value_and_gradient(problem: Problem, x: PyTree) -> tuple[Array, PyTree]:
    if problem.single_level:
        return jax.value_and_grad(lambda x: exact.upper_mean(problem, x, None))(x)
    y = _lower(problem, x)
    return exact.upper_mean(problem, x, y), exact.gradient_at(problem, x, y, 1e-5)


def least(problem: Problem, steps: int = 200) -> tuple[float, float]:
    """Φ(x0), and the least Φ that `steps` iterations of L-BFGS with exact hypergradients find."""
    start, back = ravel_pytree(problem.x0)
    first = float(_value_and_gradient(problem, problem.x0)[0])

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        found, slope = _value_and_gradient(problem, back(jnp.asarray(x, start.dtype)))
        return float(found), np.asarray(ravel_pytree(slope)[0], np.float64)

    end = minimize(both, np.asarray(start, np.float64), jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return first, float(end.fun)
