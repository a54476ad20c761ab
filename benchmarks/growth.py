"""How the cost of a step grows with nodes, degree, dimension, batch and Neumann terms, for every method.

One of them grows at a time from the same middle. The slope is that of the last three sizes on logarithmic scales: 1
means twice the size, twice the cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import networkx as nx
import numpy as np

import decibel as db
from decibel.engines._program import RunConfig
from decibel.methods._dense_hessian import MatrixMethod

from .cases import Case, regression
from .records import record


class Size(NamedTuple):
    nodes: int = 32
    degree: int = 2
    dimension: int = 64  # of x and of y
    batch: int = 16
    terms: int = 10


SIZES = {
    "nodes": (8, 32, 128, 512),
    "degree": (2, 4, 8, 16),
    "dimension": (16, 64, 256, 1024),
    "batch": (4, 16, 64, 256),
    "terms": (4, 16, 64, 256),
}
SAMPLES = 256  # of a node and level
LENGTH = 16  # steps of a chunk
SECONDS, FEWEST = 0.1, 3  # that a size is timed for, and chunks
LARGEST_MATRIX = 256  # dimension up to which methods that send matrices are measured
FITTED = 3  # sizes
FAMILIES = ("auxiliary level", "inner loops", "inverse at the node", "matrices", "one level")


def methods() -> list[str]:
    """All but the mixtures, whose costs lie between those of their parts."""
    return [name for name, entry in db.CATALOG.items() if not entry.mixture]


def measure(names: Sequence[str], sizes: dict[str, Sequence[int]], note: Callable[[str], Any]) -> dict[str, Any]:
    rows = []
    for name in names:
        note(name)
        done: dict[Size, dict[str, Any]] = {}
        for axis, values in sizes.items():
            for value in values if _grows(name, axis) else ():
                size = Size()._replace(**{axis: value})
                if size.dimension > LARGEST_MATRIX and family(name) == "matrices":
                    continue
                done[size] = done.get(size) or cost(name, size)
                rows.append({"method": name, "family": family(name), "axis": axis, "size": value, **done[size]})
    return record("growth", rows, {}, middle=Size()._asdict(), slopes=slopes(rows))


def slopes(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """{method: {axis: {"time": slope, "memory": slope}}}"""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for method, axis in dict.fromkeys((row["method"], row["axis"]) for row in rows):
        mine = [row for row in rows if (row["method"], row["axis"]) == (method, axis)][-FITTED:]
        if len(mine) > 1:
            logs = np.log([[row["size"], row["µs"], row["bytes"]] for row in mine])
            found.setdefault(method, {})[axis] = {
                what: float(np.polyfit(logs[:, 0], logs[:, column], 1)[0])
                for what, column in (("time", 1), ("memory", 2))
            }
    return found


def family(name: str) -> str:
    entry = db.CATALOG[name]
    if issubclass(entry.kind, MatrixMethod):
        return "matrices"
    if entry.form == "single":
        return "one level"
    if entry.loops == 2:
        return "inner loops"
    return "auxiliary level" if "z" in entry().strategies else "inverse at the node"


def _grows(name: str, axis: str) -> bool:
    """Whether the method has such a size: SOBA's graph is the complete one, and not all have Neumann terms."""
    return not (axis == "degree" and db.CATALOG[name].kind.centralized) and (axis != "terms" or _takes_terms(name))


def _takes_terms(name: str) -> bool:
    try:
        db.CATALOG[name](terms=2)
    except TypeError:
        return False
    return True


def cost(name: str, size: Size) -> dict[str, Any]:
    """Microseconds of a step, and bytes that its compiled chunk holds beside the data: state and temporaries."""
    run = start(name, size)
    chunk, _, beside = run.compile(LENGTH)
    arrays, state, first = eqx.filter(run.program, eqx.is_array), run.state, np.int32(0)
    times: list[float] = []
    while len(times) < 1 + FEWEST or sum(times[1:]) < SECONDS:  # the first warms up
        begun = time.perf_counter()
        state, *_ = jax.block_until_ready(chunk(arrays, state, first))
        times.append(time.perf_counter() - begun)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + beside
    return {"µs": 1e6 * float(np.median(times[1:])) / LENGTH, "bytes": held}


def start(name: str, size: Size) -> Any:
    entry = db.CATALOG[name]
    whole = name == "interact"  # it takes all samples
    case = regression("growth", size.nodes, size.dimension, size.batch, size.batch if whole else SAMPLES)
    method = entry(terms=size.terms) if _takes_terms(name) else entry()
    around = nx.circulant_graph(size.nodes, range(1, size.degree // 2 + 1))
    graph = db.graphs.complete(size.nodes) if entry.kind.centralized else db.graphs.from_networkx(around)
    batch = None if whole else size.batch
    return db.Simulator().start(problem(case, entry.form), method, db.Levels(x=graph), RunConfig(batch))


def problem(case: Case, form: str) -> db.Problem:
    if form == "single":
        alone = lambda x, batch: case.upper(x, x, batch)  # noqa: E731
        return db.Problem(alone, upper_data=case.upper_data, x0=case.x0)
    return case.problem(personal=form == "personal")
