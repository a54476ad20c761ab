"""`problem.check()`: are the derivatives right, and is the lower level strongly convex?"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Int, Key

from ..core._html import table
from ..core._types import PyTree
from ..core._vector import largest, replicate, smallest
from . import _exact as exact
from ._batch import Batch
from ._losses import Losses
from ._overlap import overlap
from ._streams import StreamData

FLAT = 1e-6  # of the largest curvature: what is less is taken for zero
LANCZOS_STEPS = 32
ZERO = 1e-12  # of a derivative along a random direction in float64: what is less is rounding
QUICK_STEPS = 8  # where only the largest curvature is asked for
PIECES = ("∇_x f", "∇_y f", "∇_y g", "H z = ∇²_yy g z", "J z = ∇²_xy g z")


class Finding(NamedTuple):
    ok: bool
    text: str


class CheckReport(NamedTuple):
    """What was found, in plain words; `ok` is whether nothing spoke against the problem."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{'ok  ' if ok else 'LOOK'} {text}" for ok, text in self.findings)

    def _repr_html_(self) -> str:
        title = "nothing speaks against the problem" if self.ok else "look at these"
        return table(title, [("ok" if ok else "look", text) for ok, text in self.findings], ("", "finding"))


def check(problem: Losses, *, seed: int, probes: int = 4) -> CheckReport:
    """All in float64, where finite differences are sharp, at two random points around the start."""
    with jax.enable_x64(True):
        problem = jax.tree.map(_widen, problem)
        keys = jax.random.split(jax.random.key(seed), 2)
        findings = _derivatives(problem, keys)
        if not problem.single_level:
            findings.append(_curvature(problem, keys[0], probes))
            findings += _shared_rows(problem)
    return CheckReport(tuple(findings))


def _widen(leaf: PyTree) -> PyTree:
    is_float = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
    return jnp.asarray(leaf, jnp.float64) if is_float else leaf


def _derivatives(problem: Losses, keys: Key[Array, " points"]) -> list[Finding]:
    """One finding per derivative: of the first point at which it is wrong, or of all where it is zero."""
    names = ("∇f",) if problem.single_level else PIECES
    at_points = [[tuple(map(float, pair)) for pair in _pairs(problem, key)] for key in keys]
    pairs = dict(zip(names, zip(*at_points, strict=True), strict=True))
    zero = {name for name, values in pairs.items() if np.abs(values).max() < ZERO}
    return [
        _zero(name, zero)
        if name in zero
        else min((_compare(name, *pair) for pair in values), key=lambda finding: finding.ok)
        for name, values in pairs.items()
    ]


def _zero(name: str, zero: set[str]) -> Finding:
    """What it means that a derivative is zero at all points."""
    seen = f"{name} is zero at random points"
    match name:
        case "∇_x f":
            return Finding(True, f"{seen}: f depends on x through y only.")
        case "∇f":
            return Finding(False, f"{seen}: upper does not depend on x.")
        case "∇_y f":
            return Finding(False, f"{seen}: upper does not depend on y, so that the lower level changes nothing.")
        case "∇_y g":
            return Finding(False, f"{seen}: lower does not depend on y.")
        case "H z = ∇²_yy g z":
            return Finding(False, f"{seen}: lower is linear in y, so that no y solves the lower level.")
        case _:
            rest = "zero" if "∇_x f" in zero else "∇_x f alone"
            return Finding(
                False,
                f"{seen}: lower does not couple x and y, so that y*(x) is the same for every x and the hypergradient "
                f"is {rest}; see whether lower uses x, and takes its arguments as lower(x, y, batch).",
            )


def _shared_rows(problem: Losses) -> list[Finding]:
    """Whether validation data are also trained on, where the levels have arrays of their own."""
    if problem.lower_data is problem.upper_data:
        return []
    shared, rows = overlap(problem.upper_data, problem.lower_data)
    if not shared:
        return []
    text = f"{shared} of {rows} different rows of upper_data are also in lower_data: keep validation data apart."
    return [Finding(False, text)]


