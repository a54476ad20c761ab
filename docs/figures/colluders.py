"""Which graphs protect against how many colluders: the limit that it takes, and how far honest sites are moved.

    python docs/figures/colluders.py            # about five minutes on two cores; writes colluders.json and .svg
    python docs/figures/colluders.py --figure   # draws colluders.svg again from colluders.json

Quadratics of eight sites that differ, `edge-ed` with a limit, 3,000 steps. Whatever a colluder sends, its link adds at
most the limit to a gradient, so that it is a linear term of an honest site's loss here: along the direction in which
the honest mean is flattest, with the same sign at all links, or with another at either side of the narrowest cut.
"""

from __future__ import annotations

from itertools import combinations

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from common import MEASURES, new_figure, read, save, write  # noqa: E402

import decibel as db  # noqa: E402
from decibel.silo.trust._colluders import tolerated  # noqa: E402

SITES, SIZE, ALPHA, STEPS = 8, 4, 0.3, 3000
GRAPHS = {
    "ring": db.graphs.ring(SITES),
    "torus 2×4": db.graphs.torus(2, 4),
    "exponential": db.graphs.exponential(SITES),
    "complete": db.graphs.complete(SITES),
}
MOST_COLLUDERS = 3
CASES = (("torus 2×4", 1), ("torus 2×4", 2), ("complete", 1), ("complete", 2))
LIMITS = (0.5, 0.8, 1.2, 1.7, 2.4, 3.4, 4.8)  # in the largest flow where nobody lies


def quadratics():
    """Curvatures from 0.5 to 2 in random directions, around centres that differ."""
    rng = np.random.default_rng(1)
    turned = np.linalg.qr(rng.normal(size=(SITES, SIZE, SIZE)))[0]
    curvatures = rng.uniform(0.5, 2.0, (SITES, SIZE))
    return np.einsum("nij,nj,nkj->nik", turned, curvatures, turned), 4 * rng.normal(size=(SITES, SIZE))


def loss(x, batch):
    away = x - batch["centre"]
    return (0.5 * jnp.einsum("si,sij,sj->s", away, batch["curvature"], away) - batch["push"] @ x).mean()


def solve(W, curvature, centre, push, limit):
    """Every site's x, and the flow of every link in the units of gradients."""
    data = {"curvature": curvature[:, None], "centre": centre[:, None], "push": push[:, None]}
    problem = db.Problem(loss, upper_data=data, x0=np.zeros(SIZE))
    method = db.ed(alpha=ALPHA).with_strategies(lambda _: db.strategies.edge_ed(limit))
    result = db.solve(problem, method, db.graphs.from_matrix(W), steps=STEPS, metrics=[], eval_every=STEPS)
    flows = np.linalg.norm(np.asarray(result.state.link_memory[0][0][0].per_link.flows.vectors), axis=-1) / ALPHA
    neighbours = [[j for j in range(len(W)) if j != i and W[i, j]] for i in range(len(W))]
    by_link = {(i, j): float(flows[i, neighbours[i].index(j)]) for i in range(len(W)) for j in neighbours[i] if i < j}
    return np.asarray(result.nodes.x), by_link


def narrowest_cut(name, colluders):
    """How many pushes there are for each link across the cut with the most, and the honest sites at one side."""
    W = np.asarray(GRAPHS[name].W)
    honest = [site for site in range(SITES) if site not in colluders]
    pushed = [site for site in honest for other in colluders if W[site, other]]
    links = [(a, b) for a, b in combinations(honest, 2) if W[a, b]]

    def pushes_a_link(inside):
        share = len(inside) / len(honest)
        pushes = sum((1 - share) if site in inside else share for site in pushed)
        return pushes / max(sum((a in inside) != (b in inside) for a, b in links), 1e-9)

    sides = (side for size in range(1, len(honest)) for side in combinations(honest, size))
    return max((pushes_a_link(side), side) for side in sides)


