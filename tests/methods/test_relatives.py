"""The published relatives of the penalty form: runs against NumPy, where they end, and what they cost and send."""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
import relatives_references as references
from method_references import Nodes
from quadratics import random_quadratic

import decibel as db

NODES, STEPS = 6, 50
QUADRATIC = random_quadratic(NODES)
START = dict(x0=np.array([0.5, -1.0, 2.0]), y0=np.array([1.0, 0.0, -0.5, 0.25]))
CURVED = Nodes(QUADRATIC, 0.7, **START)
FLAT = Nodes(QUADRATIC, 0.0, **START)
GRAPH, COMPLETE = db.graphs.erdos_renyi(NODES, 0.5, seed=3), db.graphs.complete(NODES)

THREE = dict(alpha=0.02, beta=0.02, gamma=0.1)
SUN = THREE | dict(beta=0.1, strength=5.0, envelope=0.7)
LOOPS = dict(alpha=0.05, beta=0.1, gamma=0.12, strength=8.0, lower_steps=3)
RIDGE = dict(alpha=0.05, beta=0.1, gamma=0.12, ridge=0.3, decay=0.4)
CODED = LOOPS | dict(beta=0.05, gamma=0.06, share=0.4, mixing=0.4)


@cache
def problem(nodes, personal=False):
    return nodes.problem(personal=personal)


def run(nodes, method, graph=GRAPH, steps=STEPS, **options):
    quiet = dict(eval_every=STEPS, metrics=[], progress=False)
    return db.solve(problem(nodes, method.form == "personal"), method, graph, steps=steps, **quiet | options)


def grows(k):
    return 4.0 + 0.1 * jnp.asarray(k, float)


# name: method, graph, reference, its settings
FOLLOWED = {
    "f2sa": (db.f2sa(**THREE), COMPLETE, references.copies, THREE | dict(strength=10.0, strategy="diffusion")),
    "f2sa, growing": (
        db.f2sa(**THREE, strength=grows),
        COMPLETE,
        references.copies,
        THREE | dict(strength=grows, strategy="diffusion"),
    ),
    "dsgda-gt": (
        db.dsgda_gt(**THREE, strength=6.0),
        GRAPH,
        references.copies,
        THREE | dict(strength=6.0, strategy="gt"),
    ),
    "ahead": (
        db.ahead(**THREE, strength=6.0),
        GRAPH,
        references.copies,
        THREE | dict(strength=6.0, strategy="consensus"),
    ),
    "sun-dsbo": (db.sun_dsbo(**SUN), GRAPH, references.sun_dsbo, SUN | dict(strategy="gt")),
    "sun-dsbo-se": (
        db.sun_dsbo(**SUN, strategy="diffusion"),
        GRAPH,
        references.sun_dsbo,
        SUN | dict(strategy="diffusion"),
    ),
    "c2dfb": (db.c2dfb(**LOOPS), GRAPH, references.c2dfb, LOOPS),
    "c2dfb, compressed": (db.c2dfb(**CODED), GRAPH, references.c2dfb, CODED),
    "duet": (db.duet(**RIDGE), GRAPH, references.duet, RIDGE),
    "duet, personal": (db.duet(**RIDGE, personal=True), GRAPH, references.duet, RIDGE | dict(personal=True)),
}


@pytest.mark.slow_except("f2sa, growing", "dsgda-gt", "sun-dsbo", "c2dfb, compressed", "duet")
@pytest.mark.parametrize("name", FOLLOWED)
def test_follows_the_recursion(name):
    method, graph, reference, settings = FOLLOWED[name]
    found = run(CURVED, method, graph).nodes
    expected = reference(CURVED, graph.W, steps=STEPS, **settings)
    for level, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(level, wanted, atol=1e-9, rtol=0)
        assert graph is COMPLETE or np.ptp(wanted, 0).max() > 1e-5  # mixing up nodes would show


def close(found, expected, tolerance=1e-9):
    for level, point in zip(found, expected, strict=True):
        np.testing.assert_allclose(level, np.tile(point, (NODES, 1)), atol=tolerance, rtol=0)


FASTER = dict(alpha=0.1, beta=0.03, gamma=0.3)
PENALIZED = {
    "f2sa": (db.f2sa(**FASTER, strength=20.0), COMPLETE),
    "dsgda-gt": (db.dsgda_gt(**FASTER, strength=20.0), GRAPH),
    "c2dfb": (db.c2dfb(**FASTER | dict(beta=0.3), strength=20.0), GRAPH),
    "c2dfb, compressed": (
        db.c2dfb(alpha=0.05, beta=0.1, gamma=0.1, strength=20.0, share=0.4, mixing=0.4),
        GRAPH,
    ),
}


@pytest.mark.slow_except("dsgda-gt")
@pytest.mark.parametrize("name", PENALIZED)
def test_ends_at_the_penalized_solution(name):
    """The one that `db.hypergradient.penalty` ends at too, O(1/λ) from the solution."""
    x, y, z = references.penalized_solution(FLAT, 20.0)
    close(run(FLAT, *PENALIZED[name], 3000).nodes, (x, y, z))
    assert 1e-3 < np.abs(x - QUADRATIC.solution()).max() < 0.2
    tied = db.sparkle("gt", alpha=0.1, beta=0.3, gamma=0.3, hypergradient=db.hypergradient.penalty(20.0))
    close([run(FLAT, tied, steps=1500).nodes.x], [x])


