"""Every method but SPARKLE and its kin in plain NumPy, node by node as the papers print it; nothing shared.

`Nodes` is a heterogeneous quadratic with τ Σ log cosh(y + B_i x) added to g_i, so that H_i and J_i depend on the point;
τ = 0 gives the quadratic and its closed forms. Every reference returns the x and the y of all nodes after `steps`
iterations, and z where the method has one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from quadratics import Quadratic, upper

import decibel as db


def curved(x, y, batch):
    H, B, c, t = (jnp.mean(batch[name], 0) for name in "HBct")
    return 0.5 * y @ (H @ y) - y @ (B @ x + c) + t * jnp.sum(jnp.log(jnp.cosh(y + B @ x)))


@dataclass(frozen=True, eq=False)
class Nodes:
    """Derivatives of node i at one point."""

    quadratic: Quadratic
    tau: float
    x0: np.ndarray
    y0: np.ndarray

    def __len__(self):
        return self.quadratic.nodes

    def _tanh(self, i, x, y):
        return np.tanh(y + self.quadratic.B[i] @ x)

    def fx(self, i, x, y):
        return self.quadratic.R[i] @ (x - self.quadratic.e[i])

    def fy(self, i, x, y):
        return self.quadratic.M[i] @ (y - self.quadratic.a[i])

    def gy(self, i, x, y):
        q = self.quadratic
        return q.H[i] @ y - q.B[i] @ x - q.c[i] + self.tau * self._tanh(i, x, y)

    def H(self, i, x, y):
        return self.quadratic.H[i] + self.tau * np.diag(1 - self._tanh(i, x, y) ** 2)

    def J(self, i, x, y):
        bend = self.tau * np.diag(1 - self._tanh(i, x, y) ** 2)
        return self.quadratic.B[i].T @ (bend - np.eye(len(y)))

    def p(self, i, x, y, z):
        return self.H(i, x, y) @ z - self.fy(i, x, y)

    def u(self, i, x, y, z):
        return self.fx(i, x, y) - self.J(i, x, y) @ z

    # Hypergradients of one node, INTERACT's (4), the truncated series, and its (22) with a given k.
    def exact(self, i, x, y):
        return self.fx(i, x, y) - self.J(i, x, y) @ np.linalg.inv(self.H(i, x, y)) @ self.fy(i, x, y)

    def neumann(self, i, x, y, terms, L):
        I = np.eye(len(y))
        series = sum(np.linalg.matrix_power(I - self.H(i, x, y) / L, j) for j in range(terms)) / L
        return self.fx(i, x, y) - self.J(i, x, y) @ series @ self.fy(i, x, y)

    def random_term(self, i, x, y, k, terms, L):
        product = np.linalg.matrix_power(np.eye(len(y)) - self.H(i, x, y) / L, k)
        return self.fx(i, x, y) - terms / L * self.J(i, x, y) @ product @ self.fy(i, x, y)

    def start(self):
        return np.tile(self.x0, (len(self), 1)), np.tile(self.y0, (len(self), 1))

    @cached_property
    def _data(self):
        q = self.quadratic
        below = {name: getattr(q, name)[:, None] for name in "HBc"} | {"t": np.full((q.nodes, 1), self.tau)}
        return below, {name: getattr(q, name)[:, None] for name in "MaRe"}

    def problem(self, *, personal=False):
        below, above = self._data
        start = dict(x0=jnp.asarray(self.x0), y0=jnp.asarray(self.y0))
        return db.Problem(upper, curved, upper_data=above, lower_data=below, personal=personal, **start)


def gossip(W, s):
    """Σ_j w_ij s_j at every node."""
    return np.stack([sum(W[i, j] * s[j] for j in range(len(s))) for i in range(len(s))])


def each(function, *points, **options):
    """`function` of every node at its own point."""
    return np.stack([function(i, *(s[i] for s in points), **options) for i in range(len(points[0]))])


class Consensus:
    """s⁺ = s + η (W s − d − s)."""

    def __init__(self, W, s, relax=1.0):
        self.W, self.s, self.relax = W, s, relax

    def move(self, d):
        self.s = self.s + self.relax * (gossip(self.W, self.s) - d - self.s)


class Tracked:
    """h⁺ = W h + d⁺ − d, h⁰ = d⁰, and s⁺ = s + η (W s − h⁺ − s)."""

    def __init__(self, W, s, relax=1.0):
        self.W, self.s, self.relax, self.h, self.d = W, s, relax, None, None

    def move(self, d):
        self.h = d if self.h is None else gossip(self.W, self.h) + d - self.d
        self.s = self.s + self.relax * (gossip(self.W, self.s) - self.h - self.s)
        self.d = d


class Extra:
    """s⁺⁺ = W (2 s⁺ − s) − (d⁺ − d), after s⁺ = W s − d."""

    def __init__(self, W, s):
        self.W, self.s, self.before, self.d = W, s, None, None

    def move(self, d):
        if self.before is None:
            after = gossip(self.W, self.s) - d
        else:
            after = gossip(self.W, 2 * self.s - self.before) - (d - self.d)
        self.s, self.before, self.d = after, self.s, d


def interact(nodes, M, *, alpha, beta, steps, hypergradient):
    """INTERACT's Algorithm 1: (6), (7), (8), (9), (10)."""
    x, y = nodes.start()
    p, v = each(hypergradient, x, y), each(nodes.gy, x, y)
    u = p
    for _ in range(steps):
        x, y = gossip(M, x) - alpha * u, y - beta * v
        before, p, v = p, each(hypergradient, x, y), each(nodes.gy, x, y)
        u = gossip(M, u) + p - before
    return x, y


