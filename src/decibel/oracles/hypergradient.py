"""How a method computes the hypergradient ∇_x f − J H⁻¹ ∇_y f, with H = ∇²_yy g and J = ∇²_xy g.

`auxiliary` and `difference` make z ≈ H⁻¹ ∇_y f a level of its own, on which nodes agree: exact for a shared lower
level. `penalty` does so from first derivatives, also where H has no inverse, with an error that is known. The others
solve for z at each node from its own H_i, which is exact for a personal lower level and biased for a shared one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ..core._conjugate_gradients import conjugate_gradients
from ..core._describe import in_words
from ..core._ledger import Ledger
from ..core._numbers import validate_count, validate_positive
from ..core._types import PyTree
from ..core._vector import Vector, choose, flatten, nonzero_divisor, replicate, scale_nodes
from ..problem._problem import Problem
from ._eval_config import Products
from ._oracle import Oracle, Point
from ._penalty import Penalty

__all__ = ["LocalHypergradient", "auxiliary", "cg", "difference", "direct", "exact", "neumann", "penalty", "personal"]

DENSE_LIMIT = 256  # entries of y up to which `exact` solves with the full Hessian
POWER_STEPS = 10
TRUNCATION = 2**30  # the draw that decides k, apart from the draws of the factors
SCALE = 2  # the fresh lower batch on which L is estimated
POWER_MARGIN = 1.5  # an unconverged power iteration is low; a Neumann series with L too small diverges


class LocalHypergradient(eqx.Module):
    """Base class of local hypergradients, which a node computes from its own data."""

    @abstractmethod
    def inverse(self, point: Point) -> Vector | None:
        """z ≈ H⁻¹ ∇_y f of every node; None stands for zero."""

    def __call__(self, point: Point) -> Vector:
        """∇_x f − J z of every node."""
        z = self.inverse(point)
        return point.fx if z is None else point.u(z)

    def error(
        self, problem: Problem, x: PyTree, y: PyTree, *, batch_size: int | None = None, seed: int = 0
    ) -> Float[Array, " nodes"]:
        """The relative residual ‖H z − ∇_y f‖ / ‖∇_y f‖ of the linear system at each node.

        Near 0 the hypergradient can be trusted, given y; near 1 it is no better than ignoring y.

        Args:
            problem: the problem whose derivatives are taken.
            x: one point for all nodes, or leaves (nodes, ...).
            y: one point for all nodes, or leaves (nodes, ...).
            batch_size: samples per node on which z is computed; None uses all. The residual is on all samples.
            seed: of the batches.

        Returns:
            (nodes,) the residuals.
        """
        x, y = _stacked(x, problem.x0, problem), _stacked(y, problem.y0, problem)
        return _error(self, problem, x, y, batch_size, seed)


class Exact(LocalHypergradient):
    """Dense solve up to `dense_limit` entries of y, conjugate gradients to rounding beyond.

    On a batch it inverts the Hessian of that batch: E[J_ξ H_ξ⁻¹ ∇_y f] differs from J H⁻¹ ∇_y f, and the more so the
    smaller the batch. `neumann` is unbiased but for the terms it leaves out.
    """

    dense_limit: int = eqx.field(static=True, default=DENSE_LIMIT)

    def inverse(self, point: Point) -> Vector:
        b, unflatten = flatten(point.fy)
        if b.shape[1] > self.dense_limit:
            tolerance = 1e-12 if b.dtype == jnp.float64 else 1e-6
            return solve(point, 10 * b.shape[1], tolerance)
        return unflatten(jnp.linalg.solve(point.hessian_matrix(), b[..., None])[..., 0])


class ConjugateGradients(LocalHypergradient):
    """A fixed number of conjugate-gradient steps; on a batch as biased as `exact`."""

    steps: int = eqx.field(static=True)

    def inverse(self, point: Point) -> Vector:
        return solve(point, self.steps, 0.0)


class Neumann(LocalHypergradient):
    """(1/L) Σ_{j<K} (I − H/L)^j ∇_y f, or its randomized term (K/L) Π_{j≤k} (I − H_j/L) ∇_y f with k ~ U{0..K−1}.

    Draws: on a batch every factor H_j has samples of its own, and so has the estimate of L, so that in J z no
    sample is used twice. `per_sample` gives every sample of the batch its own k and factors, as (22) and (23) of
    INTERACT's paper: the mean of as many independent estimates. Without it one k serves a node's whole batch.
    """

    terms: int = eqx.field(static=True)
    scale: float | Array | None
    randomized: bool = eqx.field(static=True, default=False)
    per_sample: bool = eqx.field(static=True, default=False)

    def __call__(self, point: Point) -> Vector:
        if not self.per_sample or point.draw.takes_all:
            return super().__call__(point)
        fx, _ = point.upper_of_samples
        return fx - point.jacobian_of_samples(self._random_by_sample(point, self._scale(point)))

    def inverse(self, point: Point) -> Vector:
        point = point.linearized() if point.draw.takes_all else point
        return (self._random if self.randomized else self._truncated)(point, self._scale(point))

    def _scale(self, point: Point) -> Float[Array, "*nodes"]:
        """L: given, or estimated once for all points of a draw, on samples of its own where it takes a batch."""
        if self.scale is not None:
            return jnp.asarray(self.scale)
        draw = point.draw
        if draw.scale is None:
            draw.scale = largest_curvature(point.moved_to(draw.fresh_lower(SCALE)), of_samples=self.per_sample)
        return draw.scale

    def _truncated(self, point: Point, L: Float[Array, "*nodes"]) -> Vector:
        factor = _factors(point)

        def add(j: Int[Array, ""], term_and_sum: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
            term, total = term_and_sum
            term = term - scale_nodes(1 / L, factor(j).hessian(term))
            return term, total + term

        _, total = point.ledger.loop(self.terms - 1, add, (point.fy, point.fy))
        return scale_nodes(1 / L, total)

    def _random(self, point: Point, L: Float[Array, "*nodes"]) -> Vector:
        return self._product(point, L, self._lengths(point, ()), point.fy, lambda at, term: at.hessian(term))

    def _random_by_sample(self, point: Point, L: Float[Array, "*nodes"]) -> Vector:
        _, fy = point.upper_of_samples
        samples = jax.tree.leaves(fy)[0].shape[1]
        # A node's L serves all its samples; (nodes, 1) stands beside (nodes, samples).
        L = L[:, None] if L.ndim else L
        return self._product(
            point, L, self._lengths(point, (samples,)), fy, lambda at, term: at.hessian_of_samples(term)
        )

    def _lengths(self, point: Point, shape: tuple[int, ...]) -> Int[Array, " nodes *shape"]:
        """Numbers k of factors."""
        keys = point.draw.again(TRUNCATION).node_keys
        return jax.vmap(lambda key: jax.random.randint(key, shape, 0, self.terms, jnp.int32))(keys)

    def _product(
        self,
        point: Point,
        L: Float[Array, "*nodes"],
        k: Int[Array, " nodes *samples"],
        start: Vector,
        hessian: Callable[[Point, Vector], Vector],
    ) -> Vector:
        factor = _factors(point)

        def multiply(j: Int[Array, ""], term: Vector) -> Vector:
            longer = term - scale_nodes(1 / L, hessian(factor(j), term))
            return choose(j < k, longer, term)

        term = point.ledger.loop(k.max(), multiply, start, counted=k.mean(dtype=jnp.float32))
        return scale_nodes(self.terms / L, term)


class Direct(LocalHypergradient):
    """∇_x f alone: right where ∇_y f vanishes at y*(x), as with f = g."""

    def inverse(self, point: Point) -> None:
        return None


class FullOrSampled(LocalHypergradient):
    """One way where a draw takes all samples, another where it takes a batch."""

    full: LocalHypergradient
    sampled: LocalHypergradient

    @property
    def words(self) -> str:
        return f"on all samples {in_words(self.full)}; on batches {in_words(self.sampled)}"

    def __call__(self, point: Point) -> Vector:
        return (self.full if point.draw.takes_all else self.sampled)(point)

    def inverse(self, point: Point) -> Vector | None:
        return (self.full if point.draw.takes_all else self.sampled).inverse(point)


def auxiliary() -> Products:
    """z as a level of its own, with H z and J z from second derivatives; for a shared lower level."""
    return Products()


def difference(delta: float = 1e-3, *, forward: bool = False) -> Products:
    """As `auxiliary`, with H z and J z from differences of gradients at y ± δ z; for a shared lower level.

    Args:
        delta: δ.
        forward: take the gradients at y + δ z and y instead.
    """
    if not delta > 0:
        raise ValueError(f"delta={delta} must be positive: 1e-3 is a good start.")
    return Products(delta, forward)


def penalty(strength: float = 1e3, *, central: bool = False) -> Penalty:
    """z from gradients at two copies of y that a penalty λ holds together; for a shared lower level.

    No second derivatives, and z stays bounded wherever g + f/λ has a minimum in y: where g is flat, f must have one.
    The solution differs from that of the bilevel problem by O(1/λ), or O(1/λ²) if `central`. No step size depends on λ;
    rounding errors grow with it, so that in float32 1e4 is about the best, and 1e3 if `central`.

    Differs from F2SA (Kwon et al., 2023) and related methods: the difference of the copies is a variable,
    instead of a copy.

    Args:
        strength: λ.
        central: take copies on both sides of y: four gradients per step instead of three. It needs λ > L_f/μ_g, where
            L_f is the largest curvature of f in y and μ_g the smallest of g.
    """
    validate_positive("strength", strength, "1e3 is a good start")
    return Penalty(float(strength), central)


def exact(*, dense_limit: int = DENSE_LIMIT) -> Exact:
    """H_i⁻¹ ∇_y f solved to rounding error at each node.

    On a batch it inverts the Hessian of that batch, which is biased: E[J_ξ H_ξ⁻¹ ∇_y f] ≠ J H⁻¹ ∇_y f, the more so the
    smaller the batch.

    Args:
        dense_limit: the number of entries of y up to which the full Hessian is formed; beyond it conjugate gradients
            are used.
    """
    return Exact(dense_limit)


def cg(steps: int) -> ConjugateGradients:
    """A fixed number of conjugate-gradient steps at each node; on a batch biased as `exact`.

    Args:
        steps: the number of steps, one Hessian-vector product each.
    """
    validate_count("steps", steps)
    return ConjugateGradients(steps)


def neumann(terms: int, scale: float | None = None, *, randomized: bool = False, per_sample: bool = False) -> Neumann:
    """A Neumann series at each node, (1/L) Σ_{j<K} (I − H/L)^j ∇_y f with K = `terms`.

    On batches every factor H_j, and the estimate of L, has samples of its own.

    Args:
        terms: K.
        scale: L, at least the largest eigenvalue of H; None estimates it in each step by power iteration.
        randomized: estimate the series by one term, (K/L) Π_{j≤k} (I − H_j/L) ∇_y f with k uniform on 0, …, K−1.
        per_sample: draw k and the factors for each sample of the batch, as SVR-INTERACT's (22) and (23); this stores a
            vector like y per sample, and needs `randomized`.
    """
    if scale is not None and not scale > 0:
        raise ValueError(f"scale={scale} must be positive: give an upper bound of the eigenvalues of H, or None.")
    if per_sample and not randomized:
        raise ValueError("per_sample=True needs randomized=True: without it all samples have the same terms.")
    validate_count("terms", terms)
    return Neumann(terms, None if scale is None else float(scale), randomized, per_sample)


def personal(terms: int = 10, scale: float | None = None) -> FullOrSampled:
    """The default of personal methods: `exact` on full batches, otherwise `neumann` randomized per sample.

    On batches it is unbiased except for the terms that the series leaves out.

    Args:
        terms: K of the Neumann series.
        scale: L of the Neumann series; None estimates it in each step.
    """
    return FullOrSampled(exact(), neumann(terms, scale, randomized=True, per_sample=True))


def direct() -> Direct:
    """∇_x f alone, without second derivatives: exact where ∇_y f vanishes at y*(x), as with f = g."""
    return Direct()


def largest_curvature(point: Point, *, of_samples: bool = False) -> Float[Array, " nodes"]:
    """The largest eigenvalue of H, estimated from above where power iteration has converged to within the
    margin; more than half of it, which is all a Neumann series needs, where it has not. `of_samples`: the largest of
    any single sample of the batch, for a series in single samples."""
    samples = point.draw.batch_size if of_samples else None
    by_sample = samples is not None
    point = point.with_lower_drawn() if by_sample else point.linearized()
    product, axes = (point.hessian_of_samples, 2) if by_sample else (point.hessian, 1)

    def multiply(
        j: Int[Array, ""], vector_and_curvature: tuple[Vector, Float[Array, " nodes *samples"]]
    ) -> tuple[Vector, Float[Array, " nodes *samples"]]:
        hw = product(vector_and_curvature[0])
        size = jnp.sqrt(hw.squared_norms(axes))
        return scale_nodes(1 / nonzero_divisor(size), hw), size

    # A fixed start with all frequencies: ∇_y f may vanish or be an eigenvector itself.
    def wave(leaf: Array) -> Array:
        return jnp.cos(jnp.arange(leaf[0].size, dtype=leaf.dtype)).reshape(leaf.shape[1:])

    start = jax.tree.map(lambda leaf: jnp.broadcast_to(wave(leaf), leaf.shape), point.y)
    if samples is not None:
        start = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], samples, 1), start)
    start = scale_nodes(1 / jnp.sqrt(start.squared_norms(axes)), start)
    _, size = point.ledger.loop(POWER_STEPS, multiply, (start, jnp.sqrt(start.squared_norms(axes))))
    return POWER_MARGIN * (size.max(1) if by_sample else size)


def solve(point: Point, steps: int, tolerance: float) -> Vector:
    """Every node's z with H z = ∇_y f, counted as it goes."""
    point = point.linearized()
    return conjugate_gradients(point.hessian, point.fy, steps, tolerance, point.ledger.loop_while)


