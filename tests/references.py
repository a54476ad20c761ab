"""The papers' recursions in plain NumPy: dense matrices, a level as an (N, ...) array, nothing shared with the library.

`Dense` is the unified form s⁺ = C s − A d − B w, w⁺ = w + B s⁺ with A, B, C as matrices. `Printed` is the rule the
papers print in the last column of their table; it also takes a W that changes with the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from method_references import Nodes, gossip
from quadratics import Quadratic

# How many vectors the tables of the papers say travel, and in how many rounds: gt must wait for its first vector.
EXCHANGES = {
    "diffusion": (1, 1),
    "consensus": (1, 1),
    "local": (0, 0),
    "ed": (1, 1),
    "nids": (1, 1),
    "extra": (1, 1),
    "gt": (2, 2),
    "push-pull": (2, 2),
    "semi-gt": (2, 1),
    "non-gt": (2, 1),
}
MIXTURES = ("ed", "extra", "gt", "semi-gt", "non-gt", "diffusion", "consensus")


def table(name: str, W: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, B² and C of a strategy."""
    I, O = np.eye(len(W)), np.zeros_like(W)
    return {
        "diffusion": (W, O, W),
        "consensus": (I, O, W),
        "local": (I, O, I),
        "ed": (W, I - W, W),
        "nids": (W, I - W, W),
        "extra": (I, I - W, W),
        "gt": (W @ W, (I - W) @ (I - W), W @ W),
        "push-pull": (W @ W, (I - W) @ (I - W), W @ W),  # with R = C = W
        "semi-gt": (W, (I - W) @ (I - W), W @ W),
        "non-gt": (I, (I - W) @ (I - W), W @ W),
    }[name]


