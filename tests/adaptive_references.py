"""ada-ed and adam-ed on one level, written in plain NumPy by a loop over nodes and links."""

from __future__ import annotations

import numpy as np


def flows(W, a, φ):
    """Σ_j w_ij min(a_i, a_j) (φ_j − φ_i) of every node and coordinate."""
    F = np.zeros_like(φ)
    for i in range(len(φ)):
        for j in range(len(φ)):
            F[i] += W[i, j] * np.minimum(a[i], a[j]) * (φ[j] - φ[i])
    return F


def adaptive(name, gradient, x, W, η, steps, *, τ=1, agree=True, averaged=False):
    """(x, e) of every node after so many exchanges, each of which follows τ steps.

    Args:
        name: "ada-ed", "ada-ed-scalar" or "adam-ed".
        gradient: of every node at every node's own point.
        x: where nodes start.
        W: the mixing matrix.
        η: the step size.
        steps: how often neighbours exchange.
        τ: steps for each exchange.
        agree: whether neighbours average the second moments of "adam-ed".
        averaged: whether these are moments of m̂ − e instead of g − e.
    """
    e = np.zeros_like(x)
    v, m, floor, t = 0 * x[:, :1] if name == "ada-ed-scalar" else 0 * x, 0 * x, 0.0, 0
    for _ in range(steps):
        total, before = 0.0, floor
        for _ in range(τ):
            t += 1
            g = gradient(x)
            if name == "adam-ed":
                m = 0.9 * m + 0.1 * g
                m_hat = m / (1 - 0.9**t)
                v = 0.99 * v + 0.01 * ((m_hat if averaged else g) - e) ** 2
                r, b = m_hat - e, np.sqrt(v / (1 - 0.99**t)) + 1e-8
            else:
                r = g - e
                v = v + (np.sum(r**2, 1, keepdims=True) if name == "ada-ed-scalar" else r**2)
                b = np.maximum(np.sqrt(v) + 1e-12, before)
            x, total = x - η / b * r, total + η / b
        F = flows(W, 1 / total, x)
        x, e = x + F * total, e + F
        mean = W @ (η * τ / total)
        floor = np.maximum(before, 0.5 * mean)
        if name == "adam-ed" and agree:
            v = (mean - 1e-8) ** 2 * (1 - 0.99**t)
    return x, e
