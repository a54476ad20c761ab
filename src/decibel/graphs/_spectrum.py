"""Extreme eigenvalues and singular values of mixing matrices: in closed form, dense or sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import cast

import numpy as np
from jaxtyping import Float
from scipy import sparse
from scipy.linalg import eigvalsh_tridiagonal
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh, svds

DENSE_LIMIT = 400
"""Up to this many nodes values come from a dense factorization."""

_operator = cast("Callable[..., LinearOperator]", LinearOperator)  # whose __new__ hides its keywords


def candidate_sides(matrix: sparse.csr_array) -> Iterator[tuple[int, ...]]:
    """Sides of a circle, of tori and of a hypercube that the nodes may form, numbered row by row."""
    size = len(matrix.indptr) - 1
    yield (size,)
    for neighbour in matrix.indices[: matrix.indptr[1]].tolist():  # in a torus, the node below node 0 is one
        if neighbour > 1 and size % neighbour == 0:
            yield (size // neighbour, neighbour)
    dimension = size.bit_length() - 1
    if size == 2**dimension > 4:
        yield (2,) * dimension


def translation_kernel(matrix: sparse.csr_array, sides: tuple[int, ...]) -> Float[np.ndarray, "*sides"] | None:
    """The first row of a matrix if every other is its translate on a torus of these sides, otherwise None.

    The diagonal is zero: rows sum to one, so it follows, but only up to rounding.
    """
    size = len(matrix.indptr) - 1
    row, column = matrix.tocoo().coords
    link = row != column
    receivers = np.unravel_index(row[link], sides)
    senders = np.unravel_index(column[link], sides)
    hops = tuple((end - start) % side for start, end, side in zip(receivers, senders, sides, strict=True))
    offset = np.ravel_multi_index(hops, sides)
    weight = matrix.data[link]
    kernel = np.zeros(size)
    kernel[offset[row[link] == 0]] = weight[row[link] == 0]
    if len(weight) != size * np.count_nonzero(kernel) or np.any(kernel[offset] != weight):
        return None
    return kernel.reshape(sides)


def largest_eigenvalues(matrix: sparse.csr_array, count: int) -> Float[np.ndarray, " count"]:
    """The `count` largest eigenvalues of a symmetric matrix, largest first."""
    size = len(matrix.indptr) - 1
    if size <= DENSE_LIMIT:
        return np.linalg.eigvalsh(matrix.toarray())[::-1][:count]
    row, column = matrix.nonzero()
    if np.all(np.abs(row - column) <= 1):
        edge = (size - count, size - 1)
        values = eigvalsh_tridiagonal(matrix.diagonal(), matrix.diagonal(1), select="i", select_range=edge)
        return np.asarray(values)[::-1]
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


def second_modulus(matrices: Sequence[sparse.csr_array]) -> float:
    """The second largest modulus of an eigenvalue of W_{τ−1} … W_0, of which the largest is one."""
    size = len(matrices[0].indptr) - 1
    if size <= DENSE_LIMIT:
        product = reduce(lambda done, W: W @ done, matrices, np.eye(size))
        moduli = np.abs(np.linalg.eigvals(product))
    else:

        def forward(s: Float[np.ndarray, " nodes"]) -> Float[np.ndarray, " nodes"]:
            return reduce(lambda v, W: W @ v, matrices, s)

        operator = _operator((size, size), matvec=forward, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(size)
        moduli = np.abs(np.asarray(eigs(operator, k=2, v0=start, return_eigenvectors=False)))
    return float(np.sort(moduli)[-2]) if size > 1 else 0.0
