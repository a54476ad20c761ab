"""One node: SOBA in microseconds an iteration, on batches drawn at random and walking through a shuffled order.

    python -m benchmarks.single_node [--json benchmarks/results/single_node.json]

Logistic regression 20,000 × 22 with a penalty per coordinate, and label cleaning 20,000 × 784 × 10 with a linear model;
batches of 64, float32.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

import decibel as db
from decibel.engines._program import RunConfig
from decibel.graphs._graph import Levels

from .records import record, write
from .timing import seconds_of, steps_of

SAMPLES, BATCH = 20_000, 64


def logistic(features: int = 22) -> db.Problem:
    draw = np.random.default_rng(0)
    a = draw.standard_normal((1, SAMPLES, features), np.float32)
    b = np.sign(a @ draw.standard_normal(features, np.float32))

    def upper(x: Array, y: Array, sample: tuple[Array, Array]) -> Array:
        return jax.nn.softplus(-sample[1] * (sample[0] @ y)).mean()

    def lower(x: Array, y: Array, sample: tuple[Array, Array]) -> Array:
        return upper(x, y, sample) + 0.5 * (jnp.exp(x) * y * y).sum()

    zeros = jnp.zeros(features)
    return db.Problem(upper, lower, upper_data=(a, b), lower_data=(a, b), x0=zeros, y0=zeros)


def cleaning(features: int = 784, classes: int = 10) -> db.Problem:
    draw = np.random.default_rng(0)
    a = draw.standard_normal((1, SAMPLES, features), np.float32)
    labels = draw.integers(0, classes, (1, SAMPLES)).astype(np.int32)
    numbers = np.arange(SAMPLES, dtype=np.int32)[None]

    def upper(x: Array, y: Array, sample: tuple[Array, ...]) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(sample[0] @ y, sample[1]).mean()

    def lower(x: Array, y: Array, sample: tuple[Array, ...]) -> Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(sample[0] @ y, sample[1])
        return (jax.nn.sigmoid(x[sample[2]]) * losses).mean() + 0.1 * (y * y).sum()

    x0, y0 = jnp.zeros(SAMPLES), jnp.zeros((features, classes))
    return db.Problem(upper, lower, upper_data=(a, labels), lower_data=(a, labels, numbers), x0=x0, y0=y0)


def microseconds(problem: db.Problem, sampling: str, steps: int, repeat: int = 7) -> float:
    method = db.soba(alpha=0.05, beta=0.1, gamma=0.1)
    alone = Levels(x=db.graphs.complete(1))
    run = db.Simulator().start(problem, method, alone, RunConfig(BATCH, sampling=sampling))
    run.compile(steps)
    return 1e6 * min(seconds_of(steps_of({"": run}, steps)[""], repeat, warm_up=0)) / steps


def main() -> None:
    config = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    config.add_argument("--json", type=Path)
    options = config.parse_args()
    rows: list[dict[str, Any]] = []
    for name, problem, steps in (("logistic", logistic(), 5000), ("label cleaning", cleaning(), 500)):
        found = {sampling: microseconds(problem, sampling, steps) for sampling in ("random", "shuffle-once")}
        rows.append({"case": name, "steps": steps, "µs": found})
        print(f"{name:16} random {found['random']:8.1f} µs   shuffle-once {found['shuffle-once']:8.1f} µs")
    if options.json:
        ratios = {
            f"{row['case']}: shuffle-once ÷ random": row["µs"]["shuffle-once"] / row["µs"]["random"] for row in rows
        }
        write(record("single_node", rows, ratios), options.json)


if __name__ == "__main__":
    main()
