"""The edges of a graph in matchings: an edge colouring with at most one colour more than the largest degree.

The algorithm is that of Misra and Gries (1992). Bipartite graphs need no more colours than the largest degree (König).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise
from typing import TypeAlias

import networkx as nx
import numpy as np
from jaxtyping import Int

Pairs: TypeAlias = Int[np.ndarray, "pairs 2"]
Coloring: TypeAlias = dict[int, dict[int, int]]  # by node and colour, the other end of the edge


def edge_coloring(edges: Int[np.ndarray, "edges 2"]) -> list[Pairs]:
    """The edges of each colour."""
    at: Coloring = {node: {} for node in np.unique(edges).tolist()}
    color = _color_bipartite if nx.is_bipartite(nx.Graph(edges.tolist())) else _color
    for u, v in edges.tolist():
        color(at, u, v)
    found: dict[int, list[tuple[int, int]]] = {}
    for node, ends in at.items():
        for number, other in ends.items():
            if node < other:
                found.setdefault(number, []).append((node, other))
    return [np.array(sorted(found[number]), int) for number in sorted(found)]


def _color_bipartite(at: Coloring, u: int, v: int) -> None:
    """A path from v of two colours, free at u and at v, does not reach u: swapped, it leaves the first free at both."""
    a, b = _free(at[u]), _free(at[v])
    _swap(at, v, a, b)
    _join(at, u, v, a)


def _color(at: Coloring, u: int, v: int) -> None:
    """Fan: neighbours of u, the edge to each of which has a colour that is free at the one before; it ends early at one
    where a colour is free that is also free at u."""
    fan, c = [v], _free(at[u])
    while c in at[fan[-1]] and (following := next(_following(at, u, fan), None)) is not None:
        fan.append(following)
    d = _free(at[fan[-1]]) if c in at[fan[-1]] else c
    _swap(at, u, d, c)
    length = next(k for k in count(1) if d not in at[fan[k - 1]])
    for here, there in pairwise(fan[:length]):  # each edge takes the next one's colour
        number = next(number for number, end in at[u].items() if end == there)
        del at[u][number], at[there][number]
        _join(at, u, here, number)
    _join(at, u, fan[length - 1], d)


def _following(at: Coloring, u: int, fan: list[int]) -> Iterator[int]:
    return (end for number, end in sorted(at[u].items()) if end not in fan and number not in at[fan[-1]])


def _free(ends: dict[int, int]) -> int:
    return next(number for number in count() if number not in ends)


def _join(at: Coloring, u: int, v: int, number: int) -> None:
    at[u][number], at[v][number] = v, u


def _swap(at: Coloring, node: int, a: int, b: int) -> None:
    """Exchanges two colours on the path that leaves a node by the colour a, where b is free."""
    path, number = [node], a
    while number in at[path[-1]]:
        path.append(at[path[-1]][number])
        number = b if number == a else a
    links = list(pairwise(path))
    for i, (u, v) in enumerate(links):
        number = b if i % 2 else a
        del at[u][number], at[v][number]
    for i, (u, v) in enumerate(links):
        _join(at, u, v, a if i % 2 else b)
