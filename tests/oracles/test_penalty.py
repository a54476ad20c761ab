"""The penalty form: its fixed point, its bias, lower levels that are flat or constrained, and what it costs."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic, with_slopes
from relatives_references import affine_solution

import decibel as db

NODES, CHUNK = 6, 20  # the steps of a compiled program, which tests share
QUADRATIC = random_quadratic(NODES)
PROBLEM = QUADRATIC.problem()
RING = db.graphs.ring(NODES)
RATES = dict(alpha=0.1, beta=0.3, gamma=0.3)
penalty = db.hypergradient.penalty


def run(problem, lower, form, steps=3000, upper=None, graph=RING, rates=RATES, **options):
    method = db.sparkle(lower, upper, hypergradient=form, **rates)
    options = {"eval_every": min(steps, CHUNK), "metrics": []} | options
    return db.solve(problem, method, graph, steps=steps, progress=False, **options)


def directions(x, y, z, λ, central, q=QUADRATIC):
    """u, v and p of every node, by hand."""
    g = lambda y: (-np.einsum("nij,ni->nj", q.B, y), q.v(x, y))  # noqa: E731
    f = lambda y: (q.fx(x, y), q.fy(x, y))  # noqa: E731
    ahead, behind = y - z / λ, y + z / λ if central else y
    gaps = [b - a for a, b in zip(g(ahead), g(behind), strict=True)]
    if not central:
        (fx, fy), (gx, gy) = f(ahead), gaps
        return fx - λ * gx, q.v(x, y), λ * gy - fy
    (fx1, fy1), (fx2, fy2) = f(ahead), f(behind)
    v = (g(ahead)[1] + g(behind)[1]) / 2 + (fy1 - fy2) / (2 * λ)
    return (fx1 + fx2) / 2 - λ / 2 * gaps[0], v, λ / 2 * gaps[1] - (fy1 + fy2) / 2


def penalized_solution(λ, central, q=QUADRATIC):
    """The x at which the mean directions vanish."""

    def at_common(*point):
        return directions(*(np.tile(level, (q.nodes, 1)) for level in point), λ, central, q)

    _, entries_of_y, entries_of_x = q.B.shape
    return affine_solution(at_common, entries_of_x, entries_of_y, entries_of_y)[0]


@pytest.mark.parametrize("central", [False, True], ids=["forward", "central"])
def test_the_recursion_is_the_printed_one(central):
    """Exact Diffusion on every level in NumPy, with the running average."""
    λ, θ, W, steps = 20.0, 0.4, RING.W, 60
    s = {level: np.zeros((NODES, size)) for level, size in zip("xyz", (3, 4, 4), strict=True)}
    c = {level: np.zeros_like(value) for level, value in s.items()}
    r = np.zeros((NODES, 3))
    for _ in range(steps):
        u, v, p = directions(s["x"], s["y"], s["z"], λ, central)
        r = (1 - θ) * r + θ * u
        for level, d in zip("xyz", (0.1 * r, 0.3 * v, 0.3 * p), strict=True):
            φ = s[level] - d + c[level]
            c[level], s[level] = c[level] + W @ φ - φ, W @ φ
    found = run(PROBLEM, "ed", penalty(λ, central=central), steps, rates=RATES | {"theta": θ})
    for level in "xyz":
        np.testing.assert_allclose(getattr(found.nodes, level), s[level], rtol=0, atol=1e-9)


@pytest.mark.slow_except("forward")
@pytest.mark.parametrize(("central", "order"), [(False, 1), (True, 2)], ids=["forward", "central"])
def test_the_bias_falls_with_the_strength(central, order):
    biases = [λ**order * np.abs(penalized_solution(λ, central) - QUADRATIC.solution()).max() for λ in (100, 1e3)]
    assert biases[0] > 1e-3
    np.testing.assert_allclose(biases, biases[0], rtol=0.1)
    strongest = run(PROBLEM, "ed", penalty(1e3, central=central))
    found = 1e3**order * np.abs(np.asarray(strongest.nodes.x) - QUADRATIC.solution()).max()
    np.testing.assert_allclose(found, biases[0], rtol=0.1)


@pytest.mark.slow
def test_no_step_depends_on_the_strength():
    """The same step sizes reach the limit of each λ in as many steps."""

    def needed(λ):
        expected = penalized_solution(λ, central=False)
        distance = db.metrics.distance(expected)
        method = db.sparkle("ed", hypergradient=penalty(λ), **RATES)
        trace = db.solve(PROBLEM, method, RING, steps=600, eval_every=5, metrics=[distance]).trace
        return trace["step"][np.argmax(np.asarray(trace["distance"]) < 1e-14)]

    counts = [needed(λ) for λ in (10.0, 100.0, 1e3, 1e4)]
    assert min(counts) > 0 and max(counts) <= 1.15 * min(counts), counts


def flat():
    """g = ½ (y₀ − b x)² says nothing about y₁; f asks y₁ to be 2, y₀ to be 1 and x to be small."""

    def upper(x, y, batch):
        return 0.5 * (y[0] - 1) ** 2 + 0.5 * (y[1] - 2) ** 2 + 0.05 * x**2 * jnp.mean(batch)

    def lower(x, y, batch):
        return 0.5 * jnp.mean((y[0] - batch * x) ** 2)

    return with_slopes(upper, lower, jnp.zeros(2), NODES), 1 / 1.1


@pytest.mark.slow
def test_a_flat_lower_level_keeps_z_bounded_and_finds_the_optimistic_solution():
    problem, solution = flat()
    rates = dict(alpha=0.05, beta=0.3, gamma=0.3)
    sizes = [
        np.abs(run(problem, "ed", form, steps, rates=rates).nodes.z).max()
        for form in (penalty(20.0), None)
        for steps in (2000, 4000)
    ]
    assert sizes[1] < 1.01 * sizes[0] and sizes[0] < 50
    assert sizes[3] > 1.9 * sizes[2] > 100  # SPARKLE's z grows at every step
    x = np.asarray(run(problem, "ed", penalty(1e3), 3000, rates=rates).nodes.x)
    np.testing.assert_allclose(x, solution, atol=2e-3)


def with_nonnegative_y(problem):
    return eqx.tree_at(lambda it: it.prox_y, problem, db.prox.nonnegative(), is_leaf=lambda leaf: leaf is None)


@pytest.mark.slow
@pytest.mark.parametrize("lower", ["ed", "gt"])
@pytest.mark.parametrize("central", [False, True], ids=["forward", "central"])
def test_a_constrained_lower_level(lower, central):
    """Both copies are projected: the limit is that of centralized projected steps on both objectives."""
    quadratic, λ = random_quadratic(NODES, seed=4), 100.0
    given = with_nonnegative_y(quadratic.problem())
    x, y, z = np.zeros(3), np.zeros(4), np.zeros(4)
    for _ in range(3000):
        u, v, p = (d.mean(0) for d in directions(*(np.tile(s, (NODES, 1)) for s in (x, y, z)), λ, central, quadratic))
        x, y, z = x - 0.1 * u, y - 0.3 * v, z - 0.3 * p
        ahead, behind = np.maximum(y - z / λ, 0), np.maximum(y + z / λ if central else y, 0)
        y, z = ((ahead + behind) / 2, λ / 2 * (behind - ahead)) if central else (behind, λ * (behind - ahead))
    result = run(given, lower, penalty(λ, central=central), 6000)
    np.testing.assert_allclose(result.nodes.x, np.tile(x, (NODES, 1)), rtol=0, atol=1e-10)
    active = np.asarray(result.nodes.y) == 0
    assert 0 < active.sum() < active.size
    # The true hypergradient: y* moves with x only in the coordinates that are free.
    free = ~active[0]
    H, B, fx = quadratic.H.mean(0), quadratic.B.mean(0), quadratic.fx(np.tile(x, (NODES, 1)), None).mean(0)
    ystar = np.zeros(4)
    ystar[free] = np.linalg.solve(H[np.ix_(free, free)], (B @ x + quadratic.c.mean(0))[free])
    fy = quadratic.fy(None, np.tile(ystar, (NODES, 1))).mean(0)
    gradient = fx + B[free].T @ np.linalg.solve(H[np.ix_(free, free)], fy[free])
    assert np.abs(gradient).max() < 1 / λ


@pytest.mark.slow
def test_one_draw_serves_both_copies():
    """With batches the noise of p does not grow with λ: the same steps stay finite and near."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=(NODES, 64)) + np.arange(NODES)[:, None]

    def upper(x, y, batch):
        return 0.5 * jnp.mean((y - batch) ** 2) + 0.05 * x**2

    def lower(x, y, batch):
        return 0.5 * jnp.mean((1 + 0.3 * jnp.tanh(batch)) * (y - x - batch) ** 2)

    problem = db.Problem(upper, lower, upper_data=a, lower_data=a, x0=jnp.asarray(0.0), y0=jnp.asarray(0.0))
    spreads = []
    for λ in (10.0, 1e4):
        rates = dict(alpha=0.02, beta=0.1, gamma=0.1)
        results = [run(problem, "ed", penalty(λ), 800, rates=rates, batch_size=4, seed=seed) for seed in range(6)]
        spreads.append(np.std([np.mean(result.nodes.z) for result in results]))
    assert spreads[1] < 2 * spreads[0]


