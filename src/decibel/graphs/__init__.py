"""Families of graphs, and graphs from networkx or from a matrix.

Edge weights come from a rule of `decibel.weights`: `"lazy-metropolis"` (the default, for which W has no negative
eigenvalue), `"metropolis"`, `"uniform"`, `"laplacian"`, or a function of the networkx graph.
"""

from . import weights
from ._families import (
    adjusted_ring,
    complete,
    cycle,
    erdos_renyi,
    exponential,
    from_matrix,
    from_networkx,
    geometric,
    grid,
    hypercube,
    isolated,
    one_peer_exponential,
    path,
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
    "erdos_renyi",
    "exponential",
    "from_matrix",
    "from_networkx",
    "geometric",
    "grid",
    "hypercube",
    "isolated",
    "one_peer_exponential",
    "path",
    "ring",
    "star",
    "torus",
    "weights",
]
