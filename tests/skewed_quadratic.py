"""A bilevel quadratic whose samples differ in all coefficients, with skewed noise, and where methods settle on it.

    g(x, y) = ½ yᵀ H y − yᵀ (B x + c) + T[y, y, y]/6
    f(x, y) = ½ yᵀ A y + yᵀ C x + ½ xᵀ R x − aᵀ y − eᵀ x

x has two entries and y three. No matrix is diagonal, and every node and sample has its own. Losses are linear in the
coefficients, so that a sample may be the mean of the others: the last one of every node is. T is zero unless it is
asked for.

Where a method settles is a linear system in what all nodes hold, written from the method's definition alone.
"""

from __future__ import annotations

from functools import cache
from itertools import permutations

import jax.numpy as jnp
import numpy as np
from chosen_draws import MEAN

import decibel as db

NODES = 4
P = 2
Q = 3
SIZES = {"x": P, "y": Q, "z": Q}
GRAPH = db.graphs.path(NODES)
COMPLETE = db.graphs.complete(NODES)


def _symmetric(tensors):
    """Symmetric in all axes but the first two."""
    axes = list(permutations(range(2, tensors.ndim)))
    return sum(tensors.transpose(0, 1, *order) for order in axes) / len(axes)


def _coefficients():
    rng = np.random.default_rng(3)

    def samples(scale, spread, *shape, mean=0.0):
        """Around another mean at each node, with exponential noise: its third moment does not vanish."""
        means = mean + scale * rng.normal(size=(NODES, 1, *shape))
        noise = rng.exponential(size=(NODES, MEAN, *shape))
        return np.concatenate([means + spread * (noise - noise.mean(1, keepdims=True)), means], 1)

    return {
        "H": _symmetric(samples(0.3, 0.2, Q, Q, mean=1.2 * np.eye(Q))),
        "B": samples(0.5, 0.3, Q, P),
        "c": samples(1.0, 2.0, Q),
        "T": _symmetric(samples(0.2, 0.2, Q, Q, Q)),
        "A": _symmetric(samples(0.2, 0.2, Q, Q, mean=np.eye(Q))),
        "C": samples(0.2, 0.2, Q, P),
        "R": _symmetric(samples(0.2, 0.2, P, P, mean=1.3 * np.eye(P))),
        "a": samples(1.0, 2.0, Q),
        "e": samples(1.0, 2.0, P),
    }


DATA = _coefficients()


def lower(x, y, batch):
    mean = {name: leaf.mean(0) for name, leaf in batch.items()}
    cubic = jnp.einsum("ijk,i,j,k", mean["T"], y, y, y) / 6
    return 0.5 * y @ (mean["H"] @ y) - y @ (mean["B"] @ x + mean["c"]) + cubic


def upper(x, y, batch):
    mean = {name: leaf.mean(0) for name, leaf in batch.items()}
    return 0.5 * y @ (mean["A"] @ y) + y @ (mean["C"] @ x) - mean["a"] @ y + upper_of_x(x, batch)


def upper_of_x(x, batch):
    mean = {name: leaf.mean(0) for name, leaf in batch.items()}
    return 0.5 * x @ (mean["R"] @ x) - mean["e"] @ x


@cache
def problem(form, *, cubic=False, factor=1.0):
    """Of that form; with the cubic term, or with all coefficients times a factor."""
    data = {name: factor * leaf for name, leaf in DATA.items()}
    return _problem(form, data | {"T": data["T"] if cubic else 0 * data["T"]})


def problem_with_outliers(*, mirrored):
    """With the same means and 64 samples a node, of which two are 8 larger than the others in each linear coefficient;
    mirrored, one is 8 larger and one 8 smaller."""
    rng = np.random.default_rng(0)
    data = {name: np.repeat(leaf[:, MEAN:], 64, 1) for name, leaf in DATA.items()}
    for name in "cae":
        rank = rng.uniform(size=data[name].shape).argsort(1)
        noise = 8.0 * (rank == 0) + (-8.0 if mirrored else 8.0) * (rank == 1)
        data[name] += noise - noise.mean(1, keepdims=True)
    return _problem("shared", data | {"T": 0 * data["T"]})


