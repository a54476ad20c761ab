"""Adaptive Exact Diffusion: exact with any steps, Exact Diffusion with constant ones, and a linear rate by AdaGrad."""

from __future__ import annotations

from dataclasses import fields

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import OneLevel, random_quadratic

import decibel as db
from decibel.core._vector import Vector
from decibel.strategies import ada_ed, strategy
from decibel.strategies._adaptive import AdaptiveDiffusion

NODES, SIZE = 8, 5
RING = db.graphs.ring(NODES)
rng = np.random.default_rng(0)


def problem(scales):
    """Sums of squares whose curvature differs by node and by coordinate; and the solution."""
    A, c = rng.uniform(0.5, 1.5, (NODES, SIZE)) * scales, rng.normal(size=(NODES, SIZE))

    def loss(x, batch):
        return 0.5 * jnp.mean(jnp.sum(batch["A"] * (x - batch["c"]) ** 2, -1))

    data = {"A": A[:, None], "c": c[:, None]}
    return db.Problem(loss, upper_data=data, x0=jnp.zeros(SIZE)), (A * c).sum(0) / A.sum(0), (A, c)


EVEN = problem(np.ones(SIZE))
SCALED = problem(np.logspace(0, 4, SIZE))


class Fixed(AdaptiveDiffusion):
    """Steps that were drawn once, by node and coordinate."""

    a: jax.Array | float = 1.0

    @classmethod
    def of(cls, a):
        base = ada_ed()
        return cls(**{field.name: getattr(base, field.name) for field in fields(base)}, a=a)

    def scales(self, r, sums, floor):
        return Vector(jnp.broadcast_to(self.a, r.tree.shape)), sums


def run(mixing, given=EVEN, steps=1500, rate=1.0, graph=RING, **options):
    return db.solve(given[0], OneLevel(rate, 1.0, mixing), graph, steps=steps, metrics=[], **options)


def worst(result, solution):
    return np.abs(np.asarray(result.nodes.x) - solution).max()


@pytest.mark.parametrize("scalar", [False, True], ids=["coordinate", "scalar"])
def test_the_recursion_is_the_printed_one(scalar):
    """A loop over nodes and links in NumPy."""
    (_, _, (A, c)), η, steps = EVEN, 0.7, 60
    s, e, W = np.zeros((NODES, SIZE)), np.zeros((NODES, SIZE)), RING.W
    v, floor = np.zeros((NODES, 1 if scalar else SIZE)), np.zeros((NODES, 1 if scalar else SIZE))
    for _ in range(steps):
        r = A * (s - c) - e
        v = v + (np.sum(r**2, 1, keepdims=True) if scalar else r**2)
        b = np.maximum(np.sqrt(v) + 1e-12, floor)
        D = η / b
        φ, F, floor = s - D * r, np.zeros_like(s), np.maximum(floor, 0.5 * W @ b)
        for i in range(NODES):
            for j in range(NODES):
                F[i] += W[i, j] * np.minimum(1 / D[i], 1 / D[j]) * (φ[j] - φ[i])
        e, s = e + F, φ + D * F
    found = run(ada_ed(scalar=scalar), steps=steps, rate=η)
    np.testing.assert_allclose(found.nodes.x, s, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.state.x.carry[0].tree, e, rtol=1e-9, atol=1e-12)


def test_constant_steps_are_exact_diffusion():
    found, expected = run(Fixed.of(1 / 0.3), steps=200), run(strategy("ed"), steps=200, rate=0.3)
    np.testing.assert_allclose(found.nodes.x, expected.nodes.x, atol=1e-12)


def test_any_steps_by_node_and_coordinate_end_at_the_solution():
    result = run(Fixed.of(jnp.asarray(1 / rng.uniform(0.05, 0.6, (NODES, SIZE)))), steps=4000)
    assert worst(result, EVEN[1]) < 1e-10
    e = np.asarray(result.state.x.carry[0].tree)
    assert np.abs(e.sum(0)).max() < 1e-13 * np.abs(e).sum()


