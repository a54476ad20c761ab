"""Directions that no single record moves far: every sample's part is clipped, and noise is added to their sum.

All that a step learns of the samples are such sums: of the gradients of f, of ∇_y g, and of the products (J z, H z). So
whatever a method makes of them, its carries, its messages and its model, tells no more of a record than they do. A
method that looks at samples in another way raises when its step is traced.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, Int, Key

from ..core._keys import fold_in_each
from ..core._types import PyTree
from ..core._vector import Vector
from ..problem._batch import Batch
from ..problem._streams import Samples
from ._eval_config import LOWER, STRIDE, UPPER, Products
from ._oracle import Draw, Oracle, Point

NOISE_KEYS = 2**30 + 1  # the keys of noise, apart from those of draws


@dataclass(frozen=True)
class Records:
    """The settings of `db.privacy.records`, which protects single records."""

    clip: float  # the largest norm of what one record adds to a gradient
    noise: float  # standard deviation of the noise on a sum, relative to its clip
    products: float  # the largest norm of what one record adds to (J z, H z)


class Release(NamedTuple):
    """One noisy sum over the records of one level: how it is clipped, and which records are in it."""

    position: int  # which of the sums of a step it is
    level: int  # UPPER or LOWER
    clip: float
    batches_per_epoch: int  # 1 if every step takes all samples
    offset: int  # step k takes the batch (k + offset) mod batches_per_epoch

    def batch_of_step(self, k: int) -> int:
        return (k + self.offset) % self.batches_per_epoch


class RecordNoise(ABC):
    """Clips the vectors of samples, sums them and adds noise; engines differ in where the noise comes from.

    This takes two calls. `sum_of_clipped` prepares the sum at each node, inside `vmap` over nodes. Calling the object
    then adds the noise of all nodes. An engine that must see single samples, in order to sum them exactly, returns
    their vectors from the first call, and clips and sums them in the second.
    """

    def __init__(self, records: Records) -> None:
        self.records = records

    @abstractmethod
    def sum_of_clipped(
        self, release: Release, rows: list[Float[Array, "_ entries"]], used: Bool[Array, " parts"]
    ) -> Float[Array, "*samples entries"]:
        """The first call, for one node: returns the sum of its clipped vectors, or the vectors for the second call.

        Args:
            release: which sum this is.
            rows: the vectors of the node's samples, in parts.
            used: for each part whether it holds samples; the others are padding.
        """

    @abstractmethod
    def __call__(
        self,
        step: Int[Array, ""] | int,
        release: Release,
        sums: Float[Array, "nodes *samples entries"],
        keys: Key[Array, " nodes"],
    ) -> Float[Array, "nodes entries"]:
        """The second call, for all nodes: returns the sums with noise of standard deviation noise · clip on each entry.

        Args:
            step: the iteration.
            release: which sum this is.
            sums: what the first call returned for each node.
            keys: a random key for each node.
        """


class SeededNoise(RecordNoise):
    """Noise for simulations: normal numbers from the run's seed, which everybody knows."""

    def __eq__(self, other: object) -> bool:  # runs of the same settings share what is compiled
        return isinstance(other, SeededNoise) and self.records == other.records

    def __hash__(self) -> int:
        return hash(self.records)

    def sum_of_clipped(
        self, release: Release, rows: list[Float[Array, "_ entries"]], used: Bool[Array, " parts"]
    ) -> Float[Array, " entries"]:
        sums = [jnp.where(used[k], clipped(part, release.clip).sum(0), 0) for k, part in enumerate(rows)]
        return jnp.stack(sums).sum(0)

    def __call__(
        self,
        step: Int[Array, ""] | int,
        release: Release,
        sums: Float[Array, "nodes *samples entries"],
        keys: Key[Array, " nodes"],
    ) -> Float[Array, "nodes entries"]:
        def draw(key: Array) -> Array:
            return jax.random.normal(key, sums.shape[1:], sums.dtype)

        return sums + jnp.asarray(self.records.noise * release.clip, sums.dtype) * jax.vmap(draw)(keys)


def clipped(rows: Float[Array, "samples entries"], clip: float) -> Float[Array, "samples entries"]:
    """Each row clipped to the norm `clip`; rows that are not finite count as zero."""
    rows = jnp.where(jnp.isfinite(rows).all(1, keepdims=True), rows, 0)
    top = jnp.abs(rows).max(1, keepdims=True, initial=0)
    shape = rows / jnp.where(top > 0, top, 1)
    norm = jnp.where(top > 0, jnp.linalg.norm(shape, axis=1, keepdims=True), 1)
    return shape * jnp.minimum(top, jnp.asarray(clip, rows.dtype) / norm)


