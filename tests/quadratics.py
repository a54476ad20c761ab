"""Random heterogeneous quadratics with closed-form solutions, as problems and as plain NumPy.

g_i(x, y) = ½ yᵀ H_i y − yᵀ (B_i x + c_i)          y*(x) = H̄⁻¹ (B̄ x + c̄)
f_i(x, y) = ½ ‖y − a_i‖²_{M_i} + ½ ‖x − e_i‖²_{R_i}
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import decibel as db


class Quadratic(NamedTuple):
    H: np.ndarray  # (N, q, q)
    B: np.ndarray  # (N, q, p); J_i = −B_iᵀ
    c: np.ndarray
    M: np.ndarray
    a: np.ndarray
    R: np.ndarray
    e: np.ndarray

    @property
    def nodes(self):
        return len(self.H)

    # Directions at every node's own point, by hand. x: (N, p), y and z: (N, q).
    def v(self, x, y):
        return _mv(self.H, y) - _mv(self.B, x) - self.c

    def p(self, x, y, z):
        return _mv(self.H, z) - self.fy(x, y)

    def u(self, x, y, z):
        return self.fx(x, y) + _mv(self.B.transpose(0, 2, 1), z)

    def fx(self, x, y):
        return _mv(self.R, x - self.e)

    def fy(self, x, y):
        return _mv(self.M, y - self.a)

    def local_hypergradient(self, x, y):
        z = np.linalg.solve(self.H, self.fy(x, y)[..., None])[..., 0]
        return self.u(x, y, z)

    def lower_solution(self, x):
        return np.linalg.solve(self.H.mean(0), self.B.mean(0) @ x + self.c.mean(0))

    def hypergradient(self, x):
        """∇Φ of the shared problem."""
        y = self.lower_solution(x)
        z = np.linalg.solve(self.H.mean(0), self.fy(x, y).mean(0))
        return self.fx(x, y).mean(0) + self.B.mean(0).T @ z

    def solution(self):
        """x* of the shared problem."""
        Hinv = np.linalg.inv(self.H.mean(0))
        T, t = Hinv @ self.B.mean(0), Hinv @ self.c.mean(0)  # y* = T x + t
        M, Ma = self.M.mean(0), _mv(self.M, self.a).mean(0)
        R, Re = self.R.mean(0), _mv(self.R, self.e).mean(0)
        return np.linalg.solve(R + T.T @ M @ T, Re + T.T @ (Ma - M @ t))

    def personal_solution(self):
        Hinv = np.linalg.inv(self.H)
        T, t = Hinv @ self.B, _mv(Hinv, self.c)
        left = (self.R + T.transpose(0, 2, 1) @ self.M @ T).mean(0)
        right = (_mv(self.R, self.e) + _mv(T.transpose(0, 2, 1), _mv(self.M, self.a - t))).mean(0)
        return np.linalg.solve(left, right)

    def problem(self, *, personal=False, dtype=jnp.float64, samples=1):
        data = {name: np.repeat(value[:, None], samples, 1) for name, value in self._asdict().items()}
        lower_data = {name: data[name] for name in "HBc"}
        upper_data = {name: data[name] for name in "MaRe"}
        p, q = self.B.shape[2], self.B.shape[1]
        return db.Problem(
            upper,
            lower,
            upper_data=upper_data,
            lower_data=lower_data,
            x0=np.zeros(p, dtype),
            y0=np.zeros(q, dtype),
            personal=personal,
        )

    def single(self, *, dtype=jnp.float64, samples=1, noise=0.0):
        """Only the x part of f: min ½ Σ ‖x − e_i‖²_{R_i}; the samples of e_i differ by noise."""
        spread = noise * np.random.default_rng(0).normal(size=(self.nodes, samples, self.e.shape[1]))
        data = {"R": np.repeat(self.R[:, None], samples, 1), "e": self.e[:, None] + spread}
        return db.Problem(upper_of_x, upper_data=data, x0=np.zeros(self.e.shape[1], dtype))

    def single_solution(self):
        return np.linalg.solve(self.R.mean(0), _mv(self.R, self.e).mean(0))


def assert_all_at(found, solution, atol):
    """Every node is at the solution."""
    np.testing.assert_allclose(found, np.broadcast_to(solution, found.shape), atol=atol)


def assert_sums_to_zero(carry):
    """Over nodes, up to rounding."""
    c = np.asarray(carry.tree)
    assert np.abs(c.sum(0)).max() < 1e-13 * np.abs(c).sum()


def with_slopes(upper, lower, y0, nodes):
    """A problem in one x, of whose lower data every node has a slope b, between ½ and 1½."""
    b = np.linspace(0.5, 1.5, nodes)
    data = {"upper_data": np.ones((nodes, 1)), "lower_data": b[:, None]}
    return db.Problem(upper, lower, **data, x0=jnp.asarray(0.0), y0=y0)


def _mv(matrices, vectors):
    return np.einsum("nij,nj->ni", matrices, vectors)


def lower(x, y, batch):
    H, B, c = (jnp.mean(batch[name], 0) for name in "HBc")
    return 0.5 * y @ (H @ y) - y @ (B @ x + c)


def upper(x, y, batch):
    M, a = jnp.mean(batch["M"], 0), jnp.mean(batch["a"], 0)
    return 0.5 * (y - a) @ (M @ (y - a)) + upper_of_x(x, batch)


def upper_of_x(x, batch):
    R, e = jnp.mean(batch["R"], 0), jnp.mean(batch["e"], 0)
    return 0.5 * (x - e) @ (R @ (x - e))


def random_quadratic(nodes=6, p=3, q=4, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)

    def positive(n):
        A = rng.normal(size=(nodes, n, n)) * 0.5
        return A @ A.transpose(0, 2, 1) / n + np.eye(n)

    return Quadratic(
        H=positive(q),
        B=rng.normal(size=(nodes, q, p)) * 0.5,
        c=spread * rng.normal(size=(nodes, q)),
        M=positive(q),
        a=spread * rng.normal(size=(nodes, q)),
        R=positive(p),
        e=spread * rng.normal(size=(nodes, p)),
    )
