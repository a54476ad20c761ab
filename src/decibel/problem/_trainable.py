"""Models of which only a part is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Key

from ..core._types import Loss, PyTree
from ._keyed import takes_key


class Trainable(eqx.Module):
    """The trainable and the frozen part of a model, from `db.trainable`.

    Attributes:
        start: the trainable part, for `x0` or `y0` of a problem: the model with None instead of frozen leaves.
        frozen: the rest, with None instead of trained leaves.
    """

    start: PyTree
    frozen: PyTree

    def join(self, part: PyTree) -> PyTree:
        """The whole model.

        Args:
            part: a trainable part, such as `result.y`.
        """
        return eqx.combine(part, self.frozen)

    def loss(self, loss: Loss, level: Literal["x", "y"] = "y") -> Loss:
        """A loss of the trainable part, from a loss of the whole model.

        Frozen arrays become arguments of the compiled step, as data are, instead of constants in it.

        Args:
            loss: a loss of `Problem`, whose x or y is the whole model.
            level: which of the two it is; with a single level it is `"x"`.
        """
        if level not in ("x", "y"):
            raise ValueError(f"level={level!r} is not known: choose 'x' or 'y'.")
        return (KeyedJoined if takes_key(loss) else Joined)(self.frozen, loss, "xy".index(level), self._dtype)

    @property
    def _dtype(self) -> np.dtype:
        return jnp.result_type(*jax.tree.leaves(self.start))


class Joined(eqx.Module):
    """A loss to which frozen arrays are brought along."""

    frozen: PyTree
    inner: Loss
    place: int = eqx.field(static=True)
    dtype: np.dtype = eqx.field(static=True)  # of the trainable part

    def __call__(self, *point_and_batch: PyTree) -> Array:
        return self.inner(*self._joined(point_and_batch))

    def _joined(self, arguments: tuple[PyTree, ...]) -> list[PyTree]:
        part = arguments[self.place]
        narrow = jnp.result_type(*jax.tree.leaves(part))  # where a run computes in less precision than it was given

        def cast(leaf: PyTree) -> PyTree:
            return leaf.astype(narrow) if eqx.is_array(leaf) and leaf.dtype == self.dtype else leaf

        frozen = self.frozen if narrow == self.dtype else jax.tree.map(cast, self.frozen)
        return [*arguments[: self.place], eqx.combine(part, frozen), *arguments[self.place + 1 :]]


class KeyedJoined(Joined):
    """The same of a loss that takes a key."""

    def __call__(self, *point_and_batch: PyTree, key: Key[Array, ""] | None = None) -> Array:
        return self.inner(*self._joined(point_and_batch), key=key)


def trainable(model: PyTree, choose: PyTree | Callable[[str, PyTree], bool]) -> Trainable:
    """Splits a model into the part that is trained and the rest, which stays as it is.

    Args:
        model: any pytree: the weights of a network, or a module of Equinox.
        choose: called as `choose(path, leaf)` for every floating-point array, with a path such as `"layers/0/weight"`;
            True trains it. Or a pytree of True and False, in the structure of the model or of a part of it. What
            is not a floating-point array is frozen.

    Returns:
        The two parts: `start` is for `x0` or `y0`, and `loss(...)` makes a loss of the part from one of the model.

    Raises:
        ValueError: if nothing is trained.
    """
    if callable(choose):
        decide = choose
        chosen = jax.tree_util.tree_map_with_path(
            lambda path, leaf: bool(decide(jax.tree_util.keystr(path, simple=True, separator="/"), leaf)), model
        )
    else:
        chosen = choose
    try:
        part = eqx.partition(model, chosen)[0]
    except (ValueError, TypeError):
        raise ValueError(
            "choose does not have the structure of the model: give a function of (path, leaf), or True and False for "
            "every leaf or subtree."
        ) from None
    start = eqx.filter(part, eqx.is_inexact_array_like)
    start = jax.tree.map(jnp.asarray, start)
    if not jax.tree.leaves(start):
        raise ValueError("choose trains no floating-point array of the model: let it return True for one.")
    trained = jax.tree.map(lambda parameter: parameter is not None, start, is_leaf=lambda parameter: parameter is None)
    rest = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, model)
    return Trainable(start, eqx.partition(rest, trained)[1])
