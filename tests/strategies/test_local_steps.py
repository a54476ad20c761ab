"""Local steps (LED): Exact Diffusion that exchanges once for several steps, and is still exact."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from adaptive_references import adaptive
from quadratics import assert_all_at, assert_sums_to_zero, random_quadratic

import decibel as db
from decibel.methods._single_level import SingleLevel
from decibel.strategies._local import with_local_steps

NODES, CHUNK = 8, 20  # the steps of a compiled program, which tests share
QUADRATIC = random_quadratic(NODES)
RING = db.graphs.ring(NODES)
RATES = dict(alpha=0.1, beta=0.3, gamma=0.3)


def run(problem, method, steps, **options):
    options = {"eval_every": min(steps, CHUNK), "metrics": []} | options
    return db.solve(problem, method, RING, steps=steps, progress=False, **options)


@pytest.mark.slow_except("4")
@pytest.mark.parametrize("τ", [2, 4])
def test_the_recursion_is_the_printed_one(τ):
    """All three levels in NumPy."""
    q, W, θ = QUADRATIC, RING.W, 0.4
    s = {level: np.zeros((NODES, size)) for level, size in zip("xyz", (3, 4, 4), strict=True)}
    c = {level: np.zeros_like(value) for level, value in s.items()}
    r = np.zeros((NODES, 3))
    for _ in range(40):
        for _ in range(τ):
            x, y, z = s.values()
            r = (1 - θ) * r + θ * q.u(x, y, z)
            steps = 0.1 * r, 0.3 * q.v(x, y), 0.3 * q.p(x, y, z)
            s = {level: s[level] - d + c[level] for level, d in zip("xyz", steps, strict=True)}
        for level, f in s.items():
            δ = W @ f - f
            c[level], s[level] = c[level] + δ / τ, f + δ
    found = run(q.problem(), db.sparkle("ed", local_steps=τ, theta=θ, **RATES), 40)
    for level in "xyz":
        np.testing.assert_allclose(getattr(found.nodes, level), s[level], rtol=0, atol=1e-9)


def test_one_local_step_is_exact_diffusion_bit_for_bit():
    one = run(QUADRATIC.problem(), db.sparkle("ed", local_steps=1, **RATES), CHUNK)
    assert eqx.tree_equal(one.state, run(QUADRATIC.problem(), db.sparkle("ed", **RATES), CHUNK).state)
    assert db.ed(alpha=0.1, local_steps=1).name == "ed"


@pytest.mark.slow_except("4")
@pytest.mark.parametrize("τ", [2, 8, 4])
def test_any_number_of_local_steps_is_exact(τ):
    result = run(QUADRATIC.problem(), db.sparkle("ed", local_steps=τ, **RATES), 1500)
    assert_all_at(result.nodes.x, QUADRATIC.solution(), 1e-11)
    single = run(QUADRATIC.single(), db.ed(alpha=0.3, local_steps=τ), 800)
    assert_all_at(single.nodes.x, QUADRATIC.single_solution(), 1e-11)
    assert_sums_to_zero(single.state.x.carry[0])


ADAPTIVE = {
    "ada-ed": db.strategies.ada_ed(),
    "ada-ed-scalar": db.strategies.ada_ed(scalar=True),
    "adam-ed": db.strategies.adam_ed(),
    "adam-ed alone": db.strategies.adam_ed(agree=False),
    "adam-ed averaged": db.strategies.adam_ed(averaged=True),
}


@pytest.mark.slow_except("ada-ed-1", "ada-ed-4", "ada-ed-scalar-1", "adam-ed-1", "adam-ed-4", "adam-ed averaged-1")
@pytest.mark.parametrize("τ", [1, 4])
@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_steps_are_the_printed_recursion(name, τ):
    kind, _, how = name.partition(" ")
    options = {"agree": how != "alone", "averaged": how == "averaged"}
    gradient = lambda x: QUADRATIC.fx(x, None)  # noqa: E731
    x, e = adaptive(kind, gradient, np.zeros((NODES, 3)), RING.W, 0.1, 40, τ=τ, **options)
    method = SingleLevel(0.1, 1.0, with_local_steps(ADAPTIVE[name], τ))
    found = run(QUADRATIC.single(), method, 40)
    np.testing.assert_allclose(found.nodes.x, x, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.state.x.carry[0].tree, e, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("τ", [2, 4, 8])
@pytest.mark.parametrize("name", ["ada-ed", "ada-ed-scalar", "adam-ed", db.strategies.ada_ed(scale_every=2)])
def test_any_number_of_adaptive_local_steps_is_exact(name, τ):
    rate = (lambda k: 0.02 * jnp.maximum(1 - k / 4000, 0.0) ** 2) if name == "adam-ed" else 0.3
    method = db.sparkle(name, alpha=rate, beta=rate, gamma=rate, local_steps=τ)
    result = run(QUADRATIC.problem(), method, 4000)
    assert_all_at(result.nodes.x, QUADRATIC.solution(), 1e-6)
    assert_sums_to_zero(result.state.x.carry[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ada-ed", "ed"])
def test_local_steps_are_exact_with_one_peer_a_step(name):
    """The carry is damped by what follows from the graph."""
    method = db.CATALOG[name](alpha=0.3 if name == "ada-ed" else 0.1, local_steps=4)
    assert "4 local steps" in method.settings["mixing"]
    options = {"steps": 4000, "eval_every": CHUNK, "metrics": [], "progress": False}
    result = db.solve(QUADRATIC.single(), method, db.graphs.one_peer_hypercube(NODES), **options)
    assert_all_at(result.nodes.x, QUADRATIC.single_solution(), 1e-10)


@pytest.mark.slow
def test_saves_rounds_where_the_problem_is_badly_conditioned():
    rng = np.random.default_rng(0)
    scales, c = np.logspace(-2, 0, 4), rng.normal(size=(NODES, 4))
    A = rng.uniform(0.5, 1.0, (NODES, 4)) * scales
    loss = lambda x, batch: 0.5 * jnp.mean(jnp.sum(batch["A"] * (x - batch["c"]) ** 2, -1))  # noqa: E731
    problem = db.Problem(loss, upper_data={"A": A[:, None], "c": c[:, None]}, x0=jnp.zeros(4))
    distance = db.metrics.distance((A * c).sum(0) / A.sum(0))

    def rounds(τ):
        trace = db.solve(problem, db.ed(alpha=1.0, local_steps=τ), RING, steps=6000, eval_every=50, metrics=[distance])
        return np.asarray(trace.trace["rounds"])[np.argmax(np.asarray(trace.trace["distance"]) < 1e-12)]

    assert 0 < rounds(4) < 0.6 * rounds(1)


def test_counts_every_gradient_and_one_exchange():
    cost = db.cost(QUADRATIC.problem(), db.sparkle("ed", local_steps=4, **RATES), RING)
    one = db.cost(QUADRATIC.problem(), db.sparkle("ed", **RATES), RING)
    for column in ("gradients", "hvps", "jvps"):
        assert cost[column] == 4 * one[column]
    assert (cost["rounds"], cost["bytes"]) == (one["rounds"], one["bytes"])


def test_every_local_step_has_its_own_draw():
    """Each batch holds one sample, so that equal draws would show as equal steps."""
    a = np.random.default_rng(0).normal(size=(NODES, 512))
    loss = lambda x, batch: jnp.mean(batch) * x  # noqa: E731
    problem = db.Problem(loss, upper_data=a, x0=jnp.asarray(0.0))
    method = db.ed(alpha=1.0, local_steps=4)
    many = db.BatchRun([problem] * 40, method, RING, batch_size=1, seeds=range(40))
    many.advance(1)
    # A sum of four independent samples, mixed over three nodes: 4/3 of a sample's variance; 16/3 if all were one.
    assert 0.8 < np.mean(np.square(many.state.x.s.tree)) / (4 / 3) < 1.25


@pytest.mark.slow
def test_faults_leave_local_steps_exact():
    method = db.sparkle("ed", local_steps=4, **RATES)
    result = run(QUADRATIC.problem(), method, 3000, faults=db.faults.drop(0.2))
    assert_all_at(result.nodes.x, QUADRATIC.solution(), 1e-10)


@pytest.mark.slow
def test_encoded_messages_keep_local_steps_exact():
    given = db.strategies.led(3)
    method = db.sparkle(db.privacy.quantize(given, bits=8), **RATES)
    assert db.cost(QUADRATIC.problem(), method, RING)["gradients"] == 3 * 2
    result = run(QUADRATIC.problem(), method, 3000)
    assert_all_at(result.nodes.x, QUADRATIC.solution(), 1e-8)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: db.ed(alpha=0.1, local_steps=0), "local_steps=0 must be a positive integer."),
        (
            lambda: db.sparkle("gt", local_steps=2, **RATES),
            "local_steps=2 needs the strategy 'ed', 'wave', 'ada-ed' or 'adam-ed', not 'gt': change one of them.",
        ),
        (
            lambda: db.sparkle(db.strategies.led(3), "gt", **RATES),
            "lower takes 3 local steps and upper 1: give both the same strategy.",
        ),
        (
            lambda: db.sparkle("ed", local_steps=2, updates="alternating", **RATES),
            "local_steps=2 takes all directions at the old point: leave out updates='alternating'.",
        ),
    ],
)
def test_what_does_not_fit_is_rejected(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
