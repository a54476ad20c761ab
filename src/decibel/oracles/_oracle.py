"""What every node computes from its own data at its own point: gradients and products with second derivatives.

All points are stacked over nodes. One `vjp` of the stacked (x, y) ↦ ∇_y g gives v as its value and (J z, H z) as its
pullback; what a step does not use is never computed. With `node_chunk` nothing is kept from one chunk to the next: each
product computes the gradient again, and differences are taken inside a chunk, before it is written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Int, Key, UInt32

from ..core._ledger import Ledger, depend_on
from ..core._types import PyTree
from ..core._vector import Vector
from ..problem._batch import Batch
from ..problem._problem import Problem
from ..problem._streams import Samples
from ._eval_config import FRESH_LOWER_KEYS, LOWER, SECOND_DERIVATIVES, STRIDE, UPPER, EvalConfig, Products

T = TypeVar("T")
Both: TypeAlias = Callable[[Vector], tuple[Vector, Vector]]  # a function of z with two results, like x and like y


class Oracle:
    """The derivatives of all nodes at one step, on batches that it draws.

    A method receives one in `step`. Batches depend on the seed, the step and the node, not on where nodes are placed.
    """

    def __init__(
        self,
        problem: Problem,
        node_ids: Int[Array, " nodes"],
        key: Key[Array, ""],
        batch_size: int | None,
        ledger: Ledger,
        *,
        k: Int[Array, ""] | int = 0,
        config: EvalConfig = EvalConfig(),  # noqa: B008
    ) -> None:
        self.problem = problem
        self.node_ids = node_ids
        self.batch_size = batch_size
        self.ledger = ledger
        self.key = key
        self.k = k
        self.config = config

    def draw(self, tag: int | Int[Array, ""] = 0) -> Draw:
        """Independent batches of both levels for every node.

        Args:
            tag: a number; different tags give independent batches within one step.
        """
        return Draw(self, jax.random.fold_in(self.key, tag), self.batch_size, draw_index=tag)

    def inside(self, loop_index: Int[Array, ""]) -> Oracle:
        """The same oracle, whose draws XLA computes inside a loop and not before it.

        Args:
            loop_index: the traced index of the loop, on which the draws then depend.
        """
        oracle = copy(self)
        oracle.key = depend_on(loop_index, self.key)
        return oracle

    def draw_all(self) -> Draw:
        """All samples of every node."""
        return Draw(self, self.key, None)

    def draw_for_variance_reduction(self) -> Draw:
        """A batch of the run's size or, where that is all samples, of the ⌈√n⌉ that variance reduction prescribes."""
        return Draw(self, jax.random.fold_in(self.key, 0), self.batch_size or self.root_of_samples)

    def point(self, draw: Draw, x: Vector, y: Vector | None, products: Products) -> Point:
        """The derivatives at a point, on a draw of this oracle."""
        return Point(draw, x, y, products)

    def unclipped(self, batch: Batch) -> Batch:
        """The batch, for code that uses samples without clipping; `PrivateOracle` raises here."""
        return batch

    @property
    def root_of_samples(self) -> int:
        """⌈√n⌉ for n samples per node."""
        return math.ceil(math.sqrt((self.problem.lower_data or self.problem.upper_data).samples_per_node))


