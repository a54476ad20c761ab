"""The work of `decibel graphs`: what families of graphs cost and how fast they mix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from rich.table import Table

from ..core._optional import optional
from ..graphs._graph import Graph, GraphSequence, Topology
from ._registry import make_graph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES = ("ring", "grid", "torus", "exponential", "one_peer_exponential", "erdos_renyi", "star", "complete")
DENSE = 1000  # nodes up to which all eigenvalues are computed


class Surveyed(TypedDict):
    """A graph in numbers."""

    family: str
    name: str
    nodes: int
    degree: float
    most: float
    gap: float
    lambda_min: float
    bytes: float


def survey(names: Sequence[str], nodes: int, entries: int, itemsize: int = 4) -> tuple[list[Topology], list[Surveyed]]:
    """The graphs, and a row for each. `bytes`: what a node sends, on average, to share `entries` numbers once."""
    topologies = [make_graph(name, nodes) for name in names or FAMILIES]
    rows: list[Surveyed] = [
        {
            "family": name,
            "name": graph.name,
            "nodes": graph.nodes,
            "degree": float(np.mean(graph.degrees)),
            "most": float(np.max(graph.degrees, initial=0)),
            "gap": graph.spectral_gap,
            "lambda_min": graph.lambda_min,
            "bytes": float(np.mean(graph.degrees)) * entries * itemsize,
        }
        for name, graph in zip(names or FAMILIES, topologies, strict=True)
    ]
    return topologies, rows


def table(rows: Sequence[Surveyed], entries: int) -> Table:
    overview = Table(box=None, padding=(0, 2, 0, 0))
    overview.add_column("graph")
    for heading in ("neighbours", "at most", "1 − ρ", "λ_min", f"bytes for {entries} numbers"):
        overview.add_column(heading, justify="right")
    for row in rows:
        numbers = (row["degree"], row["most"], row["gap"], row["lambda_min"])
        overview.add_row(row["name"], *(f"{number:.3g}" for number in numbers), f"{row['bytes']:,.0f}")
    return overview


def save(graphs: Sequence[Topology], path: Path) -> Path:
    """Drawings above, and below them the spectra: eigenvalues of W, or singular values of a period's product."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn(graphs).savefig(path, dpi=150)
    return path


def drawn(graphs: Sequence[Topology]) -> Figure:
    with optional("matplotlib", caller="decibel graphs --out", extra="plot"):
        from matplotlib.figure import Figure

    wide = len(graphs)
    figure = Figure(figsize=(max(2.9 * wide, 5.0), 6.0), layout="constrained")
    axes = figure.subplots(2, wide, squeeze=False)
    for column, graph in enumerate(graphs):
        above, below = axes[:, column]
        graph.phases[0].draw(above)
        above.set_title(f"{graph.name}\nN = {graph.nodes}, 1 − ρ = {graph.spectral_gap:.3g}", fontsize=9)
        values, label = spectrum(graph)
        below.plot(values, ".", markersize=3, color="#1f4e79")
        below.set(ylim=(min(-0.05, 1.1 * values.min(initial=0.0)), 1.05), xlabel="in order", ylabel=label)
        below.axhline(0.0, color="#8b98a5", linewidth=0.6)
        below.spines[["top", "right"]].set_visible(False)
    return figure


def spectrum(graph: Graph | GraphSequence) -> tuple[np.ndarray, str]:
    """All eigenvalues or singular values, largest first, and their name; none of a graph that is too large."""
    if graph.nodes > DENSE:
        return np.zeros(0), f"more than {DENSE} nodes"
    product = np.eye(graph.nodes)
    for phase in graph.phases:
        product = phase.matrix @ product
    if graph.symmetric and graph.period == 1:
        return np.linalg.eigvalsh(product)[::-1], "eigenvalues of W"
    return np.linalg.svd(product, compute_uv=False), "singular values over one period"