def test_counts_gradients_and_no_products():
    for central, gradients in ((False, 3), (True, 4)):
        cost = db.cost(PROBLEM, db.sparkle("ed", hypergradient=penalty(10.0, central=central), **RATES), RING)
        assert cost["gradients"] == gradients and cost["hvps"] == cost["jvps"] == 0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: penalty(0.0), r"strength=0.0 must be a positive number: 1e3 is a good start."),
        (
            lambda: db.sparkle("ed", hypergradient=penalty(), updates="alternating", **RATES),
            "the penalty form takes all directions at the old point: leave out updates='alternating'.",
        ),
    ],
)
def test_what_does_not_fit_is_rejected(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_prox_y_elsewhere_is_rejected():
    problem = with_nonnegative_y(PROBLEM)
    with pytest.raises(ValueError, match=r"sparkle-ed does not take prox_y: choose db.sparkle"):
        run(problem, "ed", None)
    with pytest.raises(ValueError, match=r"strategy 'extra' on level y does not take prox_y: choose 'ed' or 'gt'."):
        run(problem, "extra", penalty())
    with pytest.raises(ValueError, match=r"prox_y needs beta and gamma to be the same number: give both the same."):
        run(problem, "ed", penalty(), rates=dict(alpha=0.1, beta=0.3, gamma=0.2))
    with pytest.raises(ValueError, match=r"hypergradient does not take prox_y: measure the losses of a run instead."):
        problem.hypergradient(problem.x0)
    with pytest.raises(
        ValueError, match=r"metric 'stationarity' needs the exact lower solution, which prox_y does not"
    ):
        db.solve(problem, db.sparkle("ed", hypergradient=penalty(), **RATES), RING, steps=1, metrics=["stationarity"])
