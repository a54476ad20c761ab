"""What a node sends until the error is 1e-8: ED with one peer a step and on fixed graphs, and gradient tracking.

    python docs/figures/one_peer.py            # ten minutes on two cores; writes one_peer.json and one_peer.svg
    python docs/figures/one_peer.py --figure   # draws one_peer.svg again from one_peer.json

Random heterogeneous quadratics of five entries, three of them for every number of nodes. Every method tries the same
step sizes on each problem, and the one that sends least counts. The error is that of the worst node, relative to that
of the start.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from common import MEASURES, new_figure, read, save, write
from printed import thousands

import decibel as db

SIZE, SEEDS, MOST, CHUNK = 5, (0, 1, 2), 1200, 5
STEP_SIZES = tuple(float(f"{step:.3g}") for step in np.geomspace(0.02, 1.6, 12))
NODES = (8, 16, 64)
FIXED = {"ring": db.graphs.ring, "exponential": db.graphs.exponential, "hypercube": db.graphs.hypercube}
FIXED |= {"complete": db.graphs.complete}
ONE_PEER = {
    "cube, random": db.graphs.one_peer_hypercube,
    "cube, in turn": lambda nodes: db.graphs.one_peer_hypercube(nodes, order="cyclic"),
    "random matchings": db.graphs.random_matchings,
}
TIMES = {"random matchings": 2, "cube, in turn": 3}  # κ by name, in "ed, larger κ": p, and 1.5/log₂ N
LARGER = "ed, larger κ"
TARGET = 1e-8


def method(name, kind, graph):
    if name == "gt":
        return db.gt(alpha=0.1)
    damping = TIMES[kind] * graph.damping if name == LARGER else None
    return db.single(db.strategies.ed(damping=damping), alpha=0.1)


def names(kind):
    return ("ed", "gt", LARGER) if kind in TIMES else ("ed", "gt")


def loss(x, batch):
    return 0.5 * x @ (batch["R"][0] @ x) - x @ batch["b"][0]


def problem(nodes, seed):
    """And its solution."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(nodes, SIZE, SIZE))
    R = np.eye(SIZE) + A @ A.transpose(0, 2, 1) / SIZE
    b = np.einsum("nij,nj->ni", R, rng.normal(size=(nodes, SIZE)))
    made = db.Problem(loss, upper_data={"R": R[:, None], "b": b[:, None]}, x0=jnp.zeros(SIZE))
    return made, np.linalg.solve(R.mean(0), b.mean(0))


def errors(name, kind, graph):
    """(steps, step sizes, seeds): relative errors after every CHUNK steps."""
    problems = [problem(graph.nodes, seed) for _ in STEP_SIZES for seed in SEEDS]
    alphas = [alpha for alpha in STEP_SIZES for _ in SEEDS]
    seeds = [seed for _ in STEP_SIZES for seed in SEEDS]
    many = db.BatchRun(
        [made for made, _ in problems],
        method(name, kind, graph),
        graph,
        batch_size=None,
        seeds=seeds,
        rates={"alpha": alphas},
    )
    solutions = np.stack([solution for _, solution in problems])[:, None]
    start = np.linalg.norm(solutions, axis=-1)
    rows = []
    while many.step < MOST:
        many.advance(CHUNK)
        x = np.asarray(many.state.x.s.tree)
        rows.append(np.linalg.norm(x - solutions, axis=-1).max(1) / start[:, 0])
        rows[-1][~many.alive] = np.inf
        if (np.min(rows, axis=0).reshape(len(STEP_SIZES), -1).min(0) < TARGET / 100).all():
            break
    return np.stack(rows).reshape(len(rows), len(STEP_SIZES), len(SEEDS))


def measured(name, kind, graph):
    """Rounds and vectors to the target with the best step size of each problem, and the error by step for the first."""
    found = errors(name, kind, graph)
    below = found < TARGET
    rounds = np.where(below.any(0), (below.argmax(0) + 1) * CHUNK, 10**9)
    best = rounds.argmin(0)
    peers = float(np.mean(graph.degrees)) * (2 if name == "gt" else 1)
    least = rounds.min(0)
    return {
        "rounds": [int(number) if number < 10**9 else None for number in least],
        "vectors a round": round(peers, 4),
        "vectors": float(np.median(least)) * peers if np.median(least) < 10**9 else None,
        "step sizes": [STEP_SIZES[place] for place in best],
        "errors": [float(f"{error:.3g}") for error in found[:, best[0], 0]],
    }


def measure_all():
    runs = {}
    for nodes in NODES:
        for kind, make in FIXED.items():
            runs[f"{nodes} ed {kind}"] = measured("ed", kind, make(nodes))
        for kind, make in ONE_PEER.items():
            for name in names(kind):
                runs[f"{nodes} {name} {kind}"] = measured(name, kind, make(nodes))
                print(nodes, name, kind, runs[f"{nodes} {name} {kind}"]["vectors"], flush=True)
    return runs


def keep(runs):
    setting = {"entries": SIZE, "seeds": SEEDS, "step sizes": STEP_SIZES, "most rounds": MOST, "target": TARGET}
    write("one_peer", {"setting": setting | {"jax": jax.__version__}, "runs": runs})


def table(content):
    """The rows of the page: vectors that a node sends, by number of nodes."""

    def vectors(nodes, name, kind):
        found = content["runs"][f"{nodes} {name} {kind}"]["vectors"]
        return "–" if found is None else thousands(found)

    rows = [("ed", kind) for kind in FIXED] + [(name, kind) for kind in ONE_PEER for name in names(kind)]
    return [f"| {name} | {kind} | {' | '.join(vectors(nodes, name, kind) for nodes in NODES)} |" for name, kind in rows]


COLORS = {"ring": "#999999", "hypercube": "#555555", "random matchings": "#0072B2", "gt": "#D55E00"}


def draw():
    content = read("one_peer")
    figure = new_figure(5.4, 3.6)
    axis = figure.subplots()
    drawn = [("ed", "ring"), ("ed", "hypercube"), ("gt", "random matchings"), ("ed", "random matchings")]
    for name, kind in drawn:
        run = content["runs"][f"{NODES[-1]} {name} {kind}"]
        sent = np.arange(1, len(run["errors"]) + 1) * CHUNK * run["vectors a round"]
        color = COLORS["gt" if name == "gt" else kind]
        axis.semilogy(sent, run["errors"], color=color, label=f"{name}, {kind}")
    axis.set(xlim=(0, 800), ylim=(1e-9, 2), xlabel="vectors sent by a node", ylabel="error of the worst node")
    axis.set_title(f"{NODES[-1]} nodes")
    axis.legend(frameon=False, fontsize=9)
    save(figure, "one_peer")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    if MEASURES:
        keep(measure_all())
    draw()
    print(*table(read("one_peer")), sep="\n")
