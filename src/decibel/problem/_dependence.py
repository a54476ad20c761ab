"""What the losses depend on: by the structure of their derivatives, and by the size of these.

The derivatives are traced along cotangents that are arguments. One that does not depend on its cotangent is zero
whatever the data are. Where a bound says that another may be negligible, all are computed, at a random point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend import core
from jax.interpreters import partial_eval
from jaxtyping import Float

from ..core._types import Loss, PyTree
from ..core._vector import replicate
from . import _exact as exact
from ._keyed import takes_key
from ._losses import Losses
from ._magnitude import largest_entry, magnitudes
from ._samples import NodeData
from ._streams import Samples

NEGLIGIBLE = 1e-10  # of the scale that a derivative is compared with
MOST_ENTRIES = 2**20  # of x and y: derivatives of larger problems are not computed
FEW = (4, 16)  # nodes, and samples of each, that stand for the data in bounds


class Derivatives(NamedTuple):
    """Both losses and their derivatives at one x, y and z, with H = ∇²_yy g and J = ∇²_xy g, or their largest entries.

    A single level has the first two.
    """

    f: PyTree
    fx: PyTree
    fy: PyTree = 0.0
    g: PyTree = 0.0
    gy: PyTree = 0.0
    jz: PyTree = 0.0
    hz: PyTree = 0.0

    def sizes(self) -> Derivatives:
        return Derivatives(*(max(map(largest_entry, jax.tree.leaves(tree)), default=0.0) for tree in self))


def derivatives(
    f: Callable[..., Array], g: Callable[..., Array] | None, unit: PyTree, z: PyTree, x: PyTree, y: PyTree
) -> Derivatives:
    """Of f along a `unit`, which is 1, and of ∇_y g along z; of one level where there is no g."""
    if g is None:
        value, pull = jax.vjp(lambda x: f(x, None), x)
        return Derivatives(value, *pull(jnp.asarray(unit, value.dtype)))
    value, pull = jax.vjp(f, x, y)
    fx, fy = pull(jnp.asarray(unit, value.dtype))

    def slope(x: PyTree, y: PyTree) -> tuple[PyTree, Array]:
        value, gradient = jax.value_and_grad(g, 1)(x, y)
        return gradient, value

    gy, pull, lower_value = jax.vjp(slope, x, y, has_aux=True)
    return Derivatives(value, fx, fy, lower_value, gy, *pull(z))


@eqx.filter_jit
def derivatives_at(problem: Losses, x: PyTree, y: PyTree = None, z: PyTree = None) -> Derivatives:
    """On all samples."""
    g = None if problem.single_level else partial(exact.lower_mean, problem)
    return derivatives(partial(exact.upper_mean, problem), g, 1.0, z, x, y)


def missing_dependence(problem: Losses) -> str:
    """One sentence on what the losses lack; empty where they lack nothing. Requires bound data."""
    try:
        program, point = _traced(problem)
        message = sentence(problem, _by_structure(program, point))
        if not message and _is_small(problem) and sentence(problem, _by_bounds(problem, program, point)):
            message = sentence(problem, _by_size(problem))
    except Exception:  # whatever a rule of a loss raises; the run will, too, if it needs it
        return ""
    return message


def sentence(problem: Losses, sizes: Derivatives) -> str:
    """On what the losses lack, by the sizes of their derivatives."""
    x = _scale(problem.x0)
    in_x = _matters(sizes.fx * x, sizes.f)
    if problem.single_level:
        return "" if in_x else "upper does not depend on x, so that its gradient is zero: use x in it."
    y = _scale(problem.y0)
    order = "see whether lower takes (x, y, batch)"
    if problem.prox_y is None and not _matters(sizes.hz, sizes.gy):
        return (
            "lower is linear in y or does not depend on it (∇²_yy g is negligible), so that no y solves the lower "
            f"level: add a term such as 1e-3 ‖y‖² to lower, or {order}."
        )
    if not _matters(sizes.jz * x, sizes.hz * y):
        rest = "∇_x f alone" if in_x else "zero"
        return (
            "lower does not couple x and y (∇²_xy g is negligible), so that y*(x) never changes and the hypergradient "
            f"is {rest}: use x in lower where it meets y, or {order}."
        )
    if not _matters(sizes.fy * y, sizes.f):
        return "upper does not depend on y, so that the lower level changes nothing: use y in it, or leave lower out."
    return ""


def _matters(size: float, scale: float) -> bool:
    """Whether a derivative is more than negligible; also where it is not a number. An unknown scale is none."""
    return not size <= NEGLIGIBLE * (scale if scale < math.inf else 0.0)


class _Point(NamedTuple):
    """The arguments of the program that is traced, or how large they are."""

    unit: PyTree
    z: PyTree
    x: PyTree
    y: PyTree
    held: PyTree  # arrays that the losses hold
    upper_batch: PyTree
    lower_batch: PyTree


def _traced(problem: Losses) -> tuple[core.ClosedJaxpr, _Point]:
    """The derivatives on a batch of one sample."""
    held, functions = eqx.partition((problem.upper, problem.lower), eqx.is_array)

    def program(*arguments: PyTree) -> Derivatives:
        unit, z, x, y, held, upper_batch, lower_batch = arguments
        upper, lower = eqx.combine(functions, held)
        g = None if lower is None else _on(lower_batch, lower)
        return derivatives(_on(upper_batch, upper), g, unit, z, x, y)

    variables = (problem.y0, problem.x0, problem.y0)
    samples = [None if data is None else data.sample for data in (problem.upper_data, problem.lower_data)]
    point = _Point._make([np.ones((), problem.dtype), *variables, held, *samples])
    return jax.make_jaxpr(program)(*jax.tree.map(_shape, point)), point


def _on(batch: PyTree, loss: Loss) -> Callable[..., Float[Array, ""]]:
    key = {"key": None} if takes_key(loss) else {}

    def value(x: PyTree, y: PyTree) -> Float[Array, ""]:
        point = (x,) if y is None else (x, y)
        return loss(*point, batch, **key)

    return value


def _by_structure(program: core.ClosedJaxpr, point: _Point) -> Derivatives:
    """Zero where a derivative does not depend on its cotangent, and infinity elsewhere."""
    cotangents = len(jax.tree.leaves((point.unit, point.z)))

    def size(output: core.Var | core.Literal) -> float:
        _, used = partial_eval.dce_jaxpr(program.jaxpr, [variable is output for variable in program.jaxpr.outvars])
        return math.inf if any(used[:cotangents]) else 0.0

    return _grouped(map(size, program.jaxpr.outvars), point)


def _by_bounds(problem: Losses, program: core.ClosedJaxpr, point: _Point) -> Derivatives:
    """How large they can be at most, near the start."""
    x, y = (jax.tree.map(lambda _, tree=tree: 2 * _scale(tree), tree) for tree in (point.x, point.y))
    batches = [_largest_entries(data) for data in (problem.upper_data, problem.lower_data)]
    known = _Point._make([1.0, y, x, y, jax.tree.map(largest_entry, point.held), *batches])
    return _grouped(magnitudes(program, jax.tree.leaves(known)), point)


def _by_size(problem: Losses) -> Derivatives:
    """How large they are at a random point."""
    rng = np.random.default_rng(0)

    def moved(leaf: Array) -> np.ndarray:
        return np.asarray(leaf) + (0.1 * _scale(leaf) * rng.standard_normal(leaf.shape)).astype(leaf.dtype)

    y0 = replicate(problem.y0, problem.upper_data.nodes).tree if problem.personal else problem.y0
    x, y, z = (jax.tree.map(moved, tree) for tree in (problem.x0, y0, y0))
    return derivatives_at(problem, x, y, z).sizes()


def _grouped(sizes: Iterable[float], point: _Point) -> Derivatives:
    """The largest entry of each derivative, from those of its leaves."""
    left = iter(sizes)
    trees = (0.0, point.x) if point.y is None else (0.0, point.x, point.y, 0.0, point.y, point.x, point.y)
    return Derivatives(*(max([next(left) for _ in jax.tree.leaves(tree)], default=0.0) for tree in trees))


def _is_small(problem: Losses) -> bool:
    """Whether derivatives take little, and all that they need is here."""
    arrays = [leaf for leaf in jax.tree.leaves(problem) if isinstance(leaf, Array)]
    in_memory = all(isinstance(data, NodeData | None) for data in (problem.upper_data, problem.lower_data))
    size = sum(leaf.size for leaf in jax.tree.leaves((problem.x0, problem.y0)))
    return in_memory and size <= MOST_ENTRIES and len({device for leaf in arrays for device in leaf.devices()}) == 1


def _largest_entries(data: Samples | None) -> PyTree:
    """Of a few samples."""
    nodes, samples = FEW

    def some(leaf: Array) -> Array | np.ndarray:
        on_host = all(device.platform == "cpu" for device in leaf.devices())
        return (np.asarray(leaf) if on_host else leaf)[:nodes, :samples]  # which nothing is compiled for on a host

    return jax.tree.map(lambda leaf: largest_entry(some(leaf)), data.tree) if isinstance(data, NodeData) else None


def _shape(leaf: PyTree) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def _scale(tree: PyTree) -> float:
    """The largest entry, or 1 where all are zero."""
    return max(map(largest_entry, jax.tree.leaves(tree)), default=0.0) or 1.0
