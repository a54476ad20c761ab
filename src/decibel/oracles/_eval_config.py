"""How derivatives are evaluated: which products, on which batches, in which precision, of how many nodes at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar

import equinox as eqx
import jax
from jax import Array
from jaxtyping import Key

from ..core._types import PyTree
from ..problem._batch import Batch

# The index of a loss and its data.
UPPER = 0
LOWER = 1

LOSS_KEYS = 2**31  # the keys that losses take, beyond the random bits of any batch
FRESH_LOWER_KEYS = 2**28  # the keys of fresh lower batches, beyond those of `again`
# Between the draws of one step in a shuffled order: a prime, so that it shares no period with the batches.
STRIDE = 7919

T = TypeVar("T")


class Products(eqx.Module):
    """The rule for the products H z and J z: second derivatives, or differences of gradients at y ± `difference` z
    (`forward`: at y + `difference` z and y)."""

    difference: float | None = eqx.field(static=True, default=None)
    forward: bool = eqx.field(static=True, default=False)

    @property
    def words(self) -> str:
        if self.difference is None:
            return "second derivatives"
        return f"{'one-sided ' if self.forward else ''}differences of width {self.difference:g}"


SECOND_DERIVATIVES = Products()


@dataclass(frozen=True)
class EvalConfig:
    """How derivatives are evaluated: on random batches or in a shuffled order, in which precision, and of how many
    nodes (`node_chunk`) and samples (`micro_batch`) at a time."""

    shuffle_once: bool = False
    precision: str | None = None
    node_chunk: int | None = None
    micro_batch: int | None = None

    def over_nodes(self, function: Callable[..., T]) -> Callable[..., T]:
        """Applies a node's function of its point and batches to all nodes, a chunk at a time."""
        if self.node_chunk is None:
            return jax.vmap(function)

        def in_chunks(*arguments: PyTree) -> T:
            def of_node(parts: tuple[PyTree, ...]) -> T:
                pairs = zip(arguments, parts, strict=True)
                return function(*(whole.of_node(part) if isinstance(whole, Batch) else part for whole, part in pairs))

            parts = tuple(whole.per_node if isinstance(whole, Batch) else whole for whole in arguments)
            return jax.lax.map(of_node, parts, batch_size=self.node_chunk)

        return in_chunks

    def prepared(self, batch: Batch, keys: Key[Array, " nodes"] | None, loss_index: int) -> Batch:
        """The batch with what its loss needs. `keys` has a key for each node; None if the loss takes none."""
        if keys is not None:
            keys = jax.vmap(lambda key: jax.random.fold_in(key, LOSS_KEYS + loss_index))(keys)
        return replace(batch, keys=keys, micro_batch=self.micro_batch, narrow=self.precision == "bfloat16")

    def matmul_precision(self) -> AbstractContextManager[object]:
        """The precision of matrix products while a step is traced."""
        return jax.default_matmul_precision(self.precision) if self.precision else nullcontext()
