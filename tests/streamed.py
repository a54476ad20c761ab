"""A problem over unequal nodes with samples of floats and integers, in memory and as sources that note what is read."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import decibel as db

COUNTS = (7, 5, 9, 6)
NODES = len(COUNTS)


def upper(x, y, batch):
    return jnp.mean((batch["a"] @ y - batch["b"]) ** 2 * (1 + batch["kind"].astype(y.dtype))) + 0.1 * jnp.sum(x**2)


def lower(x, y, batch):
    return jnp.mean((batch["a"] @ y - batch["b"] * jnp.exp(x[batch["kind"]])) ** 2) + 0.5 * jnp.sum(y**2)


def samples(counts=COUNTS, seed=0):
    """One pytree per node; a node's samples do not depend on how many nodes there are."""
    trees = []
    for node, count in enumerate(counts):
        rng = np.random.default_rng([seed, node])
        rows = {"a": rng.normal(size=(count, 3)).astype(np.float32), "b": rng.normal(size=count)}
        trees.append(rows | {"kind": rng.integers(0, 3, count)})
    return trees


class Noted:
    """A source that keeps the indices it was asked for."""

    def __init__(self, tree):
        self.tree, self.calls = tree, []

    def __len__(self):
        return len(self.tree["b"])

    def __getitem__(self, indices):
        self.calls.append(indices.copy())
        return {name: leaf[indices] for name, leaf in self.tree.items()}


class Failing(Noted):
    """One that raises at a call."""

    def __init__(self, tree, at):
        super().__init__(tree)
        self.at = at

    def __getitem__(self, indices):
        if len(self.calls) == self.at:
            raise OSError("the disk is gone")
        return super().__getitem__(indices)


def problem(upper_data, lower_data=None, **options):
    both = {"upper_data": upper_data, "lower_data": upper_data if lower_data is None else lower_data}
    return db.Problem(upper, lower, **both, x0=jnp.zeros(3), y0=jnp.zeros(3), **options)


def sources(trees, kind=Noted):
    return [kind(tree) for tree in trees]
