"""Messages until Exact Diffusion arrives, with accelerated gossip: the table of docs/evidence/accelerated.md.

    python docs/figures/accelerated.py     # about two minutes on two cores; writes accelerated.json

A hundred nodes; node i has Σ_k a_ik (x_k − c_ik)²/2 with curvatures from 0.1 to 1, full batches, float64. A run has
arrived when every node stays within 1e-6 of x*. Every row has the best of its step sizes.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import decibel as db  # noqa: E402

NODES, SIZE, TOLERANCE, MESSAGES = 100, 5, 1e-6, 40_000
GRAPHS = {"ring": db.graphs.ring(NODES), "torus": db.graphs.torus(10), "exponential": db.graphs.exponential(NODES)}
STEP_SIZES = (0.25, 0.5, 1.0, 1.5)
RNG = np.random.default_rng(0)
A, C = RNG.uniform(0.1, 1, (NODES, SIZE)), RNG.normal(size=(NODES, SIZE))
SOLUTION = (A * C).sum(0) / A.sum(0)


def loss(x, batch):
    return 0.5 * jnp.mean(jnp.sum(batch["a"] * (x - batch["c"]) ** 2, -1))


PROBLEM = db.Problem(loss, upper_data={"a": A[:, None], "c": C[:, None]}, x0=jnp.zeros(SIZE))


def worst(snapshot):
    return jnp.abs(snapshot.nodes.x - SOLUTION).max()


def arrives(graph, alpha):
    """The steps until all nodes have arrived; None if they have not after `MESSAGES` rounds."""
    options = {"steps": MESSAGES // graph.rounds, "eval_every": 20, "metrics": [worst], "progress": False}
    result = db.solve(PROBLEM, db.ed(alpha=alpha), graph, **options)
    errors = np.asarray(result.trace["worst"])
    late = np.flatnonzero(~(errors < TOLERANCE))
    return None if late[-1] + 1 >= len(errors) else int(result.trace["step"][late[-1] + 1])


def measure():
    found = {}
    for name, graph in GRAPHS.items():
        for rounds in (1, 2, 4, 8, 16, 32) if name == "ring" else (1, 2, 4, 8):
            mixed = graph.accelerated(rounds)
            steps = [steps for alpha in STEP_SIZES if (steps := arrives(mixed, alpha)) is not None]
            best = min(steps) if steps else None
            found[f"{name}, {rounds}"] = {"rho": mixed.rho, "steps": best, "rounds": best and best * rounds}
    return found


if __name__ == "__main__":
    found = measure()
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found.items():
        graph, rounds = name.split(", ")
        cells = ["–"] * 2 if row["steps"] is None else [f"{row['steps']:,}", f"{row['rounds']:,}"]
        print(f"| {graph} | {rounds} | {row['rho']:.3f} | {' | '.join(cells)} |")
