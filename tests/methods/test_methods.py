"""Every method but SPARKLE and its kin: full-batch runs against NumPy written from the papers.

Where they end is a test of `test_bias`.
"""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import method_references as references
import numpy as np
import published_references as published
import pytest
import relatives_references as relatives
from method_runs import CURVED, FLAT, GRAPH, NODES, QUADRATIC, STEPS, agree, close, problem, run

import decibel as db
from decibel.core._ledger import Ledger
from decibel.engines._program import RunConfig

COMPLETE = db.graphs.complete(NODES)
LAPLACIAN = db.graphs.erdos_renyi(NODES, 0.5, seed=3, weights="laplacian")
SPDB = db.graphs.erdos_renyi(NODES, 0.5, seed=3, weights=db.weights.laplacian(0.2))
L, TERMS = 3.0, 50  # L is above the eigenvalues of every H_i, and (1 − 1/L)^50 below 2e-9


TWO = dict(alpha=0.05, beta=0.1)
THREE = dict(alpha=0.05, beta=0.1, gamma=0.12, theta=0.4)
MATRICES = dict(alpha=0.05, beta=0.1, theta=0.3, terms=TERMS, smoothness=L, convexity=0.8)
LOOPS = dict(lower_steps=3, auxiliary_steps=2)
COPIES = dict(alpha=0.02, beta=0.02, gamma=0.1)
SUN = COPIES | dict(beta=0.1, strength=5.0, envelope=0.7)
INNER = dict(alpha=0.05, beta=0.1, gamma=0.12, strength=8.0, lower_steps=3)
RIDGE = dict(alpha=0.05, beta=0.1, gamma=0.12, ridge=0.3, decay=0.4)
CODED = INNER | dict(beta=0.05, gamma=0.06, share=0.4, mixing=0.4)


STORM = THREE | dict(relax=0.8)
ADAPTIVE = dict(alpha=3.0, beta=0.8, gamma=0.9)
local = dict(hypergradient=CURVED.exact)
one_term = dict(hypergradient=lambda i, x, y: CURVED.random_term(i, x, y, 0, 1, L))
series = dict(hypergradient=lambda i, x, y: CURVED.neumann(i, x, y, TERMS, L))


def grows(k):
    return 4.0 + 0.1 * jnp.asarray(k, float)


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
    "dsvrbgd": (db.dsvrbgd(**STORM), GRAPH, published.dsvrbgd, STORM),
    "normalized-dsvrbgd": (db.normalized_dsvrbgd(**STORM), GRAPH, published.dsvrbgd, STORM | dict(normalized=True)),
    "adasdbo": (db.adasdbo(**ADAPTIVE), GRAPH, published.adasdbo, ADAPTIVE),
    "f2sa": (db.f2sa(**COPIES), COMPLETE, relatives.copies, COPIES | dict(strength=10.0, strategy="diffusion")),
    "f2sa, growing": (
        db.f2sa(**COPIES, strength=grows),
        COMPLETE,
        relatives.copies,
        COPIES | dict(strength=grows, strategy="diffusion"),
    ),
    "dsgda-gt": (
        db.dsgda_gt(**COPIES, strength=6.0),
        GRAPH,
        relatives.copies,
        COPIES | dict(strength=6.0, strategy="gt"),
    ),
    "ahead": (
        db.ahead(**COPIES, strength=6.0),
        GRAPH,
        relatives.copies,
        COPIES | dict(strength=6.0, strategy="consensus"),
    ),
    "sun-dsbo": (db.sun_dsbo(**SUN), GRAPH, relatives.sun_dsbo, SUN | dict(strategy="gt")),
    "sun-dsbo-se": (
        db.sun_dsbo(**SUN, strategy="diffusion"),
        GRAPH,
        relatives.sun_dsbo,
        SUN | dict(strategy="diffusion"),
    ),
    "c2dfb": (db.c2dfb(**INNER), GRAPH, relatives.c2dfb, INNER),
    "c2dfb, compressed": (db.c2dfb(**CODED), GRAPH, relatives.c2dfb, CODED),
    "duet": (db.duet(**RIDGE), GRAPH, relatives.duet, RIDGE),
    "duet, personal": (db.duet(**RIDGE, personal=True), GRAPH, relatives.duet, RIDGE | dict(personal=True)),
}

DEFAULT = (
    *("interact", "spdb", "gossip-dsbo", "ma-dsbo-gt", "dbsa", "mdbo", "vrdbo", "slam", "lopa", "dsvrbgd", "adasdbo"),
    *("f2sa, growing", "dsgda-gt", "sun-dsbo", "c2dfb, compressed", "duet"),
)


@pytest.mark.slow_except(*DEFAULT)
@pytest.mark.parametrize("name", FOLLOWED)
def test_follows_the_paper(name):
    method, graph, reference, settings = FOLLOWED[name]
    agree(run(CURVED, method, graph), reference(CURVED, graph.W, steps=STEPS, **settings), graph=graph)


@pytest.mark.slow
def test_svr_interact_of_any_period_is_interact_where_a_batch_holds_all_samples():
    plain = run(CURVED, db.interact(**TWO), LAPLACIAN)
    reduced = run(CURVED, db.svr_interact(**TWO, hypergradient=db.hypergradient.exact(), period=3), LAPLACIAN)
    np.testing.assert_allclose(plain.nodes.x, reduced.nodes.x, atol=1e-12)


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
    found = run(QUADRATIC.single(), db.gt_hsgd(**HYBRID), steps=1200).nodes.x
    close(found, QUADRATIC.single_solution())
