"""Adaptive Exact Diffusion: exact with any steps, Exact Diffusion with constant ones, and a linear rate by AdaGrad."""

from __future__ import annotations

from dataclasses import fields

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adaptive_references import flows
from quadratics import assert_all_at, assert_sums_to_zero, random_quadratic

import decibel as db
from decibel.core._vector import Vector
from decibel.engines._program import RunConfig
from decibel.methods._single_level import SingleLevel
from decibel.network._in_memory import InMemory
from decibel.network._messages import Scaled
from decibel.network._quantized_scales import _decode
from decibel.strategies import ada_ed, strategy
from decibel.strategies._adaptive import AdaptiveDiffusion

NODES, SIZE, CHUNK = 8, 5, 20  # the steps of a compiled program, which many tests share
RING = db.graphs.ring(NODES)
rng = np.random.default_rng(0)


def loss(x, batch):
    return 0.5 * jnp.mean(jnp.sum(batch["A"] * (x - batch["c"]) ** 2, -1))


def problem(scales):
    """Sums of squares whose curvature differs by node and by coordinate; and the solution."""
    A, c = rng.uniform(0.5, 1.5, (NODES, SIZE)) * scales, rng.normal(size=(NODES, SIZE))
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

    def next_scale(self, r, sums, floor):
        return Vector(jnp.broadcast_to(self.a, r.tree.shape)), sums


def run(mixing, given=EVEN, steps=1500, rate=1.0, graph=RING, **options):
    options = {"metrics": [], "eval_every": min(steps, CHUNK)} | options
    return db.solve(given[0], SingleLevel(rate, 1.0, mixing), graph, steps=steps, **options)


def worst(result, solution):
    return np.abs(np.asarray(result.nodes.x) - solution).max()


def test_constant_steps_are_exact_diffusion():
    found, expected = (
        run(Fixed.of(jnp.full((NODES, SIZE), 1 / 0.3)), steps=200),
        run(strategy("ed"), steps=200, rate=0.3),
    )
    np.testing.assert_allclose(found.nodes.x, expected.nodes.x, atol=1e-12)


def test_any_steps_by_node_and_coordinate_end_at_the_solution():
    result = run(Fixed.of(jnp.asarray(1 / rng.uniform(0.05, 0.6, (NODES, SIZE)))), steps=1000)
    assert worst(result, EVEN[1]) < 1e-10
    assert_sums_to_zero(result.state.x.carry[0])


@pytest.mark.slow_except("100.0")
@pytest.mark.parametrize("η", [0.1, 100.0])
def test_the_scalar_version_needs_no_tuning(η):
    assert worst(run(ada_ed(scalar=True), steps=2000, rate=η), EVEN[1]) < 1e-10


def test_coordinates_scaled_over_four_decades():
    """Where Exact Diffusion, with the best of its steps, has hardly begun."""
    assert worst(run(ada_ed(), SCALED, steps=2000, rate=10.0), SCALED[1]) < 1e-8
    plain = [worst(run(strategy("ed"), SCALED, steps=2000, rate=rate), SCALED[1]) for rate in (3e-5, 6e-5, 1e-4)]
    assert min(plain) > 1e-2


@pytest.mark.slow
def test_faults_leave_it_exact():
    faults = [db.faults.drop(0.2), db.faults.pause(probability=0.1)]
    assert worst(run(ada_ed(), steps=1500, faults=faults), EVEN[1]) < 1e-10
    late = run(ada_ed(), steps=40, faults=db.faults.late(2, 0.3))
    assert_sums_to_zero(late.state.x.carry[0])


