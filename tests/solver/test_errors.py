"""Bad input raises before the first step, with one sentence that names the argument and the fix."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db

QUADRATIC = random_quadratic(6)
PROBLEM, PERSONAL, SINGLE = QUADRATIC.problem(), QUADRATIC.problem(personal=True), QUADRATIC.single()
RING, THIRDS = db.graphs.ring(6), db.graphs.ring(6, weights="metropolis")
RATES = dict(alpha=0.1, beta=0.1, gamma=0.1)
ED = db.sparkle("ed", **RATES)
DATA = {"R": QUADRATIC.R[:, None], "e": QUADRATIC.e[:, None]}


def solve(problem=PROBLEM, method=ED, graph=RING, **options):
    return db.solve(problem, method, graph, **{"steps": 1, "progress": False, **options})


def single(data=DATA, loss=lambda x, batch: jnp.sum(x**2), **options):
    return db.Problem(loss, upper_data=data, **{"x0": jnp.zeros(3), **options})


def bilevel(**options):
    given = dict(upper_data=DATA, lower_data=DATA, x0=jnp.zeros(3), y0=jnp.zeros(3))
    return db.Problem(lambda x, y, batch: jnp.sum(y**2), lambda x, y, batch: jnp.sum(y**2), **given | options)


def spoiled(value, node=4):
    e = QUADRATIC.e[:, None].copy()
    e[node, 0, 1] = value
    return DATA | {"e": e}


SPLIT = db.graphs.from_networkx(nx.Graph([(0, 1), (1, 2), (3, 4), (4, 5)]), name="halves", disconnected=True)

BAD = {
    # graphs
    r"graph 'halves' on level x is not connected: add edges that join its parts": lambda: solve(graph=SPLIT),
    r"graph 'halves' on level z is not connected": lambda: solve(graph=db.Levels(x=RING, y=RING, z=SPLIT)),
    r"W is not doubly stochastic: row 0 sums to 0\.9 instead of 1": (
        lambda: db.graphs.from_matrix([[0.4, 0.5], [0.5, 0.5]])
    ),
    r"'ed' on level x diverges on ring, whose W has the eigenvalue -0\.3333: use graph\.lazy\(\)": (
        lambda: solve(graph=THIRDS)
    ),
    r"'extra' on level y diverges on ring, .*: use graph\.lazy\(\)": (
        lambda: solve(method=db.sparkle("extra", "gt", **RATES), graph=db.Levels(x=RING, y=THIRDS))
    ),
    r"'extra' on level x diverges": lambda: solve(SINGLE, db.extra(alpha=0.1), THIRDS),
    r"'ed' on level x needs a symmetric W, and one-peer exponential is directed: choose 'gt'": (
        lambda: solve(graph=db.graphs.one_peer_exponential(6))
    ),
    r"graph has 7 nodes but the data have 6: give both the same number; the first axis of the data is the node": (
        lambda: solve(graph=db.graphs.ring(7))
    ),
    r"graph is a matrix: give db\.graphs\.from_matrix": lambda: solve(graph=np.eye(6)),
    r"soba is centralized, and ring does not average exactly: use db\.graphs\.complete": (
        lambda: solve(method=db.soba(**RATES))
    ),
    # data
    r"upper_data has no samples at node 2: leave that node out or give it data": (
        lambda: single([np.ones((n, 3)) for n in (2, 1, 0)])
    ),
    r"upper_data has no samples at node 0": lambda: single(np.ones((4, 0, 3))),
    r"upper_data\['e'\] holds a NaN or infinity at node 4, sample 0: clean or drop it": lambda: single(spoiled(np.nan)),
    r"lower_data\['e'\] holds a NaN or infinity at node 1": lambda: bilevel(lower_data=spoiled(np.inf, 1)),
    r"upper_data has 6 nodes but lower_data has 5: give both the same nodes": (
        lambda: bilevel(lower_data={name: value[:5] for name, value in DATA.items()})
    ),
    r"nodes=5, but the data have 6 nodes": lambda: single(nodes=5),
    r"upper_data must have leaves of shape \(nodes, samples, \.\.\.\)": lambda: single({"a": np.ones(6)}),
    r"upper_data must have .* for nodes of unequal size give a list": (
        lambda: single({"a": np.ones((6, 2)), "b": np.ones((6, 3))})
    ),
    r"upper_data\[1\] has leaves with \[1, 2\] samples": (
        lambda: single([{"a": np.ones(2), "b": np.ones(2)}, {"a": np.ones(1), "b": np.ones(2)}])
    ),
    r"upper_data has nodes of different structure": lambda: single([{"a": np.ones(2)}, {"b": np.ones(2)}]),
    r"upper_data is an empty list": lambda: single([]),
    r"upper_data holds no arrays": lambda: single({}),
    r"upper_data has no samples at node 3": (
        lambda: solve(single(lambda i: np.ones((3 - i, 2))), db.ed(alpha=0.1), db.graphs.ring(4))
    ),
    # losses and starts
    r"upper must return a real scalar, .* returned an array of shape \(3,\): end it with \.mean\(\)": (
        lambda: single(loss=lambda x, batch: x)
    ),
    r"lower must return a real scalar": lambda: db.Problem(
        PROBLEM.upper, lambda x, y, batch: y, upper_data=PROBLEM.upper_data, lower_data=PROBLEM.lower_data,
        x0=jnp.zeros(3), y0=jnp.zeros(4),
    ),
    r"upper returns a tuple: return the scalar alone, and measure the rest by metrics": (
        lambda: single(loss=lambda x, batch: (jnp.sum(x), x))
    ),
    r"x0 is a list of numbers: give an array, such as jnp\.array\(x0\)": lambda: single(x0=[0.0, 1.0]),
    r"Problem has no argument 'uper_data': did you mean 'upper_data'\?": lambda: single(uper_data=DATA),
    r"solve has no argument 'batchsize': did you mean 'batch_size'\?": lambda: solve(batchsize=3),
    r"sparkle has no argument 'alhpa': did you mean 'alpha'\?": lambda: db.sparkle("ed", alhpa=0.1),
    r"tune has no argument 'budgets'": lambda: db.tune(PROBLEM, ED, RING, budgets=3),
    r"metrics is a dictionary: give a list": lambda: solve(metrics={"a": "upper"}),
    r"x0 has a leaf of type int\d+: give floating-point arrays": lambda: single(x0=jnp.zeros(3, int)),
    r"y0 holds a NaN or infinity: start from finite numbers": lambda: bilevel(y0=jnp.full(3, jnp.nan)),
    r"x0 holds no arrays": lambda: single(x0={}),
    r"Problem lacks y0: give lower, lower_data and y0 together": lambda: bilevel(y0=None),
    r"personal=True needs a lower level": lambda: single(personal=True),
    # methods
    r"sparkle-ed is for a shared lower level, and the problem has a single level: .* db\.ed": lambda: solve(SINGLE),
    r"sparkle-ed is for a shared lower level, and the problem has a personal lower level": lambda: solve(PERSONAL),
    r"ed is for a single level, and the problem has a shared lower level: choose .* db\.sparkle": (
        lambda: solve(method=db.ed(alpha=0.1))
    ),
    r"strategy 'extrra' is not known: did you mean 'extra'\?": (
        lambda: db.sparkle("extrra", **RATES)
    ),
    r"strategy 'difusion' is not known: did you mean 'diffusion'\?": lambda: db.sparkle("ed", "difusion", **RATES),
    r"updates='paralel' is not known: choose 'simultaneous' or 'alternating'": (
        lambda: db.sparkle("ed", updates="paralel", **RATES)
    ),
    r"hypergradient=.* does not fit a shared lower level": (
        lambda: db.sparkle("ed", hypergradient=db.hypergradient.exact(), **RATES)
    ),
    r"delta=-1 must be positive": lambda: db.dsoba_fo(theta=0.5, delta=-1, **RATES),
    r"method must be a db.Method such as db\.sparkle\('ed', \.\.\.\), not str": lambda: solve(method="sparkle-ed"),
    # arguments of solve
    r"steps=0 must be a positive integer": lambda: solve(steps=0),
    r"steps=1\.5 must be a positive integer": lambda: solve(steps=1.5),
    r"steps=True must be a positive integer": lambda: solve(steps=True),
    r"batch_size=0 must be a positive integer": lambda: solve(batch_size=0),
    r"eval_every=-1 must be a positive integer": lambda: solve(eval_every=-1),
    r"metric 'consensus_w' is not known: did you mean 'consensus_[xyz]'\?": lambda: solve(metrics=["consensus_w"]),
    r"metric 'qqq' is not known: choose from": lambda: solve(metrics=["qqq"]),
    r"metric 'consensus_y' needs level y, which this method does not have": (
        lambda: solve(SINGLE, db.ed(alpha=0.1), metrics=["consensus_y"])
    ),
    r"metric 'invariant_x' needs a strategy with a carry": (
        lambda: solve(SINGLE, db.dsgd(alpha=0.1), metrics=["invariant_x"])
    ),
    r"metric 'lower_error' needs a lower level": lambda: solve(SINGLE, db.ed(alpha=0.1), metrics=["lower_error"]),
    r"metrics holds 3: give names or functions of a snapshot": lambda: solve(metrics=[3]),
}  # fmt: skip


@pytest.mark.parametrize("sentence", BAD)
def test_raises_in_one_sentence(sentence, monkeypatch):
    compiled = []
    monkeypatch.setattr("decibel.engines._run.compile_chunk", lambda *_: compiled.append(1))
    with pytest.raises((ValueError, TypeError), match=sentence) as refusal:
        BAD[sentence]()
    text = str(refusal.value)
    assert "\n" not in text and text.endswith((".", "?"))
    assert not compiled  # before the first step, and before anything expensive


def test_what_does_not_raise():
    """No edges at all is a choice; some strategies do not iterate on an eigenvalue of -1/3, others get a lazy graph."""
    five = random_quadratic(5).problem()
    for problem, method, graph in (
        (PROBLEM, ED, db.graphs.isolated(6)),
        (PROBLEM, ED, THIRDS.lazy()),
        (PROBLEM, db.sparkle("gt", **RATES), THIRDS),
        (five, ED, db.graphs.ring(5, weights="metropolis")),
    ):
        assert db.cost(problem, method, graph)["gradients"] > 0


def test_a_batch_larger_than_a_node_is_mentioned():
    problem = single([np.ones((n, 3)) for n in (9, 3, 9)])
    with pytest.warns(db.SmallNodeWarning, match=r"batch_size=4 is more than the 3 samples of a node in upper_data"):
        solve(problem, db.ed(alpha=0.1), db.graphs.ring(3), batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(problem, db.ed(alpha=0.1), db.graphs.ring(3), batch_size=3)


def test_a_run_that_hardly_moved_says_so():
    assert "x has barely moved (by " in repr(solve(method=db.sparkle("ed", alpha=1e-9, beta=0.1, gamma=0.1)))
    moved = solve(method=db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1), steps=100)
    assert moved.moved > 0.01 and "barely" not in repr(moved)
