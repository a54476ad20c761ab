"""Nodes that leave and come back: who is there reaches the exact solution of who is there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import Quadratic, lower, random_quadratic, upper

import decibel as db
from decibel.core._vector import Vector
from decibel.engines._membership import induced_graph, migrate_state, restrict_to, survivors
from decibel.graphs._graph import Levels
from decibel.methods._method import State
from decibel.methods._single_level import SingleLevel
from decibel.strategies import STRATEGIES, Level, Strategy, polynomial

NODES, LEFT = 4, (0, 1, 3)
QUADRATIC = random_quadratic(NODES, seed=5)
PROBLEM = QUADRATIC.problem()
GRAPH = db.graphs.ring(NODES)
RATES = {"alpha": 0.1, "beta": 0.3, "gamma": 0.3}
METHOD = db.sparkle("ed", **RATES)


def of(members, quadratic=QUADRATIC):
    return Quadratic(*(value[list(members)] for value in quadratic))


def solve(method, folder, members=None, *, steps, problem=PROBLEM, graph=GRAPH, engine=db.Simulator, **options):
    options = {"checkpoint": folder, "resume": True, "eval_every": 300, "metrics": []} | options
    return db.solve(problem, method, graph, steps=steps, engine=engine(members=members), **options)


def invariant(result):
    """The largest mean over nodes of a carry that should be a sum of flows."""
    levels = [level for level in result.state[:3] if level is not None and level.carry]
    return np.max([np.abs(leaf.mean(0)).max() for level in levels for leaf in jax.tree.leaves(level.carry[0])])


@pytest.mark.parametrize(
    "graph",
    [db.graphs.ring(8), db.graphs.torus(2, 4), db.graphs.exponential(8), db.graphs.one_peer_exponential(8)],
    ids=lambda graph: graph.name,
)
@pytest.mark.parametrize("members", [(0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 7), (4,)])
def test_what_is_left_of_a_graph_is_doubly_stochastic(graph, members):
    left = induced_graph(graph, members)
    assert left.nodes == len(members) and left.period == graph.period and left.connected
    for phase, whole in zip(left.phases, graph.phases, strict=True):
        np.testing.assert_allclose([phase.W.sum(0), phase.W.sum(1)], 1.0, atol=1e-12)
        if whole.symmetric:  # no link that was not there, and those that were as heavy as before
            off = ~np.eye(len(members), dtype=bool)
            np.testing.assert_array_equal(phase.W[off], whole.W[np.ix_(members, members)][off])


def test_nodes_that_are_cut_off_raise():
    with pytest.raises(
        ValueError, match=r"remaining nodes of graph 'ring.*', nodes 0, 2, are not connected: start with all"
    ):
        induced_graph(GRAPH, (0, 2))
    with pytest.raises(ValueError, match="members=\\(0, 4\\) must list one or more of the nodes 0 to 3"):
        restrict_to(Levels(GRAPH), PROBLEM, (0, 4))
    with pytest.raises(ValueError, match="soba is centralized"):
        rates = {**RATES, "theta": 1.0}
        db.solve(PROBLEM, db.soba(**rates), db.graphs.complete(4), steps=1, engine=db.Simulator(members=LEFT))
    assert induced_graph(db.graphs.isolated(4), (0, 2)).nodes == 2  # by choice


def test_survivors_of_processes():
    here = {"DECIBEL_PROCESSES": "3", "DECIBEL_PROCESS": "1", "DECIBEL_COORDINATOR": "127.0.0.1:1"}
    assert survivors(8, {**here, "DECIBEL_ABSENT": "1"}) == (0, 1, 4, 5, 6, 7)
    assert survivors(8, {**here, "DECIBEL_ABSENT": ""}) is None
    assert survivors(8, {"DECIBEL_ABSENT": "0,1,3", "DECIBEL_PROCESSES": "1", "DECIBEL_PROCESS": "0"}) == (4, 5)
    with pytest.raises(ValueError, match="6 nodes cannot be split evenly over 4 processes: use a multiple of 4 nodes"):
        survivors(6, {**here, "DECIBEL_ABSENT": "1"})


@pytest.mark.slow_except("True")
@pytest.mark.parametrize("as_function", [False, True])
def test_a_node_keeps_its_number_its_data_and_its_chances(as_function):
    """Without links every node is on its own, so who else is there must not matter, to the last bit."""
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(size, 2)) for size in (5, 7, 4, 6)]
    given, config = (lambda node: config.append(node) or data[node]) if as_function else data, []
    problem = db.Problem(
        lambda x, y, batch: jnp.mean((y - batch) ** 2) + jnp.sum(x**2),
        lambda x, y, batch: jnp.mean((y - batch - x) ** 2),
        upper_data=given,
        lower_data=given,
        x0=np.ones(2),
        y0=np.zeros(2),
    )
    run = lambda members: db.solve(  # noqa: E731
        problem, db.sparkle("diffusion", **RATES), db.graphs.isolated(4), steps=20, batch_size=2, metrics=["upper"],
        engine=db.Simulator(members=members),
    )  # fmt: skip
    whole = run(None)
    config.clear()
    left = run(LEFT)
    assert set(config) == (set(LEFT) if as_function else set())
    for a, b in zip(left.nodes, whole.nodes, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b)[list(LEFT)])


NEW = polynomial("new", (0.0, 1.0), (1.0, -1.0), (0.0, 1.0))
CORRECTING = [*(STRATEGIES[name] for name in ("ed", "extra", "gt", "semi-gt", "non-gt", "edge-ed")), NEW]


def assert_exact(result, solution):
    np.testing.assert_allclose(result.nodes.x, np.tile(solution, (len(result.nodes.x), 1)), atol=1e-7)
    assert invariant(result) < 1e-13


@pytest.mark.slow_except("ed")
@pytest.mark.parametrize("strategy", CORRECTING, ids=lambda strategy: strategy.name)
def test_a_loss_and_a_return_end_in_exact_solutions(strategy, tmp_path):
    method = SingleLevel(0.2, 1.0, strategy)
    options = {"problem": QUADRATIC.single(), "graph": GRAPH.lazy()}
    solve(method, tmp_path, steps=300, **options)
    lost = solve(method, tmp_path, LEFT, steps=900, **options)
    assert lost.trace["step"].tolist() == [0, 300, 600, 900]
    assert_exact(lost, of(LEFT).single_solution())
    assert_exact(solve(method, tmp_path, steps=1800, **options), QUADRATIC.single_solution())


@pytest.mark.slow
def test_so_do_two_levels(tmp_path):
    method = db.sparkle("ed", upper="gt", **RATES)
    solve(method, tmp_path, steps=300)
    assert_exact(solve(method, tmp_path, LEFT, steps=1500), of(LEFT).solution())
    assert_exact(solve(method, tmp_path, steps=3000), QUADRATIC.solution())
    assert np.abs(of(LEFT).solution() - QUADRATIC.solution()).max() > 1e-2


def test_without_repair_the_solution_would_be_another(tmp_path, monkeypatch):
    problem = QUADRATIC.single()
    solve(db.ed(alpha=0.2), tmp_path, steps=300, problem=problem)
    monkeypatch.setattr(Strategy, "repair", lambda self, carry: carry)
    lost = solve(db.ed(alpha=0.2), tmp_path, LEFT, steps=900, problem=problem)
    assert invariant(lost) > 1e-3
    assert np.abs(np.asarray(lost.x) - of(LEFT).single_solution()).max() > 1e-3


@pytest.mark.slow
def test_personal_levels_are_not_told(tmp_path):
    problem = QUADRATIC.problem(personal=True)
    method = db.sparkle("local", upper="ed", alpha=0.1, beta=0.3, gamma=0.3, theta=0.5)
    solve(method, tmp_path, LEFT, steps=50, problem=problem)
    before = solve(method, tmp_path, LEFT, steps=50, problem=problem)
    back = solve(method, tmp_path, steps=50, problem=problem)  # no step is left: this is the state taken over
    kept = np.asarray(LEFT)
    for level in ("x", "y", "z"):
        np.testing.assert_array_equal(getattr(back.nodes, level)[kept], getattr(before.nodes, level))
    np.testing.assert_allclose(back.nodes.x[2], np.asarray(before.nodes.x).mean(0))
    assert not back.nodes.y[2].any() and not back.nodes.z[2].any() and not back.state.memory.tree[2].any()
    end = solve(method, tmp_path, steps=1500, problem=problem)
    np.testing.assert_allclose(end.x, QUADRATIC.personal_solution(), atol=1e-7)


def test_who_comes_back_starts_from_the_average():
    method = db.sparkle("ed", **RATES, theta=0.5)
    vector = lambda seed, nodes: Vector(np.random.default_rng(seed).normal(size=(nodes, 2)))  # noqa: E731
    level = lambda seed, nodes: Level(vector(seed, nodes), (vector(seed + 9, nodes),))  # noqa: E731
    state = lambda seed, nodes: State(  # noqa: E731
        level(seed, nodes), level(seed + 1, nodes), level(seed + 2, nodes), vector(seed + 3, nodes)
    )
    saved, start = state(0, 3), state(20, 3)
    new = migrate_state(saved, start, (0, 1, 2), (1, 2, 3), method.strategies)  # one leaves as another comes
    for old, now in ((saved.x.s, new.x.s), (saved.z.s, new.z.s), (saved.memory, new.memory)):
        np.testing.assert_array_equal(now.tree[:2], old.tree[1:])
        np.testing.assert_allclose(now.tree[2], old.tree[1:].mean(0))
    carry = np.concatenate([saved.x.carry[0].tree[1:], np.zeros((1, 2))])
    np.testing.assert_allclose(new.x.carry[0].tree, carry - carry.mean(0), atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ed", "edge-ed"])
def test_a_cluster_goes_on_with_fewer_devices(name, tmp_path):
    """Eight nodes on four devices, then six on three, then all again; against the simulator."""
    left = (0, 1, 4, 5, 6, 7)
    places = {
        "simulator": {None: db.Simulator(), left: db.Simulator(left)},
        "cluster": {None: db.Cluster(4), left: db.Cluster(3, left)},
    }
    method = SingleLevel(0.1, 0.5, STRATEGIES[name])
    options = {"resume": True, "eval_every": 20, "metrics": []}
    ends = {}
    for place, engines in places.items():
        for steps, who in ((20, None), (40, left), (60, None)):
            result = db.solve(
                random_quadratic(8, seed=3).single(), method, db.graphs.torus(2, 4), steps=steps, engine=engines[who],
                checkpoint=tmp_path / place, **options,
            )  # fmt: skip
            assert len(result.nodes.x) == len(who or range(8))
        ends[place] = result.state
    for a, b in zip(*map(jax.tree.leaves, ends.values()), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-10, atol=1e-12)


def test_another_run_raises_whoever_is_there(tmp_path):
    solve(METHOD, tmp_path, steps=10)
    with pytest.raises(ValueError, match=r"checkpoint holds another run: seed \(saved 0, now 1\) changed"):
        solve(METHOD, tmp_path, LEFT, steps=20, seed=1)
    with pytest.raises(ValueError, match=r"checkpoint holds another run: graph .* changed"):
        solve(METHOD, tmp_path, LEFT, steps=20, graph=db.graphs.complete(4))
    other = random_quadratic(NODES, seed=6).problem()
    with pytest.raises(ValueError, match=r"checkpoint holds another run: upper_data .* changed"):
        solve(METHOD, tmp_path, steps=20, problem=other)


def test_functions_of_the_node_and_a_cluster_of_members():
    config = []

    def data(names):
        return lambda node: config.append(node) or {name: getattr(QUADRATIC, name)[node][None] for name in names}

    problem = db.Problem(upper, lower, upper_data=data("MaRe"), lower_data=data("HBc"), x0=np.zeros(3), y0=np.zeros(4))
    options = {"steps": 30, "eval_every": 30, "metrics": []}
    spread = db.solve(problem, METHOD, GRAPH, engine=db.Cluster(devices=3, members=LEFT), **options)
    assert set(config) == set(LEFT)
    alone = db.solve(PROBLEM, METHOD, GRAPH, engine=db.Simulator(members=LEFT), **options)
    np.testing.assert_allclose(np.asarray(spread.nodes.x), np.asarray(alone.nodes.x), rtol=1e-12)