@eqx.filter_jit
def _pairs(problem: Losses, key: Key[Array, ""]) -> list[tuple[Float[Array, ""], Float[Array, ""]]]:
    """Each of PIECES along a random direction: by finite differences and by differentiation."""
    xkey, ykey, dxkey, dykey, zkey = jax.random.split(key, 5)
    x, dx = _around(problem.x0, xkey, 0.1), _around(_zeros(problem.x0), dxkey, 1.0)
    if problem.single_level:

        def loss(x: PyTree) -> Array:
            return exact.upper_mean(problem, x, None)

        return [(_directional(loss, x, dx), _dot(jax.grad(loss)(x), dx))]
    y0 = _per_node(problem) if problem.personal else problem.y0
    y = _around(y0, ykey, 0.1)
    dy = _around(_zeros(y0), dykey, 1.0)
    z = _around(_zeros(y0), zkey, 1.0)

    def f(x: PyTree, y: PyTree) -> Array:
        return exact.upper_mean(problem, x, y)

    def g(x: PyTree, y: PyTree) -> Array:
        return exact.lower_mean(problem, x, y)

    fx, fy = jax.grad(f, (0, 1))(x, y)
    gy, pull = jax.vjp(jax.grad(g, 1), x, y)
    jz, hz = pull(z)

    def slope(x: PyTree, y: PyTree) -> Array:
        return _dot(jax.grad(g, 1)(x, y), z)

    return [
        (_directional(lambda x: f(x, y), x, dx), _dot(fx, dx)),
        (_directional(lambda y: f(x, y), y, dy), _dot(fy, dy)),
        (_directional(lambda y: g(x, y), y, dy), _dot(gy, dy)),
        (_directional(lambda y: slope(x, y), y, dy), _dot(hz, dy)),
        (_directional(lambda x: slope(x, y), x, dx), _dot(jz, dx)),
    ]


def _compare(name: str, a: float, b: float) -> Finding:
    scale = max(abs(a), abs(b))
    error = abs(a - b) / scale if scale > 1e-9 else abs(a - b)
    if error < 1e-4:
        return Finding(True, f"{name} agrees with finite differences.")
    return Finding(
        False,
        f"{name} differs from finite differences ({b:.6g} against {a:.6g} along a random direction): "
        "look for stop_gradient, rounding errors, a kink, or a custom derivative.",
    )


def _curvature(problem: Losses, key: Key[Array, ""], probes: int) -> Finding:
    """wᵀHw/‖w‖² of g along random directions and its flattest ones; of every node's own g_i where personal."""
    low, high, upper = map(np.asarray, _curvatures(problem, jax.random.split(key, probes)))
    least, most = float(low.min()), float(high.max())
    seen = f"curvature of g in y between {least:.3g} and {most:.3g} at {probes} random points"
    if least > FLAT * most:
        return Finding(True, f"g looks strongly convex in y: {seen}.")
    regularize = "add a regularizer such as 1e-3 ‖y‖² to lower"
    if problem.personal:
        return Finding(False, f"g is not strongly convex in y: {seen}; {regularize}.")
    bias = f"about {np.abs(upper).max() / most:.1g}/λ where g is most curved and more" if most > 0 else "O(1/λ)"
    form = "db.sparkle('ed', hypergradient=db.hypergradient.penalty(λ), ...)"
    return Finding(
        False,
        f"g is not strongly convex in y: {seen}; use {form}, whose y is off by {bias} where it is less, and takes what "
        f"f prefers where g is flat; or {regularize}.",
    )


@eqx.filter_jit
def _curvatures(problem: Losses, keys: Key[Array, " probes"]) -> tuple[Float[Array, " probes"], ...]:
    """The smallest and the largest curvature of g found at each point, and that of f along a random direction."""

    def curvatures(g: Callable[[PyTree], Array], key: Key[Array, ""]) -> Float[Array, " 2"]:
        ykey, wkey = jax.random.split(key)
        y, unravel = ravel_pytree(_around(problem.y0, ykey, 0.5))
        gradient = jax.grad(lambda y: g(unravel(y)))
        return _extremes(lambda w: jax.jvp(gradient, (y,), (w,))[1], jax.random.normal(wkey, y.shape, y.dtype))

    def probe(key: Key[Array, ""]) -> tuple[Float[Array, ""], ...]:
        if problem.personal:

            def alone(batch: Batch) -> Array:
                return curvatures(lambda y: problem.lower_loss(problem.x0, y, batch), key)

            extremes = jax.vmap(alone)(problem.lower_data.full())
            return smallest(extremes[:, 0]), largest(extremes[:, 1]), jnp.zeros(())
        g = curvatures(lambda y: exact.lower_mean(problem, problem.x0, y), key)
        w, y = _around(_zeros(problem.y0), key, 1.0), _around(problem.y0, key, 0.5)
        f = jax.grad(lambda y: exact.upper_mean(problem, problem.x0, y))
        return g[0], g[1], _dot(w, jax.jvp(f, (y,), (w,))[1]) / _dot(w, w)

    return jax.lax.map(probe, keys)


