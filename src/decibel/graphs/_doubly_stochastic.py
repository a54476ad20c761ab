"""What makes a matrix a mixing matrix: real, finite, and doubly stochastic."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from ._types import Matrix, shape_of

SUM_TOLERANCE = 1e-8
ROUNDING = 1e-15  # a weight below this is no edge


def doubly_stochastic(matrix: Matrix) -> sparse.csr_array:
    """A canonical CSR copy of a doubly stochastic matrix."""
    try:
        shape: tuple[object, ...] = shape_of(matrix)
    except ValueError:  # rows of unequal length
        shape = ("rows of unequal length",)
    if hasattr(matrix, "nodes") and hasattr(matrix, "edges"):
        raise TypeError("W is a networkx graph: give it to from_networkx(graph), which makes the matrix.")
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise ValueError(f"W has shape {shape}; give a square matrix with one row per node.")
    dtype = getattr(matrix, "dtype", None)
    kind = np.dtype(np.asarray(matrix).dtype if dtype is None else dtype).kind
    if kind not in "fiub":
        raise ValueError("W does not hold real numbers; give a float matrix.")
    W = sparse.csr_array(matrix, dtype=np.float64, copy=True)
    W.sum_duplicates()
    W.data[np.abs(W.data) < ROUNDING] = 0.0
    W.eliminate_zeros()
    if not np.all(np.isfinite(W.data)):
        raise ValueError("W holds NaN or infinity; give finite weights.")
    for axis, word in ((1, "row"), (0, "column")):
        sums = np.asarray(W.sum(axis=axis))
        worst = int(np.argmax(np.abs(sums - 1.0)))
        if abs(sums[worst] - 1.0) > SUM_TOLERANCE:
            raise ValueError(
                f"W is not doubly stochastic: {word} {worst} sums to {sums[worst]:.9g} instead of 1; {_fix(W)}."
            )
    return W


def _fix(W: sparse.csr_array) -> str:
    """How to have a matrix that is valid."""
    if (W.astype(bool) != W.T.astype(bool)).nnz == 0:
        return 'from_networkx(graph, weights="metropolis") makes a valid one for any undirected graph'
    return "for this directed graph no rule makes a valid one: use from_networkx(graph.to_undirected())"


def symmetrized(W: sparse.csr_array) -> sparse.csr_array:
    """Symmetric up to rounding becomes symmetric, so that what flows along an edge cancels exactly."""
    difference = abs(W - W.T)
    if difference.nnz == 0 or difference.max() > SUM_TOLERANCE:
        return W
    mean = sparse.csr_array((W + W.T) / 2)
    mean.sum_duplicates()
    return mean