class Draw:
    """One batch per level and node; all derivatives on one draw share its samples.

    An unbiased product with J or H needs a lower batch other than the one that produced the vector it multiplies: use
    `again` or `fresh_lower`. Batches are taken when first used.
    """

    def __init__(
        self,
        oracle: Oracle,
        key: Key[Array, ""],
        batch_size: int | None,
        *,
        counted: bool = True,
        draw_index: int | Int[Array, ""] = 0,
        shares_upper_with: Draw | None = None,
    ) -> None:
        self.oracle = oracle
        self.key = key
        self.batch_size = batch_size
        self._counted = counted
        # Which of the draws of one step this is; in a shuffled order they are STRIDE batches apart.
        self.draw_index = draw_index
        self.shares_upper_with = shares_upper_with  # the draw whose upper batch this one shares
        self.problem = oracle.problem
        self.ledger = oracle.ledger
        self.factors_drawn = False
        # Whether another draw would be the same: of all samples, by losses that use no random numbers.
        self._is_deterministic = batch_size is None and not any(self.problem.takes_keys)
        self.scale: Float[Array, " nodes"] | None = None  # of a Neumann series: one for all points of this draw

    @property
    def takes_all(self) -> bool:
        """Whether the draw holds all samples."""
        return self.batch_size is None

    def again(self, number: int | Int[Array, ""], *, counted: bool = True) -> Draw:
        """A further independent draw that belongs to this one; this one if another would be the same.

        Args:
            number: different numbers give independent draws.
            counted: whether its samples count towards the cost.
        """
        if self._is_deterministic:
            return self
        key = jax.random.fold_in(self.key, number + 1)
        draw_index = self.draw_index + (number + 1) * STRIDE
        return Draw(self.oracle, key, self.batch_size, counted=counted, draw_index=draw_index)

    def fresh_lower(self, number: int) -> Draw:
        """The same upper batch with an independent lower one; this draw if another would be the same.

        Args:
            number: different numbers give independent batches.
        """
        if self._is_deterministic:
            return self
        key = jax.random.fold_in(self.key, FRESH_LOWER_KEYS + number)
        draw_index = self.draw_index - (number + 1)
        shares_upper_with = self.shares_upper_with or self
        return Draw(self.oracle, key, self.batch_size, draw_index=draw_index, shares_upper_with=shares_upper_with)

    @property
    def upper(self) -> Batch:
        """The batch of f."""
        return self.oracle.unclipped(self.upper_batch)

    @property
    def lower(self) -> Batch:
        """The batch of g."""
        return self.oracle.unclipped(self.lower_batch)

    @cached_property
    def upper_batch(self) -> Batch:
        if self.shares_upper_with is not None:
            return self.shares_upper_with.upper_batch
        return self._batch(self.problem.upper_data, UPPER)

    @cached_property
    def lower_batch(self) -> Batch:
        return self._batch(self.problem.lower_data, LOWER)

    @cached_property
    def node_keys(self) -> Key[Array, " nodes"]:
        """(nodes,) a random key for each node."""
        return jax.vmap(lambda node: jax.random.fold_in(self.key, node))(self.oracle.node_ids)

    @cached_property
    def _bits(self) -> UInt32[Array, "nodes 2 batch"]:
        """Random bits, enough for both levels."""
        shape = (2, self.batch_size or 0)
        return jax.vmap(lambda key: jax.random.bits(key, shape, jnp.uint32))(self.node_keys)

    def _batch(self, data: Samples, loss_index: int) -> Batch:
        keys = self.node_keys if self.problem.takes_keys[loss_index] else None
        return self.oracle.config.prepared(self._take(data, loss_index), keys, loss_index)

    def _take(self, data: Samples, loss_index: int) -> Batch:
        lazy = self.oracle.config.node_chunk is not None
        if self.batch_size is None:
            self.ledger.add(samples=data.samples_per_node)
            return data.full(lazy=lazy)
        if self._counted:
            self.ledger.add(samples=self.batch_size)
        if self.oracle.config.shuffle_once:
            return data.in_order(self.oracle.k + self.draw_index * STRIDE, self.batch_size, lazy=lazy)
        return data.draw(self._bits[:, loss_index], lazy=lazy)

    def at(self, x: Vector, y: Vector | None = None, products: Products = SECOND_DERIVATIVES) -> Point:
        """The derivatives at a point, on this draw.

        Args:
            x: every node's x.
            y: every node's y; None for a single level.
            products: how H z and J z are computed, from `decibel.hypergradient.auxiliary()` or `.difference(...)`.
        """
        return self.oracle.point(self, x, y, products)


