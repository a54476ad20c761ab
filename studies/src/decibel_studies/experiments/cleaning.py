"""Hyper-cleaning as studies take it: the set-up they share, and its task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict

import equinox as eqx
import jax.numpy as jnp

from decibel.tasks import Task, label_cleaning

from ..testbed.study import Rates
from .subsets import part

ROUND = 512  # entries of x are filled up to a multiple of it, so that all seeds fit into one program


@dataclass(frozen=True)
class CleaningSetup:
    dataset: str = "fashion-mnist"
    train: int | None = None  # all 60,000, a sixth of them for validation
    test: int | None = None
    nodes: int = 10
    hidden: int = 300
    heterogeneity: float = 0.1  # α of the Dirichlet shares
    regularization: float = 1e-3
    weight: float = 0.1  # of each neighbour on the sparse graph, a ring
    batch_size: int = 50
    steps: int = 8_000
    rows: int = 40
    theta: float = 0.2
    alpha: float = 100.0
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    def task(self, corruption: float) -> Callable[..., Task]:
        return partial(
            cleaning,
            self.dataset,
            self.nodes,
            train=self.train,
            test=self.test,
            hidden=self.hidden,
            corruption=corruption,
            heterogeneity=self.heterogeneity,
            regularization=self.regularization,
        )

    @property
    def rates(self) -> Rates:
        """Guesses, where no search was made."""
        return {"alpha": self.alpha, "beta": 0.1, "gamma": 0.1, "theta": self.theta}


class Size(TypedDict, total=False):
    """What the smaller sizes change."""

    dataset: str
    train: int
    test: int
    nodes: int
    hidden: int
    batch_size: int
    steps: int
    rows: int
    alpha: float
    seeds: tuple[int, ...]


SMOKE: Size = {
    "dataset": "digits",
    "train": 200,
    "test": 40,
    "nodes": 3,
    "hidden": 0,
    "batch_size": 4,
    "steps": 4,
    "rows": 2,
    "alpha": 1.0,
    "seeds": (0, 1),
}
SMALL: Size = {
    "train": 6_000,
    "test": 2_000,
    "hidden": 16,
    "batch_size": 32,
    "steps": 600,
    "rows": 10,
    "seeds": (0, 1, 2),
}


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
        part(dataset, train, test),
        nodes,
        model="mlp" if hidden else "linear",
        hidden=hidden or 1,
        corruption=corruption,
        heterogeneity=heterogeneity,
        regularization=regularization,
        seed=seed,
    )
    x = jnp.zeros(-(-task.problem.x0.size // ROUND) * ROUND, task.problem.x0.dtype)
    return replace(task, problem=eqx.tree_at(lambda problem: problem.x0, task.problem, x))