@pytest.mark.parametrize("η", [0.1, 1.0, 10.0, 100.0])
def test_the_scalar_version_needs_no_tuning(η):
    assert worst(run(ada_ed(scalar=True), steps=8000, rate=η), EVEN[1]) < 1e-10


def test_coordinates_scaled_over_four_decades():
    """Where Exact Diffusion, with the best of its steps, has hardly begun."""
    assert worst(run(ada_ed(), SCALED, steps=2000, rate=10.0), SCALED[1]) < 1e-8
    plain = [worst(run(strategy("ed"), SCALED, steps=2000, rate=rate), SCALED[1]) for rate in (3e-5, 6e-5, 1e-4)]
    assert min(plain) > 1e-2


def test_other_engines_and_faults():
    options = {"steps": 40, "rate": 0.7}
    expected = run(ada_ed(), **options)
    spread = run(ada_ed(), engine=db.Cluster(), **options)
    np.testing.assert_allclose(spread.nodes.x, expected.nodes.x, atol=1e-12)
    faults = [db.faults.drop(0.2), db.faults.pause(probability=0.1)]
    result = run(ada_ed(), steps=4000, faults=faults)
    assert worst(result, EVEN[1]) < 1e-10
    late = run(ada_ed(), steps=30, faults=db.faults.late(2, 0.3))
    e = np.asarray(late.state.x.carry[0].tree)
    assert np.abs(e.sum(0)).max() < 1e-13 * np.abs(e).sum()


@pytest.mark.parametrize("scalar", [False, True], ids=["coordinate", "scalar"])
def test_a_node_without_a_gradient_passes_on_what_others_need(scalar):
    """It alone joins the others: f = (x − 0)², 0, (x − 4)² on a path."""
    data = {"a": np.array([1.0, 0.0, 1.0])[:, None], "c": np.array([0.0, 0.0, 4.0])[:, None]}
    loss = lambda x, batch: jnp.mean(batch["a"] * (x - batch["c"]) ** 2)  # noqa: E731
    given = db.Problem(loss, upper_data=data, x0=jnp.asarray(1.0))
    result = run(ada_ed(scalar=scalar), (given,), steps=3000, graph=db.graphs.path(3).lazy())
    np.testing.assert_allclose(result.nodes.x, 2.0, atol=1e-10)


def test_a_step_size_of_zero_stands_still():
    still = run(ada_ed(), steps=5, rate=0.0)
    np.testing.assert_array_equal(still.nodes.x, 0.0)
    warm = db.solve(
        EVEN[0],
        OneLevel(lambda k: jnp.minimum(0.02 * k.astype(float), 1.0), 1.0, ada_ed()),
        RING,
        steps=1500,
        metrics=[],
    )
    assert worst(warm, EVEN[1]) < 1e-10


def test_resumes_bit_for_bit(tmp_path):
    whole = run(ada_ed(scalar=True), steps=30, eval_every=10)
    run(ada_ed(scalar=True), steps=20, eval_every=10, checkpoint=tmp_path)
    result = run(ada_ed(scalar=True), steps=30, eval_every=10, checkpoint=tmp_path, resume=True)
    assert eqx.tree_equal(result.state, whole.state)


@pytest.mark.parametrize("name", ["ada-ed", "ada-ed-scalar"])
def test_all_three_levels_of_sparkle(name):
    quadratic = random_quadratic(NODES, p=3, q=4)
    method = db.sparkle(name, alpha=0.3, beta=1.0, gamma=1.0)
    result = db.solve(quadratic.problem(), method, RING, steps=6000, metrics=[])
    np.testing.assert_allclose(result.nodes.x, np.tile(quadratic.solution(), (NODES, 1)), atol=1e-8)


def test_a_graph_that_keeps_too_little_is_rejected():
    with pytest.raises(ValueError, match=r"needs w_ii ≥ 0.3333, and complete has 0.125: use graph.lazy\(\)."):
        run(ada_ed(), graph=db.graphs.complete(NODES))
