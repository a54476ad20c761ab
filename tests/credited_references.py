"""Published relatives of the library's own methods, in plain NumPy as their papers print them; nothing is shared.

A gradient is `gradient(x)` of all nodes' points (nodes, entries), each node at its own.
"""

from __future__ import annotations

import numpy as np


def lt_admm(gradient, x, ρ, *, γ, β, relaxation, local_steps, steps, arrives=lambda k, i, j: True):
    """LT-ADMM (Ren, Bastianello, Johansson, Parisini, Communication-Efficient Stochastic Distributed Learning, 2025):

        φ⁰ = x_i,   φ ← φ − γ ∇f_i(φ) − β (Σ_j ρ_ij x_i − Σ_j z_ij)   `local_steps` times,   x_i⁺ = φ
        z_ij⁺ = (1 − α) z_ij + α (2 ρ_ij x_j⁺ − z_ji)

    with the relaxation α. A message that does not arrive leaves z_ij as it is: relaxed ADMM over lossy networks
    (Bastianello, Carli, Schenato, Todescato, 2021).

    Args:
        ρ: (nodes, nodes) the penalty of every link, zero where there is none; the paper has one for all.
        arrives: `arrives(k, i, j)`, whether what j sends to i after step k arrives.
    """
    z = ρ[:, :, None] * x[:, None]  # z_ij at node i
    for k in range(steps):
        φ, push = x, β * (ρ.sum(1)[:, None] * x - z.sum(1))
        for _ in range(local_steps):
            φ = φ - γ * gradient(φ) - push
        x, before = φ, z.copy()
        for i, j in np.argwhere(ρ):
            if arrives(k, i, j):
                z[i, j] = (1 - relaxation) * before[i, j] + relaxation * (2 * ρ[i, j] * x[j] - before[j, i])
    return x


def nids(gradient, x, W, *, Λ, c, steps, prox=lambda z: z):
    """NIDS (Li, Shi, Yan, 2019) with uncoordinated steps Λ = diag(α_i):

        z⁺ = z − x + W̃ (2 x − x₋ − Λ (∇f(x) − ∇f(x₋))),   x⁺ = prox(z⁺),   W̃ = I − c Λ (I − W).

    The first step is x⁺ = prox(W̃ (x − Λ ∇f(x))), which is that of the paper's primal-dual form from a dual of zero; the
    paper starts at x − Λ ∇f(x).
    """
    Λ = np.diag(Λ)
    mixed = np.eye(len(W)) - c * Λ @ (np.eye(len(W)) - W)
    before, g = x, gradient(x)
    z = mixed @ (x - Λ @ g)
    x = prox(z)
    for _ in range(steps - 1):
        g_before, g = g, gradient(x)
        z = z - x + mixed @ (2 * x - before - Λ @ (g - g_before))
        before, x = x, prox(z)
    return x


def aug_dgm(gradient, x, W, *, step, steps):
    """AugDGM (Xu, Zhu, Soh, Xie, 2015): y⁺ = W (y + Δ∇f), x⁺ = W (x − D y⁺), where `step(y)` is D y.

    The gradient before the first is zero, so that y begins at W ∇f(x); the paper begins at ∇f(x).
    """
    y = before = np.zeros_like(x)
    for _ in range(steps):
        g = gradient(x)
        y, before = W @ (y + g - before), g
        x = W @ (x - step(y))
    return x


class AdaGrad:
    """D y with D = η/(√Σ y² + ε) by node and coordinate."""

    def __init__(self, η, ε=1e-12):
        self.η, self.ε, self.sums = η, ε, 0.0

    def __call__(self, y):
        self.sums = self.sums + y**2
        return self.η * y / (np.sqrt(self.sums) + self.ε)