def farthest(name, colluders, limit):
    """The largest distance of an honest site from the honest sites' solution, of four attacks."""
    W, (curvature, centre) = np.asarray(GRAPHS[name].W), quadratics()
    honest = [site for site in range(SITES) if site not in colluders]
    pushes = np.asarray([sum(W[site, other] > 0 for other in colluders) for site in honest], float)
    signs = np.where(np.isin(honest, narrowest_cut(name, colluders)[1]), 1.0, -1.0)
    among = W[np.ix_(honest, honest)]
    among = among + np.diag(1 - among.sum(1))
    mean = curvature[honest].mean(0)
    solution = np.linalg.solve(mean, np.einsum("nij,nj->i", curvature[honest], centre[honest]) / len(honest))
    direction = np.linalg.eigh(mean)[1][:, 0]
    found = []
    for sides in (np.ones(len(honest)), signs):
        for sign in (1, -1):
            push = sign * limit * (sides * pushes)[:, None] * direction
            x, _ = solve(among, curvature[honest], centre[honest], push, limit)
            found.append(float(np.linalg.norm(x - solution, axis=1).max()))
    alone = np.linalg.norm(centre[honest] - solution, axis=1).max()
    bound = pushes.sum() / len(honest) / np.linalg.eigvalsh(mean)[0]  # for a limit of one
    return max(found), float(alone), float(bound)


def measure():
    curvature, centre = quadratics()
    found = {"limits": {}, "moved": []}
    flows = {}
    for name, graph in GRAPHS.items():
        _, flows[name] = solve(np.asarray(graph.W), curvature, centre, np.zeros((SITES, SIZE)), 1e9)
        largest = max(flows[name].values())
        rows = {one.colluders: one.limit / largest for one in tolerated(SITES, flows[name])}
        found["limits"][name] = {
            "largest flow": round(largest, 3),
            "neighbours": int(graph.degrees[0]),
            "by colluders": {count: round(limit, 3) for count, limit in rows.items() if np.isfinite(limit)},
        }
        print(name, found["limits"][name], flush=True)
    for name, count in CASES:
        largest = max(flows[name].values())
        sets = combinations(range(SITES), count)
        colluders = max(sets, key=lambda one: (*narrowest_cut(name, one), one))
        rows = [farthest(name, colluders, share * largest) for share in LIMITS]
        case = {
            "graph": name,
            "colluders": list(colluders),
            "distance": [round(moved, 3) for moved, _, _ in rows],
            "alone": round(rows[0][1], 3),
            "bound": [round(rows[0][2] * share * largest, 3) for share in LIMITS],
        }
        found["moved"].append(case)
        print(case, flush=True)
    return found


def table(found):
    """The rows of the page."""
    for name, row in found["limits"].items():
        limits = [row["by colluders"].get(str(count)) for count in range(1, MOST_COLLUDERS + 1)]
        cells = " | ".join("none" if limit is None else f"{limit:.2f}" for limit in limits)
        yield f"| {name} | {row['neighbours']} | {cells} |"


def draw(found):
    figure = new_figure(7.5, 5.2)
    axes = figure.subplots(2, 2, sharey=True, sharex=True)
    for axis, case in zip(axes.flat, found["moved"], strict=True):
        count = len(case["colluders"])
        axis.plot(LIMITS, case["distance"], "o-", label="the farthest honest site")
        axis.plot(LIMITS, case["bound"], color="C1", ls="--", label="k B/(μ m)")
        axis.axhline(case["alone"], color="C6", ls=":", label="a site alone")
        needed = found["limits"][case["graph"]]["by colluders"].get(str(count))
        if needed is None:
            axis.text(0.97, 0.03, "no limit keeps\nthem together", transform=axis.transAxes, ha="right", va="bottom")
        else:
            axis.axvline(needed, color="C3", label="smallest limit that keeps them together")
        axis.set(xscale="log", yscale="log", ylim=(1, 40))
        axis.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"], minor=False)
        axis.minorticks_off()
        axis.set_title(f"{case['graph']}, {count} of {SITES} collude")
    for axis in axes[-1]:
        axis.set_xlabel("limit / largest honest flow")
    for axis in axes[:, 0]:
        axis.set_ylabel("distance from the\nhonest sites' solution")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    save(figure, "colluders")


if __name__ == "__main__":
    if MEASURES:
        write("colluders", measure())
    draw(read("colluders"))
