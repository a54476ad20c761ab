"""Checks that a matrix is a mixing matrix: real, finite and doubly stochastic. For one-way links it checks a pair of
matrices.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from ._types import Matrix, shape_of

SUM_TOLERANCE = 1e-8
ROUNDING = 1e-15  # a weight below this is no edge
FROM_DIGRAPH = "db.graphs.directed(digraph) makes R and C from a networkx.DiGraph"


def doubly_stochastic(matrix: Matrix) -> sparse.csr_array:
    """A canonical CSR copy of a doubly stochastic matrix."""
    W = _canonical("W", matrix)
    for axis in (1, 0):
        worst = _worst_sum(W, axis)
        if worst is not None:
            raise ValueError(f"W is not doubly stochastic: {worst}; {_fix(W)}.")
    return W


def row_and_column_stochastic(R: Matrix, C: Matrix) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Canonical CSR copies of a row-stochastic R and a column-stochastic C with the same links."""
    pulls, pushes = _canonical("R", R), _canonical("C", C)
    for name, matrix, kind, axis in (("R", pulls, "row", 1), ("C", pushes, "column", 0)):
        worst = _worst_sum(matrix, axis)
        if worst is not None:
            raise ValueError(f"{name} is not {kind}-stochastic: {worst}; {FROM_DIGRAPH}.")
        if matrix.data.min(initial=0.0) < 0 or matrix.diagonal().min() <= 0:
            raise ValueError(f"{name} needs positive weights on its diagonal and none below zero; {FROM_DIGRAPH}.")
    if not (np.array_equal(pulls.indptr, pushes.indptr) and np.array_equal(pulls.indices, pushes.indices)):
        raise ValueError(f"R and C do not have the same links: give both a weight for each; {FROM_DIGRAPH}.")
    return pulls, pushes


def _canonical(name: str, matrix: Matrix) -> sparse.csr_array:
    """A CSR copy of a square matrix of finite numbers, sorted, without entries that are rounding errors."""
    try:
        shape: tuple[object, ...] = shape_of(matrix)
    except ValueError:  # rows of unequal length
        shape = ("rows of unequal length",)
    if hasattr(matrix, "nodes") and hasattr(matrix, "edges"):
        raise TypeError(f"{name} is a networkx graph: give it to from_networkx(graph), which makes the matrix.")
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise ValueError(f"{name} has shape {shape}; give a square matrix with one row per node.")
    dtype = getattr(matrix, "dtype", None)
    kind = np.dtype(np.asarray(matrix).dtype if dtype is None else dtype).kind
    if kind not in "fiub":
        raise ValueError(f"{name} does not hold real numbers; give a float matrix.")
    W = sparse.csr_array(matrix, dtype=np.float64, copy=True)
    W.sum_duplicates()
    W.data[np.abs(W.data) < ROUNDING] = 0.0
    W.eliminate_zeros()
    if not np.all(np.isfinite(W.data)):
        raise ValueError(f"{name} holds NaN or infinity; give finite weights.")
    return W


def _worst_sum(matrix: sparse.csr_array, axis: int) -> str | None:
    """The row (axis 1) or column (axis 0) whose sum is farthest from one, in words; None if all sums are one."""
    sums = np.asarray(matrix.sum(axis=axis))
    worst = int(np.argmax(np.abs(sums - 1.0)))
    if abs(sums[worst] - 1.0) <= SUM_TOLERANCE:
        return None
    return f"{('column', 'row')[axis]} {worst} sums to {sums[worst]:.9g} instead of 1"


def _fix(W: sparse.csr_array) -> str:
    """How to make the matrix valid."""
    if (W.astype(bool) != W.T.astype(bool)).nnz == 0:
        return 'from_networkx(graph, weights="metropolis") makes a valid one for any undirected graph'
    return (
        "no rule makes a valid one of this digraph: use from_networkx(graph.to_undirected()), or "
        "directed(digraph) with 'push-pull'"
    )


def symmetrized(W: sparse.csr_array) -> sparse.csr_array:
    """A matrix that is symmetric up to rounding becomes symmetric, so that flows along an edge cancel exactly."""
    difference = abs(W - W.T)
    if difference.nnz == 0 or difference.max() > SUM_TOLERANCE:
        return W
    mean = sparse.csr_array((W + W.T) / 2)
    mean.sum_duplicates()
    return mean