@pytest.mark.parametrize("scalar", [False, True], ids=["coordinate", "scalar"])
def test_a_node_without_a_gradient_passes_on_what_others_need(scalar):
    """It alone joins the others: f = (x − 0)², 0, (x − 4)² on a path."""
    data = {"a": np.array([1.0, 0.0, 1.0])[:, None], "c": np.array([0.0, 0.0, 4.0])[:, None]}
    squares = lambda x, batch: jnp.mean(batch["a"] * (x - batch["c"]) ** 2)  # noqa: E731
    given = db.Problem(squares, upper_data=data, x0=jnp.asarray(1.0))
    result = run(ada_ed(scalar=scalar), (given,), steps=1000, graph=db.graphs.path(3).lazy())
    np.testing.assert_allclose(result.nodes.x, 2.0, atol=1e-10)


def test_a_step_size_of_zero_stands_still():
    np.testing.assert_array_equal(run(ada_ed(), steps=CHUNK, rate=0.0).nodes.x, 0.0)
    warm = run(ada_ed(), rate=lambda k: jnp.minimum(0.02 * k.astype(float), 1.0))
    assert worst(warm, EVEN[1]) < 1e-10


@pytest.mark.slow_except("ada-ed")
@pytest.mark.parametrize("name", ["ada-ed", "ada-ed-scalar"])
def test_all_three_levels_of_sparkle(name):
    quadratic = random_quadratic(NODES, p=3, q=4)
    method = db.sparkle(name, alpha=0.3, beta=1.0, gamma=1.0)
    result = db.solve(quadratic.problem(), method, RING, steps=1500, metrics=[], eval_every=100)
    assert_all_at(result.nodes.x, quadratic.solution(), 1e-8)


