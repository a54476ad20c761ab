"""Constraints and non-smooth terms: every proximal map by its definition, and runs that end where they must."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic
from scipy.optimize import brentq, minimize
from separable import BARE, NODES, RING, SIZE, A, C, bilevel, central, draw, problem, single

import decibel as db
from decibel.strategies import strategy

rng = np.random.default_rng(1)
MAPS = {
    "nonnegative": (db.prox.nonnegative(), lambda u: 0.0, [(0, None)] * 5, ()),
    "box": (db.prox.box(-0.3, 0.4), lambda u: 0.0, [(-0.3, 0.4)] * 5, ()),
    "simplex": (db.prox.simplex(), lambda u: 0.0, [(0, None)] * 5, {"type": "eq", "fun": lambda u: u.sum() - 1}),
    "simplex above a floor": (
        db.prox.simplex(2.0, floor=0.25),
        lambda u: 0.0,
        [(0.25, None)] * 5,
        {"type": "eq", "fun": lambda u: u.sum() - 2},
    ),
    "ball": (db.prox.ball(0.5), lambda u: 0.0, None, {"type": "ineq", "fun": lambda u: 0.25 - u @ u}),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_projection_is_the_nearest_point(name):
    prox, h, bounds, constraints = MAPS[name]
    v = rng.normal(size=5)
    map_of = jax.jit(lambda v: prox(v, 0.7))
    found = np.asarray(map_of(v))
    nearest = minimize(
        lambda u: h(u) + np.sum((u - v) ** 2) / 1.4, np.full(5, 0.2), bounds=bounds, constraints=constraints,
        method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    np.testing.assert_allclose(found, nearest.x, atol=1e-6)
    np.testing.assert_allclose(map_of(found), found, atol=1e-12)


def test_a_floor_holds_to_the_last_bit_and_has_an_end():
    points = jnp.asarray(10 * np.random.default_rng(0).normal(size=(20, 5)))
    one, several = db.prox.simplex(floor=0.1), db.prox.per_node([db.prox.simplex(floor=0.1), db.prox.simplex()])
    found, of_both = jax.jit(jax.vmap(lambda v: (one(v, 0.7), several.average()(v, 0.7))))(points)
    assert found.min() >= 0.1
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(of_both, found, atol=1e-12)
    with pytest.raises(ValueError, match=r"floor=0\.3 is too high for 5 entries of sum 1: give at most 0\.2"):
        db.prox.simplex(floor=0.3)(jnp.zeros(5), 0.7)
    with pytest.raises(ValueError, match="floor=-1 must be"):
        db.prox.simplex(floor=-1)


def test_shrinking():
    v = jnp.asarray([2.0, -0.3, 0.5])
    np.testing.assert_allclose(db.prox.l1(0.5)(v, 0.8), [1.6, 0.0, 0.1], atol=1e-12)
    rows = jnp.asarray([[3.0, 4.0], [0.1, 0.1]])
    np.testing.assert_allclose(db.prox.group_l2(1.0)(rows, 1.0), [[2.4, 3.2], [0.0, 0.0]], atol=1e-12)


def central_jitted(prox, steps=4000, α=0.3):
    """As `central`, with a map of the library."""
    step = lambda _, x: prox(x - α * (A * (x - C)).mean(0), α)  # noqa: E731
    return np.asarray(jax.lax.fori_loop(0, steps, step, jnp.full(SIZE, 0.1)))


TERMS = {
    "nonnegative": db.prox.nonnegative(),
    "box": db.prox.box(-0.05, 0.1),
    "simplex": db.prox.simplex(),
    "ball": db.prox.ball(0.2),
    "l1": db.prox.l1(0.1),
}


@pytest.mark.slow_except(
    "l1-ed",
    "simplex-extra",
    "nonnegative-gt",
    "box-nids",
    "nonnegative-ada-ed",
    "box-gt-ada",
)
@pytest.mark.parametrize("mixing", ["ed", "extra", "gt", "nids", "wave", "ada-ed", "ada-ed-scalar", "gt-ada"])
@pytest.mark.parametrize("term", TERMS)
def test_every_strategy_ends_at_the_central_solution(term, mixing):
    prox = TERMS[term]
    given, method = problem(prox), single(mixing)
    if not strategy(mixing).allows(prox):
        assert (mixing in ("ada-ed", "gt-ada") and not prox.is_box) or (mixing == "ada-ed-scalar" and term == "l1")
        with pytest.raises(ValueError, match=rf"strategy '{mixing}' on level x is not exact with prox_x"):
            db.solve(given, method, RING, steps=1)
        return
    result = db.solve(given, method, RING, steps=4000, metrics=[])
    solution = central_jitted(prox)
    np.testing.assert_allclose(result.nodes.x, np.tile(solution, (NODES, 1)), atol=1e-10)
    assert np.abs(BARE - solution).max() > 1e-3  # the term is felt


@pytest.mark.slow
def test_wave_is_exact_with_terms_by_node_and_messages_lost_one_way():
    bounds = [None, db.prox.box(-0.2, 0.6), db.prox.box(-0.8, 0.2)] * (NODES // 3) + [None] * (NODES % 3)
    given = problem(db.prox.per_node(bounds))
    lossy = db.faults.drop(0.2, one_way=True)
    result = db.solve(given, db.wave(alpha=0.3), RING, steps=2000, metrics=[], faults=lossy)
    solution = np.clip(BARE, -0.2, 0.2)  # losses are separable
    np.testing.assert_allclose(result.nodes.x, np.tile(solution, (NODES, 1)), rtol=0, atol=1e-10)
    assert (np.abs(solution) == 0.2).any() and (np.abs(solution) < 0.2).any()


def shares(A, c, total):
    """min Σ A (x − c)²/2 over x ≥ 0 with a given sum: x = (b − μ)₊/a with sums a, b over nodes, μ by bisection."""
    a, b = A.sum(0), (A * c).sum(0)
    x = lambda μ: np.maximum(b - μ, 0) / a  # noqa: E731
    return x(brentq(lambda μ: x(μ).sum() - total, b.min() - total * a.max(), b.max(), xtol=1e-15, rtol=1e-15))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_step_for_each_node_is_exact_on_the_simplex(seed):
    """Against multipliers found by bisection, without a projection; entries at zero and others, steps that differ."""
    A, C = draw(seed)
    given, expected = problem(db.prox.simplex(), A, C), shares(A, C, 1.0)
    assert (expected == 0).any() and (expected > 0).sum() > 1
    result = db.solve(given, db.ada_ed(scalar=True), RING, steps=4000, metrics=[])
    np.testing.assert_allclose(result.nodes.x, np.tile(expected, (NODES, 1)), rtol=0, atol=1e-13)
    steps = 0.3 / np.sqrt(np.asarray(result.state.x.carry[1].tree))
    assert steps.max() > 1.5 * steps.min()


def test_bounds_by_entry_are_part_of_what_a_run_is(tmp_path):
    """NumPy arrays, a checkpoint of them, and other bounds, which are another run."""
    tight = db.prox.box(np.zeros(5), np.full(5, 0.05))
    given = problem(tight)
    method = db.ed(alpha=0.3)
    result = db.solve(given, method, RING, steps=4000, eval_every=4000, metrics=[], checkpoint=tmp_path)
    np.testing.assert_allclose(result.nodes.x, np.tile(central_jitted(tight), (NODES, 1)), atol=1e-10)
    other = problem(db.prox.box(np.zeros(5), np.full(5, 0.06)))
    with pytest.raises(ValueError, match="prox_x"):
        db.solve(other, method, RING, steps=4100, metrics=[], checkpoint=tmp_path, resume=True)


ENGINES = {"simulator": db.Simulator(), "cluster": db.Cluster()}
FAULTS = {"links": db.faults.drop(0.3), "nodes": [db.faults.drop(0.2), db.faults.pause(1, during=(50, 400))]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("upper", "faults", "engine"),
    [
        pytest.param(upper, *where, id="-".join((upper, *where)))
        for upper in ("ed", "nids", "extra", "gt")
        for where in (("links", "simulator"), ("nodes", "cluster"))
    ],
)
def test_the_upper_level_under_faults(upper, faults, engine):
    """Of links, both ways, and of nodes that pause."""
    quadratic = random_quadratic(NODES, p=3, q=4)
    x = central(lambda v, ρ: np.maximum(v, 0), quadratic.hypergradient, 3, 0.2, 1000)
    assert (x == 0).any() and (x > 0).any()
    method = db.sparkle("ed", upper, alpha=0.05, beta=0.2, gamma=0.2)
    given = bilevel(quadratic, db.prox.nonnegative())
    options = {"engine": ENGINES[engine], "faults": FAULTS[faults]}
    result = db.solve(given, method, RING, steps=6000, metrics=[], **options)
    np.testing.assert_allclose(result.nodes.x, np.tile(x, (NODES, 1)), atol=1e-10)
    assert (np.asarray(result.nodes.x)[:, x == 0] == 0).all()


def test_nids_without_a_map_is_exact_diffusion():
    runs = [db.solve(problem(None), single(name), RING, steps=50, metrics=[]) for name in ("nids", "ed")]
    np.testing.assert_allclose(runs[0].nodes.x, runs[1].nodes.x, atol=1e-13)


def test_what_does_not_take_it_says_so():
    given = problem(db.prox.nonnegative())
    with pytest.raises(ValueError, match="strategy 'non-gt' on level x is not exact with prox_x=Box: choose 'ed'"):
        db.solve(given, db.gnsd(alpha=0.1), RING, steps=1)
    with pytest.raises(TypeError, match=r"prox_x is a function: give one of db\.prox"):
        problem(lambda x: x)
    with pytest.raises(ValueError, match="strength=-1 must be a positive number"):
        db.prox.l1(-1)


BOTH = {"metrics": ["stationarity", "kkt_residual"], "eval_every": 4000}


@pytest.mark.slow
def test_the_kkt_residual_vanishes_where_the_gradient_does_not():
    quadratic = random_quadratic(NODES, p=3, q=4)
    method = db.sparkle("ed", alpha=0.05, beta=0.2, gamma=0.2)
    last = db.solve(bilevel(quadratic, db.prox.nonnegative()), method, RING, steps=4000, **BOTH).trace.last
    assert last["kkt_residual"] < 1e-8 and last["stationarity"] > 1e-3
    given = problem(db.prox.l1(0.1))
    last = db.solve(given, db.ed(alpha=0.3), RING, steps=4000, **BOTH).trace.last
    assert last["kkt_residual"] < 1e-8 and last["stationarity"] > 1e-3


@pytest.mark.slow
def test_a_personal_lower_level():
    given = bilevel(random_quadratic(NODES, p=3, q=4), db.prox.nonnegative(), personal=True)
    method = db.sparkle("local", "ed", alpha=0.05, beta=0.2, gamma=0.2)
    result = db.solve(given, method, RING, steps=4000, **BOTH)
    assert result.trace.last["kkt_residual"] < 1e-10 and result.trace.last["stationarity"] > 1e-3
    assert (np.asarray(result.nodes.x) == 0).any()


def test_the_kkt_residual_by_its_definition():
    """Before the first step; without a term it is the norm of the hypergradient."""
    given = problem(db.prox.l1(0.1))
    gradient = (A * (0.1 - C)).mean(0)
    step = 0.1 - gradient
    shrunk = np.sign(step) * np.maximum(np.abs(step) - 0.1, 0)
    first = lambda made: db.solve(made, db.ed(alpha=0.3), RING, steps=1, **BOTH).trace["kkt_residual"][0]  # noqa: E731
    np.testing.assert_allclose(first(given), np.linalg.norm(0.1 - shrunk), rtol=1e-12)
    np.testing.assert_allclose(first(problem(None)), np.linalg.norm(gradient), rtol=1e-12)


def test_the_kkt_residual_of_terms_by_node():
    """By the average of terms of one kind; of several kinds it is not known."""
    given = problem(db.prox.per_node([db.prox.ball(0.2 + 0.1 * node) for node in range(NODES)]))
    last = db.solve(given, db.extra(alpha=0.3), RING, steps=4000, **BOTH).trace.last
    assert last["kkt_residual"] < 1e-10 and last["stationarity"] > 1e-3
    others = problem(db.prox.per_node([db.prox.ball(), db.prox.l1(0.1)] * (NODES // 2)))
    sentence = "metric 'kkt_residual' needs terms of one kind at all nodes"
    with pytest.raises(ValueError, match=sentence):
        db.solve(others, db.extra(alpha=0.3), RING, steps=1, metrics=["kkt_residual"])
    with pytest.raises(ValueError, match=sentence):  # nor of some of the nodes
        db.solve(
            given, db.extra(alpha=0.3), RING, steps=1, metrics=["kkt_residual"], engine=db.Simulator(members=(0, 1))
        )  # fmt: skip
