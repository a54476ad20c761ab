"""The published relatives of the penalty form in plain NumPy, node by node; nothing shared with the library.

The problems are `method_references.Nodes`. Every reference returns x, y and z of all nodes after `steps` iterations.
`affine_solution` finds where mean directions vanish that are affine in one common point.
"""

from __future__ import annotations

import math

import numpy as np
from method_references import Tracked, each, gossip
from references import Dense, at


def gx(nodes, i, x, y):
    """∇_x g_i"""
    B = nodes.quadratic.B[i]
    return B.T @ (nodes.tau * np.tanh(y + B @ x) - y)


def penalized(nodes, λ):
    """Node i's directions of x, y and z, along which f(x, y) + λ (g(x, y) − g(x, z)) is stationary."""

    def u(i, x, y, z):
        return nodes.fx(i, x, y) + λ * (gx(nodes, i, x, y) - gx(nodes, i, x, z))

    def v(i, x, y, z):
        return nodes.fy(i, x, y) + λ * nodes.gy(i, x, y)

    def w(i, x, y, z):
        return nodes.gy(i, x, z)

    return u, v, w


def enveloped(nodes, c, ρ):
    """The same of f(x, y)/c + g(x, y) − min_z [g(x, z) + ‖z − y‖²/(2ρ)]."""

    def u(i, x, y, z):
        return nodes.fx(i, x, y) / c + gx(nodes, i, x, y) - gx(nodes, i, x, z)

    def v(i, x, y, z):
        return nodes.fy(i, x, y) / c + nodes.gy(i, x, y) - (y - z) / ρ

    def w(i, x, y, z):
        return nodes.gy(i, x, z) + (z - y) / ρ

    return u, v, w


def nudged(nodes, ν):
    """Where copies a and b minimize g ± ν f, and x moves against the central difference of their values."""

    def u(i, x, a, b):
        ahead, behind = (gx(nodes, i, x, y) + sign * ν * nodes.fx(i, x, y) for y, sign in ((a, 1), (b, -1)))
        return (ahead - behind) / (2 * ν)

    def v(i, x, a, b):
        return nodes.gy(i, x, a) + ν * nodes.fy(i, x, a)

    def w(i, x, a, b):
        return nodes.gy(i, x, b) - ν * nodes.fy(i, x, b)

    return u, v, w


def simultaneous(nodes, W, strategy, rates, directions, steps):
    """All levels along `directions(k)` at the old point."""
    start, below = nodes.start()
    levels = [Dense(strategy, W, s) for s in (start, below, below)]
    for k in range(steps):
        point = [level.s for level in levels]
        d = [each(direction, *point) for direction in directions(k)]
        for level, rate, direction in zip(levels, rates, d, strict=True):
            level.move(at(rate, k) * direction)
    return tuple(level.s for level in levels)


def copies(nodes, W, *, strategy, alpha, beta, gamma, strength, steps):
    """F2SA, DSGDA-GT and AHEAD."""
    rates = alpha, beta, gamma
    return simultaneous(nodes, W, strategy, rates, lambda k: penalized(nodes, at(strength, k)), steps)


def central_copies(nodes, W, *, strategy, alpha, beta, strength, steps):
    """F2SA-p with p = 2 (Chen, Li, Chayti, Zhang, 2025), or equilibrium propagation nudged both ways by ν = 1/λ."""
    return simultaneous(nodes, W, strategy, (alpha, beta, beta), lambda k: nudged(nodes, 1 / strength), steps)


def sun_dsbo(nodes, W, *, strategy, alpha, beta, gamma, strength, envelope, steps):
    rates = alpha, beta, gamma
    return simultaneous(nodes, W, strategy, rates, lambda k: enveloped(nodes, at(strength, k), envelope), steps)


def duet(nodes, W, *, alpha, beta, gamma, ridge, decay, steps, personal=False):
    start, below = nodes.start()
    lower = "local" if personal else "gt"
    x, y, z = Dense("gt", W, start), Dense(lower, W, below), Dense(lower, W, 0 * below)
    for k in range(steps):
        μ = ridge / (k + 1) ** decay
        u = each(nodes.u, x.s, y.s, z.s)
        v, p = each(nodes.gy, x.s, y.s) + μ * y.s, each(nodes.p, x.s, y.s, z.s) + μ * z.s
        x.move(alpha * u)
        y.move(beta * v)
        z.move(gamma * p)
    return x.s, y.s, z.s


class Compressed:
    """Gradient tracking in which neighbours know reference points of s and h only, moved by the largest entries of the
    two differences together."""

    def __init__(self, W, s, share, mixing):
        self.W, self.s, self.h, self.d, self.mixing = W, s, 0 * s, 0 * s, mixing
        self.known = np.concatenate([self.h, 0 * s], 1)
        self.count = math.ceil(share * self.known.shape[1])

    def move(self, d):
        for i, new in enumerate(np.concatenate([self.h, self.s], 1) - self.known):
            sent = np.argsort(-np.abs(new), kind="stable")[: self.count]
            self.known[i, sent] += new[sent]
        flow = self.mixing * (gossip(self.W, self.known) - self.known)
        h_flow, s_flow = np.split(flow, 2, 1)
        self.h = self.h + h_flow + d - self.d
        self.s, self.d = self.s + s_flow - self.h, d


def c2dfb(nodes, W, *, alpha, beta, gamma, strength, lower_steps, steps, share=1.0, mixing=1.0):
    start, below = nodes.start()
    u, v, w = penalized(nodes, strength)
    x = Tracked(W, start)
    y, z = (Compressed(W, below, share, mixing) for _ in range(2))
    for _ in range(steps):
        for _ in range(lower_steps):
            d = [each(direction, x.s, y.s, z.s) for direction in (v, w)]
            y.move(beta * d[0] / strength)
            z.move(gamma * d[1])
        x.move(alpha * each(u, x.s, y.s, z.s))
    return x.s, y.s, z.s


def affine_solution(directions, *sizes):
    """The common (x, y, z) at which the means over nodes of affine `directions(x, y, z)` vanish."""

    def mean(point):
        return np.concatenate([d.mean(0) for d in directions(*np.split(point, np.cumsum(sizes)[:-1]))])

    offset = mean(np.zeros(sum(sizes)))
    matrix = np.stack([mean(row) - offset for row in np.eye(sum(sizes))], 1)
    return np.split(np.linalg.solve(matrix, -offset), np.cumsum(sizes)[:-1])


def stationary(nodes, directions):
    """The common (x, y, z) at which the means over nodes of these directions vanish, which are affine."""

    def at_common(*point):
        levels = [np.tile(level, (len(nodes), 1)) for level in point]
        return [each(direction, *levels) for direction in directions]

    return affine_solution(at_common, len(nodes.x0), len(nodes.y0), len(nodes.y0))


def penalized_solution(nodes, λ):
    return stationary(nodes, penalized(nodes, λ))


def enveloped_solution(nodes, c, ρ):
    return stationary(nodes, enveloped(nodes, c, ρ))