def square_root(matrix: np.ndarray) -> np.ndarray:
    """Of a symmetric positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(np.sqrt(np.clip(values, 0.0, None))) @ vectors.T


class Dense:
    """s⁺ = C s − A d − B w, w⁺ = w + B s⁺, w⁰ = 0."""

    def __init__(self, name: str, W: np.ndarray, s: np.ndarray) -> None:
        self.A, B2, self.C = table(name, W)
        self.B = square_root(B2)
        self.s, self.w = s, np.zeros_like(s)

    def move(self, d: np.ndarray) -> None:
        self.s = self.C @ self.s - self.A @ d - self.B @ self.w
        self.w = self.w + self.B @ self.s


class Printed:
    """The update rules as printed; the first step of ED and EXTRA is the one the unified form takes."""

    def __init__(self, name: str, s: np.ndarray) -> None:
        self.name, self.s = name, s
        self.previous, self.d, self.h = None, np.zeros_like(s), np.zeros_like(s)

    def move(self, W: np.ndarray, d: np.ndarray) -> None:
        s, change, first = self.s, d - self.d, self.previous is None
        if self.name == "diffusion":
            after = W @ (s - d)
        elif self.name == "consensus":
            after = W @ s - d
        elif self.name == "local":
            after = s - d
        elif self.name in ("ed", "nids"):  # NIDS without a proximal map is ED
            after = W @ (s - d) if first else W @ (2 * s - self.previous - change)
        elif self.name == "extra":
            after = W @ s - d if first else W @ (2 * s - self.previous) - change
        else:
            self.h = W @ self.h + change if self.name == "non-gt" else W @ (self.h + change)
            after = W @ (s - self.h) if self.name in ("gt", "push-pull") else W @ s - self.h
        self.previous, self.s, self.d = s, after, d


class Damped:
    """Exact Diffusion with a damped carry, where W may change: φ = s − d + c, s⁺ = W φ, c⁺ = c − κ (φ − W φ)."""

    def __init__(self, κ: float, s: np.ndarray) -> None:
        self.κ, self.s, self.c = κ, s, np.zeros_like(s)

    def move(self, W: np.ndarray, d: np.ndarray) -> None:
        φ = self.s - d + self.c
        self.s = W @ φ
        self.c = self.c - self.κ * (φ - self.s)


class Curved(NamedTuple):
    """A quadratic with τ Σ log cosh(y + B_i x) added to g_i, so that H and J depend on the point."""

    quadratic: Quadratic
    τ: float = 0.7

    @property
    def nodes(self):
        return self.quadratic.nodes

    def _t(self, x, y):
        return y + np.einsum("nij,nj->ni", self.quadratic.B, x)

    def fx(self, x, y):
        return self.quadratic.fx(x, y)

    def fy(self, x, y):
        return self.quadratic.fy(x, y)

    def v(self, x, y):
        return self.quadratic.v(x, y) + self.τ * np.tanh(self._t(x, y))

    def gx(self, x, y):
        return np.einsum("nij,ni->nj", self.quadratic.B, self.τ * np.tanh(self._t(x, y)) - y)

    def p(self, x, y, z):
        return self.quadratic.p(x, y, z) + self.τ * z / np.cosh(self._t(x, y)) ** 2

    def u(self, x, y, z):
        bent = self.τ * z / np.cosh(self._t(x, y)) ** 2
        return self.quadratic.u(x, y, z) - np.einsum("nij,ni->nj", self.quadratic.B, bent)

    def problem(self, **options):
        _, entries_of_y, entries_of_x = self.quadratic.B.shape
        return Nodes(self.quadratic, self.τ, np.zeros(entries_of_x), np.zeros(entries_of_y)).problem(**options)


def at(rate, k):
    """A number, or a schedule."""
    return rate(k) if callable(rate) else rate


def starts(problem) -> tuple[np.ndarray, np.ndarray]:
    q = getattr(problem, "quadratic", problem)
    return np.zeros((q.nodes, q.B.shape[2])), np.zeros((q.nodes, q.B.shape[1]))


def sparkle(
    problem, lower, upper, W, *, alpha, beta, gamma, theta, steps, updates="simultaneous", every=1, rule=Printed
):
    """(x, y, z) of every node. `W` is a matrix, or one for each of x, y, z; or a function of a level's own moves.

    x and z move in every `every`-th step. With a function, levels are of the class `rule`.
    """
    x0, y0 = starts(problem)
    if callable(W):
        levels = [rule(upper, x0), rule(lower, y0), rule(lower, y0)]
        move = lambda level, k, d: level.move(W(k), d)  # noqa: E731
    else:
        Wx, Wy, Wz = W if isinstance(W, tuple) else (W, W, W)
        levels = [Dense(upper, Wx, x0), Dense(lower, Wy, y0), Dense(lower, Wz, y0)]
        move = lambda level, k, d: level.move(d)  # noqa: E731
    x, y, z = levels
    r = np.zeros_like(x0)
    for k in range(steps):
        α, β, γ, θ = (at(rate, k) for rate in (alpha, beta, gamma, theta))
        turn = k // every
        if k % every:
            move(y, k, β * problem.v(x.s, y.s))
        elif updates == "alternating":
            move(y, k, β * problem.v(x.s, y.s))
            move(z, turn, γ * problem.p(x.s, y.s, z.s))
            r = (1 - θ) * r + θ * problem.u(x.s, y.s, z.s)
            move(x, turn, α * r)
        else:
            v, p, u = problem.v(x.s, y.s), problem.p(x.s, y.s, z.s), problem.u(x.s, y.s, z.s)
            r = (1 - θ) * r + θ * u
            move(x, turn, α * r)
            move(y, k, β * v)
            move(z, turn, γ * p)
    return x.s, y.s, z.s


def dsoba(problem, W, *, alpha, beta, gamma, theta, steps, delta=None, forward=False):
    """D-SOBA, node by node as its algorithm is printed; with `delta`, products by differences of gradients."""
    x, y = starts(problem)
    z, h = np.zeros_like(y), np.zeros_like(x)
    for _ in range(steps):
        ux, uy, v = problem.fx(x, y), problem.fy(x, y), problem.v(x, y)
        if delta is None:
            Hz, Jz = problem.p(x, y, z) + uy, ux - problem.u(x, y, z)
        else:
            ahead, behind, width = y + delta * z, y if forward else y - delta * z, delta if forward else 2 * delta
            Hz = (problem.v(x, ahead) - problem.v(x, behind)) / width
            Jz = (problem.gx(x, ahead) - problem.gx(x, behind)) / width
        x, y, z = gossip(W, x - alpha * h), gossip(W, y - beta * v), gossip(W, z - gamma * (Hz - uy))
        h = (1 - theta) * h + theta * (ux - Jz)
    return x, y, z


def soba(problem, *, alpha, beta, gamma, theta=1.0, steps):
    """Centralized: one x, y, z and directions averaged over the nodes."""
    x, y = (s[:1] for s in starts(problem))
    z, r = np.zeros_like(y), np.zeros_like(x)
    for _ in range(steps):
        everyone = [np.repeat(s, problem.nodes, 0) for s in (x, y, z)]
        u, v, p = problem.u(*everyone), problem.v(*everyone[:2]), problem.p(*everyone)
        r = (1 - theta) * r + theta * u.mean(0)
        x, y, z = x - alpha * r, y - beta * v.mean(0), z - gamma * p.mean(0)
    return x[0], y[0], z[0]


def single_level(quadratic, name, W, *, alpha, steps, theta=1.0):
    level = Dense(name, W, np.zeros_like(quadratic.e))
    r = np.zeros_like(quadratic.e)
    for k in range(steps):
        r = (1 - theta) * r + theta * quadratic.fx(level.s, None)
        level.move(at(alpha, k) * r)
    return level.s
