"""Terms that differ from node to node: the solution with their average, wherever a node runs, and what is refused."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic
from separable import BARE, NODES, RING, SIZE, A, C, bilevel, central, problem, single

import decibel as db
from decibel.engines._batch_run import BatchRun

rng = np.random.default_rng(3)
STRENGTHS, RADII = rng.uniform(0.01, 0.2, NODES), rng.uniform(0.3, 0.9, NODES)
LOW, HIGH = rng.uniform(-0.4, -0.05, (NODES, SIZE)), rng.uniform(0.05, 0.4, (NODES, SIZE))


def shrunk(v, cut):
    return np.sign(v) * np.maximum(np.abs(v) - cut, 0)


def in_ball(v, ρ):
    return v * min(1, RADII.min() / np.linalg.norm(v))


def mixed(v, ρ):
    """Two nodes with ℓ1, three with a box, the others with nothing: each entry shrinks, then stops at the bounds."""
    return np.clip(shrunk(v, ρ * 2 * 0.3 / NODES), -0.1, 0.3)


# What each node has, and the map of 1/N Σ_i h_i by hand.
TERMS = {
    "l1": ([db.prox.l1(s) for s in STRENGTHS], lambda v, ρ: shrunk(v, ρ * STRENGTHS.mean())),
    "ball": ([db.prox.ball(r) for r in RADII], in_ball),
    "box": ([db.prox.box(*ends) for ends in zip(LOW, HIGH, strict=True)],
            lambda v, ρ: np.clip(v, LOW.max(0), HIGH.min(0))),
    "mixed": ([db.prox.l1(0.3), None, db.prox.box(-0.1), db.prox.box(-0.2, 0.3), None, db.prox.l1(0.3), None,
               db.prox.box(-1.0, np.full(SIZE, 0.4))], mixed),
}  # fmt: skip


@pytest.mark.slow_except("ball-extra", "mixed-nids")
@pytest.mark.parametrize("mixing", ["extra", "nids"])
@pytest.mark.parametrize("name", TERMS)
def test_the_solution_with_the_average_of_all_terms(name, mixing):
    terms, average = TERMS[name]
    result = db.solve(problem(db.prox.per_node(terms)), single(mixing), RING, steps=4000, metrics=[])
    solution = central(average)
    np.testing.assert_allclose(result.nodes.x, np.tile(solution, (NODES, 1)), atol=1e-10)
    assert np.abs(solution - BARE).max() > 1e-2  # the terms are felt


@pytest.mark.slow
@pytest.mark.parametrize("upper", [pytest.param("extra", marks=pytest.mark.slow), "nids"])
def test_the_upper_level_of_a_bilevel_problem(upper):
    quadratic = random_quadratic(NODES, p=3, q=4)
    low, high = LOW[:, :3] / 2, HIGH[:, :3]
    constrained = bilevel(quadratic, db.prox.per_node([db.prox.box(*ends) for ends in zip(low, high, strict=True)]))
    solution = central(lambda v, ρ: np.clip(v, low.max(0), high.min(0)), quadratic.hypergradient, 3)
    assert ((solution == low.max(0)) | (solution == high.min(0))).any()
    assert np.abs(solution - quadratic.solution()).max() > 1e-2
    method = db.sparkle("ed", upper=upper, alpha=0.05, beta=0.2, gamma=0.2)
    result = db.solve(constrained, method, RING, steps=6000, metrics=[])
    np.testing.assert_allclose(result.nodes.x, np.tile(solution, (NODES, 1)), atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("mixing", ["extra", "nids"])
def test_faults_do_not_move_the_solution(mixing):
    terms, average = TERMS["mixed"]
    faults = [db.faults.drop(0.3), db.faults.pause(1, during=(50, 400))]
    result = db.solve(
        problem(db.prox.per_node(terms)), single(mixing), RING, steps=6000, metrics=[], faults=faults
    )  # fmt: skip
    np.testing.assert_allclose(result.nodes.x, np.tile(central(average), (NODES, 1)), atol=1e-10)


@pytest.mark.slow
def test_nodes_that_left_take_their_terms_along():
    there = [node for node in range(NODES) if node != RADII.argmin()]
    engine = db.Simulator(members=tuple(there))
    result = db.solve(
        problem(db.prox.per_node(TERMS["ball"][0])), single("nids"), RING, steps=4000, metrics=[], engine=engine
    )  # fmt: skip
    radius = RADII[there].min()
    solution = central(
        lambda v, ρ: v * min(1, radius / np.linalg.norm(v)), lambda x: (A[there] * (x - C[there])).mean(0)
    )
    np.testing.assert_allclose(result.nodes.x, np.tile(solution, (NODES - 1, 1)), atol=1e-10)


def test_maps_keep_the_precision_of_x():
    simplices = [db.prox.simplex(2.0)] * NODES
    kinds = (TERMS["ball"][0], TERMS["mixed"][0], simplices, [db.prox.group_l2(s) for s in STRENGTHS])
    x = jax.ShapeDtypeStruct((NODES, SIZE), jnp.float32)
    for terms in kinds:
        assert jax.eval_shape(partial(db.prox.per_node(terms).over_nodes, rate=0.7), x).dtype == jnp.float32


def test_one_kind_of_term_has_an_average():
    v = jnp.asarray(rng.normal(size=SIZE))
    for name in ("l1", "ball", "box"):
        terms, average = TERMS[name]
        together = db.prox.per_node(terms).average()
        np.testing.assert_allclose(together(v, 0.7), average(np.asarray(v), 0.7), atol=1e-14)
    rows = jnp.asarray(rng.normal(size=(3, 2)))
    groups = db.prox.per_node([db.prox.group_l2(s) for s in STRENGTHS]).average()
    np.testing.assert_allclose(groups(rows, 0.7), db.prox.group_l2(float(STRENGTHS.mean()))(rows, 0.7), atol=1e-14)
    np.testing.assert_allclose(db.prox.per_node([db.prox.simplex()] * 2).average()(v, 0.7), db.prox.simplex()(v, 0.7))
    assert db.prox.per_node(TERMS["mixed"][0]).average() is None


@pytest.mark.parametrize("mixing", ["ed", "gt", "diffusion", "ada-ed"])
def test_strategies_that_are_not_exact_say_so(mixing):
    given = problem(db.prox.per_node(TERMS["box"][0]))
    fix = rf"strategy '{mixing}' on level x is not exact with prox_x=PerNode: choose 'extra' or 'nids'\."
    with pytest.raises(ValueError, match=fix):
        db.solve(given, single(mixing), RING, steps=1)


def test_wrong_terms_say_so():
    with pytest.raises(ValueError, match="prox_x has terms for 2 nodes but the graph has 8: give one for each"):
        db.solve(problem(db.prox.per_node([None, db.prox.ball()])), single("nids"), RING, steps=1)
    with pytest.raises(TypeError, match=r"terms\[1\] is a float: give one of db\.prox"):
        db.prox.per_node([db.prox.ball(), 1.0])
    with pytest.raises(TypeError, match=r"terms\[0\] is a PerNode"):
        db.prox.per_node([db.prox.per_node([db.prox.ball()])])
    with pytest.raises(ValueError, match="terms is empty"):
        db.prox.per_node([])
    with pytest.raises(ValueError, match="constraints that have no point in common"):
        db.prox.per_node([db.prox.box(0, 1), None, db.prox.box(2, 3)])
    with pytest.raises(ValueError, match="constraints that have no point in common"):
        db.prox.per_node([db.prox.simplex(1), db.prox.simplex(2)])
    with pytest.raises(ValueError, match=r"parameters of shapes \[\(2,\), \(3,\)\]: give all nodes the same shape"):
        db.prox.per_node([db.prox.box(np.zeros(2)), db.prox.box(np.zeros(3))])


def test_terms_of_y_are_the_same_at_all_nodes():
    given = random_quadratic(NODES).problem()
    with pytest.raises(ValueError, match="prox_y cannot differ from node to node: give one term for all nodes"):
        db.Problem(
            given.upper, given.lower, upper_data=given.upper_data, lower_data=given.lower_data, x0=given.x0,
            y0=given.y0, prox_y=db.prox.per_node([None] * NODES),
        )  # fmt: skip


@pytest.mark.slow
def test_several_runs_in_one_program_have_terms_of_their_own():
    problems = [problem(db.prox.per_node([db.prox.ball(s * r) for r in RADII])) for s in (1.0, 0.5)]
    run = BatchRun(problems, single("nids"), db.Levels(x=RING), batch_size=None, seeds=[0, 0])
    run.advance(20)
    for i, given in enumerate(problems):
        alone = db.solve(given, single("nids"), RING, steps=20, metrics=[])
        np.testing.assert_allclose(jax.tree.leaves(run.snapshot(i).nodes.x)[0], alone.nodes.x, atol=1e-12)
