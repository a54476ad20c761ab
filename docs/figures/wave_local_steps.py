"""Time and bytes until wave, ED and EXTRA arrive with local steps and one slow node: a table of docs/evidence/wave.md.

    python docs/figures/wave_local_steps.py     # about ten minutes on two cores; writes wave_local_steps.json

Eight nodes on a ring, of which one computes ten times more slowly. Node i has Σ_k a_ik (x_k − c_ik)²/2 with curvatures
over a factor of 200, full batches, float64. A run has arrived when every node stays within 1e-6 of x*. Time is counted
in gradients of a node that is not slow, and messages take none. Every method has the best of its step sizes, by time.
"""

from __future__ import annotations

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402
from common import arrived, quadratic, worst_of, write  # noqa: E402
from printed import thousands  # noqa: E402

import decibel as db  # noqa: E402

NODES, SIZE, SLOW, TOLERANCE, GRADIENTS = 8, 5, 10, 1e-6, 24_000
RING, STRAGGLER = db.graphs.ring(NODES), db.faults.slow(0, SLOW)
STEP_SIZES = (0.15, 0.3, 0.45, 0.6, 0.8, 1.0)
RNG = np.random.default_rng(0)
PROBLEM, SOLUTION = quadratic(
    RNG.uniform(0.5, 1, (NODES, SIZE)) * np.logspace(-2, 0, SIZE), RNG.normal(size=(NODES, SIZE))
)
MADE = {"wave": db.wave, "wave, in step": db.wave, "ed": db.ed}


def arrives(name, τ, alpha):
    """The time and the bytes per node with which every node has arrived, and those of one exchange; None if none does.

    In step every iteration takes as long as the slow node: the run is that without it, and only its time differs.
    """
    faults = STRAGGLER if name == "wave" else None
    result = db.solve(
        PROBLEM,
        MADE[name](alpha=alpha, local_steps=τ),
        RING,
        steps=GRADIENTS // τ,
        eval_every=4,
        metrics=[worst_of(SOLUTION)],
        faults=faults,
        progress=False,
    )
    row = arrived(result.trace["worst"], TOLERANCE)
    if row is None:
        return None
    length = τ if name == "wave" else τ * SLOW
    return {
        "alpha": alpha,
        "iterations": int(result.trace["step"][row]),
        "time": float(result.trace["step"][row]) * length,
        "kilobytes": float(result.trace["bytes"][row]) / 1000,
    }


def measure():
    found = {}
    for name in MADE:
        for τ in (1, 2, 4, 8):
            runs = [run for alpha in STEP_SIZES if (run := arrives(name, τ, alpha)) is not None]
            found[f"{name}, τ = {τ}"] = min(runs, key=lambda run: run["time"]) if runs else None
    return found


def table(found):
    """The rows of docs/evidence/wave.md."""
    for name, run in found.items():
        cells = ["–"] * 3 if run is None else [run["alpha"], thousands(run["time"]), thousands(run["kilobytes"])]
        yield f"| {name} | {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    found = measure()
    write("wave_local_steps", found)
    print(*table(found), sep="\n")
