"""K-GT and ProxSkip against NumPy written from the papers, where they end, and what they send."""

from __future__ import annotations

import jax
import numpy as np
import published_references as references
import pytest
from quadratics import assert_all_at, random_quadratic

import decibel as db
from decibel.methods._local_steps import COIN

NODES, STEPS = 6, 50
QUADRATIC = random_quadratic(NODES)
SINGLE = QUADRATIC.single()
GRAPH = db.graphs.erdos_renyi(NODES, 0.5, seed=3)


def gradient(i, x):
    return QUADRATIC.R[i] @ (x - QUADRATIC.e[i])


def run(method, steps=STEPS, every=1):
    return db.solve(SINGLE, method, GRAPH, steps=steps, eval_every=every, metrics=[], progress=False)


def agree(found, expected):
    np.testing.assert_allclose(found, expected, atol=1e-9, rtol=0)
    assert np.ptp(expected, 0).max() > 1e-5


def test_k_gt_follows_the_paper():
    settings = dict(alpha=0.03, local_steps=4, relax=0.7)
    agree(
        run(db.k_gt(**settings)).nodes.x,
        references.k_gt(gradient, np.zeros((NODES, 3)), GRAPH.W, steps=STEPS, **settings),
    )


def coins(probability, steps, seed=0):
    """The coins of a run."""
    keys = [jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), k), COIN) for k in range(steps)]
    return [bool(jax.random.bernoulli(key, probability)) for key in keys]


def test_proxskip_follows_the_paper_and_counts_what_it_sends():
    settings = dict(alpha=0.1, probability=0.4)
    result, tossed = run(db.proxskip(**settings)), coins(0.4, STEPS)
    assert 10 < sum(tossed) < 30
    agree(result.nodes.x, references.proxskip(gradient, np.zeros((NODES, 3)), GRAPH.W, coins=tossed, **settings))
    assert list(np.diff(result.trace["rounds"])) == tossed
    assert result.trace.last["bytes"] == sum(tossed) * 3 * 8 * GRAPH.degrees.mean()


def test_proxskip_that_skips_nothing_is_exact_diffusion():
    np.testing.assert_allclose(
        run(db.proxskip(alpha=0.1, probability=1.0)).nodes.x, run(db.ed(alpha=0.1)).nodes.x, atol=1e-13
    )


@pytest.mark.parametrize(
    "method", [db.k_gt(alpha=0.05), db.proxskip(alpha=0.2, probability=0.3)], ids=lambda method: method.name
)
def test_local_steps_end_at_the_solution(method):
    found = run(method, 800, every=STEPS).nodes.x
    assert_all_at(found, QUADRATIC.single_solution(), 1e-9)


@pytest.mark.slow
def test_local_steps_save_messages():
    """To 1e-6 of the solution: fewer rounds than Exact Diffusion with the same step size."""

    def rounds(method):
        trace = db.solve(SINGLE, method, GRAPH, steps=2000, eval_every=1, metrics=[far], progress=False).trace
        return trace["rounds"][np.argmax(np.asarray(trace["far"]) < 1e-6)]

    def far(snapshot):
        return np.abs(np.asarray(snapshot.nodes.x) - QUADRATIC.single_solution()).max()

    most = rounds(db.ed(alpha=0.02))
    assert rounds(db.proxskip(alpha=0.02, probability=0.3)) < 0.6 * most and rounds(db.k_gt(alpha=0.02)) < 0.6 * most


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: db.k_gt(alpha=0.1, local_steps=0), r"local_steps=0 must be a positive integer"),
        (lambda: db.proxskip(alpha=0.1, probability=0.0), r"probability=0.0 must be above 0"),
    ],
)
def test_wrong_settings_raise(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
