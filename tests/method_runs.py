"""Runs that are compared with NumPy written from the papers: one problem, so that files of tests share programs."""

from __future__ import annotations

from functools import cache

import numpy as np
from method_references import Nodes
from quadratics import random_quadratic

import decibel as db

NODES, STEPS = 6, 40
QUADRATIC = random_quadratic(NODES)
START = dict(x0=np.array([0.5, -1.0, 2.0]), y0=np.array([1.0, 0.0, -0.5, 0.25]))
CURVED = Nodes(QUADRATIC, 0.7, **START)  # H and J change with the point
FLAT = Nodes(QUADRATIC, 0.0, **START)  # closed forms
GRAPH = db.graphs.erdos_renyi(NODES, 0.5, seed=3)


@cache
def problem(nodes, personal=False):
    return nodes.problem(personal=personal)


def run(nodes, method, graph=GRAPH, steps=STEPS, **options):
    given = problem(nodes, method.form == "personal") if isinstance(nodes, Nodes) else nodes
    quiet = dict(eval_every=STEPS, metrics=[], progress=False)
    return db.solve(given, method, graph, steps=steps, **quiet | options)


def agree(result, reference, tolerance=1e-9, graph=GRAPH):
    """Every node's x, y and z, as far as the reference has them."""
    for found, expected in zip(result.nodes, reference, strict=False):
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)
        assert graph.rho < 1e-12 or np.ptp(expected, 0).max() > 1e-5  # mixing up nodes would show


def close(found, solution, tolerance=1e-8):
    """Every node at the solution."""
    np.testing.assert_allclose(found, np.tile(solution, (NODES, 1)), atol=tolerance, rtol=0)
