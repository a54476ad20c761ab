"""What faults do to each strategy: distance to x* while messages are lost, and steps needed with stragglers.

    python docs/figures/faults.py            # about two minutes on two cores; writes faults.json and faults.svg
    python docs/figures/faults.py --figure   # draws faults.svg again from faults.json

SPARKLE on ten nodes of a ring whose quadratics differ; full batches, float64, parallel order, the step sizes below.
"""

from __future__ import annotations

import platform

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from common import MEASURES, new_figure, read, save, worst_of, write  # noqa: E402

import decibel as db  # noqa: E402

NODES, SIZE, STEPS, EVERY, TARGET = 10, 4, 6000, 20, 1e-6
RATES = {"alpha": 0.03, "beta": 0.1, "gamma": 0.1}
STRATEGIES = ("ed", "extra", "gt", "edge-ed", "wave", "diffusion")
FAULTS = {
    "none": None,
    "20 % of links down": db.faults.drop(0.2),
    "50 % of links down": db.faults.drop(0.5),
    "10 % of messages lost one way": db.faults.drop(0.1, one_way=True),
    "30 % of messages lost one way": db.faults.drop(0.3, one_way=True),
    "60 % of messages lost one way": db.faults.drop(0.6, one_way=True),
    "nodes pause, 10 % of steps": db.faults.pause(probability=0.1),
    "nodes pause, 50 % of steps": db.faults.pause(probability=0.5),
    "one node pauses, 90 % of steps": db.faults.pause(0, probability=0.9),
    "20 % of links one step late": db.faults.late(1, 0.2),
    "20 % of links three steps late": db.faults.late(3, 0.2),
    "all links one step late": db.faults.late(1),
}
DRAWN = "30 % of messages lost one way"


def make_data():
    rng = np.random.default_rng(1)
    positive = lambda A: A @ A.transpose(0, 2, 1) / SIZE + np.eye(SIZE)  # noqa: E731
    draw = lambda *shape: rng.normal(size=(NODES, *shape))  # noqa: E731
    lower = {"H": positive(draw(SIZE, SIZE) / 2), "B": draw(SIZE, SIZE) / 2, "c": 2 * draw(SIZE)}
    return lower, {"a": 2 * draw(SIZE), "e": 2 * draw(SIZE)}


LOWER, UPPER = make_data()


def lower(x, y, batch):
    H, B, c = batch["H"][0], batch["B"][0], batch["c"][0]
    return 0.5 * y @ (H @ y) - y @ (B @ x + c)


def upper(x, y, batch):
    return 0.5 * ((y - batch["a"][0]) ** 2).sum() + 0.5 * ((x - batch["e"][0]) ** 2).sum()


def problem():
    return db.Problem(
        upper,
        lower,
        upper_data={name: part[:, None] for name, part in UPPER.items()},
        lower_data={name: part[:, None] for name, part in LOWER.items()},
        x0=jnp.zeros(SIZE),
        y0=jnp.zeros(SIZE),
    )


def solution(nodes=slice(None)):
    """x* of some of the nodes."""
    H, B, c = (LOWER[name][nodes].mean(0) for name in "HBc")
    a, e = (UPPER[name][nodes].mean(0) for name in "ae")
    inverse = np.linalg.inv(H)
    T, t = inverse @ B, inverse @ c
    return np.linalg.solve(np.eye(SIZE) + T.T @ T, e + T.T @ (a - t))


def distances(strategy, faults):
    method = db.sparkle(strategy, **RATES, updates="simultaneous")
    options = {"eval_every": EVERY, "metrics": [worst_of(solution())], "faults": faults, "progress": False}
    trace = db.solve(problem(), method, db.graphs.ring(NODES), steps=STEPS, **options).trace
    return trace["step"].tolist(), trace["worst"].tolist()


def measure():
    runs = []
    for fault, faults in FAULTS.items():
        for strategy in STRATEGIES:
            steps, errors = distances(strategy, faults)
            reached = next((step for step, error in zip(steps, errors, strict=True) if error < TARGET), None)
            stopped = len(errors) <= STEPS // EVERY or not errors[-1] < 1e3
            runs.append(
                {
                    "fault": fault,
                    "strategy": strategy,
                    "steps_to_target": reached,
                    "end": None if stopped else errors[-1],
                    **({"errors": errors} if fault in ("none", DRAWN) else {}),
                }
            )
            print(f"{fault:32} {strategy:10} {reached} {errors[-1]:.1e}", flush=True)
    provenance = {"python": platform.python_version(), "jax": jax.__version__, "device": jax.devices()[0].device_kind}
    return {"steps": STEPS, "every": EVERY, "target": TARGET, "rates": RATES, "provenance": provenance, "runs": runs}


def draw(found):
    figure = new_figure(7.5, 3.6)
    axes = figure.subplots(1, 2, sharey=True)
    styles = dict(zip(STRATEGIES, ("-", "--", "-", "-", "--", "-"), strict=True))
    for ax, fault in zip(axes, ("none", DRAWN), strict=True):
        for run in found["runs"]:
            if run["fault"] == fault:
                steps = np.arange(len(run["errors"])) * found["every"]
                ax.semilogy(steps, run["errors"], styles[run["strategy"]], label=run["strategy"])
        ax.set(title=fault if fault != "none" else "nothing lost", xlabel="iteration", ylim=(1e-16, 10))
    axes[0].set_ylabel("largest distance of a node from x*")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(STRATEGIES))
    save(figure, "faults")


def table(found):
    """The rows of docs/faults.md: steps to the target, or how far the run ends from x*."""

    def cell(run):
        if run["steps_to_target"]:
            return f"{run['steps_to_target']:,}"
        return "diverges" if run["end"] is None else f"never ({run['end']:.2g})"

    rows = {}
    for run in found["runs"]:
        rows.setdefault(run["fault"], {})[run["strategy"]] = cell(run)
    return [f"| {fault} | {' | '.join(cells[name] for name in STRATEGIES)} |" for fault, cells in rows.items()]


if __name__ == "__main__":
    if MEASURES:
        write("faults", measure())
    found = read("faults")
    draw(found)
    print(*table(found), sep="\n")