def node_curvatures(problem: Losses) -> Float[np.ndarray, " nodes"] | None:
    """About the largest curvature of each node's own loss at the start: of g in y, or of f in x of a single level.

    None for data that are streamed.
    """
    data = problem.upper_data if problem.single_level else problem.lower_data
    return None if isinstance(data, StreamData) else np.asarray(_largest_by_node(problem))


@eqx.filter_jit
def _largest_by_node(problem: Losses) -> Float[Array, " nodes"]:
    single = problem.single_level
    start, unravel = ravel_pytree(problem.x0 if single else problem.y0)
    direction = jax.random.normal(jax.random.key(0), start.shape, start.dtype)
    # By differences of gradients: a loss with a derivative of its own need not have a second one.
    step = float(jnp.finfo(start.dtype).eps) ** (1 / 3) * jnp.maximum(1, jnp.linalg.norm(start))

    def largest_curvature(batch: Batch) -> Float[Array, ""]:
        def loss(variable: Float[Array, " q"]) -> Array:
            if single:
                return problem.upper_loss(unravel(variable), None, batch)
            return problem.lower_loss(problem.x0, unravel(variable), batch)

        gradient = jax.grad(loss)

        def product(w: Float[Array, " q"]) -> Float[Array, " q"]:
            return (gradient(start + step * w) - gradient(start - step * w)) / (2 * step)

        return _extremes(product, direction, QUICK_STEPS)[1]

    return jax.lax.map(largest_curvature, (problem.upper_data if single else problem.lower_data).full())


def _extremes(
    product: Callable[[Float[Array, " q"]], Float[Array, " q"]],
    start: Float[Array, " q"],
    most_steps: int = LANCZOS_STEPS,
) -> Float[Array, " 2"]:
    """About the smallest and the largest eigenvalue of a symmetric matrix, by Lanczos' method from a random start."""
    steps = min(most_steps, start.size)
    basis, rows = jnp.zeros((2, steps + 1, start.size), start.dtype)

    def extend(j: Int[Array, ""], basis_and_rows: tuple[Array, Array]) -> tuple[Array, Array]:
        basis, rows = basis_and_rows
        row = product(basis[j])
        # Twice, so that the basis is orthogonal to rounding; a direction that is not new is left at zero.
        rest = row - basis.T @ (basis @ row)
        rest = rest - basis.T @ (basis @ rest)
        size = jnp.linalg.norm(rest)
        new = size > 1e-10 * jnp.linalg.norm(row)
        return basis.at[j + 1].set(jnp.where(new, rest / jnp.where(new, size, 1.0), 0.0)), rows.at[j].set(row)

    basis = basis.at[0].set(start / jnp.linalg.norm(start))
    basis_before, rows = (stacked[:-1] for stacked in jax.lax.fori_loop(0, steps, extend, (basis, rows)))
    small, used = basis_before @ rows.T, jnp.linalg.norm(basis_before, axis=1) > 0.5
    # Directions that are not used get the first one's curvature, which lies between the extremes.
    values = jnp.linalg.eigvalsh(0.5 * (small + small.T) + jnp.diag(jnp.where(used, 0.0, small[0, 0])))
    return jnp.stack([values[0], values[-1]])


def _directional(
    function: Callable[[PyTree], Array], point: PyTree, direction: PyTree, h: float = 1e-5
) -> Float[Array, ""]:
    def moved(sign: float) -> PyTree:
        return jax.tree.map(lambda p, d: p + sign * h * d, point, direction)

    return (function(moved(1.0)) - function(moved(-1.0))) / (2 * h)


def _around(tree: PyTree, key: Key[Array, ""], size: float) -> PyTree:
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    moved = [a + size * jax.random.normal(k, a.shape, a.dtype) for a, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, moved)


def _per_node(problem: Losses) -> PyTree:
    return replicate(problem.y0, problem.upper_data.nodes).tree


def _zeros(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.zeros_like, tree)


def _dot(a: PyTree, b: PyTree) -> Float[Array, ""]:
    return jax.tree.reduce(jnp.add, jax.tree.map(lambda x, y: jnp.vdot(x, y), a, b))