@pytest.mark.slow_except("2")
@pytest.mark.parametrize("every", [1, 2])
def test_short_scales_follow_a_loop_over_links(every):
    """Both ends of a link use powers of two that are as old as the last message that had them."""
    (_, _, (A, c)), η, W = EVEN, 0.7, RING.W
    s, e, v, floor = (np.zeros((NODES, SIZE)) for _ in range(4))
    known = np.zeros((NODES, SIZE))
    share = -(-SIZE // every)
    for k in range(60):
        r = A * (s - c) - e
        v = v + r**2
        b = np.maximum(np.sqrt(v) + 1e-12, floor)
        part = slice(k % every * share, (k % every + 1) * share)
        known[:, part] = 2.0 ** np.floor(np.log2(b[:, part]))
        φ = s - η / b * r
        F = flows(W, known / η, φ)
        δ = flows(W, np.ones_like(known), known)
        floor, e, s = np.maximum(floor, 0.5 * (b + δ)), e + F, φ + η / b * F
    found = run(ada_ed(scale_every=every), steps=60, rate=η)
    np.testing.assert_allclose(found.nodes.x, s, rtol=1e-9, atol=1e-12)


@pytest.mark.slow_except("float64")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_short_scales_send_less_and_end_at_the_solution(dtype):
    given = eqx.tree_at(lambda it: it.x0, EVEN[0], EVEN[0].x0.astype(dtype))
    given = jax.tree.map(lambda leaf: leaf.astype(dtype) if hasattr(leaf, "dtype") else leaf, given)
    short, whole = (SingleLevel(1.0, 1.0, ada_ed(scale_every=every)) for every in (2, None))
    size = np.dtype(dtype).itemsize
    sent, full = (db.cost(given, method, RING)["bytes"] for method in (short, whole))
    assert full == 2 * 2 * SIZE * size and sent == 2 * size * (SIZE + 1)  # three bytes fit into one number
    result = run(ada_ed(scale_every=2), (given,), steps=1000)
    assert worst(result, EVEN[1]) < (1e-10 if dtype == jnp.float64 else 1e-5)
    e = np.asarray(result.state.x.carry[0].tree)
    assert np.abs(e.sum(0)).max() < 8 * np.finfo(dtype).eps * np.abs(e).sum()


@pytest.mark.slow
def test_short_scales_elsewhere():
    options = {"steps": 40, "rate": 0.7}
    expected = run(ada_ed(scale_every=3), **options)
    spread = run(ada_ed(scale_every=3), engine=db.Cluster(), **options)
    np.testing.assert_allclose(spread.nodes.x, expected.nodes.x, atol=1e-12)
    result = run(ada_ed(scale_every=3), steps=1500, faults=[db.faults.drop(0.2), db.faults.pause(probability=0.1)])
    assert worst(result, EVEN[1]) < 1e-10
    with pytest.raises(ValueError, match=r"scale_every cannot be combined with late messages: leave one of them out."):
        run(ada_ed(scale_every=3), steps=1, faults=db.faults.late(2, 0.3))
    with pytest.raises(ValueError, match=r"scale_every=0 must be a positive integer."):
        ada_ed(scale_every=0)


def test_no_scale_of_a_neighbour_is_negative_or_overflows():
    """A lie may slow a node down; it must not turn mixing around or make a number infinite."""
    network = InMemory.with_links(db.Levels(x=RING), RunConfig().link_faults(jnp.arange(NODES)))
    φ = Vector(jnp.arange(NODES * 2.0).reshape(NODES, 2) ** 2)
    b = Vector(jnp.ones((NODES, 2)).at[1].set(jnp.asarray([-5.0, 1e308])))
    state = network.first_link_memory(jnp.int32(0), 0, {"x": Scaled((φ, b))})
    exchange = jax.jit(lambda φ, b: network.exchange(jnp.int32(0), 0, {"x": Scaled((φ, b))}, state)[0]["x"])
    G, δ = (np.asarray(part.tree) for part in exchange(φ, b))
    W = RING.W
    assert G[0, 0] == W[0, 7] * (φ.tree[7, 0] - φ.tree[0, 0])  # nothing flows to the negative scale
    assert np.isfinite(np.square(np.asarray(b.tree)[0] + δ[0])).all()
    for dtype in (jnp.float32, jnp.float64):
        assert np.asarray(_decode(jnp.arange(256, dtype=jnp.uint8), dtype)).max() == 2.0**63


@pytest.mark.slow
def test_all_three_levels_where_curvatures_span_four_decades():
    """Coordinates of y have curvatures from 1 to 1e4; with the best of its steps plain ED has hardly begun."""
    scales, b, a, d = np.logspace(0, 4, SIZE), *(np.random.default_rng(0).normal(size=(3, NODES, SIZE)))
    h = np.random.default_rng(1).uniform(0.5, 1.5, (NODES, SIZE)) * scales

    def lower(x, y, batch):
        return jnp.mean(jnp.sum(0.5 * batch["h"] * y**2 - scales * y * (x + batch["b"]), -1))

    def upper(x, y, batch):
        return 0.5 * jnp.mean(jnp.sum(scales * ((y - batch["a"]) ** 2 + 0.1 * (x - batch["d"]) ** 2), -1))

    data = [{name: value[:, None] for name, value in part.items()} for part in ({"a": a, "d": d}, {"h": h, "b": b})]
    given = db.Problem(upper, lower, upper_data=data[0], lower_data=data[1], x0=jnp.zeros(SIZE), y0=jnp.zeros(SIZE))
    # y* = s (x + b̄)/h̄; Φ is a sum over coordinates.
    slope = scales / h.mean(0)
    solution = (0.1 * d.mean(0) + slope * (a.mean(0) - slope * b.mean(0))) / (0.1 + slope**2)
    adaptive = db.sparkle("ada-ed", beta=3.0, gamma=3.0)
    assert worst(db.solve(given, adaptive, RING, steps=2000, metrics=[]), solution) < 1e-8
    plain = [
        worst(db.solve(given, db.sparkle("ed", alpha=α, beta=β, gamma=β), RING, steps=2000, metrics=[]), solution)
        for α in (3e-5, 6e-5)
        for β in (6e-5, 1e-4)
    ]
    assert np.nanmin(plain) > 1e-2


def test_a_graph_that_keeps_too_little_is_rejected():
    with pytest.raises(ValueError, match=r"needs w_ii ≥ 0.3333, and complete has 0.125: use graph.lazy\(\)."):
        run(ada_ed(), graph=db.graphs.complete(NODES))
