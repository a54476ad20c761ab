"""Cases of one method on one graph, run by any engine; and, as a script, one of several processes that run them."""

from __future__ import annotations

import sys
from functools import cache
from typing import NamedTuple

import jax
import numpy as np
import trajectories
from trajectories import NODES

import decibel as db
from decibel.core import Counts
from decibel.engines._program import RunConfig

STEPS = 3
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


def matching(first: int) -> db.Graph:
    """Half the edges of the ring: every node talks to one neighbour."""
    W = 2 / 3 * np.eye(NODES)
    for i in range(first, NODES, 2):
        W[i, (i + 1) % NODES] = W[(i + 1) % NODES, i] = 1 / 3
    return db.graphs.from_matrix(W, disconnected=True)


GRAPHS = {
    "ring": db.graphs.ring(NODES),
    "torus": db.graphs.torus(2, 4),
    "erdos-renyi": db.graphs.erdos_renyi(NODES, 0.5, seed=1),
    "time-varying": db.graphs.cycle(matching(0), matching(1)),
}
KINDS = tuple(GRAPHS)


class Case(NamedTuple):
    method: str
    graph: str
    dtype: str = "float64"
    batch_size: int | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.graph} {self.dtype} {self.batch_size or 0}"

    @classmethod
    def of(cls, method: str, kind: int, wide: bool = True) -> Case:
        """On the graph of that number, or a ring if the method does not take it. All samples where it or its place
        in the catalogue says so."""
        place = list(db.CATALOG).index(method)
        sampled = method != "interact" and (place + kind) % 3 == 0
        graph = KINDS[kind % len(KINDS)]
        if db.CATALOG[method].kind.centralized:
            graph = "complete"
        elif graph == "time-varying" and not takes(method):
            graph = "ring"
        return cls(method, graph, "float64" if wide else "float32", 2 if sampled else None)


problem = cache(trajectories.problem)


@cache
def takes(method: str) -> bool:
    """Whether the method runs on a graph that changes: EXTRA and flows kept per link do not."""
    entry = db.CATALOG[method]
    try:
        entry().validate(problem(entry.form, "float64"), db.Levels(x=GRAPHS["time-varying"]), None)
    except ValueError:
        return False
    return True


def run(case: Case, engine: db.Simulator | db.Cluster) -> tuple[list[jax.Array], Counts]:
    """Every array of the state after a few steps, and what they cost."""
    entry = db.CATALOG[case.method]
    graph = db.graphs.complete(NODES) if case.graph == "complete" else GRAPHS[case.graph]
    made, method, levels = problem(entry.form, case.dtype), entry(), db.Levels(x=graph)
    method.validate(made, levels, case.batch_size)
    started = engine.start(made, method, levels, RunConfig(case.batch_size))
    costs = started.advance(STEPS)
    assert costs is not None, f"{case} diverged"
    return jax.tree.leaves(started.state), costs


def assert_equal(case: Case, found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    within = TOLERANCE[case.dtype]
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.dtype in (case.dtype, "int32")  # the numbers of messages
        np.testing.assert_allclose(a, b, rtol=within, atol=within, err_msg=str(case))
    if case.graph != "complete":
        state = np.concatenate([leaf.reshape(NODES, -1) for leaf in expected if leaf.dtype == case.dtype], 1)
        assert np.abs(state[0] - state[1:]).max(1).min() > 10 * within, (
            f"{case}: nodes are so alike that exchanging two would not show"
        )


def worker(rank: int, count: int, port: int, out: str, *cases: str) -> None:
    """Leaves what its own nodes hold in `out`."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, rank)
    held = {}
    for number, text in enumerate(cases):
        method, graph, dtype, batch_size = text.split()
        case = Case(method, graph, dtype, int(batch_size) or None)
        for leaf, array in enumerate(run(case, db.Cluster())[0]):
            held[f"{number} {leaf}"] = np.concatenate([shard.data for shard in array.addressable_shards])
    np.savez(f"{out}/{rank}.npz", **held)


if __name__ == "__main__":
    rank, count, port = map(int, sys.argv[1:4])
    worker(rank, count, port, *sys.argv[4:])
