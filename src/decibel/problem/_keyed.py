"""Losses that use random numbers: dropout, augmentation, noise."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import equinox as eqx
import jax
from jax import Array
from jaxtyping import Key

from ..core._types import Loss, PyTree


def takes_key(loss: Callable[..., object]) -> bool:
    """Whether a loss has an argument `key`."""
    try:
        key = inspect.signature(loss).parameters.get("key")
    except (TypeError, ValueError):  # has no signature to be read
        return False
    return key is not None and key.kind in (key.POSITIONAL_OR_KEYWORD, key.KEYWORD_ONLY)


def keyed_like(loss: Callable[..., object], function: Callable[..., Array]) -> Loss:
    """A function around a loss, which takes `key=` if the loss does."""
    if not takes_key(loss):
        return function

    def keyed(*point_and_batch: PyTree, key: Key[Array, ""] | None = None) -> Array:
        return function(*point_and_batch, key=key)

    return keyed


class Augmented(eqx.Module):
    """A loss on samples that are transformed at random, each by a key of its own, except in evaluation."""

    loss: Loss
    transform: Callable[[PyTree, Array], PyTree]

    def __call__(self, *point_and_batch: PyTree, key: Key[Array, ""] | None = None) -> Array:
        *point, batch = point_and_batch
        inner = None
        if key is not None:
            outer, inner = jax.random.split(key)
            samples = jax.tree.leaves(batch)[0].shape[0]
            batch = jax.vmap(self.transform)(batch, jax.random.split(outer, samples))
        return self.loss(*point, batch, **({"key": inner} if takes_key(self.loss) else {}))


def augment(loss: Loss, transform: Callable[[PyTree, Array], PyTree]) -> Loss:
    """The same loss on samples that are transformed at random while a run trains, and on the samples themselves
    when it evaluates.

    Args:
        loss: a loss of `Problem`, with or without a `key` of its own.
        transform: called as `transform(sample, key)` for every sample; returns one of the same shapes and dtypes.

    Returns:
        A loss that takes `key=`.
    """
    return Augmented(loss, transform)
