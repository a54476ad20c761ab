"""A problem of one level with separable quadratic losses, to which tests add constraints and non-smooth terms."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import decibel as db
from decibel.methods._single_level import SingleLevel

NODES, SIZE = 8, 5
RING = db.graphs.ring(NODES)


def draw(seed):
    """(nodes, entries) the curvatures of every node's loss, and where it is least."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0.5, 1.5, (NODES, SIZE)), rng.normal(size=(NODES, SIZE))


A, C = draw(2)
BARE = (A * C).sum(0) / A.sum(0)  # the solution without a term


def loss(x, batch):
    return 0.5 * jnp.mean(jnp.sum(batch["A"] * (x - batch["c"]) ** 2, -1))


def problem(prox, A=A, C=C):
    return db.Problem(loss, upper_data={"A": A[:, None], "c": C[:, None]}, x0=jnp.full(SIZE, 0.1), prox_x=prox)


def bilevel(quadratic, prox, **options):
    given = quadratic.problem(**options)
    data = {"upper_data": given.upper_data, "lower_data": given.lower_data}
    return db.Problem(given.upper, given.lower, **data, x0=given.x0, y0=given.y0, prox_x=prox, **options)


def central(prox, gradient=lambda x: (A * (x - C)).mean(0), size=SIZE, α=0.3, steps=3000):
    """Proximal gradient on the average of everything, in NumPy."""
    x = np.full(size, 0.1)
    for _ in range(steps):
        x = prox(x - α * gradient(x), α)
    return x


def single(mixing):
    return SingleLevel(0.3, 1.0, db.strategies.strategy(mixing))