def less(M, x, step):
    return gossip(M, x) - step


def svr_interact(nodes, M, *, alpha, beta, steps, period, full, sampled, move=less):
    """SVR-INTERACT's Algorithm 2 where a batch holds all samples; `full` and `sampled` are its two hypergradients."""
    x, y = nodes.start()
    p, v = each(full, x, y), each(nodes.gy, x, y)
    u = p
    for t in range(1, steps + 1):
        old, before = (x, y), p
        x, y = move(M, x, alpha * u), y - beta * v
        if t % period == 0:
            p, v = each(full, x, y), each(nodes.gy, x, y)
        else:
            p = p + each(sampled, x, y) - each(sampled, *old)
            v = v + each(nodes.gy, x, y) - each(nodes.gy, *old)
        u = gossip(M, u) + p - before
    return x, y


def dsgd_bilevel(nodes, M, *, alpha, beta, steps, hypergradient):
    x, y = nodes.start()
    for _ in range(steps):
        x, y = gossip(M, x) - alpha * each(hypergradient, x, y), y - beta * each(nodes.gy, x, y)
    return x, y


def spdb(nodes, W, *, alpha, beta, steps, hypergradient):
    """SPDB's Algorithm 1; the first step is (4) with λ = 0. Its 1/α and 1/n are our `alpha`."""
    x, y = nodes.start()
    x_before, h_before = x, 0.0  # make the rule's first step (4): all nodes start alike, so that W x⁰ = x⁰
    for _ in range(steps):
        y = y - beta * each(nodes.gy, x, y)
        h = each(hypergradient, x, y)
        x, x_before, h_before = gossip(W, 2 * x - x_before) - alpha * (h - h_before), x, h
    return x, y


def gossip_dsbo(nodes, W, *, alpha, beta, theta, terms, smoothness, convexity, steps):
    """Gossip-DSBO's Algorithm 1; its β and γ are our `theta` and `beta`."""
    (x, y), I, (K, q) = nodes.start(), np.eye(len(nodes.y0)), (len(nodes), len(nodes.y0))
    s, h, u = 0 * x, 0 * y, np.zeros((K, len(nodes.x0), q))
    v = [np.tile(convexity * I, (K, 1, 1)) for _ in range(terms)]
    inverse = np.zeros((K, q, q))  # it multiplies h = 0
    for _ in range(steps):
        fx, fy, gy, J, H = (each(of, x, y) for of in (nodes.fx, nodes.fy, nodes.gy, nodes.J, nodes.H))
        d = np.stack([s[k] - u[k] @ inverse[k] @ h[k] for k in range(K)])
        x, y = gossip(W, x) - alpha * d, gossip(W, y) - beta * gy
        s = (1 - theta) * gossip(W, s) + theta * fx
        h = (1 - theta) * gossip(W, h) + theta * fy
        u = (1 - theta) * gossip(W, u) + theta * J
        v = [(1 - theta) * gossip(W, v_i) + theta * H for v_i in v]
        for k in range(K):
            Q = I
            for v_i in v:
                Q = I + (I - v_i[k] / smoothness) @ Q
            inverse[k] = Q / smoothness
    return x, y