@eqx.filter_jit
def _error(
    way: LocalHypergradient, problem: Problem, x: Vector, y: Vector, batch_size: int | None, seed: int
) -> Float[Array, " nodes"]:
    node_ids = jnp.arange(problem.nodes, dtype=jnp.int32)
    oracle = Oracle(problem, node_ids, jax.random.key(seed), batch_size, Ledger())
    point = oracle.draw().at(x, y)
    z = way.inverse(point)
    residual = point.fy if z is None else oracle.draw_all().at(x, y).p(z)
    return jnp.sqrt(residual.squared_norms() / nonzero_divisor(point.fy.squared_norms()))


def _stacked(tree: PyTree, like: PyTree, problem: Problem) -> Vector:
    leaves = jax.tree.leaves(tree), jax.tree.leaves(like)
    everywhere = all(jnp.ndim(a) > jnp.ndim(b) for a, b in zip(*leaves, strict=True))
    return Vector(jax.tree.map(jnp.asarray, tree)) if everywhere else replicate(tree, problem.upper_data.nodes)


def _factors(point: Point) -> Callable[[Int[Array, ""]], Point]:
    """The point on the j-th independent sample. A draw that serves two points draws its factors once."""
    if point.draw.takes_all:
        return lambda j: point
    first = not point.draw.factors_drawn
    point.draw.factors_drawn = True
    return lambda j: point.moved_to(point.draw.again(j, counted=first))
