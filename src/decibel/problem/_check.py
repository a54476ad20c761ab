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
from jaxtyping import Float, Int

from ..core._html import table
from ..core._types import PyTree
from ..core._vector import max_or_nan, min_or_nan
from . import _exact as exact
from ._batch import Batch
from ._dependence import Derivatives, derivatives_at, sentence
from ._losses import Losses
from ._overlap import overlap
from ._samples import NodeData
from ._streams import StreamData

RELATIVE_FLATNESS = 1e-6  # curvature below this share of the largest counts as zero
LANCZOS_STEPS = 32
QUICK_STEPS = 8  # if only the largest curvature is needed
WIDTH = 1e-5  # of finite differences
DERIVATIVES = ("∇_x f", "∇_y f", "∇_y g", "H z = ∇²_yy g z", "J z = ∇²_xy g z")


class Finding(NamedTuple):
    ok: bool
    text: str


class CheckReport(NamedTuple):
    """Findings in plain words; `ok` is True if there are no warnings."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{'ok  ' if ok else 'WARN'} {text}" for ok, text in self.findings)

    def _repr_html_(self) -> str:
        title = "no issues found" if self.ok else "see the warnings"
        return table(title, [("ok" if ok else "warn", text) for ok, text in self.findings], ("", "finding"))


def check(problem: Losses, *, seed: int, probes: int = 4) -> CheckReport:
    """All in float64, where finite differences are sharp, at two random points around the start.

    Short nodes repeat their samples up to the number of the longest: one shape, of which a mean over all parts of a
    node's samples would need many. Points come from NumPy, so that two programs are all that is compiled.
    """
    with jax.enable_x64(True):
        wide = jax.tree.map(_prepared, problem, is_leaf=lambda leaf: isinstance(leaf, NodeData))
        draw = np.random.default_rng(seed)
        findings = _derivatives(wide, draw)
        if not problem.single_level:
            findings.append(_curvature(wide, draw, probes))
            findings += _shared_rows(problem)
    return CheckReport(tuple(findings))


def _prepared(leaf: PyTree) -> PyTree:
    return jax.tree.map(_widen, leaf.repeated() if isinstance(leaf, NodeData) else leaf)


def _widen(leaf: PyTree) -> PyTree:
    is_float = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
    return np.asarray(leaf, np.float64) if is_float else leaf


def _derivatives(problem: Losses, draw: np.random.Generator) -> list[Finding]:
    """One for each derivative, of the first point at which it is wrong; and one on what the losses do not depend on."""
    names = ("∇f",) if problem.single_level else DERIVATIVES
    (pairs, point), (more_pairs, _) = (_pairs(problem, draw) for _ in range(2))
    findings = [
        min(_compare(name, *pair), _compare(name, *other_pair), key=lambda finding: finding.ok)
        for name, pair, other_pair in zip(names, pairs, more_pairs, strict=True)
    ]
    missing = sentence(problem, point.sizes())
    return [*findings, Finding(False, missing)] if missing and all(finding.ok for finding in findings) else findings


def _shared_rows(problem: Losses) -> list[Finding]:
    """Whether validation data are also trained on, where the levels have arrays of their own."""
    if problem.lower_data is problem.upper_data:
        return []
    shared, rows = overlap(problem.upper_data, problem.lower_data)
    if not shared:
        return []
    text = f"{shared} of {rows} different rows of upper_data are also in lower_data: keep validation data apart."
    return [Finding(False, text)]


def _pairs(problem: Losses, draw: np.random.Generator) -> tuple[list[tuple[float, float]], Derivatives]:
    """The DERIVATIVES along a random direction, by finite differences and by differentiation, and at the point."""
    x = _around(problem.x0, draw, 0.1)
    dx = _direction(x, draw)
    if problem.single_level:
        slope = _slope(derivatives_at(problem, _moved(x, dx, 1)).f, derivatives_at(problem, _moved(x, dx, -1)).f)
        at = derivatives_at(problem, x)
        return [(slope, _dot(at.fx, dx))], at
    y0 = _per_node(problem) if problem.personal else problem.y0
    y = _around(y0, draw, 0.1)
    dy = _direction(y, draw)
    z = _direction(y, draw)
    at = derivatives_at(problem, x, y, z)
    ahead_x, behind_x = (derivatives_at(problem, _moved(x, dx, sign), y, z) for sign in (1, -1))
    ahead_y, behind_y = (derivatives_at(problem, x, _moved(y, dy, sign), z) for sign in (1, -1))
    pairs = [
        (_slope(ahead_x.f, behind_x.f), _dot(at.fx, dx)),
        (_slope(ahead_y.f, behind_y.f), _dot(at.fy, dy)),
        (_slope(ahead_y.g, behind_y.g), _dot(at.gy, dy)),
        (_slope(_dot(ahead_y.gy, z), _dot(behind_y.gy, z)), _dot(at.hz, dy)),
        (_slope(_dot(ahead_x.gy, z), _dot(behind_x.gy, z)), _dot(at.jz, dx)),
    ]
    return pairs, at


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


def _curvature(problem: Losses, draw: np.random.Generator, probes: int) -> Finding:
    """wᵀHw/‖w‖² of g along random directions and its flattest ones; of every node's own g_i where personal."""
    points = [_around(problem.y0, draw, 0.5) for _ in range(probes)]
    directions = [_direction(problem.y0, draw) for _ in range(probes)]
    extremes = np.asarray(_curvatures(problem, _stacked(points), _stacked(directions)))
    least, most = float(extremes[:, 0].min()), float(extremes[:, 1].max())
    seen = f"curvature of g in y between {least:.3g} and {most:.3g} at {probes} random points"
    if least > RELATIVE_FLATNESS * most:
        return Finding(True, f"g looks strongly convex in y: {seen}.")
    regularize = "add a regularizer such as 1e-3 ‖y‖² to lower"
    if problem.personal:
        return Finding(False, f"g is not strongly convex in y: {seen}; {regularize}.")
    upper = max(abs(_upper_curvature(problem, *pair)) for pair in zip(points, directions, strict=True))
    bias = f"about {upper / most:.1g}/λ where g is most curved and more" if most > 0 else "O(1/λ)"
    form = "db.sparkle('ed', hypergradient=db.hypergradient.penalty(λ), ...)"
    return Finding(
        False,
        f"g is not strongly convex in y: {seen}; use {form}, whose y is off by {bias} where it is less, and takes what "
        f"f prefers where g is flat; or {regularize}.",
    )


