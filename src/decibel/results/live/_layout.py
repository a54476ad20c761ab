"""The positions of nodes on the live page: a circle, a spring layout, or a block of many nodes in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

import networkx as nx
import numpy as np
from jaxtyping import Float

from ...graphs._drawing import circle

MOST_DRAWN = 300  # nodes with their links
MOST_LINKS = 3_000
MOST_SHOWN = 2_500  # nodes in a block
EXACT_SPRINGS = 60  # nodes up to which a better layout takes no more than a moment


class Drawing(TypedDict):
    """`shown`: the numbers of the nodes drawn; `places`: from -1 to 1, y upwards; `links`: pairs of positions in
    `shown`, or none if there are too many."""

    nodes: int
    block: bool
    shown: list[int]
    places: list[list[float]]
    links: list[tuple[int, int]]


def layout(nodes: int, links: Sequence[tuple[int, int]]) -> Drawing:
    if nodes > MOST_DRAWN:
        shown = np.unique(np.linspace(0, nodes - 1, min(nodes, MOST_SHOWN)).round().astype(int))
        return {"nodes": nodes, "block": True, "shown": shown.tolist(), "places": _block(len(shown)), "links": []}
    if nodes < 1:
        return {"nodes": 0, "block": False, "shown": [], "places": [], "links": []}
    drawn = list(links) if len(links) <= MOST_LINKS else []
    places = circle(nodes) if nodes < 3 or _is_circulant(nodes, links) or not drawn else _springs(nodes, drawn)
    return {
        "nodes": nodes,
        "block": False,
        "shown": list(range(nodes)),
        "places": np.round(_fitted(places), 4).tolist(),
        "links": drawn,
    }


def _is_circulant(nodes: int, links: Sequence[tuple[int, int]]) -> bool:
    """Whether all nodes have neighbours at the same offsets, as on rings and exponential graphs."""
    pairs = {frozenset(link) for link in links}
    return bool(pairs) and all(frozenset(((i + 1) % nodes, (j + 1) % nodes)) in pairs for i, j in links)


def _springs(nodes: int, links: Sequence[tuple[int, int]]) -> Float[np.ndarray, "nodes 2"]:
    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(links)
    connected = nodes <= EXACT_SPRINGS and nx.is_connected(graph)
    places: dict[int, np.ndarray] = nx.kamada_kawai_layout(graph) if connected else nx.spring_layout(graph, seed=0)
    return np.array([places[node] for node in range(nodes)])


def _fitted(places: Float[np.ndarray, "nodes 2"]) -> Float[np.ndarray, "nodes 2"]:
    """In the middle of the square, and as large as it holds."""
    low, high = places.min(0), places.max(0)
    return (places - (low + high) / 2) * 2 / max(float((high - low).max()), 1e-9) if len(places) > 1 else 0 * places


def _block(count: int) -> list[list[float]]:
    columns = math.ceil(math.sqrt(count))
    row, column = np.divmod(np.arange(count), columns)
    return np.round(np.stack([(2 * column + 1) / columns - 1, 1 - (2 * row + 1) / columns], axis=1), 4).tolist()
