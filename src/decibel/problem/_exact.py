"""y*(x) and ∇Φ(x) to a stated tolerance, for measuring. No algorithm uses these.

The lower level is solved by L-BFGS and finished by Newton's method with conjugate gradients (optimistix, lineax), so
only Hessian-vector products are formed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ..core._conjugate_gradients import conjugate_gradients
from ..core._types import Loss, PyTree
from ..core._vector import Vector, max_or_nan
from ._batch import Batch
from ._losses import Losses
from ._streams import Samples, StreamData

OfVariables: TypeAlias = Callable[[PyTree, PyTree], Array]  # a loss as a function of x and y


def default_tolerance(tree: PyTree) -> float:
    return 1e-10 if jnp.result_type(*jax.tree.leaves(tree)) == jnp.float64 else 1e-5


def solve_lower(problem: Losses, x: PyTree, *, tolerance: float | None = None) -> PyTree:
    if problem.single_level:
        raise ValueError(
            "solve_lower needs a lower level, which this problem does not have: give Problem a lower loss."
        )
    tolerance = default_tolerance(x) if tolerance is None else tolerance
    y, residual = _compiled_lower(problem, x, tolerance)
    if not float(residual) <= tolerance:
        raise ValueError(
            f"solve_lower stopped at a relative ‖∇_y g‖ of {float(residual):.1e}, above tolerance="
            f"{tolerance:.0e}: loosen tolerance, use float64, or see whether problem.check() finds g strongly convex."
        )
    return y


def hypergradient(problem: Losses, x: PyTree, *, tolerance: float | None = None) -> PyTree:
    tolerance = default_tolerance(x) if tolerance is None else tolerance
    if problem.single_level:
        return _compiled_gradient(problem, x)
    return _compiled_hypergradient(problem, x, solve_lower(problem, x, tolerance=tolerance), tolerance)


@eqx.filter_jit
def _compiled_gradient(problem: Losses, x: PyTree) -> PyTree:
    return jax.grad(lambda x: upper_mean(problem, x, None))(x)


def upper_mean(problem: Losses, x: PyTree, y: PyTree) -> Float[Array, ""]:
    """1/N Σ_i f_i(x, y) over all samples; y has the node axis where the problem is personal."""
    return _mean(problem, problem.upper_loss, problem.upper_data, x, y)


def lower_mean(problem: Losses, x: PyTree, y: PyTree) -> Float[Array, ""]:
    return _mean(problem, problem.lower_loss, problem.lower_data, x, y)


def _mean(problem: Losses, loss: Loss, data: Samples, x: PyTree, y: PyTree) -> Float[Array, ""]:
    in_axes = (None, 0 if problem.personal else None)
    if isinstance(data, StreamData):
        return data.means(loss, in_axes, x, y).mean()
    return jax.vmap(loss, (*in_axes, 0))(x, y, data.full()).mean()


def lower_solution(problem: Losses, x: PyTree, tolerance: float) -> tuple[PyTree, Float[Array, ""]]:
    """y*(x) and ‖∇_y g(x, y*)‖ relative to max(1, its size at y0) (the largest of any node where personal)."""
    batch = problem.lower_data.full()
    if problem.personal:

        def for_node(batch: Batch) -> tuple[PyTree, Float[Array, ""]]:
            return _minimize(lambda y: problem.lower_loss(x, y, batch), problem.y0, tolerance)

        y, residuals = jax.vmap(for_node)(batch)
        return y, max_or_nan(residuals)
    return _minimize(lambda y: lower_mean(problem, x, y), problem.y0, tolerance)


_compiled_lower = eqx.filter_jit(lower_solution)


def gradient_at(problem: Losses, x: PyTree, y: PyTree, tolerance: float) -> PyTree:
    """∇_x f − J z with H z = ∇_y f, all at (x, y): the hypergradient where y = y*(x)."""
    upper, lower = problem.upper_data.full(), problem.lower_data.full()
    if problem.personal:

        def for_node(y: PyTree, upper: Batch, lower: Batch) -> PyTree:
            return implicit_gradient(*_losses_of_node(problem, upper, lower), x, y, tolerance)

        each = jax.vmap(for_node)(y, upper, lower)
        return jax.tree.map(lambda leaf: leaf.mean(0), each)
    return implicit_gradient(partial(upper_mean, problem), partial(lower_mean, problem), x, y, tolerance)


_compiled_hypergradient = eqx.filter_jit(gradient_at)


def node_gradients(problem: Losses, x: PyTree, tolerance: float) -> PyTree:
    """∇ℓ_i(x_i), every node's own at its own x, leaves (nodes, ...); ℓ_i(x) is f_i(x, y_i*(x)), or f_i(x)."""
    if problem.single_level:
        return jax.vmap(jax.grad(lambda x, batch: problem.upper_loss(x, None, batch)))(x, problem.upper_data.full())

    def for_node(x: PyTree, upper: Batch, lower: Batch) -> PyTree:
        f, g = _losses_of_node(problem, upper, lower)
        y, _ = _minimize(lambda y: g(x, y), problem.y0, tolerance)
        return implicit_gradient(f, g, x, y, tolerance)

    return jax.vmap(for_node)(x, problem.upper_data.full(), problem.lower_data.full())


