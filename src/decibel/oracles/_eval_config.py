"""How derivatives are evaluated: which products, on which batches, in which precision, of how many nodes at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core._types import PyTree
from ..problem._samples import Batch

FRESH = 2**28  # the numbers of fresh lower batches, beyond those of `again`
# Between the draws of one step in a shuffled order: a prime, so that it shares no period with the batches.
STRIDE = 7919

T = TypeVar("T")


class Products(eqx.Module):
    """How H z and J z are computed: by second derivatives, or by differences of gradients at y ± `difference` z
    (`forward`: at y + `difference` z and y)."""

    difference: float | None = eqx.field(static=True, default=None)
    forward: bool = eqx.field(static=True, default=False)


SECOND_DERIVATIVES = Products()


@dataclass(frozen=True)
class EvalConfig:
    """How derivatives are evaluated: on random batches or in a shuffled order, in which precision, and
    (`node_chunk`) of how many nodes at a time."""

    in_order: bool = False
    precision: str | None = None
    node_chunk: int | None = None

    def over_nodes(self, function: Callable[..., T]) -> Callable[..., T]:
        """A node's function of its point and batches, for all nodes; those of a chunk take their batches together."""
        if self.node_chunk is None:
            return jax.vmap(function)

        def in_chunks(*given: PyTree) -> T:
            takes = [whole.of_node if isinstance(whole, Batch) else lambda part: part for whole in given]
            parts = tuple(whole.per_node if isinstance(whole, Batch) else whole for whole in given)
            node = lambda parts: function(*(take(part) for take, part in zip(takes, parts, strict=True)))  # noqa: E731
            return jax.lax.map(node, parts, batch_size=self.node_chunk)

        return in_chunks

    def narrowed(self, function: Callable[..., T]) -> Callable[..., T]:
        """Computed in bfloat16, answered in the precision that was given."""
        if self.precision != "bfloat16":
            return function

        def narrow(leaf: Array) -> Array:
            return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        def narrowed(*point: PyTree) -> T:
            wide = jnp.result_type(*jax.tree.leaves(point[0]))
            answer = function(*jax.tree.map(narrow, point))
            return jax.tree.map(lambda leaf: leaf.astype(wide), answer)

        return narrowed

    def products(self) -> AbstractContextManager[object]:
        """The precision of matrix products while a step is traced."""
        return jax.default_matmul_precision(self.precision) if self.precision else nullcontext()
