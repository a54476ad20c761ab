"""Messages until Exact Diffusion arrives, with accelerated gossip: the table of docs/evidence/accelerated.md.

    python docs/figures/accelerated.py     # about two minutes on two cores; writes accelerated.json

A hundred nodes; node i has Σ_k a_ik (x_k − c_ik)²/2 with curvatures from 0.1 to 1, full batches, float64. A run has
arrived when every node stays within 1e-6 of x*. Every row has the best of its step sizes.
"""

from __future__ import annotations

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402
from common import arrived, quadratic, worst_of, write  # noqa: E402

import decibel as db  # noqa: E402

NODES, SIZE, TOLERANCE, MESSAGES = 100, 5, 1e-6, 40_000
GRAPHS = {"ring": db.graphs.ring(NODES), "torus": db.graphs.torus(10), "exponential": db.graphs.exponential(NODES)}
STEP_SIZES = (0.25, 0.5, 1.0, 1.5)
RNG = np.random.default_rng(0)
PROBLEM, SOLUTION = quadratic(RNG.uniform(0.1, 1, (NODES, SIZE)), RNG.normal(size=(NODES, SIZE)))


def arrives(graph, alpha):
    """The steps until all nodes have arrived; None if they have not after `MESSAGES` rounds."""
    options = {"steps": MESSAGES // graph.rounds, "eval_every": 20, "metrics": [worst_of(SOLUTION)], "progress": False}
    result = db.solve(PROBLEM, db.ed(alpha=alpha), graph, **options)
    row = arrived(result.trace["worst"], TOLERANCE)
    return None if row is None else int(result.trace["step"][row])


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
    write("accelerated", found)
    for name, row in found.items():
        graph, rounds = name.split(", ")
        cells = ["–"] * 2 if row["steps"] is None else [f"{row['steps']:,}", f"{row['rounds']:,}"]
        print(f"| {graph} | {rounds} | {row['rho']:.3f} | {' | '.join(cells)} |")
