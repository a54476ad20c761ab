"""Parts of datasets, with a validation part instead of the test part where step sizes are searched; errors of x̄."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from decibel.tasks import Task, data

from ..type_aliases import Snapshot


@lru_cache(maxsize=2)
def part(dataset: str, train: int | None = None, test: int | None = None, *, validation: bool = False) -> data.Dataset:
    """A dataset by name, cut to some samples drawn with seed 0.

    Args:
        dataset: a name that `decibel.tasks.data.load` knows, or "synthetic", which needs no files.
        train: samples of the training part; None is all.
        test: samples of the test part; None is all.
        validation: whether a sixth of the training part replaces the test part, which is then not looked at.
    """
    whole = data.synthetic(1_200, 20, 5, 2, seed=0) if dataset == "synthetic" else data.load(dataset)
    if validation:
        order = np.random.default_rng(1).permutation(len(whole.y_train))
        held, kept = np.split(order, [len(order) // 6])
        whole = replace(
            whole,
            x_train=whole.x_train[kept],
            y_train=whole.y_train[kept],
            x_test=whole.x_train[held],
            y_test=whole.y_train[held],
        )
    kept = _drawn(len(whole.y_train), train)
    tested = _drawn(len(whole.y_test), test)
    return replace(
        whole,
        x_train=whole.x_train[kept],
        y_train=whole.y_train[kept],
        x_test=whole.x_test[tested],
        y_test=whole.y_test[tested],
    )


def _drawn(size: int, most: int | None) -> np.ndarray:
    return np.sort(np.random.default_rng(0).permutation(size)[:most])


class AverageError(eqx.Module):
    """`error`: ‖x̄ − x*‖², of the average over nodes."""

    solution: Array

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        return {"error": jnp.sum(jnp.square(snapshot.x - self.solution.astype(snapshot.x.dtype)))}


def average_error(task: Task) -> tuple[AverageError]:
    return (AverageError(jnp.asarray(task.truth.solution)),)
