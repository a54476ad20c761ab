"""Do the flow forms last on an accelerator whose matrix products default to TF32? Run it on a GPU.

    python docs/figures/precision_gpu.py [OUT.json]

1. A ten-node ring of float32 quadratics, 100,000 steps, losses in the accelerator's default matmul precision: the flow
   forms against the printed rules mixed by a plain `W @ s` in the same precision.
2. Label cleaning on Fashion-MNIST (784-300-10, ten nodes on a ring, Dirichlet 0.1, 30 % of labels wrong, batch 50): ED,
   EXTRA, GT and D-SOBA for 20,000 steps, with the drift of the carries.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import decibel as db

NODES, SIZE, STEPS = 10, 64, 100_000


def quadratics() -> dict:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(NODES, 1, 128, SIZE)).astype(np.float32) / 128**0.5
    target = rng.normal(size=SIZE)
    target *= 12 / np.linalg.norm(target)
    own = target + rng.normal(size=(NODES, SIZE))
    b = np.einsum("nsmd,nd->nsm", A, own).astype(np.float32)
    H = np.einsum("nsmd,nsme->de", A.astype(np.float64), A.astype(np.float64))
    solution = np.linalg.solve(H, np.einsum("nsmd,nsm->d", A.astype(np.float64), b.astype(np.float64)))

    def loss(x, batch):
        # As a matrix product, so that the tensor cores take it.
        residual = jnp.matmul(batch["A"][0], jnp.stack([x, jnp.zeros_like(x)], 1))[:, 0] - batch["b"][0]
        return 0.5 * jnp.sum(residual**2)

    problem = db.Problem(loss, upper_data={"A": A, "b": b}, x0=jnp.zeros(SIZE, jnp.float32))
    graph = db.graphs.ring(NODES)
    rows = {}
    for method in (db.ed(alpha=0.05), db.extra(alpha=0.05), db.gt(alpha=0.05)):
        metrics = [db.metrics.distance(solution.astype(np.float32)), "invariant_x"]
        result = db.solve(problem, method, graph, steps=STEPS, eval_every=STEPS // 20, metrics=metrics)
        error = lambda row, trace=result.trace: float(np.sqrt(trace["distance"][row]))  # noqa: E731
        rows[f"{method.name}, flow"] = {"5k": error(1), "100k": error(-1), "mean(c)": result.trace["invariant_x"][-1]}
    W = jnp.asarray(graph.W, jnp.float32)
    gradient = jax.vmap(jax.grad(loss))

    def printed(name):
        def body(carry, _):
            s, before, d_before = carry
            d = 0.05 * gradient(s, {"A": data["A"], "b": data["b"]})
            if name == "ed":
                new = jnp.matmul(W, 2 * s - before - (d - d_before))
            else:
                new = jnp.matmul(W, 2 * s - before) - (d - d_before)
            return (new, s, d), None

        data = {"A": jnp.asarray(A), "b": jnp.asarray(b)}
        zero = jnp.zeros((NODES, SIZE), jnp.float32)
        d = 0.05 * gradient(zero, data)
        first = jnp.matmul(W, zero - d) if name == "ed" else zero - d
        run = jax.jit(lambda carry: jax.lax.scan(body, carry, None, length=STEPS // 20)[0])
        carry, errors = (first, zero, d), []
        for _ in range(20):
            carry = run(carry)
            gap = np.asarray(carry[0], np.float64) - solution
            errors.append(float(np.sqrt((gap**2).sum(1).mean())))
        return {"5k": errors[0], "100k": errors[-1]}

    return rows | {f"{name}, printed": printed(name) for name in ("ed", "extra")}


def label_cleaning(steps: int = 20_000) -> dict:
    task = db.tasks.label_cleaning("fashion-mnist", 10, model="mlp", corruption=0.3, heterogeneity=0.1, seed=0)
    graph = db.graphs.ring(10)
    rates = {"alpha": 400.0, "beta": 0.1, "gamma": 0.1, "theta": 0.2}
    methods = [db.sparkle(name, **rates) for name in ("ed", "extra", "gt")] + [db.dsoba(**rates)]
    rows = {}
    for method in methods:
        carries = ["invariant_x", "invariant_y", "invariant_z"] if method.name != "d-soba" else []
        begun = time.perf_counter()
        result = db.solve(
            task.problem, method, graph, steps=steps, batch_size=50, eval_every=500, metrics=[*task.metrics, *carries]
        )
        trace = result.trace
        at = int(np.searchsorted(trace["step"], 2000))
        rows[method.name] = {
            "test accuracy at 2,000": trace["test_accuracy"][at],
            "test accuracy at the end": trace["test_accuracy"][-1],
            "best": float(trace["test_accuracy"].max()),
            "clean weight": trace["clean_weight"][-1],
            "corrupted weight": trace["corrupted_weight"][-1],
            "found": trace["found"][-1],
            **{name: float(np.max(trace[name])) for name in carries},
            "microseconds per step": 1e6 * trace["seconds"][-1] / steps,
            "seconds in all": time.perf_counter() - begun,
            "stopped": result.stopped,
        }
        print(method.name, rows[method.name], flush=True)
    return rows


if __name__ == "__main__":
    found = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "matmul precision": str(jax.config.jax_default_matmul_precision),
        "quadratics": quadratics(),
    }
    print(json.dumps(found, indent=1), flush=True)
    found["label cleaning"] = label_cleaning()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
