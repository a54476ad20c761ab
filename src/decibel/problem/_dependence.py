"""What the losses depend on: they are traced on one sample, and nothing is computed or compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from ..core._types import Loss, PyTree
from ._keyed import takes_key
from ._problem import Problem


def missing_dependence(problem: Problem) -> str:
    """One sentence on what the losses lack; empty where they lack nothing. The problem's data are known."""
    x, y = jax.tree.map(_shape, (problem.x0, problem.y0))
    try:
        if problem.single_level:
            (in_x,) = _uses(_evaluated(problem.upper), (x,), problem.upper_data.sample)
            return "" if in_x else "upper does not depend on x, so that its gradient is zero: use x in it."
        upper = _uses(_evaluated(problem.upper), (x, y), problem.upper_data.sample)
        assert problem.lower is not None
        slope = _uses(jax.grad(_evaluated(problem.lower), 1), (x, y), problem.lower_data.sample)
    except Exception:  # whatever a rule of a loss raises; the run will, too, if it needs it
        return ""
    return _sentence(upper, slope, bounded=problem.prox_y is not None)


def _sentence(upper: tuple[bool, ...], slope: tuple[bool, ...], *, bounded: bool) -> str:
    """Of whether f depends on x and on y, and ∇_y g on x and on y; `bounded` tells that y has a constraint or term."""
    order = "see whether lower takes (x, y, batch)"
    if not slope[1] and not bounded:
        return (
            "lower is linear in y or does not depend on it (∇²_yy g is zero), so that no y solves the lower level: add "
            f"a term such as 1e-3 ‖y‖² to lower, or {order}."
        )
    if not slope[0]:
        rest = "∇_x f alone" if upper[0] else "zero"
        return (
            "lower does not couple x and y (∇²_xy g is zero), so that y*(x) never changes and the hypergradient is "
            f"{rest}: use x in lower where it meets y, or {order}."
        )
    if not upper[1]:
        return "upper does not depend on y, so that the lower level changes nothing: use y in it, or leave lower out."
    return ""


def _uses(function: Callable[..., PyTree], point: tuple[PyTree, ...], sample: PyTree) -> tuple[bool, ...]:
    """For each variable of the point, whether the function's value depends on it."""
    closed = jax.make_jaxpr(function)(*point, sample)
    _, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    found: list[bool] = []
    for variable in point:
        count = len(jax.tree.leaves(variable))
        found.append(any(used[:count]))
        used = used[count:]
    return tuple(found)


def _evaluated(loss: Loss) -> Loss:
    return partial(loss, key=None) if takes_key(loss) else loss


def _shape(leaf: PyTree) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))