def dsbo(nodes, W, *, alpha, beta, gamma, lower_steps, auxiliary_steps, steps):
    """T gossip steps on y; N steps of gradient tracking on Z ≈ J̄ H̄⁻¹ along Z H − J."""
    x, y = nodes.start()
    Z = Tracked(W, np.zeros((len(nodes), len(nodes.x0), len(nodes.y0))))
    for _ in range(steps):
        for _ in range(lower_steps):
            y = gossip(W, y) - beta * each(nodes.gy, x, y)
        for _ in range(auxiliary_steps):
            Z.move(gamma * (Z.s @ each(nodes.H, x, y) - each(nodes.J, x, y)))
        u = each(lambda i, x, y, Z: nodes.fx(i, x, y) - Z @ nodes.fy(i, x, y), x, y, Z.s)
        x = gossip(W, x) - alpha * u
    return x, y, Z.s


def ma_dsbo(nodes, W, *, alpha, beta, gamma, theta, lower_steps, auxiliary_steps, steps, tracking=False):
    x, start = nodes.start()
    mix = Tracked if tracking else Consensus
    y, z, r = mix(W, start), mix(W, 0 * start), 0 * x
    for _ in range(steps):
        for _ in range(lower_steps):
            y.move(beta * each(nodes.gy, x, y.s))
        for _ in range(auxiliary_steps):
            z.move(gamma * each(nodes.p, x, y.s, z.s))
        r = (1 - theta) * r + theta * each(nodes.u, x, y.s, z.s)
        x = gossip(W, x) - alpha * r
    return x, y.s, z.s


def double_loop(nodes, W, *, alpha, beta, inner, steps, terms, scale):
    """`inner(t)` gossip steps on y in iteration t = 0, 1, …, then a local Neumann hypergradient."""
    x, y = nodes.start()
    for t in range(steps):
        for _ in range(inner(t)):
            y = gossip(W, y) - beta * each(nodes.gy, x, y)
        x = gossip(W, x) - alpha * each(nodes.neumann, x, y, terms=terms, L=scale)
    return x, y


def root(t):
    """DBSA's number of inner steps."""
    return math.ceil(math.sqrt(t + 1))


def growing(t):
    """Double-loop DSGD's: t samples in iteration t, at least one."""
    return max(t, 1)


def mdbo(nodes, W, *, alpha, beta, theta, relax, steps, hypergradient, storm=False):
    """Gradient tracking on both levels of a momentum (from zero) or STORM (from the first direction) average."""
    x, y = (Tracked(W, s, relax) for s in nodes.start())
    mu = mv = u_before = v_before = 0.0
    for _ in range(steps):
        u, v = each(hypergradient, x.s, y.s), each(nodes.gy, x.s, y.s)
        if storm:  # with all samples, what the same sample gave at the point before is what the step before computed
            mu, mv = u + (1 - theta) * (mu - u_before), v + (1 - theta) * (mv - v_before)
        else:
            mu, mv = (1 - theta) * mu + theta * u, (1 - theta) * mv + theta * v
        u_before, v_before = u, v
        x.move(alpha * mu)
        y.move(beta * mv)
    return x.s, y.s


def slam(nodes, W, *, alpha, beta, steps, hypergradient):
    x, y = (Extra(W, s) for s in nodes.start())
    for _ in range(steps):
        u, v = each(hypergradient, x.s, y.s), each(nodes.gy, x.s, y.s)
        x.move(alpha * u)
        y.move(beta * v)
    return x.s, y.s


def lopa(nodes, W, *, alpha, beta, gamma, theta, tau, steps, tracking=False):
    start, y = nodes.start()
    x, z, q = (Tracked if tracking else Consensus)(W, start, tau), 0 * y, 0 * start
    for _ in range(steps):
        y = y - beta * each(nodes.gy, x.s, y)
        z = z - gamma * each(nodes.p, x.s, y, z)
        q = (1 - theta) * q + theta * each(nodes.u, x.s, y, z)
        x.move(alpha * q)
    return x.s, y, z


def gt_hsgd(gradient, x, W, *, alpha, theta, steps):
    """GT-HSGD's Algorithm 1: `gradient(t, i, x)` is node i's on the sample of iteration t; its β is our `theta`."""
    x_before, v, y = x, 0 * x, 0 * x
    for t in range(steps):
        now, before = (np.stack([gradient(t, i, s[i]) for i in range(len(s))]) for s in (x, x_before))
        v_before, v = v, now if t == 0 else now + (1 - theta) * (v - before)
        y = gossip(W, y + v - v_before)
        x_before, x = x, gossip(W, x - alpha * y)
    return x