@pytest.mark.parametrize("strategy", ["gt", "ed"])
def test_sun_dsbo_ends_at_the_solution_of_its_envelope(strategy):
    expected = references.enveloped_solution(FLAT, 20.0, 0.7)
    method = db.sun_dsbo(alpha=0.5, beta=0.2, gamma=0.2, strength=20.0, envelope=0.7, strategy=strategy)
    close(run(FLAT, method, steps=6000).nodes, expected)
    errors = [np.abs(references.enveloped_solution(FLAT, c, 0.7)[0] - QUADRATIC.solution()).max() for c in (100, 1e3)]
    assert 9 < errors[0] / errors[1] < 11


def test_a_growing_strength_approaches_the_solution():
    """λ grows without end and β = γ/λ falls; with another β, x's step would have to fall too."""
    strength = lambda k: 10.0 + 0.05 * jnp.asarray(k, float)  # noqa: E731
    method = db.f2sa(alpha=0.05, beta=lambda k: 0.3 / strength(k), gamma=0.3, strength=strength)
    ends = [run(FLAT, method, COMPLETE, steps).nodes.x for steps in (1000, 8000)]
    errors = [np.abs(np.asarray(x) - QUADRATIC.solution()).max() for x in ends]
    assert errors[1] < errors[0] / 3 and errors[1] < 5e-3


def test_the_bias_of_ahead_vanishes_with_the_step_sizes():
    expected = references.penalized_solution(FLAT, 5.0)[0]

    def error(h):
        method = db.ahead(alpha=0.1 * h, beta=0.04 * h, gamma=0.2 * h, strength=5.0)
        return np.abs(run(FLAT, method, steps=round(600 / h)).nodes.x - expected).max()

    errors = [error(h) for h in (0.5, 0.25, 0.125)]
    assert errors[0] > 1e-2
    assert 1.5 < errors[0] / errors[1] < 3.5 and 1.6 < errors[1] / errors[2] < 3, errors


QUICK = dict(alpha=0.1, beta=0.3, gamma=0.3)


@pytest.mark.parametrize("personal", [False, True], ids=["shared", "personal"])
def test_duet_ends_at_the_ridge_solution_and_with_a_vanishing_ridge_at_the_solution(personal):
    for ridge, decay, tolerance in ((0.5, 0.0, 1e-9), (0.5, 3.0, 1e-7)):
        left = ridge if decay == 0 else 0.0
        rich = QUADRATIC._replace(H=QUADRATIC.H + left * np.eye(4))
        expected = rich.personal_solution() if personal else rich.solution()
        method = db.duet(**QUICK, ridge=ridge, decay=decay, personal=personal)
        close([run(FLAT, method, steps=2000).nodes.x], [expected], tolerance)
    assert np.abs(rich.solution() - QUADRATIC._replace(H=QUADRATIC.H + 0.5 * np.eye(4)).solution()).max() > 0.02


def flat():
    """g = ½ (y₀ − b x)² says nothing about y₁, which f does not see either."""
    b = np.linspace(0.5, 1.5, NODES)

    def upper(x, y, batch):
        return 0.5 * (y[0] - 1) ** 2 + 0.05 * x**2 * jnp.mean(batch)

    def lower(x, y, batch):
        return 0.5 * jnp.mean((y[0] - batch * x) ** 2)

    data = {"upper_data": np.ones((NODES, 1)), "lower_data": b[:, None]}
    return db.Problem(upper, lower, **data, x0=jnp.asarray(0.0), y0=jnp.ones(2)), 1 / 1.1


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
    b = np.linspace(0.5, 1.5, NODES)

    def upper(x, y, batch):
        return 0.5 * (y - 1.2) ** 2 + 0.05 * x**2 * jnp.mean(batch)

    def lower(x, y, batch):
        return 0.25 * (y**2 - 1) ** 2 - jnp.mean(batch) * x * y

    data = {"upper_data": np.ones((NODES, 1)), "lower_data": b[:, None]}
    return db.Problem(upper, lower, **data, x0=jnp.asarray(0.0), y0=jnp.asarray(0.3))


def test_sun_dsbo_on_a_lower_level_that_is_not_convex():
    """From a point where g is concave in y it ends where x and the local minimum y*(x) are stationary together."""
    rates = dict(alpha=0.5, beta=0.1, gamma=0.1)
    given = wells()
    method = db.sun_dsbo(**rates, strength=100.0, envelope=0.5)
    found = db.solve(given, method, GRAPH, steps=20000, metrics=[], progress=False).nodes
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


ENGINES = {"cluster": lambda: db.Cluster(devices=NODES), "chunks": lambda: db.Simulator(node_chunk=4)}


@pytest.mark.slow_except("dsgda-gt-chunks")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", [name for name in FOLLOWED if "growing" not in name])
def test_other_engines_and_chunks_of_nodes(name, engine):
    method, graph, *_ = FOLLOWED[name]
    expected = run(CURVED, method, graph, 10).nodes
    for a, b in zip(run(CURVED, method, graph, 10, engine=ENGINES[engine]()).nodes, expected, strict=True):
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
        (lambda: db.c2dfb(**CODED).sends, "sends codes, whose length depends on the problem: measure it"),
    ],
)
def test_what_does_not_fit_is_rejected(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