class Point:
    """The derivatives at one point of every node, on one draw; each is computed and counted once, when it is used.

    H = ∇²_yy g and J = ∇²_xy g.
    """

    def __init__(self, draw: Draw, x: Vector, y: Vector | None, products: Products) -> None:
        self.draw = draw
        self.ledger = draw.ledger
        self._x = x
        self._y = y
        self._products = products
        self._config = draw.oracle.config
        self._trees = x.tree, None if y is None else y.tree
        # By function and id of z: what it gave, and z itself, so that its id is not reused.
        self._cache: dict[tuple[Both, int], tuple[tuple[Vector, Vector], Vector]] = {}
        self._counted: set[tuple[str, int]] = set()
        self._in_chunks = self._config.node_chunk is not None

    def linearized(self) -> Point:
        """The same point, linearized ahead of a loop that takes products at it."""
        _ = self.draw.lower if self._in_chunks else self._linear
        return self

    def with_lower_drawn(self) -> Point:
        """The same point, with its lower batch drawn ahead of a loop that uses it."""
        _ = self.draw.lower
        return self

    def moved_to(self, draw: Draw) -> Point:
        """The same point on other samples."""
        return self if draw is self.draw else draw.at(self._x, self._y, self._products)

    @property
    def y(self) -> Vector:
        """Every node's y."""
        assert self._y is not None
        return self._y

    @cached_property
    def v(self) -> Vector:
        """∇_y g(x, y), the direction of y."""
        self.ledger.add(gradients=1)
        return Vector(self._gradient(*self._trees) if self._in_chunks else self._linear[0])

    @cached_property
    def _upper_gradients(self) -> tuple[PyTree, ...]:
        self.ledger.add(gradients=1)
        return self._over_nodes(self._upper_gradients_of_node, self.draw.upper)

    @property
    def fx(self) -> Vector:
        """∇_x f(x, y)."""
        return Vector(self._upper_gradients[0])

    @property
    def fy(self) -> Vector:
        """∇_y f(x, y)."""
        return Vector(self._upper_gradients[1])

    def p(self, z: Vector) -> Vector:
        """H z − ∇_y f, the direction of z."""
        self._count("hvps", z)
        return self._once(self._directions, z)[1]

    def u(self, z: Vector) -> Vector:
        """∇_x f − J z, the direction of x."""
        self._count("jvps", z)
        return self._once(self._directions, z)[0]

    def hessian(self, z: Vector) -> Vector:
        """H z, shaped like y."""
        self._count("hvps", z)
        return self._once(self._product, z)[1]

    def jacobian(self, z: Vector) -> Vector:
        """J z, shaped like x."""
        self._count("jvps", z)
        return self._once(self._product, z)[0]

    @cached_property
    def upper_of_samples(self) -> tuple[Vector, Vector]:
        """∇_x f, and ∇_y f of each sample of the batch, with leaves (nodes, samples, ...)."""
        self.ledger.add(gradients=1)
        upper = self.draw.problem.upper_loss

        def node(x: PyTree, y: PyTree, batch: Batch) -> tuple[PyTree, PyTree]:
            (singles,) = batch.singles()

            def mean(x: PyTree, ys: PyTree) -> Array:
                return jax.vmap(lambda y, sample: upper(x, y, sample))(ys, singles).mean()

            copies = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], batch.samples, 0), y)
            fx, fy = jax.grad(mean, (0, 1))(x, copies)
            return fx, jax.tree.map(lambda leaf: batch.samples * leaf, fy)

        fx, fy = self._over_nodes(node, self.draw.upper)
        return Vector(fx), Vector(fy)

    def hessian_of_samples(self, z: Vector) -> Vector:
        """H_s z_s, each sample s with its own z_s: leaves (nodes, samples, ...)."""
        self._count("hvps", z)

        def node(x: PyTree, y: PyTree, z: PyTree, batch: Batch) -> PyTree:
            return jax.vmap(lambda sample, z: self._products_of_node(x, y, z, sample)[1])(batch.singles()[0], z)

        return Vector(self._over_nodes(node, z.tree, self.draw.lower))

    def jacobian_of_samples(self, z: Vector) -> Vector:
        """The mean over samples s of J_s z_s, each sample with its own z_s: shaped like x."""
        self._count("jvps", z)
        gradient = jax.grad(self.draw.problem.lower_loss, 1)

        def node(x: PyTree, y: PyTree, z: PyTree, batch: Batch) -> PyTree:
            def gradients(x: PyTree) -> PyTree:
                return jax.vmap(lambda sample: gradient(x, y, sample))(batch.singles()[0])

            return jax.vjp(gradients, x)[1](jax.tree.map(lambda leaf: leaf / batch.samples, z))[0]

        return Vector(self._over_nodes(node, z.tree, self.draw.lower))

    def hessian_matrix(self) -> Float[Array, "nodes q q"]:
        """H as (nodes, q, q) for q entries of y."""
        self.ledger.add(hvps=_size(self._y))
        return self._matrix(1)

    def jacobian_matrix(self) -> Float[Array, "nodes p q"]:
        """J as (nodes, p, q) for p entries of x and q of y."""
        self.ledger.add(jvps=_size(self._y))
        return jnp.swapaxes(self._matrix(0), 1, 2)

    def _matrix(self, argument: int) -> Float[Array, "nodes q _"]:
        """Derivative of ∇_y g in one argument, both flattened."""
        lower = self.draw.problem.lower_loss

        def node(x: PyTree, y: PyTree, batch: Batch) -> Float[Array, "q _"]:
            flat, unravel = ravel_pytree((x, y)[argument])

            def gradient(flat: Float[Array, " _"]) -> Float[Array, " q"]:
                point = (unravel(flat), y) if argument == 0 else (x, unravel(flat))
                return ravel_pytree(jax.grad(lower, 1)(*point, batch))[0]

            # q backward passes where x is the longer one, as it is wherever x weighs samples.
            return jax.jacrev(gradient)(flat)

        return self._over_nodes(node, self.draw.lower)

    def _over_nodes(self, function: Callable[..., T], *more: PyTree) -> T:
        """A node's function of x, y and more."""
        return self._config.over_nodes(function)(*self._trees, *more)

    def _count(self, kind: str, z: Vector) -> None:
        cost = {kind: 1}
        if self._products.difference is not None:
            kind = "differences"
            cost = {"gradients": 2}
        if (kind, id(z)) not in self._counted:
            self._counted.add((kind, id(z)))
            self.ledger.add(**cost)

    def _once(self, function: Both, z: Vector) -> tuple[Vector, Vector]:
        """The function of z, computed once for each z."""
        if (function, id(z)) not in self._cache:
            self._cache[function, id(z)] = function(z), z
        return self._cache[function, id(z)][0]

    def _directions(self, z: Vector) -> tuple[Vector, Vector]:
        """(∇_x f − J z, H z − ∇_y f)"""
        if self._in_chunks and "_upper_gradients" not in vars(self):
            return self._all_at(z)
        jacobian, hessian = self._once(self._product, z)
        return self.fx - jacobian, hessian - self.fy

    def _all_at(self, z: Vector) -> tuple[Vector, Vector]:
        """Directions, gradients of f and products in one pass over the chunks; XLA drops those that nothing uses."""
        self.ledger.add(gradients=1)

        def node(x: PyTree, y: PyTree, z: PyTree, upper: Batch, lower: Batch) -> tuple[tuple[PyTree, ...], ...]:
            fx, fy = self._upper_gradients_of_node(x, y, upper)
            jacobian, hessian = self._products_of_node(x, y, z, lower)
            u, p = jax.tree.map(jnp.subtract, fx, jacobian), jax.tree.map(jnp.subtract, hessian, fy)
            return (u, p), (fx, fy), (jacobian, hessian)

        derivatives = self._over_nodes(node, z.tree, self.draw.upper, self.draw.lower)
        (u, p), vars(self)["_upper_gradients"], (jacobian, hessian) = derivatives
        self._cache[self._product, id(z)] = (Vector(jacobian), Vector(hessian)), z
        return Vector(u), Vector(p)

    def _product(self, z: Vector) -> tuple[Vector, Vector]:
        """(J z, H z)"""
        if self._in_chunks or self._products.difference is not None:
            jacobian, hessian = self._over_nodes(self._products_of_node, z.tree, self.draw.lower)
        else:
            jacobian, hessian = self._linear[1](z.tree)
        return Vector(jacobian), Vector(hessian)

    @cached_property
    def _linear(self) -> tuple[PyTree, Callable[[PyTree], tuple[PyTree, PyTree]]]:
        """∇_y g and its pullback."""
        return jax.vjp(self._gradient, *self._trees)

    def _gradient(self, x: PyTree, y: PyTree) -> PyTree:
        return self._config.over_nodes(jax.grad(self.draw.problem.lower_loss, 1))(x, y, self.draw.lower)

    def _upper_gradients_of_node(self, x: PyTree, y: PyTree, batch: Batch) -> tuple[PyTree, ...]:
        """∇_x f, and ∇_y f where there is a y"""
        return jax.grad(self.draw.problem.upper_loss, (0,) if y is None else (0, 1))(x, y, batch)

    def _products_of_node(self, x: PyTree, y: PyTree, z: PyTree, batch: Batch) -> tuple[PyTree, PyTree]:
        """(J z, H z), by a vjp that is not shared with `v`, or by two gradients; neither is kept."""
        lower, δ = self.draw.problem.lower_loss, self._products.difference
        if δ is None:
            return jax.vjp(lambda x, y: jax.grad(lower, 1)(x, y, batch), x, y)[1](z)
        # [∇g(x, y + δz) − ∇g(x, y − δz)] / 2δ on the same sample: no second derivatives.
        gradient, forward = jax.grad(lower, (0, 1)), self._products.forward
        ahead = gradient(x, jax.tree.map(lambda y, z: y + δ * z, y, z), batch)
        behind = gradient(x, y if forward else jax.tree.map(lambda y, z: y - δ * z, y, z), batch)
        return jax.tree.map(lambda a, b: (1 / δ if forward else 0.5 / δ) * (a - b), ahead, behind)


def _size(vector: Vector | None) -> int:
    return sum(leaf[0].size for leaf in jax.tree.leaves(vector))
