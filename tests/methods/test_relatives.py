"""The published relatives of the penalty form: strengths that grow, lower levels without one minimum, and costs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import relatives_references as references
from method_runs import CURVED, FLAT, GRAPH, NODES, QUADRATIC, close, problem, run
from quadratics import with_slopes

import decibel as db

COMPLETE = db.graphs.complete(NODES)
THREE = dict(alpha=0.02, beta=0.02, gamma=0.1)
LOOPS = dict(alpha=0.05, beta=0.1, gamma=0.12, strength=8.0, lower_steps=3)
RIDGE = dict(alpha=0.05, beta=0.1, gamma=0.12, ridge=0.3, decay=0.4)
CODED = LOOPS | dict(beta=0.05, gamma=0.06, share=0.4, mixing=0.4)


@pytest.mark.slow
def test_a_growing_strength_approaches_the_solution():
    """λ grows without end and β = γ/λ falls; with another β, x's step would have to fall too."""
    strength = lambda k: 10.0 + 0.05 * jnp.asarray(k, float)  # noqa: E731
    method = db.f2sa(alpha=0.05, beta=lambda k: 0.3 / strength(k), gamma=0.3, strength=strength)
    ends = [run(FLAT, method, COMPLETE, steps).nodes.x for steps in (1000, 8000)]
    errors = [np.abs(np.asarray(x) - QUADRATIC.solution()).max() for x in ends]
    assert errors[1] < errors[0] / 3 and errors[1] < 5e-3


@pytest.mark.slow
def test_the_bias_of_the_envelope_falls_with_the_strength():
    errors = [np.abs(references.enveloped_solution(FLAT, c, 0.7)[0] - QUADRATIC.solution()).max() for c in (100, 1e3)]
    assert 9 < errors[0] / errors[1] < 11


