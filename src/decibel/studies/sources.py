"""Data as studies take them: parts of a set, a validation part in the place of the test part, errors of an average."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..results.metrics import Snapshot
from ..tasks import Task, data
from ..tasks.synthetic import classification


@lru_cache(maxsize=2)
def part(dataset: str, train: int | None = None, test: int | None = None, *, validation: bool = False) -> data.Dataset:
    """A set by name ("synthetic" needs no files), cut to `train` and `test` samples drawn with seed 0. With
    `validation`, a sixth of the training part stands in the place of the test part, which is not looked at."""
    whole = classification(1_200, 20, 5, 2, seed=0) if dataset == "synthetic" else data.load(dataset)
    if validation:
        order = np.random.default_rng(1).permutation(len(whole.y_train))
        held, kept = np.split(order, [len(order) // 6])
        whole = replace(
            whole, x_train=whole.x_train[kept], y_train=whole.y_train[kept], x_test=whole.x_train[held],
            y_test=whole.y_train[held],
        )  # fmt: skip
    first = lambda size, most: np.sort(np.random.default_rng(0).permutation(size)[:most])  # noqa: E731
    a, b = first(len(whole.y_train), train), first(len(whole.y_test), test)
    return replace(
        whole, x_train=whole.x_train[a], y_train=whole.y_train[a], x_test=whole.x_test[b], y_test=whole.y_test[b]
    )


class AverageError(eqx.Module):
    """`error`: ‖x̄ − x*‖², of the average over nodes."""

    solution: Array

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        return {"error": jnp.sum(jnp.square(snapshot.x - self.solution.astype(snapshot.x.dtype)))}


def average_error(task: Task) -> tuple[AverageError]:
    return (AverageError(jnp.asarray(task.truth.solution)),)
