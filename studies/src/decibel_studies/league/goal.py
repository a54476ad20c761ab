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

from decibel import Problem

from ..type_aliases import PyTree

NEWTON = 12  # steps of Newton's method; the lower levels here have at most 100 entries
LENGTHS = (1.0, 0.5, 0.25, 0.1, 0.02)  # of a step, of which the best is taken


def value(problem: Problem, x: PyTree, *, implicit: bool = False) -> Array:
    """Φ(x); with `implicit` its derivative is the hypergradient."""
    axis = 0 if problem.personal else None
    y = lower_solution(problem, x, implicit)
    return jax.vmap(problem.upper_loss, (None, axis, 0))(x, y, problem.upper_data.full()).mean()


def lower_solution(problem: Problem, x: PyTree, implicit: bool) -> PyTree:
    """y*(x), or every node's, by Newton's method: cheap to compile, where `problem.solve_lower` is for any size."""
    if problem.single_level:
        return None
    batch = problem.lower_data.full()

    def of_node(part: PyTree) -> PyTree:
        return _newton(lambda y: problem.lower_loss(x, y, part), problem.y0, implicit)

    def mean(y: PyTree) -> Array:
        return jax.vmap(problem.lower_loss, (None, None, 0))(x, y, batch).mean()

    return jax.vmap(of_node)(batch) if problem.personal else _newton(mean, problem.y0, implicit)


def _newton(loss: Callable[[PyTree], Array], start: PyTree, implicit: bool) -> PyTree:
    flat, back = ravel_pytree(start)
    lengths = jnp.asarray(LENGTHS, flat.dtype)
    damping = 1e-7 * jnp.eye(flat.size, dtype=flat.dtype)
    still = jax.lax.stop_gradient

    def g(y: Array) -> Array:
        return loss(back(y))

    def direction(y: Array) -> Array:
        return jax.scipy.linalg.solve(still(jax.hessian(g)(y)) + damping, jax.grad(g)(y), assume_a="pos")

    def step(y: Array, _: None) -> tuple[Array, None]:
        tried = jnp.concatenate([y - lengths[:, None] * direction(y), (y - 0.1 * jax.grad(g)(y))[None]])
        values = jax.vmap(g)(tried)
        best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
        return jnp.where(values[best] < g(y), tried[best], y), None

    y = still(jax.lax.scan(step, flat, None, length=NEWTON)[0])
    if implicit:  # adds zero, whose derivative is that of y*(x)
        last = direction(y)
        y = y - (last - still(last))
    return back(y)


@eqx.filter_jit
def values(problem: Problem, x: PyTree) -> Array:
    """Φ for several runs, whose axis is the first of the problem's arrays and of x."""
    return eqx.filter_vmap(value)(problem, x)


@eqx.filter_jit
def _value_and_gradient(problem: Problem, x: PyTree) -> tuple[Array, PyTree]:
    return jax.value_and_grad(lambda x: value(problem, x, implicit=True))(x)


def least(problem: Problem, steps: int = 200) -> tuple[float, float]:
    """Φ(x0), and the least Φ that `steps` iterations of L-BFGS with exact hypergradients find."""
    start, back = ravel_pytree(problem.x0)
    first = float(_value_and_gradient(problem, problem.x0)[0])

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        height, slope = _value_and_gradient(problem, back(jnp.asarray(x, start.dtype)))
        return float(height), np.asarray(ravel_pytree(slope)[0], np.float64)

    end = minimize(both, np.asarray(start, np.float64), jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return first, float(end.fun)
