"""The residual of SPDB's KKT conditions, against EXTRA with the multipliers written out."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db

NODES, STEP, WEIGHT = 5, 0.2, 0.2
CENTRES = np.random.default_rng(0).normal(size=(NODES, 1, 3))


def _incidence(graph):
    a = np.zeros((len(graph.edges), graph.nodes))
    for row, (i, j) in enumerate(graph.edges):
        a[row, [i, j]] = 1, -1
    return a


def test_it_is_the_residual_of_extra_with_its_multipliers():
    """x⁺ = x − s𝓛x − α(∇ℓ(x) + nAᵀλ), λ⁺ = λ + s/(nα) A x⁺ with 𝓛 = AᵀA and W = I − s𝓛."""
    graph = db.graphs.ring(NODES, weights=db.weights.laplacian(WEIGHT))
    problem = db.Problem(
        lambda x, batch: jnp.sum(0.5 * (x - batch.mean(0)) ** 2 + 0.1 * x**4), upper_data=CENTRES, x0=jnp.ones(3)
    )
    metric = db.metrics.lagrangian(graph, STEP)
    run = db.solve(problem, db.extra(alpha=STEP), graph, steps=12, eval_every=1, metrics=[metric])
    a, x = _incidence(graph), np.ones((NODES, 3))
    multipliers, expected = np.zeros((len(graph.edges), 3)), []
    slope = lambda x: x - CENTRES[:, 0] + 0.4 * x**3  # noqa: E731
    for _ in range(13):
        pull = slope(x) / NODES + a.T @ multipliers
        expected.append(np.sum(pull**2) + np.sum((a @ x) ** 2))
        x = x - WEIGHT * a.T @ a @ x - STEP * NODES * pull
        multipliers += WEIGHT / (NODES * STEP) * a @ x
    np.testing.assert_allclose(run.trace["kkt_of_lagrangian"], expected, rtol=1e-9, atol=1e-15)


@pytest.mark.slow
def test_spdb_ends_where_it_is_zero():
    """ℓ_i(x) = ½‖x/2 − a_i‖², by g_i = ‖y − x/2‖²: zero residual, at x* = 2ā."""
    problem = db.Problem(
        lambda x, y, batch: 0.5 * jnp.sum((y - batch.mean(0)) ** 2),
        lambda x, y, batch: jnp.sum((y - x / 2) ** 2) + 0 * batch.sum(),
        upper_data=CENTRES, lower_data=CENTRES, x0=jnp.ones(3), y0=jnp.zeros(3), personal=True,
    )  # fmt: skip
    graph = db.graphs.ring(NODES, weights=db.weights.laplacian(WEIGHT))
    method = db.spdb(alpha=0.5, beta=0.3, hypergradient=db.hypergradient.exact())
    metric = db.metrics.lagrangian(graph, 0.5)
    run = db.solve(problem, method, graph, steps=400, eval_every=200, metrics=[metric])
    start = np.sum(((0.25 - 0.5 * CENTRES[:, 0]) / NODES) ** 2)  # all x equal, no multipliers
    assert run.trace["kkt_of_lagrangian"][0] == pytest.approx(start)
    assert run.trace["kkt_of_lagrangian"][-1] < 1e-18
    np.testing.assert_allclose(run.x, 2 * CENTRES.mean((0, 1)), atol=1e-8)


def test_what_has_no_multipliers_raises():
    graph = db.graphs.ring(NODES)
    problem = db.Problem(lambda x, batch: jnp.sum((x - batch.mean(0)) ** 2), upper_data=CENTRES, x0=jnp.ones(3))
    with pytest.raises(ValueError, match="metric lagrangian needs EXTRA or ED on x"):
        db.solve(problem, db.dsgd(alpha=0.1), graph, steps=1, metrics=[db.metrics.lagrangian(graph, 0.1)])
