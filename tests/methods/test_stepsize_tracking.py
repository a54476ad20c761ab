"""D-AdaST and AdaSDBO against NumPy, and how their bias vanishes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import published_references as references
import pytest
from method_references import Nodes
from quadratics import random_quadratic

import decibel as db

NODES, STEPS = 6, 50
QUADRATIC = random_quadratic(NODES)
START = dict(x0=np.array([0.5, -1.0, 2.0]), y0=np.array([1.0, 0.0, -0.5, 0.25]))
GRAPH = db.graphs.erdos_renyi(NODES, 0.5, seed=3)


def objective(x, y, batch):
    """½ ‖x − e‖²_R + yᵀ (B x + c) − ½ ‖y‖²_H"""
    R, e, H, B, c = (jnp.mean(batch[name], 0) for name in "ReHBc")
    return 0.5 * (x - e) @ (R @ (x - e)) + y @ (B @ x + c) - 0.5 * y @ (H @ y)


MINIMAX = db.Problem.minimax(
    objective,
    data={name: getattr(QUADRATIC, name)[:, None] for name in "ReHBc"},
    x0=jnp.asarray(START["x0"]),
    y0=jnp.asarray(START["y0"]),
)


def gradients(i, x, y):
    q = QUADRATIC
    return q.R[i] @ (x - q.e[i]) + q.B[i].T @ y, q.B[i] @ x + q.c[i] - q.H[i] @ y


def saddle():
    """x of the saddle point, with y*(x) = H̄⁻¹ (B̄ x + c̄)."""
    H, B, c, R = (getattr(QUADRATIC, name).mean(0) for name in "HBcR")
    back = B.T @ np.linalg.inv(H)
    return np.linalg.solve(R + back @ B, np.einsum("nij,nj->i", QUADRATIC.R, QUADRATIC.e) / NODES - back @ c)


def run(problem, method, steps=STEPS):
    return db.solve(problem, method, GRAPH, steps=steps, eval_every=STEPS, metrics=[], progress=False)


def agree(result, reference):
    levels = [level for level in result.nodes if level is not None]
    for found, expected in zip(levels, reference, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9, rtol=0)
        assert np.ptp(expected, 0).max() > 1e-5


def test_d_adast_follows_the_paper():
    rates = dict(alpha=0.3, beta=0.4)
    x, y = (np.tile(START[name], (NODES, 1)) for name in ("x0", "y0"))
    agree(run(MINIMAX, db.d_adast(**rates)), references.d_adast(gradients, x, y, GRAPH.W, steps=STEPS, **rates))


def test_adasdbo_follows_the_recursion():
    rates, nodes = dict(alpha=3.0, beta=0.8, gamma=0.9), Nodes(QUADRATIC, 0.7, **START)
    agree(run(nodes.problem(), db.adasdbo(**rates)), references.adasdbo(nodes, GRAPH.W, steps=STEPS, **rates))


def test_the_bias_of_d_adast_vanishes_with_the_steps():
    """Sums grow with k where nodes differ. Measured, with the defaults: 0.021 after 1000 steps, 0.0074 after 10,000;
    a factor of 10^0.46. With common steps D-AdaST would be diffusion, whose bias does not vanish."""
    method = db.CATALOG["d-adast"]()
    early, late = (np.abs(run(MINIMAX, method, steps).nodes.x - saddle()).max() for steps in (1000, 10_000))
    assert 0.005 < late < early < 0.03 and early / late > 2.5


SCALES = [(0.1, 0.1), (0.1, 10.0), (1.0, 1.0), (10.0, 0.1), (10.0, 10.0)]


@pytest.mark.parametrize(("upper", "lower"), SCALES)
def test_adasdbo_needs_no_tuning(upper, lower):
    """On losses scaled by 0.1 to 10, from 2.3 away: within 0.35 after 3000 steps. Measured 0.004 where both have the
    scale one, 0.35 in the worst case, where x's steps are smallest."""
    scaled = {name: upper * getattr(QUADRATIC, name) for name in "MR"}
    scaled |= {name: lower * getattr(QUADRATIC, name) for name in "HBc"}
    quadratic = QUADRATIC._replace(**scaled)
    found = run(Nodes(quadratic, 0.0, **START).problem(), db.adasdbo(), 3000).nodes.x
    error = np.abs(found - quadratic.solution()).max()
    assert error < (0.005 if upper == lower == 1.0 else 0.4), error
