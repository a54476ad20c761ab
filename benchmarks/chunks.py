"""What `node_chunk` saves: the memory beside the state of a step that takes some nodes' derivatives at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import decibel as db
from decibel.engines._program import RunConfig
from decibel.engines._run import Run
from decibel.graphs._graph import Levels
from decibel_studies.experiments.transformer import Transformer, next_byte_loss, start_transformer

from . import scale
from .records import record
from .timing import against, bytes_of, in_turns, steps_of

NODES, PART = 32, 4


def language_model() -> db.Problem:
    """Much is computed from few weights: a small transformer over bytes, on a mixture of two kinds of text."""
    rng = np.random.default_rng(0)
    context = 64
    windows = rng.integers(0, 256, (NODES, 33, context + 1), np.uint8)
    kind = np.broadcast_to(np.arange(NODES, dtype=np.int32)[:, None] % 2, (NODES, 25))
    return db.Problem(
        target_loss,
        mixed_loss,
        upper_data=windows[:, :8],
        lower_data=(windows[:, 8:], kind),
        x0=np.zeros(2),
        y0=start_transformer(64, 2, 4, context, rng),
    )


def target_loss(x: Array, y: Transformer, windows: Array) -> Array:
    return next_byte_loss(y, windows).mean()


def mixed_loss(x: Array, y: Transformer, batch: tuple[Array, Array]) -> Array:
    windows, kind = batch
    loss = (jax.nn.softmax(x)[kind] * next_byte_loss(y, windows)).mean()
    return loss + 1e-4 * jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(y)]).sum()


CASES: dict[str, tuple[Callable[[], db.Problem], int]] = {  # and the size of a batch
    "transformer, batch 8": (language_model, 8),
    "MLP 784-300-10, batch 50": (lambda: scale.problem(NODES), 50),
    "MLP 784-300-10, batch 500": (lambda: scale.problem(NODES), 500),
}


def measure(turns: int, note: Callable[[str], Any]) -> dict[str, Any]:
    rows = []
    for name, (make, batch) in CASES.items():
        note(name)
        rows.append({"case": name, "nodes": NODES, "node_chunk": PART, **compare(make(), batch, turns)})
    return record("chunks", rows, {f"memory in parts ÷ at once, {row['case']}": row["against"] for row in rows})


def compare(problem: db.Problem, batch: int, turns: int, steps: int = 2) -> dict[str, Any]:
    """Bytes beside the state, as the compiler plans them, and what the smaller plan costs in time, in turns."""
    method = db.sparkle("ed", alpha=0.1, beta=0.01, gamma=0.01, theta=0.3, updates="simultaneous")
    runs: dict[str, Run] = {
        name: db.Simulator(node_chunk=part).start(problem, method, Levels(x=db.graphs.ring(NODES)), RunConfig(batch))
        for name, part in (("at once", None), ("in parts", PART))
    }
    beside = {name: run.compile(steps).temp_bytes for name, run in runs.items()}
    return {
        "state_bytes": bytes_of(runs["at once"].state),
        "beside_bytes": beside,
        "against": beside["in parts"] / beside["at once"],
        "time_against": against(in_turns(steps_of(runs, steps), turns), "in parts", "at once"),
    }
