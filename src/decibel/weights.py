"""From a graph to its mixing matrix W (rows and columns sum to one on any graph), and W's spectrum."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import networkx as nx
import numpy as np
from scipy import sparse
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, svds

Rule = Callable[[nx.Graph], Any]
"""A networkx graph to a matrix, dense or scipy sparse, in the order of the graph's nodes."""

DENSE_LIMIT = 1500
"""Up to this many nodes eigenvalues come from a dense factorization."""


def metropolis(graph: nx.Graph) -> sparse.csr_array:
    """w_ij = 1 / (1 + max(d_i, d_j))."""
    return _by_degrees(graph, lambda a, b: 1.0 / (1.0 + np.maximum(a, b)))


def lazy_metropolis(graph: nx.Graph) -> sparse.csr_array:
    """w_ij = 1 / (2 max(d_i, d_j)), so that w_ii ≥ 1/2 and no eigenvalue is negative."""
    return _by_degrees(graph, lambda a, b: 0.5 / np.maximum(a, b))


def uniform(graph: nx.Graph) -> sparse.csr_array:
    """w_ij = 1 / (1 + d_max) on every edge."""
    largest = max((degree for _, degree in graph.degree), default=0)
    return _by_degrees(graph, lambda a, b: np.full(a.shape, 1.0 / (1.0 + largest)))


def fitted_laplacian(graph: nx.Graph) -> sparse.csr_array:
    """W = I - 2 L / (3 λ_max(L)), whose smallest eigenvalue is 1/3 (INTERACT)."""
    if graph.number_of_edges() == 0:
        return laplacian(1.0)(graph)
    largest = largest_eigenvalues(_laplacian(graph), 1)[0]
    return laplacian(2.0 / (3.0 * largest))(graph)


def laplacian(ratio: float) -> Callable[[nx.Graph], sparse.csr_array]:
    """The rule W = I - ratio L with L the graph Laplacian; SPDB uses 0.2."""
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError(f"ratio must be a positive number, not {ratio}; SPDB uses 0.2.")

    def rule(graph: nx.Graph) -> sparse.csr_array:
        return sparse.csr_array(sparse.eye_array(len(graph), format="csr") - ratio * _laplacian(graph))

    return rule


RULES: dict[str, Callable[[nx.Graph], sparse.csr_array]] = {
    "lazy-metropolis": lazy_metropolis,
    "metropolis": metropolis,
    "uniform": uniform,
    "laplacian": fitted_laplacian,
}


def mixing_matrix(graph: nx.Graph, weights: str | Rule) -> sparse.csr_array:
    """W of an undirected `graph` by a rule's name, or by a callable that takes the graph."""
    if callable(weights):
        matrix = weights(graph)
        if np.shape(matrix) != (len(graph), len(graph)):
            raise ValueError(
                f"weights returned a matrix of shape {np.shape(matrix)} for {len(graph)} nodes; "
                f"return one of shape {(len(graph), len(graph))}."
            )
        return sparse.csr_array(matrix, dtype=np.float64)
    if weights not in RULES:
        raise ValueError(_unknown(weights))
    if graph.is_directed():
        raise ValueError(
            f"weights={weights!r} needs an undirected graph; call graph.to_undirected() first, "
            "or give a directed W to from_matrix."
        )
    return RULES[weights](graph)


def largest_eigenvalues(matrix: sparse.csr_array, count: int) -> np.ndarray:
    """The `count` largest eigenvalues of a symmetric matrix, largest first."""
    size = len(matrix.indptr) - 1
    if size <= DENSE_LIMIT:
        return np.linalg.eigvalsh(matrix.toarray())[::-1][:count]
    start = np.random.default_rng(0).standard_normal(size)
    options: dict[str, Any] = dict(k=count, v0=start, ncv=40, tol=1e-13, return_eigenvectors=False)
    try:
        values = eigsh(matrix, which="LA", maxiter=40, **options)
    except ArpackNoConvergence:
        # Crowded near the edge, as on a long path: invert around a point just above Gershgorin's bound.
        diagonal = matrix.diagonal()
        bound = float(np.max(diagonal - np.abs(diagonal) + abs(matrix).sum(axis=1)))
        values = eigsh(matrix, which="LM", sigma=bound + 1e-6 * max(1.0, abs(bound)), **options)
    return np.sort(values)[::-1]


def disagreement_norm(matrices: Sequence[sparse.csr_array]) -> float:
    """‖W_{τ−1} … W_0 − 11ᵀ/N‖₂ for W_0, …, W_{τ−1}."""
    size = len(matrices[0].indptr) - 1
    if size <= DENSE_LIMIT:
        product = reduce(lambda done, W: W @ done, matrices, np.eye(size))
        return float(np.linalg.norm(product - 1.0 / size, 2))

    def forward(s: np.ndarray) -> np.ndarray:
        return reduce(lambda v, W: W @ v, matrices, s - s.mean(axis=0))

    def backward(s: np.ndarray) -> np.ndarray:
        return reduce(lambda v, W: W.T @ v, reversed(matrices), s - s.mean(axis=0))

    linear: Any = LinearOperator  # its stubs do not know the keywords
    operator = linear((size, size), matvec=forward, rmatvec=backward, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    values: Any = svds(operator, k=1, v0=start, return_singular_vectors=False)
    return float(values[0])


def _adjacency(graph: nx.Graph) -> sparse.csr_array:
    """Zeros and ones: edge attributes, parallel edges and self-loops do not count."""
    unweighted: Any = None
    matrix = sparse.coo_array(nx.to_scipy_sparse_array(graph, weight=unweighted, dtype=np.float64))
    row, column = matrix.coords
    keep = row != column
    ones = np.ones(int(keep.sum()))
    adjacency = sparse.csr_array((ones, (row[keep], column[keep])), shape=matrix.shape)
    adjacency.sum_duplicates()
    adjacency.data[:] = 1.0
    return adjacency


def _by_degrees(graph: nx.Graph, weight: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> sparse.csr_array:
    """Edge weights from the degrees at both ends; the diagonal takes what is left of one."""
    adjacency = _adjacency(graph)
    degrees = np.diff(adjacency.indptr)
    rows = np.repeat(np.arange(len(degrees)), degrees)
    adjacency.data[:] = weight(degrees[rows], degrees[adjacency.indices])
    rest = 1.0 - adjacency.sum(axis=1)
    return sparse.csr_array(adjacency + sparse.diags_array(rest, format="csr"))


def _laplacian(graph: nx.Graph) -> sparse.csr_array:
    adjacency = _adjacency(graph)
    return sparse.csr_array(sparse.diags_array(adjacency.sum(axis=1), format="csr") - adjacency)


def _unknown(weights: object) -> str:
    names = ", ".join(repr(name) for name in RULES)
    near = difflib.get_close_matches(str(weights).lower(), list(RULES), n=1, cutoff=0.3)
    hint = f"did you mean {near[0]!r}? Known:" if near else "known are"
    return f"weights={weights!r} is no known rule; {hint} {names}, or a callable taking the graph."