def _problem(form, data):
    if form == "single":
        return db.Problem(upper_of_x, upper_data={name: data[name] for name in "Re"}, x0=jnp.zeros(P))
    return db.Problem(
        upper,
        lower,
        upper_data={name: data[name] for name in "ACRae"},
        lower_data={name: data[name] for name in "HBcT"},
        x0=jnp.zeros(P),
        y0=jnp.zeros(Q),
        personal=form == "personal",
    )


# Directions as linear functions of what nodes hold


class Linear(dict):
    """Σ over levels of a matrix (nodes, rows, entries) times the node's variable, plus the constant under the key 1."""

    __array_ufunc__ = None  # so that a matrix times this comes here

    def __add__(self, other):
        return Linear({key: self.get(key, 0) + other.get(key, 0) for key in self | other})

    def __sub__(self, other):
        return self + -1 * other

    def __rmul__(self, number):
        return Linear({key: number * value for key, value in self.items()})

    def __rmatmul__(self, matrices):
        return Linear({key: np.einsum("nij,nj...->ni...", matrices, value) for key, value in self.items()})


def _variable(level):
    return Linear({level: np.tile(np.eye(SIZES[level]), (NODES, 1, 1))})


X = _variable("x")
Y = _variable("y")
Z = _variable("z")
MEANS = {name: leaf[:, MEAN] for name, leaf in DATA.items()}
H = MEANS["H"]
B = MEANS["B"]
BT = np.swapaxes(B, 1, 2)  # J = −Bᵀ


def fx(y=Y):
    return MEANS["R"] @ X + np.swapaxes(MEANS["C"], 1, 2) @ y + Linear({1: -MEANS["e"]})


def fy(y=Y):
    return MEANS["A"] @ y + MEANS["C"] @ X + Linear({1: -MEANS["a"]})


def gy(y=Y):
    return H @ y - B @ X + Linear({1: -MEANS["c"]})


def auxiliary():
    """u = ∇_x f − J z, v = ∇_y g, p = H z − ∇_y f."""
    return {"x": fx() + BT @ Z, "y": gy(), "z": H @ Z - fy()}


def penalty(λ):
    """H z and J z by differences of width 1/λ, exact for a quadratic, and the gradients of f at ỹ = y − z/λ."""
    near = Y - 1 / λ * Z
    return {"x": fx(near) + BT @ Z, "y": gy(), "z": H @ Z - fy(near)}


def copies(λ):
    """Of f(x, y) + λ (g(x, y) − g(x, z)), where ∇_x g(x, y) − ∇_x g(x, z) = −Bᵀ (y − z); y's is divided by λ."""
    return {"x": fx() - λ * (BT @ (Y - Z)), "y": 1 / λ * fy() + gy(), "z": gy(Z)}


def envelope(λ, ρ):
    """Of f/λ + g − v with the Moreau envelope v(x, y) = min_z g(x, z) + ‖z − y‖²/(2ρ)."""
    pull = 1 / ρ * (Y - Z)
    return {"x": 1 / λ * fx() - BT @ (Y - Z), "y": 1 / λ * fy() + gy() - pull, "z": gy(Z) - pull}


def implicit(ratios):
    """∇_x f − K ∇_y f, where K (nodes, p, q) takes the place of J H⁻¹; and ∇_y g."""
    return {"x": fx() - ratios @ fy(), "y": gy()}


def first_order():
    """∇_x f alone, as minimax methods have it, and ∇_y g."""
    return {"x": fx(), "y": gy()}


def single():
    """∇f of one level."""
    return {"x": MEANS["R"] @ X + Linear({1: -MEANS["e"]})}


def series(matrices, terms, scale):
    """(1/L) Σ_{j<K} (I − H/L)^j"""
    factor = np.eye(Q) - matrices / scale
    return sum(np.linalg.matrix_power(factor, j) for j in range(terms)) / scale


# Where levels stand still


def _over_nodes(matrix, size):
    """A matrix between nodes, on all their vectors of that size."""
    return np.kron(matrix, np.eye(size))


