"""Prometheus against NumPy written from the paper, and the constrained solutions that it reaches."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import published_references as references
import pytest
from method_references import Nodes
from method_runs import NODES, QUADRATIC, STEPS, close
from method_runs import run as on_graph

import decibel as db

L = 3.0
START = dict(x0=np.array([0.5, 0.3, 0.2]), y0=np.array([1.0, 0.0, -0.5, 0.25]))
CURVED, FLAT = Nodes(QUADRATIC, 0.7, **START), Nodes(QUADRATIC, 0.0, **START)
GRAPH = db.graphs.erdos_renyi(NODES, 0.5, seed=3, weights="laplacian")
LOW, HIGH = 0.1, 0.6
BOX = db.prox.box(LOW, HIGH)


def constrained(nodes, prox=BOX):
    plain = nodes.problem(personal=True)
    data = dict(upper_data=plain.upper_data, lower_data=plain.lower_data)
    return db.Problem(plain.upper, plain.lower, **data, x0=plain.x0, y0=plain.y0, personal=True, prox_x=prox)


def run(problem, method, **options):
    return on_graph(problem, method, GRAPH, **options)


def test_prometheus_follows_the_paper():
    rates = dict(alpha=0.2, beta=0.1, relax=0.4)
    found = run(constrained(CURVED), db.prometheus(**rates, period=3, terms=1, scale=L)).nodes
    ways = dict(full=CURVED.exact, sampled=lambda i, x, y: CURVED.random_term(i, x, y, 0, 1, L))
    project = lambda x: np.clip(x, LOW, HIGH)  # noqa: E731
    expected = references.prometheus(CURVED, GRAPH.W, project=project, steps=STEPS, period=3, **rates, **ways)
    for level, wanted in zip(found[:2], expected, strict=True):
        np.testing.assert_allclose(level, wanted, atol=1e-9, rtol=0)
        assert np.ptp(wanted, 0).max() > 1e-5


@pytest.mark.slow
def test_prometheus_without_a_constraint_is_svr_interact():
    rates = dict(alpha=0.05, beta=0.1, period=3, terms=1, scale=L)
    plain = CURVED.problem(personal=True)
    same, other = run(plain, db.prometheus(**rates, relax=1.0)).nodes, run(plain, db.svr_interact(**rates)).nodes
    np.testing.assert_allclose(same.x, other.x, atol=1e-12)
    np.testing.assert_allclose(same.y, other.y, atol=1e-12)


def central(prox, steps=3000, α=0.2):
    """Proximal gradient on Φ with every node's own y*(x)."""
    q, x = QUADRATIC, START["x0"]
    T, t = np.linalg.inv(q.H) @ q.B, np.linalg.solve(q.H, q.c[..., None])[..., 0]
    for _ in range(steps):
        y = T @ x + t
        fy = np.einsum("nij,nj->ni", q.M, y - q.a)
        gradient = np.einsum("nij,nj->i", q.R, x - q.e) / NODES + np.einsum("nqp,nq->p", T, fy) / NODES
        x = np.asarray(prox(jnp.asarray(x - α * gradient), α))
    return x


TERMS = {"box": BOX, "simplex": db.prox.simplex(), "l1": db.prox.l1(0.2)}


@pytest.mark.slow
@pytest.mark.parametrize("term", TERMS)
def test_prometheus_reaches_the_constrained_solution(term):
    """With constant step sizes, and active constraints."""
    prox = TERMS[term]
    found = run(constrained(FLAT, prox), db.prometheus(alpha=0.2, beta=0.3, relax=0.5), steps=1600).nodes.x
    expected = central(prox)
    assert np.abs(expected - QUADRATIC.personal_solution()).max() > 0.05
    close(found, expected)


def test_x_stays_feasible_where_the_part_is_at_most_the_own_weight():
    """Every x is a mixture of feasible points."""
    part = float(GRAPH.W.diagonal().min())
    rough = replace(CURVED, x0=np.array([LOW, HIGH, HIGH]))

    def far(snapshot):
        x = np.asarray(snapshot.nodes.x)
        return np.maximum(LOW - x, x - HIGH).max()

    made, options = constrained(rough), dict(steps=STEPS, eval_every=1, metrics=[far], progress=False)
    rates = dict(alpha=5.0, beta=0.1)
    assert db.solve(made, db.prometheus(**rates, relax=part), GRAPH, **options).trace["far"].max() < 1e-12
    assert db.solve(made, db.prometheus(**rates, relax=1.0), GRAPH, **options).trace["far"].max() > 1e-3