@eqx.filter_jit
def _curvatures(problem: Losses, points: PyTree, directions: PyTree) -> Float[Array, "probes 2"]:
    """The smallest and the largest curvature of g found at each point, by Lanczos' method from that direction."""

    def curvatures(g: Callable[[PyTree], Array], y: PyTree, w: PyTree) -> Float[Array, " 2"]:
        flat, unravel = ravel_pytree(y)
        gradient = jax.grad(lambda y: g(unravel(y)))
        return _extremes(lambda w: jax.jvp(gradient, (flat,), (w,))[1], ravel_pytree(w)[0])

    def probe(point_and_direction: tuple[PyTree, PyTree]) -> Float[Array, " 2"]:
        if not problem.personal:
            return curvatures(lambda y: exact.lower_mean(problem, problem.x0, y), *point_and_direction)

        def for_node(batch: Batch) -> Array:
            return curvatures(lambda y: problem.lower_loss(problem.x0, y, batch), *point_and_direction)

        extremes = jax.vmap(for_node)(problem.lower_data.full())
        return jnp.stack([min_or_nan(extremes[:, 0]), max_or_nan(extremes[:, 1])])

    return jax.lax.map(probe, (points, directions))


def _upper_curvature(problem: Losses, y: PyTree, w: PyTree) -> float:
    """wᵀ∇²_yy f w/‖w‖²."""
    ahead, behind = (derivatives_at(problem, problem.x0, _moved(y, w, sign), w) for sign in (1, -1))
    return _slope(_dot(ahead.fy, w), _dot(behind.fy, w)) / _dot(w, w)


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


def _moved(point: PyTree, direction: PyTree, sign: int) -> PyTree:
    return jax.tree.map(lambda p, d: p + sign * WIDTH * d, point, direction)


def _slope(ahead: PyTree, behind: PyTree) -> float:
    return float(ahead - behind) / (2 * WIDTH)


def _around(tree: PyTree, draw: np.random.Generator, size: float) -> PyTree:
    return jax.tree.map(lambda leaf: np.asarray(leaf) + size * draw.standard_normal(leaf.shape), tree)


def _direction(tree: PyTree, draw: np.random.Generator) -> PyTree:
    return jax.tree.map(lambda leaf: draw.standard_normal(leaf.shape), tree)


def _stacked(trees: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _per_node(problem: Losses) -> PyTree:
    return jax.tree.map(lambda leaf: np.stack([leaf] * problem.upper_data.nodes), problem.y0)


def _dot(a: PyTree, b: PyTree) -> float:
    return sum(float(np.vdot(x, y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
