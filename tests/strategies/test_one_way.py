"""Push-pull and push-sum over one-way links: they follow the papers' recursions in NumPy, and where they end."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from quadratics import assert_all_at, random_quadratic

import decibel as db
from decibel.strategies import STRATEGIES

NODES, CHUNK = 8, 50
QUADRATIC = random_quadratic(NODES, seed=1, spread=2.0)
DIGRAPH = db.graphs.random_digraph(NODES, 0.3, seed=1)
OTHER = db.graphs.random_digraph(NODES, 0.4, seed=2)
CHANGING = db.graphs.cycle(DIGRAPH, OTHER)
RING = db.graphs.ring(NODES)
RATES = dict(alpha=0.03, beta=0.1, gamma=0.1, theta=0.4)


def run(problem, method, graph, steps, **options):
    return db.solve(problem, method, graph, steps=steps, eval_every=min(steps, CHUNK), metrics=[], **options)


class PushPull:
    """AB, adapt then combine: h⁺ = C (h + d⁺ − d), s⁺ = R (s − h⁺), node by node."""

    def __init__(self, s):
        self.s, self.h, self.d = s, np.zeros_like(s), np.zeros_like(s)

    def move(self, graph, d):
        there = self.h + d - self.d
        nodes = range(len(d))
        self.h = np.stack([sum(graph.C[i, j] * there[j] for j in nodes) for i in nodes])
        ahead = self.s - self.h
        self.s = np.stack([sum(graph.R[i, j] * ahead[j] for j in nodes) for i in nodes])
        self.d = d


class PushSum:
    """Every node splits x − d and its weight w among itself and its receivers, and reads s = x/w."""

    def __init__(self, s):
        self.x, self.w = s, np.ones(len(s))

    @property
    def s(self):
        return self.x / self.w[:, None]

    def move(self, graph, d):
        self.x, self.w = graph.C @ (self.x - d), graph.C @ self.w


def sparkle(kind, graph, steps):
    """(x, y, z) of every node, all directions at the old point."""
    q = QUADRATIC
    x, y, z = kind(np.zeros_like(q.e)), kind(np.zeros_like(q.c)), kind(np.zeros_like(q.c))
    r = np.zeros_like(q.e)
    for k in range(steps):
        here = graph.phases[k % graph.period]
        v, p, u = q.v(x.s, y.s), q.p(x.s, y.s, z.s), q.u(x.s, y.s, z.s)
        r = (1 - RATES["theta"]) * r + RATES["theta"] * u
        x.move(here, RATES["alpha"] * r)
        y.move(here, RATES["beta"] * v)
        z.move(here, RATES["gamma"] * p)
    return x.s, y.s, z.s


@pytest.mark.slow_except("push-pull-PushPull-digraph", "push-sum-PushSum-changing")
@pytest.mark.parametrize("graph", [DIGRAPH, CHANGING, RING], ids=["digraph", "changing", "ring"])
@pytest.mark.parametrize(("name", "kind"), [("push-pull", PushPull), ("push-sum", PushSum)])
def test_every_level_follows_the_papers_recursion(name, kind, graph):
    found = run(QUADRATIC.problem(), db.sparkle(name, **RATES), graph, CHUNK)
    for level, here, expected in zip("xyz", found.nodes, sparkle(kind, graph, CHUNK), strict=True):
        np.testing.assert_allclose(here, expected, atol=1e-12, err_msg=level)
        assert np.abs(expected - expected[0]).max() > 1e-3


@pytest.mark.slow_except("digraph")
@pytest.mark.parametrize("graph", [DIGRAPH, CHANGING], ids=["digraph", "changing"])
def test_push_pull_ends_at_the_solution_on_every_level(graph):
    """The reference says where; where nodes differ push-sum ends elsewhere, so this says something."""
    result = run(QUADRATIC.problem(), db.sparkle("push-pull", **RATES), graph, 1500)
    x = QUADRATIC.solution()
    y = QUADRATIC.lower_solution(x)
    for found, expected in ((result.nodes.x, x), (result.nodes.y, y)):
        assert np.abs(found - expected).max() < 2e-14
    for level in result.state[:3]:
        np.testing.assert_allclose(np.asarray(level.carry[0].tree).sum(0), 0, atol=1e-12)
    biased = run(QUADRATIC.problem(), db.sparkle("push-sum", **RATES), graph, 1500)
    assert np.abs(biased.nodes.x - x).max() > 0.05


def test_one_level_ends_at_the_solution_too():
    solution = QUADRATIC.single_solution()
    exact = run(QUADRATIC.single(), db.push_pull(alpha=0.2), DIGRAPH, 1000)
    assert np.abs(exact.nodes.x - solution).max() < 2e-14
    biased = run(QUADRATIC.single(), db.sgp(alpha=0.2), DIGRAPH, 1000)
    assert np.abs(biased.nodes.x - solution).max() > 0.05
    nearer = run(QUADRATIC.single(), db.sgp(alpha=0.002), DIGRAPH, 8000)
    assert np.abs(nearer.nodes.x - solution).max() < 0.02 * np.abs(biased.nodes.x - solution).max() + 0.01


@pytest.mark.slow_except("one-peer exponential")
@pytest.mark.parametrize(
    "graph", [RING, db.graphs.star(NODES), db.graphs.one_peer_exponential(NODES)], ids=lambda graph: graph.name
)
def test_where_w_is_doubly_stochastic_push_pull_is_gradient_tracking(graph):
    """To the last bit; and push-sum is diffusion, whose weights stay one."""
    problem = QUADRATIC.single()
    pushed, tracked = (run(problem, make(alpha=0.1), graph, CHUNK) for make in (db.push_pull, db.gt))
    np.testing.assert_array_equal(pushed.nodes.x, tracked.nodes.x)
    shared, mixed = (run(problem, make(alpha=0.1), graph, CHUNK) for make in (db.sgp, db.dsgd))
    np.testing.assert_allclose(shared.nodes.x, mixed.nodes.x, atol=1e-14)
    np.testing.assert_array_equal(shared.state.x.carry[0].tree, 0.0)


def test_push_sum_starts_with_weight_one_and_keeps_their_sum():
    result = run(QUADRATIC.single(), db.sgp(alpha=0.1), DIGRAPH, CHUNK)
    weights = 1 + np.asarray(result.state.x.carry[0].tree)
    stationary = np.linalg.matrix_power(DIGRAPH.C, 200)[:, 0] * NODES
    np.testing.assert_allclose(weights, stationary, atol=1e-12)
    assert np.ptp(weights) > 0.5


def test_what_travels_is_counted_by_link():
    """Two vectors of each level to every receiver, one after the other; a vector and a weight for push-sum."""
    problem, p, q = QUADRATIC.problem(), 3, 4
    links = len(DIGRAPH.edges) / NODES
    found = db.cost(problem, db.sparkle("push-pull", **RATES), DIGRAPH)
    assert (found["rounds"], found["bytes"]) == (2, pytest.approx(8 * links * 2 * (p + 2 * q)))
    found = db.cost(QUADRATIC.single(), db.sgp(alpha=0.1), DIGRAPH)
    assert (found["rounds"], found["bytes"]) == (1, pytest.approx(8 * links * (p + 1)))
    assert db.CATALOG["push-pull"].sends == "2p numbers" and db.CATALOG["sgp"].sends == "p + 1 numbers"


def test_a_run_resumes_and_knows_its_graph(tmp_path):
    method, problem = db.push_pull(alpha=0.2), QUADRATIC.single()
    whole = run(problem, method, DIGRAPH, 2 * CHUNK)
    run(problem, method, DIGRAPH, CHUNK, checkpoint=tmp_path)
    resumed = run(problem, method, DIGRAPH, 2 * CHUNK, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.nodes.x, whole.nodes.x)
    other = db.Graph(DIGRAPH.matrix, pushing=DIGRAPH.lazy().pushing)
    with pytest.raises(ValueError, match="graph"):
        run(problem, method, other, 3 * CHUNK, checkpoint=tmp_path, resume=True)


TAKES = {"push-pull", "push-sum", "local"}


def test_strategies_know_what_they_need():
    assert {name for name, row in STRATEGIES.items() if row.takes_one_way_links} == TAKES
    assert {name for name, row in STRATEGIES.items() if row.pushes} == TAKES - {"local"}


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in TAKES])
def test_every_other_strategy_names_push_pull_before_the_first_step(name):
    rates = {} if STRATEGIES[name].default_rate else RATES
    for graphs in (DIGRAPH, db.Levels(x=RING, y=CHANGING)):
        with pytest.raises(ValueError, match=rf"{name}.*doubly stochastic W.*one-way links.*choose 'push-pull'"):
            run(QUADRATIC.problem(), db.sparkle(name, **rates), graphs, 1)


def test_every_other_method_names_push_pull():
    for name, entry in db.CATALOG.items():
        if name in ("push-pull", "sgp", "sparkle-push-pull") or entry.mixture:
            continue
        problem = {"single": QUADRATIC.single, "shared": QUADRATIC.problem}.get(
            entry.form, lambda: QUADRATIC.problem(personal=True)
        )()
        with pytest.raises(ValueError, match="push-pull"):
            run(problem, entry(), DIGRAPH, 1)


def sparse_average():
    def loss(x, batch):
        return ((x - batch) ** 2).sum()

    return db.Problem(loss, upper_data=np.ones((NODES, 1, 3)), x0=np.zeros(3), prox_x=db.prox.l1(0.1))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: db.privacy.quantize("push-pull", 8), "'push-pull' pushes shares"),
        (lambda: db.theory.transient("ed", NODES, DIGRAPH), "theorems are for a doubly stochastic W"),
        (lambda: db.privacy.noisy("push-sum", 1.0, 1.0), "'push-sum' pushes shares"),
        (
            lambda: run(QUADRATIC.single(), db.push_pull(alpha=0.1), DIGRAPH, 1, engine=db.Simulator(members=(0, 1))),
            "one-way links and cannot lose nodes",
        ),
        (
            lambda: run(sparse_average(), db.push_pull(alpha=0.1), DIGRAPH, 1),
            "not exact with prox_x=L1: choose an undirected graph, and 'ed', 'extra', 'gt' or 'nids'",
        ),
    ],
)
def test_what_makes_no_sense_raises(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_personal_lower_level_stays_at_the_node():
    problem = QUADRATIC.problem(personal=True)
    result = run(problem, db.sparkle("local", "push-pull", **RATES), DIGRAPH, 1500)
    assert_all_at(result.nodes.x, QUADRATIC.personal_solution(), 2e-14)
    assert len(jax.tree.leaves(result.state.y.carry)) == 0
