"""What delay, slow nodes and codes cost wave: the numbers of docs/wave.md.

    python docs/figures/wave.py     # about three minutes on two cores; writes wave.json

Eight nodes on a ring; node i has ½ (x − e_i)ᵀ R_i (x − e_i) with eigenvalues of R_i from 0.1 to 1, or SPARKLE on the
quadratics of exactness.py; full batches, float64. A run has arrived when every node stays within a tolerance of x*.
"""

from __future__ import annotations

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from common import arrived, worst_of, write  # noqa: E402
from printed import thousands  # noqa: E402

import decibel as db  # noqa: E402

NODES, SIZE, SLOW = 8, 20, 10
RING, LAZY = db.graphs.ring(NODES), db.graphs.ring(NODES).lazy()
CODES = {
    "plain": "wave",
    "8 bits": db.privacy.quantize("wave", 8),
    "4 bits": db.privacy.quantize("wave", 4),
    "2 bits, mixing ½": db.privacy.quantize("wave", 2, mixing=0.5),
    "top 30 %": db.privacy.top_k("wave", 0.3),
    "top 10 %, mixing ½": db.privacy.top_k("wave", 0.1, mixing=0.5),
    "random 50 %": db.privacy.random_k("wave", 0.5),
}
LOSSES, DELAYS = (0.0, 0.1, 0.3, 0.5), (0, 1, 2, 5, 20)


def make_data():
    rng = np.random.default_rng(3)
    bases = np.linalg.qr(rng.normal(size=(NODES, SIZE, SIZE)))[0]
    R = bases @ (rng.uniform(0.1, 1, (NODES, SIZE, 1)) * bases.transpose(0, 2, 1))
    return R, 2 * rng.normal(size=(NODES, SIZE))


R, E = make_data()
SOLUTION = np.linalg.solve(R.mean(0), np.einsum("nij,nj->ni", R, E).mean(0))


def loss(x, batch):
    return 0.5 * (x - batch["e"][0]) @ (batch["R"][0] @ (x - batch["e"][0]))


def method(strategy, alpha):
    return db.extra(alpha=alpha).with_strategies(lambda _: db.strategies.strategy(strategy))


def arrives(strategy, faults=(), *, alpha=0.3, tolerance=1e-8, graph=RING, steps=2000, column="step"):
    """The step, or the time, from which on every node stays within the tolerance; None if none does."""
    problem = db.Problem(loss, upper_data={"R": R[:, None], "e": E[:, None]}, x0=jnp.zeros(SIZE))
    result = db.solve(
        problem,
        method(strategy, alpha),
        graph,
        steps=steps,
        eval_every=1,
        metrics=[worst_of(SOLUTION)],
        faults=faults,
        progress=False,
    )
    row = arrived(result.trace["worst"], tolerance)
    return None if row is None else float(result.trace[column][row])


def measure():
    lost = lambda share: [db.faults.drop(share, one_way=True)] if share else []  # noqa: E731
    late = lambda delay: [db.faults.late(delay)] if delay else []  # noqa: E731
    delays = {
        name: {str(delay): arrives(name, late(delay), steps=6000 if delay == 20 else 2000) for delay in DELAYS}
        for name in ("wave", "edge-ed", "extra")
    }
    slow = db.faults.slow(0, SLOW)
    times = {}
    for graph, name in ((RING, "ring"), (LAZY, "lazy ring")):
        for alpha in (0.1, 0.3):
            same = {"alpha": alpha, "tolerance": 1e-6, "graph": graph, "column": "simulated_time", "steps": 3000}
            nobody = arrives("wave", db.faults.slow(0, 1), **same)
            times[f"{name}, α = {alpha}"] = {
                "nobody slow": nobody,
                "wave": arrives("wave", slow, **same),
                "wave, random times": arrives("wave", db.faults.slow(0, SLOW, random=True), **same),
                "extra": arrives("extra", slow, **same),
            }
    codes = {name: {str(share): arrives(code, lost(share)) for share in LOSSES} for name, code in CODES.items()}
    return {"delays": delays, "times": times, "codes": codes}


def tables(found):
    """The rows of docs/evidence/wave.md."""

    def cell(value):
        return "diverges" if value is None else thousands(value)

    rows = [f"| `{name}` | {' | '.join(map(cell, cells.values()))} |" for name, cells in found["delays"].items()]
    for name, cells in found["times"].items():
        base = cells["nobody slow"]
        ratios = [f"{thousands(cells[one])} ({cells[one] / base:.1f})" for one in list(cells)[1:]]
        rows.append(f"| {name} | {thousands(base)} | {' | '.join(ratios)} |")
    return rows + [f"| {name} | {' | '.join(map(cell, cells.values()))} |" for name, cells in found["codes"].items()]


if __name__ == "__main__":
    found = measure()
    write("wave", found)
    print(*tables(found), sep="\n")