QUICK = dict(alpha=0.1, beta=0.3, gamma=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("personal", [False, True], ids=["shared", "personal"])
def test_duet_with_a_vanishing_ridge_ends_at_the_solution(personal):
    method = db.duet(**QUICK, ridge=0.5, decay=3.0, personal=personal)
    expected = QUADRATIC.personal_solution() if personal else QUADRATIC.solution()
    close(run(FLAT, method, steps=2000).nodes.x, expected, 1e-7)


def flat():
    """g = ½ (y₀ − b x)² says nothing about y₁, which f does not see either."""

    def upper(x, y, batch):
        return 0.5 * (y[0] - 1) ** 2 + 0.05 * x**2 * jnp.mean(batch)

    def lower(x, y, batch):
        return 0.5 * jnp.mean((y[0] - batch * x) ** 2)

    return with_slopes(upper, lower, jnp.ones(2), NODES), 1 / 1.1


@pytest.mark.slow
def test_the_ridge_picks_the_y_of_least_norm():
    given, solution = flat()
    kept = db.duet(**QUICK, ridge=1.0, decay=0.3)
    quiet = dict(metrics=[], progress=False)
    found = db.solve(given, kept, GRAPH, steps=3000, **quiet).nodes
    assert np.abs(np.asarray(found.y)[:, 1]).max() < 1e-6
    np.testing.assert_allclose(found.x, solution, atol=0.1)
    plain = db.solve(given, db.sparkle("gt", **QUICK), GRAPH, steps=3000, **quiet).nodes
    np.testing.assert_allclose(np.asarray(plain.y)[:, 1], 1.0)


def wells():
    """g = ¼ (y² − 1)² − b x y has two minima, between which it is concave."""

    def upper(x, y, batch):
        return 0.5 * (y - 1.2) ** 2 + 0.05 * x**2 * jnp.mean(batch)

    def lower(x, y, batch):
        return 0.25 * (y**2 - 1) ** 2 - jnp.mean(batch) * x * y

    return with_slopes(upper, lower, jnp.asarray(0.3), NODES)


def test_sun_dsbo_on_a_lower_level_that_is_not_convex():
    """From a point where g is concave in y it ends where x and the local minimum y*(x) are stationary together."""
    rates = dict(alpha=0.5, beta=0.1, gamma=0.1)
    given = wells()
    method = db.sun_dsbo(**rates, strength=100.0, envelope=0.5)
    found = db.solve(given, method, GRAPH, steps=20000, eval_every=400, metrics=[], progress=False).nodes
    x, y = float(np.mean(found.x)), float(np.mean(found.y))
    assert 0.5 < y < 2
    lower_gradient, hypergradient = y**3 - y - x, 0.1 * x + (y - 1.2) / (3 * y**2 - 1)
    assert abs(lower_gradient) < 0.02 and abs(hypergradient) < 0.02


@pytest.mark.slow
def test_compression_sends_less_and_counts_positions():
    plain, coded = (db.cost(problem(FLAT), db.c2dfb(**given), GRAPH) for given in (LOOPS, CODED))
    degree, q = GRAPH.degrees.mean(), 4
    assert plain["bytes"] == 8 * degree * (2 * 3 + 3 * 4 * q)
    kept = int(np.ceil(0.4 * 2 * q))  # of a variable and its tracker
    assert coded["bytes"] == degree * (8 * 2 * 3 + 3 * 2 * kept * (8 + 2))
    same = [column for column in plain if column != "bytes"]
    assert {column: plain[column] for column in same} == {column: coded[column] for column in same}
    assert plain["gradients"] == 3 * 3 + 3 and plain["hvps"] == plain["jvps"] == 0


@pytest.mark.slow
def test_chunks_of_nodes():
    whole, chunks = (run(CURVED, db.dsgda_gt(**THREE), steps=10, engine=db.Simulator(node_chunk=n)) for n in (None, 4))
    for a, b in zip(chunks.nodes, whole.nodes, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.slow
def test_noise_does_not_grow_with_the_strength():
    """One draw serves both copies."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=(NODES, 64)) + np.arange(NODES)[:, None]

    def upper(x, y, batch):
        return 0.5 * jnp.mean((y - batch) ** 2) + 0.05 * x**2

    def lower(x, y, batch):
        return 0.5 * jnp.mean((y - x - batch) ** 2)

    given = db.Problem(upper, lower, upper_data=a, lower_data=a, x0=jnp.asarray(0.0), y0=jnp.asarray(0.0))
    spreads = []
    for λ in (10.0, 1000.0):
        method = db.c2dfb(alpha=0.02, beta=0.1, gamma=0.1, strength=λ)
        quiet = dict(batch_size=4, metrics=[], progress=False)
        ends = [db.solve(given, method, GRAPH, steps=600, seed=seed, **quiet).nodes.x for seed in range(5)]
        spreads.append(np.std([np.mean(x) for x in ends]))
    assert spreads[1] < 2 * spreads[0]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: db.f2sa(**THREE, strength=0.0), "strength=0.0 must be a positive number, or a function of the step"),
        (lambda: db.dsgda_gt(**THREE, strength="a"), "strength='a' must be a positive number"),
        (lambda: db.c2dfb(**LOOPS | dict(strength=-1)), "strength=-1 must be a positive number"),
        (lambda: db.c2dfb(**LOOPS | dict(lower_steps=0)), "lower_steps=0 must be a positive integer."),
        (lambda: db.c2dfb(**LOOPS, share=0.0), "share=0.0 must be above 0 and at most 1."),
        (lambda: db.c2dfb(**LOOPS, mixing=1.5), "mixing=1.5 must be above 0 and at most 1."),
        (lambda: db.sun_dsbo(**THREE, envelope=0.0), "envelope=0.0 must be positive: 1.0 is a good start."),
        (lambda: db.duet(**RIDGE | dict(decay=-1.0)), "decay=-1.0 must not be negative: 0.1 is a good start."),
        (lambda: run(FLAT, db.f2sa(**THREE)), "f2sa is centralized, and .* does not average exactly: use db.graphs"),
        (
            lambda: run(FLAT, db.c2dfb(**CODED), db.graphs.cycle(GRAPH, COMPLETE)),
            "c2dfb compresses for a graph that stays, and .* changes: give one graph, or share=1 and",
        ),
        (lambda: db.c2dfb(**CODED).sends, "sends encoded messages, whose size depends on the problem: measure it"),
    ],
)
def test_what_does_not_fit_is_rejected(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
