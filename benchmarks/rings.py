"""Rings of very many nodes: what a step of SPARKLE-ED costs, against copying its state once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import decibel as db
from decibel.engines._program import RunConfig

from .records import record
from .timing import against, bytes_of, in_turns, steps_of

ENTRIES = 3  # of x and of y
SIZES = (10_000, 100_000, 1_000_000)
LARGEST = 10_000_000  # for an accelerator
STEPS = 10  # of a chunk


def measure(sizes: Sequence[int], turns: int, note: Callable[[str], Any]) -> dict[str, Any]:
    rows = []
    for nodes in sizes:
        note(f"{nodes:,} nodes")
        rows.append(cost(nodes, turns))
    ratios = {f"step ÷ copy of its state, {row['nodes']:,} nodes": row["against"] for row in rows}
    return record("rings", rows, ratios)


def cost(nodes: int, turns: int) -> dict[str, Any]:
    """Seconds to build the run, to compile, and of a step; bytes as the compiler plans them."""
    begun = time.perf_counter()
    graph = db.graphs.ring(nodes)
    method = db.sparkle("ed", alpha=0.02, beta=0.2, gamma=0.2)
    run = db.Simulator().start(problem(nodes), method, db.Levels(x=graph), RunConfig(None))
    built = time.perf_counter()
    program = run.compile(STEPS)
    compiled = time.perf_counter()
    run.advance(STEPS)
    copy = jax.jit(lambda state: jax.tree.map(jnp.negative, state))
    jax.block_until_ready(copy(run.state))
    programs = steps_of({"steps": run}, STEPS) | {"copies": lambda: copy(run.state)}
    seconds = in_turns(programs, turns, warm_up=0)
    return {
        "nodes": nodes,
        "build": built - begun,
        "compile": compiled - built,
        "seconds": float(np.median(seconds["steps"])) / STEPS,
        "against": against(seconds, "steps", "copies") / STEPS,
        "state_bytes": bytes_of(run.state),
        "beside_bytes": program.temp_bytes,
    }


def problem(nodes: int) -> db.Problem:
    """A quadratic of its own for every node, from one sample each."""
    draw = np.random.default_rng(0)
    targets = draw.standard_normal((nodes, 1, ENTRIES), np.float32)
    scales = draw.uniform(0.5, 2.0, (nodes, 1, ENTRIES)).astype(np.float32)
    return db.Problem(
        upper=lambda x, y, batch: jnp.mean((y - batch["target"]) ** 2) + 0.05 * jnp.sum(x**2),
        lower=lambda x, y, batch: jnp.mean(batch["scale"] * (y - x) ** 2),
        upper_data={"target": targets},
        lower_data={"scale": scales},
        x0=jnp.zeros(ENTRIES),
        y0=jnp.zeros(ENTRIES),
    )
