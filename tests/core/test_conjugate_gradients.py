"""Conjugate gradients against the textbook's loop over nodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from decibel.core._conjugate_gradients import conjugate_gradients
from decibel.core._vector import Vector

NODES, ENTRIES = 3, 4
RNG = np.random.default_rng(0)
FRAMES = np.linalg.qr(RNG.normal(size=(NODES, ENTRIES, ENTRIES)))[0]
H = FRAMES @ (np.geomspace(1, 1e3, ENTRIES)[:, None] * FRAMES.transpose(0, 2, 1))
B = FRAMES @ np.array([1, 0.3, 0.1, 0.03])  # little along the largest curvatures, so that residuals first grow


def iterates(H, b):
    """z of every step, and its residual, as Hestenes and Stiefel (1952) have them."""
    z, r = np.zeros_like(b), b.copy()
    w = r.copy()
    yield z, np.linalg.norm(r)
    for _ in range(len(b)):
        step = (r @ r) / (w @ H @ w)
        z = z + step * w
        new = r - step * (H @ w)
        w = new + (new @ new) / (r @ r) * w
        r = new
        yield z, np.linalg.norm(r)


def test_after_any_number_of_steps_it_is_the_iterate_of_the_least_residual():
    expected = [list(iterates(h, b)) for h, b in zip(H, B, strict=True)]
    assert all(steps[1][1] > steps[0][1] for steps in expected)
    solved = jax.jit(lambda steps: conjugate_gradients(product, Vector(jnp.asarray(B)), steps, 1e-12).tree)
    for steps in range(ENTRIES + 1):
        least = [min(of_node[: steps + 1], key=lambda iterate: iterate[1])[0] for of_node in expected]
        np.testing.assert_allclose(solved(steps), least, rtol=1e-6, atol=1e-9)


def product(w):
    return Vector(jnp.einsum("nij,nj->ni", H, w.tree))
