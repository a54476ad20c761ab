"""D-AdaST and AdaSDBO against NumPy, and how their bias vanishes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import published_references as references
import pytest
from method_references import Nodes
from method_runs import GRAPH, NODES, QUADRATIC, START, STEPS, agree, run

import decibel as db


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


def test_d_adast_follows_the_paper():
    rates = dict(alpha=0.3, beta=0.4)
    x, y = (np.tile(START[name], (NODES, 1)) for name in ("x0", "y0"))
    agree(run(MINIMAX, db.d_adast(**rates)), references.d_adast(gradients, x, y, GRAPH.W, steps=STEPS, **rates))


def test_the_bias_of_d_adast_vanishes_with_the_steps():
    """Sums grow with k where nodes differ. Measured, with the defaults: 0.021 after 1000 steps, 0.0074 after 10,000;
    a factor of 10^0.46. With common steps D-AdaST would be diffusion, whose bias does not vanish."""
    method = db.CATALOG["d-adast"]()
    early, late = (np.abs(run(MINIMAX, method, steps=steps).nodes.x - saddle()).max() for steps in (1000, 10_000))
    assert 0.005 < late < early < 0.03 and early / late > 2.5


SCALES = [(0.1, 10.0), (1.0, 1.0), (10.0, 0.1)]


@pytest.mark.parametrize(("upper", "lower"), SCALES)
def test_adasdbo_needs_no_tuning(upper, lower):
    """On losses scaled by 0.1 to 10, from 2.3 away: within 0.35 after 3000 steps. Measured 0.004 where both have the
    scale one, 0.35 in the worst case, where x's steps are smallest."""
    scaled = {name: upper * getattr(QUADRATIC, name) for name in "MR"}
    scaled |= {name: lower * getattr(QUADRATIC, name) for name in "HBc"}
    quadratic = QUADRATIC._replace(**scaled)
    found = run(Nodes(quadratic, 0.0, **START), db.adasdbo(), steps=3000).nodes.x
    error = np.abs(found - quadratic.solution()).max()
    assert error < (0.005 if upper == lower == 1.0 else 0.4), error