def _losses_of_node(problem: Losses, upper: Batch, lower: Batch) -> tuple[OfVariables, OfVariables]:
    """f_i and g_i as functions of x and y."""
    return partial(problem.upper_loss, batch=upper), partial(problem.lower_loss, batch=lower)


def implicit_gradient(f: OfVariables, g: OfVariables, x: PyTree, y: PyTree, tolerance: float) -> PyTree:
    fx, fy = jax.grad(f, (0, 1))(x, y)
    _, pull = jax.vjp(jax.grad(g, 1), x, y)

    def as_vector(tree: PyTree) -> Vector:
        return Vector(jax.tree.map(lambda leaf: leaf[None], tree))

    def as_tree(vector: Vector) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[0], vector.tree)

    steps = 10 * sum(leaf.size for leaf in jax.tree.leaves(fy)) + 100
    z = as_tree(conjugate_gradients(lambda z: as_vector(pull(as_tree(z))[1]), as_vector(fy), steps, tolerance))
    jacobian_z, _ = pull(z)
    return jax.tree.map(jnp.subtract, fx, jacobian_z)


def _minimize(g: Callable[[PyTree], Array], y0: PyTree, tolerance: float) -> tuple[PyTree, Float[Array, ""]]:
    import lineax as lx  # both take a fifth of a second, and a run needs neither
    import optimistix as optx

    gradient = jax.grad(g)
    scale = _norm(gradient(y0))
    rough = optx.minimise(lambda y, _: g(y), optx.LBFGS(rtol=1e-4, atol=1e-4), y0, max_steps=300, throw=False).value
    # A line search may fail on a flat or rounded g; a step that made things worse is not taken.
    better = _norm(gradient(rough)) < scale
    start = jax.tree.map(lambda a, b: jnp.where(better, a, b), rough, y0)
    newton = optx.Newton(
        rtol=tolerance,
        atol=tolerance * 1e-2,
        linear_solver=lx.CG(rtol=1e-2 * tolerance, atol=0.0),
        cauchy_termination=False,
    )
    y = optx.root_find(
        lambda y, _: gradient(y),
        newton,
        start,
        max_steps=30,
        throw=False,
        tags=frozenset({lx.positive_semidefinite_tag}),
    ).value
    best = _norm(gradient(y)) <= _norm(gradient(start))
    y = jax.tree.map(lambda a, b: jnp.where(best, a, b), y, start)
    return y, _norm(gradient(y)) / jnp.maximum(scale, 1.0)


def _norm(tree: PyTree) -> Float[Array, ""]:
    return jnp.sqrt(jax.tree.reduce(jnp.add, jax.tree.map(lambda leaf: jnp.sum(jnp.square(leaf)), tree)))
