"""A network from PyTorch and its twin in JAX, in microseconds an iteration, in turns; and how far apart their y end.

    python -m benchmarks.torch_door [--json benchmarks/results/torch_door.json]

Label cleaning with an MLP over a ring of ten nodes, by SPARKLE-ED in float32, batches of 32. Needs the extra `[torch]`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
import torch.nn.functional as F
from jax import Array

import decibel as db
from decibel.engines._program import RunConfig
from decibel.engines._run import Run
from decibel.graphs._graph import Levels

from .records import record, write

NODES, SAMPLES, BATCH, CLASSES = 10, 500, 32, 10
SIZES = {"small": (20, 20), "digits": (64, 128), "images": (784, 200)}  # features and hidden units
STEPS = {"small": 1000, "digits": 300, "images": 40}  # of a turn


def problems(features: int, hidden: int) -> tuple[db.Problem, db.Problem]:
    """The problem by PyTorch, and by JAX."""
    draw = np.random.default_rng(0)
    inputs = draw.standard_normal((NODES, SAMPLES, features), np.float32) / np.float32(np.sqrt(features) / 4)
    labels = (inputs @ draw.standard_normal((features, CLASSES), np.float32)).argmax(-1).astype(np.int32)
    data = inputs, labels, np.arange(NODES * SAMPLES, dtype=np.int32).reshape(NODES, SAMPLES)
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(features, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, CLASSES)
    )  # fmt: skip

    def upper(x: Any, module: Any, batch: Any) -> Any:
        return F.cross_entropy(module(batch[0]), batch[1])

    def lower(x: Any, module: Any, batch: Any) -> Any:
        losses = F.cross_entropy(module(batch[0]), batch[1], reduction="none")
        ridge = sum(parameter.square().sum() for parameter in module.parameters())
        return (torch.sigmoid(x[batch[2]]) * losses).mean() + 1e-3 * ridge

    def misfit(y: dict[str, Array], batch: Any) -> Array:
        hidden = jax.nn.relu(batch[0] @ y["0.weight"].T + y["0.bias"])
        scores = hidden @ y["2.weight"].T + y["2.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch[1])

    def lower_twin(x: Array, y: dict[str, Array], batch: Any) -> Array:
        ridge = sum(jnp.sum(leaf**2) for leaf in y.values())
        return (jax.nn.sigmoid(x[batch[2]]) * misfit(y, batch)).mean() + 1e-3 * ridge

    x0 = np.zeros(NODES * SAMPLES, np.float32)
    door = db.torch.problem(module, upper=upper, lower=lower, upper_data=data, lower_data=data, x0=x0)
    twin = db.Problem(
        lambda x, y, batch: misfit(y, batch).mean(), lower_twin, upper_data=data, lower_data=data, x0=x0, y0=door.y0
    )
    return door, twin


def start(problem: db.Problem) -> Run:
    method = db.sparkle("ed", alpha=0.5, beta=0.1, gamma=0.1, theta=0.3)
    return db.Simulator().start(problem, method, Levels(x=db.graphs.ring(NODES)), RunConfig(BATCH))


def apart(one: Run, other: Run) -> float:
    """The largest difference between entries of y."""
    gaps = jax.tree.map(lambda a, b: float(abs(a - b).max()), one.state.y, other.state.y)
    return max(jax.tree.leaves(gaps))


def measure(name: str, repeat: int = 15) -> dict[str, Any]:
    door, twin = runs = [start(problem) for problem in problems(*SIZES[name])]
    for run in runs:
        run.advance(200)
    gap = apart(door, twin)
    steps, found = STEPS[name], ([], [])
    compiling = []
    for run in runs:
        begun = time.perf_counter()
        run.compile(steps)
        compiling.append(time.perf_counter() - begun)
    for turn in range(repeat):
        for i in (0, 1) if turn % 2 else (1, 0):
            begun = time.perf_counter()
            runs[i].advance(steps)
            found[i].append((time.perf_counter() - begun) / steps)
    each = sorted(a / b for a, b in zip(*found, strict=True))
    return {
        "case": name,
        "PyTorch, µs": 1e6 * min(found[0]),
        "JAX, µs": 1e6 * min(found[1]),
        "ratio of the fastest turns": min(found[0]) / min(found[1]),
        "median ratio of turns": each[len(each) // 2],
        "y apart after 200 steps": gap,
        "compiling, s": dict(zip(("PyTorch", "JAX"), compiling, strict=True)),
    }


def main() -> None:
    config = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    config.add_argument("--json", type=Path)
    options = config.parse_args()
    rows = [measure(name) for name in SIZES]
    for row in rows:
        print("; ".join(f"{key} {value:.3g}" if isinstance(value, float) else f"{value}" for key, value in row.items()))
    if options.json:
        ratios = {f"{row['case']}: PyTorch ÷ JAX": row["ratio of the fastest turns"] for row in rows}
        write(record("torch_door", rows, ratios), options.json)


if __name__ == "__main__":
    main()