def _between_all(direction):
    """A direction with one matrix between what all nodes hold, (nodes · rows, nodes · entries), and one constant."""
    whole = {1: direction[1].reshape(-1)}
    for level in direction.keys() - {1}:
        rows, entries = direction[level].shape[1:]
        blocks = np.einsum("nm,nij->nimj", np.eye(NODES), direction[level])
        whole[level] = blocks.reshape(NODES * rows, NODES * entries)
    return whole


def settle(directions, strategies, rates, W=GRAPH.W):
    """{level: (nodes, entries)} where every level stands still, given its direction d and how it moves:

    - "exact": s is common to all nodes, and Σ d = 0 (ED, EXTRA, gradient tracking and their kin, whatever the steps);
    - "consensus": s = W s − α d;  "diffusion": s = W (s − α d);  "local": d = 0.

    Averages of directions over steps (momentum, STORM, SPIDER) and steps that go part of the way stand still where
    these do, and so do inner loops that begin where the last one ended. A rate is a number, or one for each node, or
    for each node and coordinate.
    """
    levels = list(directions)
    offsets = dict(zip(levels, np.cumsum([0, *(NODES * SIZES[level] for level in levels)]), strict=False))
    total = sum(NODES * SIZES[level] for level in levels)

    def columns(level):
        return slice(offsets[level], offsets[level] + NODES * SIZES[level])

    left = []
    right = []
    for level in levels:
        size = SIZES[level]
        d = directions[level]
        d = _between_all(d) if isinstance(d, Linear) else d
        slope = np.zeros((NODES * size, total))
        for other in d.keys() - {1}:
            slope[:, columns(other)] = d[other]
        variable = np.zeros_like(slope)
        variable[:, columns(level)] = np.eye(NODES * size)
        if strategies[level] == "exact":
            differences = _over_nodes(np.diff(np.eye(NODES), axis=0), size)
            summed = _over_nodes(np.ones((1, NODES)), size)
            left += [differences @ variable, summed @ slope]
            right += [np.zeros(len(differences)), -summed @ d[1]]
            continue
        rate = np.ravel(rates[level])
        step = np.diag(np.repeat(rate, NODES * size // len(rate)))
        apart = 0 * W if strategies[level] == "local" else np.eye(NODES) - W
        mixed = W if strategies[level] == "diffusion" else np.eye(NODES)
        moved = _over_nodes(mixed, size) @ step
        left.append(_over_nodes(apart, size) @ variable + moved @ slope)
        right.append(-moved @ d[1])
    solution = np.linalg.solve(np.concatenate(left), np.concatenate(right))
    return {level: solution[columns(level)].reshape(NODES, -1) for level in levels}


def dsbo_limit(rates):
    """Gradient tracking is exact for Z H̄ = J̄, so that Z = J̄ H̄⁻¹ at every node; x and y move by consensus."""
    ratio = -np.linalg.solve(H.mean(0), B.mean(0)).T
    return settle(implicit(np.tile(ratio, (NODES, 1, 1))), dict.fromkeys("xy", "consensus"), rates)


def gossip_dsbo_limit(rates, theta, terms, smoothness):
    """Running averages m = (1−θ) W m + θ d stand still at m = M d with M = θ (I − (1−θ) W)⁻¹, for each of s, h, U and
    V. Then x = W x − α (s − U Q h) and y = W y − β v, with Q the series of b + 1 terms in V."""
    average = theta * np.linalg.inv(np.eye(NODES) - (1 - theta) * GRAPH.W)
    U = np.einsum("nm,mij->nij", average, -BT)
    V = np.einsum("nm,mij->nij", average, H)
    s = {key: _over_nodes(average, P) @ value for key, value in _between_all(fx()).items()}
    h = {key: _over_nodes(average, Q) @ value for key, value in _between_all(fy()).items()}
    product = U @ series(V, terms + 1, smoothness)
    UQ = _between_all({"y": product, 1: np.zeros(1)})["y"]
    u = {key: s[key] - UQ @ h[key] for key in s}
    return settle({"x": u, "y": gy()}, dict.fromkeys("xy", "consensus"), rates)
