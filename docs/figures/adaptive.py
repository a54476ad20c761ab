"""Measures what docs/adaptive.md says of badly scaled problems, and draws adaptive.svg.

python docs/figures/adaptive.py
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.figure import Figure

import decibel as db

NODES, SIZE, STEPS, EVERY = 8, 5, 2000, 20
RING = db.graphs.ring(NODES)
COLOURS = ("#0b6e6e", "#c2571a", "#5b4a9e", "#888888")


def problem() -> tuple[db.Problem, np.ndarray]:
    """Sums of squares with curvatures from 1 to 1e4, which differ from node to node; and the solution."""
    rng = np.random.default_rng(0)
    A, c = rng.uniform(0.5, 1.5, (NODES, SIZE)) * np.logspace(0, 4, SIZE), rng.normal(size=(NODES, SIZE))

    def loss(x, batch):
        return 0.5 * jnp.mean(jnp.sum(batch["A"] * (x - batch["c"]) ** 2, -1))

    data = {"A": A[:, None], "c": c[:, None]}
    return db.Problem(loss, upper_data=data, x0=jnp.zeros(SIZE)), (A * c).sum(0) / A.sum(0)


def curve(method: db.Method) -> list[float]:
    given, solution = problem()
    trace = db.solve(
        given, method, RING, steps=STEPS, eval_every=EVERY, metrics=[db.metrics.distance(solution)], progress=False
    ).trace
    return [float(value) ** 0.5 for value in trace["distance"]]


def scaled() -> dict[str, list[float]]:
    plain = {rate: curve(db.ed(alpha=rate)) for rate in (2e-5, 4e-5, 6e-5, 8e-5, 1e-4, 1.2e-4, 1.5e-4, 2e-4)}
    best = min(plain, key=lambda rate: np.nan_to_num(plain[rate][-1], nan=np.inf))
    return {
        f"ED, the best of eight steps (α = {best:g})": plain[best],
        "ada-ed, η = 0.3 (default)": curve(db.ada_ed()),
        "ada-ed, η = 10": curve(db.ada_ed(alpha=10.0)),
    }


def scalar() -> dict[str, list[float]]:
    """Where all coordinates have one scale, and any step size will do."""
    rng = np.random.default_rng(0)
    A, c = rng.uniform(0.5, 1.5, (NODES, SIZE)), rng.normal(size=(NODES, SIZE))

    def loss(x, batch):
        return 0.5 * jnp.mean(jnp.sum(batch["A"] * (x - batch["c"]) ** 2, -1))

    given = db.Problem(loss, upper_data={"A": A[:, None], "c": c[:, None]}, x0=jnp.zeros(SIZE))
    metric = db.metrics.distance((A * c).sum(0) / A.sum(0))
    return {
        f"η = {rate:g}": [
            float(value) ** 0.5
            for value in db.solve(
                given, db.ada_ed(alpha=rate, scalar=True), RING, steps=STEPS, eval_every=EVERY, metrics=[metric],
                progress=False,
            ).trace["distance"]
        ]
        for rate in (0.1, 1.0, 10.0, 100.0)
    }  # fmt: skip


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    content = {"every": EVERY, "scaled": scaled(), "scalar": scalar()}
    Path(__file__).with_suffix(".json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    matplotlib.rcParams.update({"font.size": 11, "svg.hashsalt": "adaptive"})
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    panels = zip(
        figure.subplots(1, 2),
        (content["scaled"], content["scalar"]),
        ("Curvatures from 1 to 10,000", "ada-ed-scalar, whatever the step size"),
        strict=True,
    )
    for ax, curves, title in panels:
        for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
            ax.plot(np.arange(len(values)) * EVERY, np.maximum(values, 1e-17), color=colour, label=name)
        ax.set(yscale="log", xlabel="step", ylabel="distance from the solution", title=title, ylim=(1e-17, 20))
        ax.grid(True, color="#dddddd", linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=9)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)


if __name__ == "__main__":
    main()
