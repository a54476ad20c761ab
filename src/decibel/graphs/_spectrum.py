"""Extreme eigenvalues and singular values of mixing matrices, dense or sparse by their size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import cast

import numpy as np
from jaxtyping import Float
from scipy import sparse
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, svds

DENSE_LIMIT = 400
"""Up to this many nodes values come from a dense factorization."""

_operator = cast("Callable[..., LinearOperator]", LinearOperator)  # whose __new__ hides its keywords


def largest_eigenvalues(matrix: sparse.csr_array, count: int) -> Float[np.ndarray, " count"]:
    """The `count` largest eigenvalues of a symmetric matrix, largest first."""
    size = len(matrix.indptr) - 1
    if size <= DENSE_LIMIT:
        return np.linalg.eigvalsh(matrix.toarray())[::-1][:count]
    start = np.random.default_rng(0).standard_normal(size)
    values_of = partial(
        eigsh,
        k=count,
        v0=start,
        ncv=40,
        tol=1e-13,  # pyright: ignore[reportArgumentType]
        return_eigenvectors=False,
    )
    try:
        values = values_of(matrix, which="LA", maxiter=40)
    except ArpackNoConvergence:
        # Crowded near the edge, as on a long path: invert around a point just above Gershgorin's bound.
        diagonal = matrix.diagonal()
        bound = float(np.max(diagonal - np.abs(diagonal) + abs(matrix).sum(axis=1)))
        values = values_of(matrix, which="LM", sigma=bound + 1e-6 * max(1.0, abs(bound)))
    return np.sort(values)[::-1]


def disagreement_norm(matrices: Sequence[sparse.csr_array]) -> float:
    """‖W_{τ−1} … W_0 − 11ᵀ/N‖₂ for W_0, …, W_{τ−1}."""
    size = len(matrices[0].indptr) - 1
    if size <= DENSE_LIMIT:
        product = reduce(lambda done, W: W @ done, matrices, np.eye(size))
        return float(np.linalg.norm(product - 1.0 / size, 2))

    def forward(s: Float[np.ndarray, " nodes *columns"]) -> Float[np.ndarray, " nodes *columns"]:
        return reduce(lambda v, W: W @ v, matrices, s - s.mean(axis=0))

    def backward(s: Float[np.ndarray, " nodes *columns"]) -> Float[np.ndarray, " nodes *columns"]:
        return reduce(lambda v, W: W.T @ v, reversed(matrices), s - s.mean(axis=0))

    operator = _operator((size, size), matvec=forward, rmatvec=backward, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    return float(np.asarray(svds(operator, k=1, v0=start, return_singular_vectors=False))[0])
