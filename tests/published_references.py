"""More published methods in plain NumPy, node by node; nothing shared with the library.

As `method_references`, whose `Nodes` give the derivatives: every reference returns the levels of all nodes after
`steps` iterations. With all samples in a batch, what the same sample gave at the point before is what the step before
computed.
"""

from __future__ import annotations

import numpy as np
from method_references import each, gossip, svr_interact


def dsvrbgd(nodes, W, *, alpha, beta, gamma, theta, relax, steps, normalized=False):
    """STORM, then h⁺ = W h + Δm, then s⁺ = s + η (W s − a h⁺ − s), on x, y and z."""
    x, y = nodes.start()
    levels, rates = [x, y, 0 * y], (alpha, beta, gamma)
    d_before, m, h = [0.0] * 3, [0.0] * 3, [0.0] * 3
    for t in range(steps):
        x, y, z = levels
        directions = each(nodes.u, x, y, z), each(nodes.gy, x, y), each(nodes.p, x, y, z)
        for level, d in enumerate(directions):
            m_before = m[level]
            m[level] = d if t == 0 else d + (1 - theta) * (m[level] - d_before[level])
            h[level] = d if t == 0 else gossip(W, h[level]) + m[level] - m_before
            step = h[level] / np.linalg.norm(h[level], axis=1, keepdims=True) if normalized else h[level]
            s = levels[level]
            levels[level] = s + relax * (gossip(W, s) - rates[level] * step - s)
        d_before = directions
    return tuple(levels)


def k_gt(gradient, x, W, *, alpha, local_steps, relax, steps):
    """K-GT's Algorithm 1 with c⁰ = 0: `gradient(i, x)` is node i's."""
    c = 0 * x
    for _ in range(steps):
        w = x
        for _ in range(local_steps):
            w = w - alpha * (each(gradient, w) + c)
        z = (x - w) / (local_steps * alpha)
        c = c - z + gossip(W, z)
        x = gossip(W, x - local_steps * alpha * relax * z)
    return x


def proxskip(gradient, x, W, *, alpha, probability, coins):
    """x̂ = x − γ (∇f − h); where the coin says so x⁺ = W x̂ and h⁺ = h + p/γ (x⁺ − x̂)."""
    h = 0 * x
    for coin in coins:
        ahead = x - alpha * (each(gradient, x) - h)
        x = gossip(W, ahead) if coin else ahead
        h = h + probability / alpha * (x - ahead)
    return x


def d_adast(gradients, x, y, W, *, alpha, beta, steps):
    """D-AdaST's Algorithm 1 with exponents 0.6 and 0.4; `gradients(i, x, y)` are node i's ∇_x f and ∇_y f."""
    mx = my = np.zeros(len(x))
    for _ in range(steps):
        gx, gy = (np.stack(part) for part in zip(*(gradients(i, x[i], y[i]) for i in range(len(x))), strict=True))
        mx, my = gossip(W, mx + (gx**2).sum(1)), gossip(W, my + (gy**2).sum(1))
        ψ = mx**0.6 / np.maximum(mx**0.6, my**0.6)
        x = gossip(W, x - alpha * (ψ * mx**-0.6)[:, None] * gx)
        y = gossip(W, y + beta * (my**-0.4)[:, None] * gy)
    return x, y


def adasdbo(nodes, W, *, alpha, beta, gamma, steps):
    """S-TFBO's steps at every node, from sums that are mixed."""
    x, y = nodes.start()
    z, m = 0 * y, [np.zeros(len(nodes)) for _ in "xyz"]
    for _ in range(steps):
        directions = each(nodes.u, x, y, z), each(nodes.gy, x, y), each(nodes.p, x, y, z)
        m = [gossip(W, sums + (d**2).sum(1)) for sums, d in zip(m, directions, strict=True)]
        a, b, c = (np.sqrt(sums)[:, None] for sums in m)
        c = np.maximum(b, c)
        u, v, p = directions
        x, y, z = gossip(W, x - alpha * u / (a * c)), gossip(W, y - beta * v / b), gossip(W, z - gamma * p / c)
    return x, y, z


def dama(gradients, x, y, W, *, alpha, beta, theta, coins):
    """Exact Diffusion as printed, s⁺⁺ = W (2 s⁺ − s − Δd), along GRACE estimates. `gradients(t, i, x, y)` are node i's
    ∇_x f and −∇_y f on the samples of iteration t; t = None stands for all of its samples."""

    def directions(t, x, y):
        return [np.stack(part) for part in zip(*(gradients(t, i, x[i], y[i]) for i in range(len(x))), strict=True)]

    levels, before, d_before = [x, y], None, [0.0, 0.0]
    for t, coin in enumerate(coins):
        if coin:
            m = directions(None, *levels)
        else:
            ahead, behind = directions(t, *levels), directions(t, *before)
            m = [a + (1 - theta) * (old - b) for a, old, b in zip(ahead, m, behind, strict=True)]
        d = [alpha * m[0], beta * m[1]]
        twice = levels if before is None else [2 * s - old for s, old in zip(levels, before, strict=True)]
        before, levels = levels, [gossip(W, s - a + b) for s, a, b in zip(twice, d, d_before, strict=True)]
        d_before = d
    return tuple(levels)


def prometheus(nodes, M, *, relax, project, **options):
    """Prometheus's Algorithm 1: SVR-INTERACT, but x goes a part of the way to the nearest allowed point."""

    def move(M, x, step):
        return gossip(M, x) + relax * (project(x - step) - x)

    return svr_interact(nodes, M, move=move, **options)
