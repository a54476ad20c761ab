"""Extreme eigenvalues and singular values of mixing matrices, dense or sparse by their size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, svds

DENSE_LIMIT = 400
"""Up to this many nodes values come from a dense factorization."""


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
