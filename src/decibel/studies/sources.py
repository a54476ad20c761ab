"""Data as studies take them: parts of a set, a validation part in the place of the test part, tasks of one shape."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..metrics import Snapshot
from ..tasks import Task, data, label_cleaning
from ..tasks.synthetic import classification

ROUND = 512  # entries of x are filled up to a multiple of it, so that all seeds fit into one program


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


def cleaning(
    dataset: str = "fashion-mnist",
    nodes: int = 10,
    *,
    train: int | None = None,
    test: int | None = None,
    hidden: int = 300,
    corruption: float = 0.3,
    heterogeneity: float | None = 0.1,
    regularization: float = 1e-3,
    seed: int = 0,
) -> Task:
    """`label_cleaning` with an MLP (without hidden units: linear), whose x has a few entries at the end that stand for
    no sample: deals differ in size by a few samples from seed to seed, and with these entries, which never move, x has
    one size for all."""
    task = label_cleaning(
        part(dataset, train, test), nodes, model="mlp" if hidden else "linear", hidden=hidden or 1,
        corruption=corruption, heterogeneity=heterogeneity, regularization=regularization, seed=seed,
    )  # fmt: skip
    x = jnp.zeros(-(-task.problem.x0.size // ROUND) * ROUND, task.problem.x0.dtype)
    return replace(task, problem=eqx.tree_at(lambda problem: problem.x0, task.problem, x))


class AverageError(eqx.Module):
    """`error`: ‖x̄ − x*‖², of the average over nodes."""

    solution: Array

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        return {"error": jnp.sum(jnp.square(snapshot.x - self.solution.astype(snapshot.x.dtype)))}


def average_error(task: Task) -> tuple[AverageError]:
    return (AverageError(jnp.asarray(task.truth.solution)),)