class PrivateOracle(Oracle):
    """An oracle that gives only noisy sums over clipped records."""

    def __init__(self, *arguments: Any, noise: RecordNoise, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.noise = noise
        self._outermost = self.ledger.step_cost
        self._releases = 0

    def point(self, draw: Draw, x: Vector, y: Vector | None, products: Products) -> Point:
        return PrivatePoint(self, draw, x, y, products)

    def unclipped(self, batch: Batch) -> Batch:
        raise ValueError(
            "privacy=db.privacy.records(...) bounds what one record adds to a sum, and this method uses samples in "
            "another way: choose one such as db.ed or db.sparkle('ed', ...)."
        )

    def next_release(self, draw: Draw, level: int, clip: float) -> Release:
        """The next sum of the step; raises if it could not be counted."""
        if self.ledger.step_cost is not self._outermost:
            raise ValueError(
                "the method computes directions in a loop or branch inside a step, where "
                "privacy=db.privacy.records(...) cannot count them: choose a single-loop method without local steps, "
                "such as db.sparkle('ed', ...)."
            )
        self._releases += 1
        batches_per_epoch, offset = self._batch_order(draw, level)
        return Release(self._releases - 1, level, clip, batches_per_epoch, offset)

    def _batch_order(self, draw: Draw, level: int) -> tuple[int, int]:
        """How many batches a pass has, and how many batches the draw is ahead of the step's own."""
        if draw.batch_size is None:
            return 1, 0
        if level == UPPER and draw.shares_upper_with is not None:
            draw_index = draw.shares_upper_with.draw_index
        else:
            draw_index = draw.draw_index
        if not self.config.shuffle_once or not isinstance(draw_index, int):
            raise ValueError(
                "privacy=db.privacy.records(...) needs every record in one batch of a pass: use all samples (leave out "
                "batch_size), or sampling='shuffle-once'."
            )
        data: Samples = self.problem.upper_data if level == UPPER else self.problem.lower_data
        if data.part_sizes[0] < draw.batch_size:
            raise ValueError(
                f"batch_size={draw.batch_size} is more than the {data.part_sizes[0]} samples of a node, so some "
                "would count twice: use smaller batches, or all samples (leave out batch_size)."
            )
        return data.part_sizes[0] // draw.batch_size, draw_index * STRIDE

    def keys(self, release: Release) -> Key[Array, " nodes"]:
        """A random key for each node, different for every sum."""
        key = jax.random.fold_in(jax.random.fold_in(self.key, NOISE_KEYS), release.position)
        return fold_in_each(key, self.node_ids)


class PrivatePoint(Point):
    """Derivatives at one point, each the mean of clipped vectors of samples, with noise."""

    def __init__(self, oracle: PrivateOracle, draw: Draw, x: Vector, y: Vector | None, products: Products) -> None:
        super().__init__(draw, x, y, products)
        self._oracle = oracle
        self._in_chunks = False  # both terms of a difference get their noise before it is taken

    def linearized(self) -> Point:
        return self

    @cached_property
    def v(self) -> Vector:
        """∇_y g(x, y), the direction of y."""
        self.ledger.add(gradients=1)
        gradient = jax.grad(self.draw.problem.lower_loss, 1)
        return Vector(self._mean(LOWER, self._oracle.noise.records.clip, gradient, self.y.tree))

    @cached_property
    def _upper_gradients(self) -> tuple[PyTree, ...]:
        self.ledger.add(gradients=1)
        shaped = (self._x.tree,) if self._y is None else (self._x.tree, self._y.tree)
        return self._mean(UPPER, self._oracle.noise.records.clip, self._upper_gradients_of_node, shaped)

    def _product(self, z: Vector) -> tuple[Vector, Vector]:
        clip, shaped = self._oracle.noise.records.products, (self._x.tree, self.y.tree)
        jacobian, hessian = self._mean(LOWER, clip, self._products_of_node, shaped, z.tree)
        return Vector(jacobian), Vector(hessian)

    def _mean(self, level: int, clip: float, function: Callable[..., PyTree], shaped: PyTree, *more: PyTree) -> PyTree:
        """The noisy mean over a level's batch of a sample's `function(x, y, *more, sample)`, shaped like `shaped`."""
        oracle = self._oracle
        release = oracle.next_release(self.draw, level, clip)
        batch = self.draw.upper_batch if level == UPPER else self.draw.lower_batch

        def node(x: PyTree, y: PyTree, *arguments: PyTree) -> tuple[Array, Array]:
            *more, batch = arguments

            def value(sample: PyTree) -> Array:
                return ravel_pytree(function(x, y, *more, sample))[0]

            rows = [jax.vmap(value)(singles) for singles in batch.singles()]
            used = jnp.ones(1, bool) if batch.weights is None else batch.weights > 0
            count = jnp.sum(jnp.where(used, jnp.asarray([len(part) for part in rows], jnp.int32), 0))
            return oracle.noise.sum_of_clipped(release, rows, used), count

        sums, counts = self._over_nodes(node, *more, batch)
        noisy = oracle.noise(oracle.k, release, sums, oracle.keys(release))
        flat = noisy / counts[:, None].astype(noisy.dtype)
        leaves = list[Array]()
        start = 0
        for leaf in jax.tree.leaves(shaped):
            end = start + math.prod(leaf.shape[1:])
            leaves.append(flat[:, start:end].reshape(leaf.shape).astype(leaf.dtype))
            start = end
        return jax.tree.unflatten(jax.tree.structure(shaped), leaves)
