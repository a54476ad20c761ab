"""Families of graphs, and graphs from networkx or from a matrix.

Edge weights come from a rule of `decibel.weights`: `"lazy-metropolis"` (the default, for which W has no negative
eigenvalue), `"metropolis"`, `"uniform"`, `"laplacian"`, or a function of the networkx graph.
"""

from typing import TYPE_CHECKING

from ..core._names import unknown_name
from . import weights
from ._families import (
    adjusted_ring,
    complete,
    cycle,
    directed,
    erdos_renyi,
    exponential,
    from_matrix,
    from_networkx,
    geometric,
    grid,
    hypercube,
    isolated,
    matchings,
    one_peer_exponential,
    one_peer_hypercube,
    path,
    random_digraph,
    random_matchings,
    ring,
    star,
    torus,
)
from ._graph import Graph, GraphSequence, Levels

__all__ = [
    "Graph",
    "GraphSequence",
    "Levels",
    "adjusted_ring",
    "complete",
    "cycle",
    "directed",
    "erdos_renyi",
    "exponential",
    "from_matrix",
    "from_networkx",
    "geometric",
    "grid",
    "hypercube",
    "isolated",
    "matchings",
    "one_peer_exponential",
    "one_peer_hypercube",
    "path",
    "random_digraph",
    "random_matchings",
    "ring",
    "star",
    "torus",
    "weights",
]

if not TYPE_CHECKING:  # which knows the names
    __getattr__ = unknown_name("db.graphs", __all__)
