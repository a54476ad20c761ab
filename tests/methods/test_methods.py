"""Every method but SPARKLE and its kin: full-batch runs against NumPy written from the papers, and where they end."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import method_references as references
import numpy as np
import pytest
from method_references import Nodes, biased_solution, neumann_inverse
from quadratics import random_quadratic

import decibel as db
from decibel.core._ledger import Ledger
from decibel.engines._program import RunConfig

NODES, STEPS = 6, 40
QUADRATIC = random_quadratic(NODES)
START = dict(x0=np.array([0.5, -1.0, 2.0]), y0=np.array([1.0, 0.0, -0.5, 0.25]))
CURVED = Nodes(QUADRATIC, 0.7, **START)  # H and J change with the point
FLAT = Nodes(QUADRATIC, 0.0, **START)  # closed forms; the same compiled program
GRAPH = db.graphs.erdos_renyi(NODES, 0.5, seed=3)
LAPLACIAN = db.graphs.erdos_renyi(NODES, 0.5, seed=3, weights="laplacian")
SPDB = db.graphs.erdos_renyi(NODES, 0.5, seed=3, weights=db.weights.laplacian(0.2))
EXACT = db.hypergradient.exact()
L, TERMS = 3.0, 50  # L is above the eigenvalues of every H_i, and (1 − 1/L)^50 below 2e-9


@cache
def problem(nodes, personal):
    return nodes.problem(personal=personal)


def run(nodes, method, graph, steps=STEPS):
    shared = method.form == "shared"
    return db.solve(
        problem(nodes, not shared), method, graph, steps=steps, eval_every=STEPS, metrics=[], progress=False
    )


def agree(result, reference, tolerance=1e-9):
    levels = [level for level in result.nodes if level is not None]
    assert len(levels) == len(reference)
    for found, expected in zip(levels, reference, strict=True):
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)
        assert np.abs(expected - expected.mean(0)).max() > 1e-5  # mixing up nodes would show


TWO = dict(alpha=0.05, beta=0.1)
THREE = dict(alpha=0.05, beta=0.1, gamma=0.12, theta=0.4)
MATRICES = dict(alpha=0.05, beta=0.1, theta=0.3, terms=TERMS, smoothness=L, convexity=0.8)
LOOPS = dict(lower_steps=3, auxiliary_steps=2)
local = dict(hypergradient=CURVED.exact)
one_term = dict(hypergradient=lambda i, x, y: CURVED.random_term(i, x, y, 0, 1, L))
series = dict(hypergradient=lambda i, x, y: CURVED.neumann(i, x, y, TERMS, L))

# name: method, graph, reference, its settings
FOLLOWED = {
    "interact": (db.interact(**TWO), LAPLACIAN, references.interact, TWO | local),
    "interact-neumann": (
        db.interact(**TWO, hypergradient=db.hypergradient.neumann(TERMS, L)),
        LAPLACIAN,
        references.interact,
        TWO | series,
    ),
    "gt-dsgd": (db.gt_dsgd(**TWO), LAPLACIAN, references.interact, TWO | local),
    "d-sgd-bilevel": (db.dsgd_bilevel(**TWO), LAPLACIAN, references.dsgd_bilevel, TWO | local),
    "svr-interact": (
        db.svr_interact(**TWO, period=3, terms=1, scale=L),
        LAPLACIAN,
        references.svr_interact,
        TWO | dict(period=3, full=CURVED.exact, sampled=one_term["hypergradient"]),
    ),
    "spdb": (db.spdb(**TWO), SPDB, references.spdb, TWO | local),
    "spdb-direct": (
        db.spdb(**TWO, hypergradient=db.hypergradient.direct()),
        SPDB,
        references.spdb,
        TWO | dict(hypergradient=CURVED.fx),
    ),
    "gossip-dsbo": (db.gossip_dsbo(**MATRICES), GRAPH, references.gossip_dsbo, MATRICES),
    "dsbo": (
        db.dsbo(alpha=0.05, beta=0.1, gamma=0.12, **LOOPS),
        GRAPH,
        references.dsbo,
        dict(alpha=0.05, beta=0.1, gamma=0.12) | LOOPS,
    ),
    "ma-dsbo": (db.ma_dsbo(**THREE, **LOOPS), GRAPH, references.ma_dsbo, THREE | LOOPS),
    "ma-dsbo-gt": (
        db.ma_dsbo(**THREE, **LOOPS, tracking=True),
        GRAPH,
        references.ma_dsbo,
        THREE | LOOPS | dict(tracking=True),
    ),
    "dbsa": (
        db.dbsa(**TWO, terms=TERMS, scale=L),
        GRAPH,
        references.double_loop,
        TWO | dict(inner=references.root, terms=TERMS, scale=L),
    ),
    "dbsa-3": (
        db.dbsa(**TWO, lower_steps=3, terms=TERMS, scale=L),
        GRAPH,
        references.double_loop,
        TWO | dict(inner=lambda t: 3, terms=TERMS, scale=L),
    ),
    "double-loop-dsgd": (
        db.double_loop_dsgd(**TWO, terms=TERMS, scale=L),
        GRAPH,
        references.double_loop,
        TWO | dict(inner=references.growing, terms=TERMS, scale=L),
    ),
    "mdbo": (
        db.mdbo(**TWO, theta=0.4, relax=0.7, terms=1, scale=L),
        GRAPH,
        references.mdbo,
        TWO | dict(theta=0.4, relax=0.7) | one_term,
    ),
    "vrdbo": (
        db.vrdbo(**TWO, theta=0.4, relax=0.7, terms=1, scale=L),
        GRAPH,
        references.mdbo,
        TWO | dict(theta=0.4, relax=0.7, storm=True) | one_term,
    ),
    "slam": (db.slam(**TWO, terms=TERMS, scale=L), GRAPH, references.slam, TWO | series),
    "lopa": (db.lopa(**THREE, tau=0.8), GRAPH, references.lopa, THREE | dict(tau=0.8)),
    "lopa-gt": (db.lopa(**THREE, tau=0.8, tracking=True), GRAPH, references.lopa, THREE | dict(tau=0.8, tracking=True)),
}


@pytest.mark.slow_except(
    "interact", "gt-dsgd", "spdb", "gossip-dsbo", "ma-dsbo-gt", "dbsa", "mdbo", "vrdbo", "slam", "lopa"
)
@pytest.mark.parametrize("name", FOLLOWED)
def test_follows_the_paper(name):
    method, graph, reference, settings = FOLLOWED[name]
    agree(run(CURVED, method, graph), reference(CURVED, graph.W, steps=STEPS, **settings))


@pytest.mark.slow
def test_svr_interact_of_period_one_is_interact():
    for way in (EXACT, db.hypergradient.neumann(TERMS, L)):
        plain = run(CURVED, db.interact(**TWO, hypergradient=way), LAPLACIAN)
        reduced = run(CURVED, db.svr_interact(**TWO, hypergradient=way, period=1), LAPLACIAN)
        for a, b in zip(plain.nodes[:2], reduced.nodes[:2], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_svr_interact_of_any_period_is_interact_where_a_batch_holds_all_samples():
    plain = run(CURVED, db.interact(**TWO), LAPLACIAN)
    reduced = run(CURVED, db.svr_interact(**TWO, hypergradient=EXACT, period=3), LAPLACIAN)
    np.testing.assert_allclose(plain.nodes.x, reduced.nodes.x, atol=1e-12)


FASTER = dict(alpha=0.1, beta=0.3)
REACHES = {
    "interact": (db.interact(**FASTER), LAPLACIAN),
    "gt-dsgd": (db.gt_dsgd(**FASTER), LAPLACIAN),
    "svr-interact": (db.svr_interact(**FASTER, period=3, terms=1, scale=L), LAPLACIAN),
    "spdb": (db.spdb(**FASTER), SPDB),
    "lopa-gt": (db.lopa(**FASTER, gamma=0.3, theta=0.5, tau=0.8, tracking=True), GRAPH),
}


@pytest.mark.slow_except("interact", "spdb")
@pytest.mark.parametrize("name", REACHES)
def test_reaches_the_personal_solution(name):
    result = run(FLAT, *REACHES[name], 1200)
    x = QUADRATIC.personal_solution()
    y = np.stack([np.linalg.solve(q_H, q_B @ x + q_c) for q_H, q_B, q_c in zip(*QUADRATIC[:3], strict=True)])
    np.testing.assert_allclose(result.nodes.x, np.tile(x, (NODES, 1)), atol=1e-8)
    np.testing.assert_allclose(result.nodes.y, y, atol=1e-8)


def gossip_dsbo(h):
    return db.gossip_dsbo(alpha=0.1 * h, beta=0.2 * h, theta=0.4 * h, terms=TERMS, smoothness=L, convexity=1.0)


# Methods without a correction, as functions of a common factor of their step sizes.
DRIFTING = {
    "gossip-dsbo": gossip_dsbo,
    "dsbo": lambda h: db.dsbo(alpha=0.1 * h, beta=0.2 * h, gamma=0.2 * h, **LOOPS),
    "ma-dsbo": lambda h: db.ma_dsbo(alpha=0.1 * h, beta=0.2 * h, gamma=0.2 * h, theta=0.5, **LOOPS),
    "lopa": lambda h: db.lopa(alpha=0.1 * h, beta=0.3, gamma=0.3, theta=0.5),
    "d-sgd-bilevel": lambda h: db.dsgd_bilevel(alpha=0.1 * h, beta=0.3),
}


@pytest.mark.slow_except("lopa")
@pytest.mark.parametrize("name", DRIFTING)
def test_a_bias_of_the_network_vanishes_with_the_step_size(name):
    make = DRIFTING[name]
    personal = make(1.0).form == "personal"
    target = QUADRATIC.personal_solution() if personal else QUADRATIC.solution()
    errors = [np.abs(run(FLAT, make(h), GRAPH, round(800 / h)).nodes.x - target).max() for h in (0.5, 0.25, 0.125)]
    assert errors[0] > 1e-3
    assert 1.5 < errors[0] / errors[1] < 3.5 and 1.6 < errors[1] / errors[2] < 3, errors


ALIKE = replace(FLAT, quadratic=QUADRATIC._replace(H=QUADRATIC.H[[0] * NODES], B=QUADRATIC.B[[0] * NODES]))
TRACKED = dict(alpha=0.1, beta=0.2, theta=0.5, relax=0.9)


def inverting(name, terms=TERMS):
    """The methods that invert locally, with an inverse that does not depend on chance."""
    if name == "slam":
        return db.slam(**FASTER, terms=terms, scale=L)
    method = getattr(db, name)(**TRACKED, terms=terms, scale=L)
    return method if terms == 1 else replace(method, hypergradient=db.hypergradient.neumann(terms, L))


@pytest.mark.slow_except("1-slam")
@pytest.mark.parametrize("name", ["mdbo", "vrdbo", "slam"])
@pytest.mark.parametrize("terms", [1, TERMS])
def test_a_local_inverse_ends_at_its_predicted_bias(name, terms):
    """EXTRA and tracking remove what the network adds; what remains is the zero of the mean local hypergradient."""
    result = run(FLAT, inverting(name, terms), GRAPH, 1200)
    end = biased_solution(QUADRATIC, neumann_inverse(terms, L))
    np.testing.assert_allclose(result.nodes.x, np.tile(end, (NODES, 1)), atol=1e-8)
    y = QUADRATIC.lower_solution(end)
    np.testing.assert_allclose(result.nodes.y, np.tile(y, (NODES, 1)), atol=1e-8)
    assert np.abs(end - QUADRATIC.solution()).max() > 0.02


def test_the_predicted_bias_of_exact_local_inverses():
    end = biased_solution(QUADRATIC, np.linalg.inv)
    np.testing.assert_allclose(end, biased_solution(QUADRATIC, neumann_inverse(TERMS, L)), atol=1e-8)
    mean = np.linalg.inv(QUADRATIC.H.mean(0))
    assert np.abs(end - QUADRATIC.solution()).max() > 0.02
    alike = ALIKE.quadratic
    np.testing.assert_allclose(biased_solution(alike, np.linalg.inv), alike.solution(), atol=1e-12)
    assert np.abs(biased_solution(QUADRATIC, lambda H: mean) - QUADRATIC.solution()).max() > 1e-4  # J_i differ too


@pytest.mark.parametrize("name", ["mdbo", "vrdbo", "slam"])
def test_a_local_inverse_is_exact_where_second_derivatives_agree(name):
    result = run(ALIKE, inverting(name), GRAPH, 1200)
    np.testing.assert_allclose(result.nodes.x, np.tile(ALIKE.quadratic.solution(), (NODES, 1)), atol=1e-8)


@pytest.mark.slow_except("heterogeneous")
@pytest.mark.parametrize("nodes", [FLAT, ALIKE], ids=["heterogeneous", "equal second derivatives"])
def test_dbsa_ends_at_its_predicted_bias(nodes):
    """But for what gossip without correction adds, which vanishes with the step sizes."""
    end = biased_solution(nodes.quadratic, np.linalg.inv)
    xs = [
        run(
            nodes, db.dbsa(alpha=0.1 * h, beta=0.2 * h, lower_steps=3, terms=TERMS, scale=L), GRAPH, round(800 / h)
        ).nodes.x
        for h in (0.5, 0.25, 0.125)
    ]
    errors = [np.abs(x - end).max() for x in xs]
    assert 1.7 < errors[0] / errors[1] < 2.4 and 1.8 < errors[1] / errors[2] < 2.2, errors
    limit = 2 * xs[2] - xs[1]  # the part proportional to the step size taken out
    np.testing.assert_allclose(limit, np.tile(end, (NODES, 1)), atol=0.2 * errors[2])
    gap = np.abs(limit - nodes.quadratic.solution()).max()
    assert gap < 0.2 * errors[2] if nodes is ALIKE else gap > 0.02


@pytest.mark.parametrize("name", ["dbsa", "double-loop-dsgd"])
def test_growing_inner_loops_on_a_complete_graph(name):
    """With exact averaging and equal data, iteration t is that of one node with ever better y."""
    same = replace(FLAT, quadratic=type(QUADRATIC)(*(array[[0] * NODES] for array in QUADRATIC)))
    make = {"dbsa": db.dbsa, "double-loop-dsgd": db.double_loop_dsgd}[name]
    result = run(same, make(alpha=0.1, beta=0.3, terms=TERMS, scale=L), GRAPH, 200)
    np.testing.assert_allclose(result.nodes.x, np.tile(same.quadratic.solution(), (NODES, 1)), atol=1e-8)


@pytest.mark.parametrize("method", [db.interact(**TWO), db.spdb(**TWO), db.slam(**TWO)], ids=lambda m: m.name)
def test_the_other_form_of_problem_raises(method):
    shared = method.form == "shared"
    with pytest.raises(ValueError, match="personal"):
        db.solve(problem(FLAT, shared), method, GRAPH, steps=1)


def test_interact_raises_on_batches_and_spdb_on_weights_that_diverge():
    with pytest.raises(ValueError, match=r"all samples.*gt_dsgd"):
        db.solve(problem(FLAT, True), db.interact(**TWO), GRAPH, steps=1, batch_size=1)
    steep = db.graphs.complete(NODES, weights=db.weights.laplacian(0.24))
    with pytest.raises(ValueError, match="diverges on complete"):
        db.solve(problem(FLAT, True), db.spdb(**TWO), steep, steps=1)


HYBRID = dict(alpha=0.1, theta=0.3)


@pytest.mark.slow_except("None")
@pytest.mark.parametrize("batch_size", [None, 2])
def test_gt_hsgd_follows_the_paper(batch_size):
    """On the samples that the run draws; with all of them STORM's two differences cancel."""
    data = np.random.default_rng(4).normal(size=(NODES, 5, 3))
    alone = db.Problem(lambda x, batch: jnp.mean(jnp.sum(jnp.cosh(x - batch), -1)), upper_data=data, x0=jnp.zeros(3))
    engine = db.Simulator().start(alone, db.gt_hsgd(**HYBRID), db.Levels(x=GRAPH), RunConfig(batch_size))

    @cache
    def samples(t):  # (nodes, batch, 3)
        return np.asarray(engine.program.oracle(jnp.int32(t), Ledger()).draw().upper.parts[0])

    engine.advance(STEPS)
    expected = references.gt_hsgd(
        lambda t, i, x: np.sinh(x - samples(t)[i]).mean(0), np.zeros((NODES, 3)), GRAPH.W, steps=STEPS, **HYBRID
    )
    np.testing.assert_allclose(engine.state.x.s.tree, expected, atol=1e-9, rtol=0)
    assert np.ptp(expected, 0).max() > 1e-5 and (batch_size is None or (samples(0) != samples(1)).any())


def test_gt_hsgd_reaches_the_solution():
    result = db.solve(QUADRATIC.single(), db.gt_hsgd(**HYBRID), GRAPH, steps=1200, metrics=[], progress=False)
    np.testing.assert_allclose(result.nodes.x, np.tile(QUADRATIC.single_solution(), (NODES, 1)), atol=1e-9)
