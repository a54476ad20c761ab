"""Weight rules: from a networkx graph to a mixing matrix W whose rows and columns sum to one.

d_i is the degree of node i, and L the graph Laplacian. Each w_ii is what is left of one.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import TypeAlias

import networkx as nx
import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from ._spectrum import largest_eigenvalues
from ._types import Matrix, Networkx, shape_of

__all__ = ["fitted_laplacian", "laplacian", "lazy_metropolis", "metropolis", "uniform"]

Rule: TypeAlias = Callable[[Networkx], Matrix]
"""A networkx graph to a matrix, dense or scipy sparse, in the order of the graph's nodes."""

Degrees: TypeAlias = Int[np.ndarray, " links"]


def metropolis(graph: Networkx) -> sparse.csr_array:
    """Metropolis weights, w_ij = 1 / (1 + max(d_i, d_j)).

    Args:
        graph: an undirected networkx graph.

    Returns:
        W as a CSR matrix.
    """
    return _by_degrees(graph, lambda a, b: 1.0 / (1.0 + np.maximum(a, b)))


def lazy_metropolis(graph: Networkx) -> sparse.csr_array:
    """Lazy Metropolis weights, w_ij = 1 / (2 max(d_i, d_j)): w_ii ≥ 1/2, and W has no negative eigenvalue.

    Args:
        graph: an undirected networkx graph.

    Returns:
        W as a CSR matrix.
    """
    return _by_degrees(graph, lambda a, b: 0.5 / np.maximum(a, b))


def uniform(graph: Networkx) -> sparse.csr_array:
    """The same weight on every edge, w_ij = 1 / (1 + d_max).

    Args:
        graph: an undirected networkx graph.

    Returns:
        W as a CSR matrix.
    """
    largest = max((degree for _, degree in graph.degree), default=0)
    return _by_degrees(graph, lambda a, b: np.full(a.shape, 1.0 / (1.0 + largest)))


def fitted_laplacian(graph: Networkx) -> sparse.csr_array:
    """W = I − 2 L / (3 λ_max(L)), whose smallest eigenvalue is 1/3; the rule named `"laplacian"`.

    Args:
        graph: an undirected networkx graph.

    Returns:
        W as a CSR matrix.

    References:
        Liu et al., INTERACT: Achieving Low Sample and Communication Complexities in Decentralized Bilevel Learning over
        Networks, 2022.
    """
    if graph.number_of_edges() == 0:
        return laplacian(1.0)(graph)
    largest = largest_eigenvalues(_laplacian(graph), 1)[0]
    return laplacian(2.0 / (3.0 * largest))(graph)


def laplacian(ratio: float) -> Callable[[Networkx], sparse.csr_array]:
    """The rule W = I − `ratio` L.

    Args:
        ratio: a positive number, small enough that W is a mixing matrix; SPDB uses 0.2.

    Returns:
        A function from a networkx graph to W.
    """
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError(f"ratio must be a positive number, not {ratio}; SPDB uses 0.2.")

    def rule(graph: Networkx) -> sparse.csr_array:
        return sparse.csr_array(sparse.eye_array(len(graph), format="csr") - ratio * _laplacian(graph))

    return rule


RULES: dict[str, Callable[[Networkx], sparse.csr_array]] = {
    "lazy-metropolis": lazy_metropolis,
    "metropolis": metropolis,
    "uniform": uniform,
    "laplacian": fitted_laplacian,
}


def one_way(digraph: Networkx) -> tuple[sparse.csr_array, sparse.csr_array]:
    """R, r_ij = 1 / (1 + number of nodes that send to i), and C, c_ij = 1 / (1 + number of nodes that j sends to)."""
    sends = _adjacency(digraph) + sparse.eye_array(len(digraph), format="csr")
    shares = sparse.diags_array(1.0 / sends.sum(axis=1)) @ sends  # row j: what j passes on
    receives = sparse.csr_array(sends.T)
    return sparse.csr_array(sparse.diags_array(1.0 / receives.sum(axis=1)) @ receives), sparse.csr_array(shares.T)


def mixing_matrix(graph: Networkx, weights: str | Rule) -> sparse.csr_array:
    """W of an undirected `graph` by a rule's name, or by a callable that takes the graph."""
    if callable(weights):
        matrix = weights(graph)
        if shape_of(matrix) != (len(graph), len(graph)):
            raise ValueError(
                f"weights returned a matrix of shape {shape_of(matrix)} for {len(graph)} nodes; "
                f"return one of shape {(len(graph), len(graph))}."
            )
        return sparse.csr_array(matrix, dtype=np.float64)
    if weights not in RULES:
        raise ValueError(_unknown(weights))
    if graph.is_directed():
        raise ValueError(
            f"weights={weights!r} needs an undirected graph: use directed(graph) with 'push-pull', call "
            "graph.to_undirected() first, or give from_matrix a W whose rows and columns all sum to 1."
        )
    return RULES[weights](graph)


def _adjacency(graph: Networkx) -> sparse.csr_array:
    """Zeros and ones: edge attributes, parallel edges and self-loops do not count."""
    matrix = sparse.coo_array(
        nx.to_scipy_sparse_array(graph, weight=None, dtype=np.float64)  # pyright: ignore[reportArgumentType]
    )
    row, column = matrix.coords
    keep = row != column
    ones = np.ones(int(keep.sum()))
    adjacency = sparse.csr_array((ones, (row[keep], column[keep])), shape=matrix.shape)
    adjacency.sum_duplicates()
    adjacency.data[:] = 1.0
    return adjacency


def _by_degrees(graph: Networkx, weight: Callable[[Degrees, Degrees], Float[np.ndarray, " links"]]) -> sparse.csr_array:
    """Edge weights from the degrees at both ends; the diagonal takes what is left of one."""
    adjacency = _adjacency(graph)
    degrees = np.diff(adjacency.indptr)
    rows = np.repeat(np.arange(len(degrees)), degrees)
    adjacency.data[:] = weight(degrees[rows], degrees[adjacency.indices])
    rest = 1.0 - adjacency.sum(axis=1)
    return sparse.csr_array(adjacency + sparse.diags_array(rest, format="csr"))


def _laplacian(graph: Networkx) -> sparse.csr_array:
    adjacency = _adjacency(graph)
    return sparse.csr_array(sparse.diags_array(adjacency.sum(axis=1), format="csr") - adjacency)


def _unknown(weights: object) -> str:
    names = ", ".join(repr(name) for name in RULES)
    near = difflib.get_close_matches(str(weights).lower(), list(RULES), n=1, cutoff=0.3)
    hint = f"did you mean {near[0]!r}? Known:" if near else "known are"
    return f"weights={weights!r} is not a known rule; {hint} {names}, or a callable taking the graph."
