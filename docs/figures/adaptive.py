"""Measures what docs/adaptive.md says of badly scaled problems, and draws adaptive.svg.

python docs/figures/adaptive.py            # writes adaptive.json and adaptive.svg beside it
python docs/figures/adaptive.py --figure   # draws adaptive.svg again from adaptive.json
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from common import MEASURES, new_figure, quadratic, read, save, write
from matplotlib.axes import Axes

import decibel as db

NODES, SIZE, STEPS, EVERY = 8, 5, 2000, 20
RING = db.graphs.ring(NODES)
BADLY_SCALED = np.logspace(0, 4, SIZE)
ETAS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
CLOSE = 1e-6
DRAWS = range(10)


class Drawn(NamedTuple):
    """A problem, its solution, and the curvatures of every node."""

    problem: db.Problem
    solution: np.ndarray
    curvatures: np.ndarray


def drawn(scales: np.ndarray, seed: int = 0) -> Drawn:
    """Sums of squares with curvatures around `scales`, which differ from node to node."""
    rng = np.random.default_rng(seed)
    A = rng.uniform(0.5, 1.5, (NODES, SIZE)) * scales
    return Drawn(*quadratic(A, rng.normal(size=(NODES, SIZE))), A)


def curve(given: Drawn, method: db.Method, every: int = EVERY, graph: db.Graph = RING) -> list[float]:
    metric = db.metrics.distance(given.solution)
    options = {"steps": STEPS, "eval_every": every, "metrics": [metric], "progress": False}
    distances = db.solve(given.problem, method, graph, **options).trace["distance"]
    return [float(value) ** 0.5 for value in distances]


def best(curves: dict[float, list[float]], row: int) -> float:
    """Whose distance is the least in that row."""
    return min(curves, key=lambda rate: np.nan_to_num(curves[rate][row], nan=np.inf))


def scaled() -> dict[str, list[float]]:
    """Every rival with the best of its steps after 500 of them."""
    given, row = drawn(BADLY_SCALED), 500 // EVERY
    own = 1 / given.curvatures.max(1)
    ed = {rate: curve(given, db.ed(alpha=rate)) for rate in (2e-5, 4e-5, 6e-5, 8e-5, 1e-4, 1.2e-4, 1.5e-4, 2e-4)}
    nids = {rate: curve(given, db.nids(alpha=rate, node_steps=own)) for rate in (0.5, 1.0, 1.5, 1.9)}
    gt_ada = {rate: curve(given, db.gt_ada(alpha=rate)) for rate in ETAS}
    chosen = best(ed, row), best(nids, row), best(gt_ada, row)
    return {
        f"ED, α = {chosen[0]:g}, the best of 8": ed[chosen[0]],
        f"NIDS, α_i = {chosen[1]:g}/L_i, the best of 4": nids[chosen[1]],
        f"gt-ada, η = {chosen[2]:g}, the best of 6": gt_ada[chosen[2]],
        "ada-ed, η = 0.3 (default)": curve(given, db.ada_ed()),
        "ada-ed, η = 10": curve(given, db.ada_ed(alpha=10.0)),
    }


def scalar() -> dict[str, list[float]]:
    """Where all coordinates have one scale, and any step size will do."""
    given = drawn(np.ones(SIZE))
    return {f"η = {rate:g}": curve(given, db.ada_ed(alpha=rate, scalar=True)) for rate in (0.1, 1.0, 10.0, 100.0)}


def needed(make: Callable[..., db.Method], graph: db.Graph) -> dict[str, list[int | None]]:
    """Steps until the distance is 1e-6, on ten draws: with the default η, and with the best of six."""
    counts: dict[str, list[int | None]] = {"default": [], "best": []}
    for seed in DRAWS:
        given = drawn(BADLY_SCALED, seed)
        by_rate = {rate: steps_to(curve(given, make(alpha=rate), 5, graph), every=5) for rate in ETAS}
        counts["default"].append(by_rate[0.3])
        counts["best"].append(min(count for count in by_rate.values() if count is not None))
    return counts


def steps_to(distances: list[float], every: int) -> int | None:
    """The first row from which it is close; None if it never is."""
    close = np.asarray(distances) < CLOSE
    return int(np.argmax(close)) * every if close.any() else None


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    makers = {"ada-ed": db.ada_ed, "gt-ada": db.gt_ada}
    graphs = {"ring": RING, "complete, lazy": db.graphs.complete(NODES).lazy()}
    steps = {place: {name: needed(make, graph) for name, make in makers.items()} for place, graph in graphs.items()}
    write("adaptive", {"every": EVERY, "scaled": scaled(), "scalar": scalar(), "steps_to_1e-6": steps})


def draw() -> None:
    content = read("adaptive")
    figure = new_figure(7.5, 4.4)
    left, right = figure.subplots(1, 2, sharey=True)
    panel(left, content["scaled"], "Curvatures from 1 to 10,000")
    panel(right, content["scalar"], "ada-ed-scalar, one scale")
    left.set_ylabel("distance from the solution")
    save(figure, "adaptive")


def panel(ax: Axes, curves: dict[str, list[float]], title: str) -> None:
    for name, values in curves.items():
        style = "--" if name.startswith(("NIDS", "η = 100")) else "-"  # they lie on others
        ax.plot(np.arange(len(values)) * EVERY, np.maximum(values, 1e-17), style, label=name)
    ax.set(yscale="log", xlabel="step", title=title, ylim=(1e-17, 20))
    ax.legend(loc="upper left", bbox_to_anchor=(0, -0.2))


if __name__ == "__main__":
    if MEASURES:
        main()
    draw()
