"""What computing in bfloat16 does to a run whose state is carried in float32.

    python docs/figures/compute_precision.py   # about a minute on two cores; writes compute_precision.json beside it

The ring and the least-squares data of drift.py; every strategy takes 20,000 full-batch steps. Written down are the
distance to x* (measured in float64) at a quarter, half and the whole of the run, and the size of the mean of the
carries, which must stay zero.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import decibel as db

HERE = Path(__file__).parent
NODES, SAMPLES, SIZE, STEPS = 10, 20, 5, 20_000
METHODS = {"ed": db.ed, "extra": db.extra, "gt": db.gt}


def make_data():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(NODES, SAMPLES, SIZE)).astype(np.float32)
    own = 2 * rng.normal(size=SIZE) + 2 * rng.normal(size=(NODES, SIZE))  # each node would like an x of its own
    return A, np.einsum("nsd,nd->ns", A, own).astype(np.float32)


def loss(x, batch):
    A, b = batch
    return 0.5 * jnp.mean((A @ x - b) ** 2)


def measure(name, precision, data, best):
    problem = db.Problem(loss, upper_data=data, x0=np.zeros(SIZE, np.float32))
    distance = lambda snapshot: jnp.linalg.norm(snapshot.x - best.astype(np.float32))  # noqa: E731
    result = db.solve(
        problem,
        METHODS[name](alpha=0.05),
        db.graphs.ring(NODES),
        steps=STEPS,
        eval_every=STEPS // 4,
        metrics=[distance],
        precision=precision,
        progress=False,
    )
    column = next(column for column in result.trace if "lambda" in column)
    carry = np.asarray(result.state.x.carry[0].tree, np.float64)
    return {
        "strategy": name,
        "precision": precision or "float32",
        "distance": [float(value) for value in result.trace[column][1:]],
        "mean_of_carry": float(np.abs(carry.mean(0)).max()),
        "size_of_carry": float(np.abs(carry).max()),
    }


def table(rows):
    """The rows of docs/evidence/drift.md."""
    for row in rows:
        first, second, _, last = map(shown, row["distance"])
        cells = " | ".join([first, second, last, shown(row["mean_of_carry"])])
        yield f"| `{row['strategy']}` | {row['precision']} | {cells} |"


def shown(number):
    return f"{number:.2g}" if number > 1e-4 else f"{number:.1e}".replace("e-0", "e-")


if __name__ == "__main__":
    A, b = make_data()
    wide = A.reshape(-1, SIZE).astype(np.float64), b.reshape(-1).astype(np.float64)
    best = np.linalg.lstsq(*wide, rcond=None)[0]
    rows = [measure(name, precision, (A, b), best) for name in METHODS for precision in (None, "bfloat16")]
    place = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "python": platform.python_version()}
    (HERE / "compute_precision.json").write_text(
        json.dumps({"steps": STEPS, "place": place, "rows": rows}, indent=1) + "\n"
    )
    print(*table(rows), sep="\n")
