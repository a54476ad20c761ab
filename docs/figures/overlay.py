"""The figure of `db.plot` in docs/recipes.md: three methods on one problem, by what they send."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np

import decibel as db


def main() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(8, 40, 3)) + 3 * rng.normal(size=(8, 1, 3))  # nodes differ
    problem = db.Problem(lambda x, batch: jnp.mean((x - batch) ** 2), upper_data=data, x0=jnp.ones(3))
    ring = db.graphs.ring(8)
    methods = (db.dsgd(alpha=0.3), db.ed(alpha=0.3), db.gt(alpha=0.3))
    distance = db.metrics.distance(data.mean((0, 1)))
    results = [db.solve(problem, method, ring, steps=60, eval_every=2, metrics=[distance]) for method in methods]
    db.plot(results, "distance", against="bytes").savefig(Path(__file__).with_suffix(".png"), dpi=120)


if __name__ == "__main__":
    main()
