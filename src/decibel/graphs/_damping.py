"""How much Exact Diffusion damps its carry on a graph that changes, and whether that is stable.

Without a direction, s⁺ = W_t (s + c) and c⁺ = c − κ (I − W_t)(s + c). The means over nodes never change.
docs/evidence/one-peer.md derives the factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
from jaxtyping import Float
from scipy import sparse

DENSE = 100  # nodes up to which a period is multiplied out
EXAMINED = 128  # nodes up to which the mean square of random phases is examined
OBSERVED = 50_000  # nodes up to which drawn phases are observed; a million would take minutes
STEPS = 2000  # whose growth is observed where there are more nodes, after as many
VISIBLE = 1.05  # growth in a period, or in as many random phases, that no slow oscillation shows
LEAST, MOST = 100, 400  # repetitions of a power iteration

Matrices = Sequence[sparse.csr_array]
Moments = Float[np.ndarray, "nodes nodes"]


def default_damping(matrices: Matrices, *, random: bool) -> float:
    """κ for matrices that differ."""
    if not random:
        return 1 / (2 * len(matrices))
    p = pairing(matrices)
    return 1 / len(matrices) if p is None else p / 2


def _nodes(W: sparse.csr_array) -> int:
    return len(W.indptr) - 1


def pairing(matrices: Matrices) -> float | None:
    """p where E W = (1 − p) I + p 11ᵀ/N and every I − W is a projection; None otherwise."""
    nodes = _nodes(matrices[0])
    if nodes < 3 or sum(W.nnz for W in matrices) < nodes**2:
        return None
    mean = np.zeros((nodes, nodes))
    for W in matrices:
        row, column = W.tocoo().coords
        mean[row, column] += np.asarray(W.data, np.float64) / len(matrices)
    p = nodes * float(mean[0, 1])
    ideal = (1 - p) * np.eye(nodes) + p / nodes
    if abs(mean - ideal).max() > 1e-9 or any(abs(W @ W - W).max() > 1e-9 for W in matrices):
        return None
    return p


def is_proven(matrices: Matrices, damping: float) -> bool:
    """Whether phases drawn independently make an instance of RandProx, which converges."""
    p = pairing(matrices)
    if p is not None:
        return damping <= p + 1e-12
    return damping <= 1 / len(matrices) + 1e-12 and all(_positive(W) for W in matrices)


def _positive(W: sparse.csr_array) -> bool:
    """Whether no eigenvalue is negative, by Gershgorin's discs."""
    diagonal = W.diagonal()
    return bool(np.all(2 * diagonal - abs(W).sum(axis=1) >= -1e-9))


def growth(matrices: Matrices, damping: float, *, random: bool) -> float | None:
    """The factor by which (s, c) grows in a step without directions; in random order that of the root mean square.

    None if it is not known: for random phases of more than `EXAMINED` nodes, and for more than `DENSE` nodes in cyclic
    order, unless growth is observed. What is observed of random phases is less than the growth of the mean square, and
    those of more than `OBSERVED` nodes are not observed.
    """
    if not random:
        return _growth_over_a_period(matrices, damping)
    if (p := pairing(matrices)) is not None:
        return _growth_of_pairs(p, damping)
    if _nodes(matrices[0]) <= EXAMINED:
        return _growth_in_mean_square(matrices, damping)
    if _nodes(matrices[0]) > OBSERVED:
        return None
    drawn = iter(np.random.default_rng(1).integers(0, len(matrices), 2 * STEPS + 4 * len(matrices)))
    return _visible_growth(lambda: [matrices[next(drawn)] for _ in matrices], damping)


def _step(W: sparse.csr_array, damping: float, state: np.ndarray) -> np.ndarray:
    """(s, c) on top of each other, after a step."""
    s, c = np.split(state, 2)
    φ = s + c
    mixed = W @ φ
    return np.concatenate([mixed, c + damping * (mixed - φ)])


def _centred(state: np.ndarray) -> np.ndarray:
    """Without the means over nodes, which never change."""
    halves = state.reshape(2, len(state) // 2, -1)
    return (halves - halves.mean(1, keepdims=True)).reshape(state.shape)


def _growth_over_a_period(matrices: Matrices, damping: float) -> float | None:
    nodes = _nodes(matrices[0])
    if nodes > DENSE:
        return _visible_growth(lambda: matrices, damping)
    radius = float(abs(np.linalg.eigvals(_period(matrices, damping, np.eye(2 * nodes)))).max())
    return radius ** (1 / len(matrices))


def _period(matrices: Matrices, damping: float, state: np.ndarray) -> np.ndarray:
    return reduce(lambda state, W: _step(W, damping, state), matrices, _centred(state))


def _visible_growth(draw: Callable[[], Matrices], damping: float) -> float | None:
    """The growth of a few random states in a step, after the parts that vanish quickly have vanished; None where it is
    too small to be seen. `draw` gives the matrices of the next period.
    """
    matrices = draw()
    periods = -(-STEPS // len(matrices))
    state = np.random.default_rng(0).standard_normal((2 * _nodes(matrices[0]), 4))
    logarithms: list[float] = []
    for _ in range(2 * periods):
        state = _period(matrices, damping, state)
        norm = float(np.linalg.norm(state)) or np.finfo(float).tiny
        state = state / norm
        logarithms.append(np.log(norm))
        matrices = draw()
    radius = float(np.exp(np.mean(logarithms[periods:])))
    return None if radius < VISIBLE else radius ** (1 / len(matrices))


def _growth_of_pairs(p: float, damping: float) -> float:
    """By the moments E‖s‖², E⟨s, c⟩ and E‖c‖², which determine each other where E(I − W) is p on all differences."""
    s, both, c = (1 - p) * np.array([1, 2, 1]), (1 - p) * np.array([0, 1, 1]), np.array([0.0, 0, 1])
    c = c - 2 * damping * p * np.array([0, 1, 1]) + damping**2 * p * np.array([1, 2, 1])
    return float(abs(np.linalg.eigvals(np.stack([s, both, c]))).max()) ** 0.5


def _growth_in_mean_square(matrices: Matrices, damping: float) -> float:
    """By a power iteration on the second moments of (s, c), which the mean of M_t X M_tᵀ moves."""
    X = np.eye(2 * _nodes(matrices[0]))
    factor = 0.0
    for repetition in range(MOST):
        before, X = factor, _centred(_centred(X).T)
        X = X / np.trace(X)
        moved = [_step(W, damping, _step(W, damping, X).T) for W in matrices]
        X = np.mean(moved, axis=0)
        factor = float(np.trace(X))
        if repetition > LEAST and abs(factor - before) < 1e-12:
            break
    return factor**0.5
