"""Exact Diffusion with one peer a step: a damped carry on graphs that change, on every level and engine."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from quadratics import random_quadratic, upper_of_x

import decibel as db
from decibel import graphs, strategies
from decibel.engines._membership import induced_graph
from decibel.network._network import Network
from decibel.strategies import strategy

NODES, CHUNK = 8, 20
QUADRATIC = random_quadratic(NODES)
PROBLEM, SINGLE = QUADRATIC.problem(), QUADRATIC.single()
RATES = {"alpha": 0.1, "beta": 0.2, "gamma": 0.2}
CUBE, PAIRS = graphs.one_peer_hypercube(NODES), graphs.random_matchings(NODES, seed=1)
TURNS = graphs.one_peer_hypercube(NODES, order="cyclic")
RING = graphs.ring(NODES)


def single(**options):
    data = {"R": QUADRATIC.R[:, None], "e": QUADRATIC.e[:, None]}
    return db.Problem(upper_of_x, upper_data=data, **{"x0": jnp.zeros(3)} | options)


def run(method, graph=PAIRS, steps=60, problem=PROBLEM, **options):
    options = {"eval_every": CHUNK, "metrics": [], "progress": False} | options
    return db.solve(problem, method, graph, steps=steps, **options)


def error(result, expected=None):
    return np.abs(result.nodes.x - (QUADRATIC.solution() if expected is None else expected)).max()


def agree(result, expected, within=1e-9):
    for found, wanted in zip((result.nodes.x, result.nodes.y, result.nodes.z), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=within)


def phases(graph, seed=0, number=0):
    """W of a level's k-th exchange, as the guide says that it is drawn: by JAX's own generator."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2**31 + 4), number)

    def matrix(turn):
        place = turn % graph.period
        if graph.order == "random":
            place = int(jax.random.randint(jax.random.fold_in(key, turn), (), 0, graph.period, jnp.int32))
        return graph.phases[place].W

    return matrix


class Plain(db.Method):
    """A method of a user, which calls its strategy without `levels`."""

    mixing: db.Strategy

    @property
    def strategies(self):
        return {"x": self.mixing}

    def step(self, k, state, oracle, network):
        return db.State(network(x=self.mixing(state.x, oracle.draw().at(state.x.s).fx, 0.1)))


@pytest.mark.slow_except("ed")
@pytest.mark.parametrize("name", ["ed", "nids", "ada-ed"])
def test_a_method_of_ones_own_is_damped_too(name):
    own, ours = (run(m, TURNS, problem=SINGLE) for m in (Plain(strategy(name)), db.single(name, alpha=0.1)))
    assert np.array_equal(own.nodes.x, ours.nodes.x)


@pytest.mark.slow_except("pairs")
@pytest.mark.parametrize(
    ("graph", "updates", "every"),
    [
        (PAIRS, "simultaneous", 3),
        (TURNS, "alternating", 1),
        (CUBE, "simultaneous", 1),
        (graphs.matchings(graphs.star(NODES)), "alternating", 2),
    ],
    ids=["pairs", "turns", "cube", "star"],
)
def test_it_is_the_damped_recursion(graph, updates, every):
    """Every level counts its own exchanges, and all levels on a graph meet the same neighbour."""
    expected = references.sparkle(
        QUADRATIC,
        graph.damping,
        graph.damping,
        phases(graph, seed=5),
        steps=60,
        theta=1.0,
        updates=updates,
        every=every,
        rule=references.Damped,
        **RATES,
    )
    method = db.sparkle("ed", updates=updates, upper_every=every, **RATES)
    agree(run(method, graph, seed=5), expected)


def test_levels_on_other_graphs_draw_phases_of_their_own():
    levels = db.Levels(x=CUBE, y=PAIRS, z=RING)
    found = run(db.sparkle("ed", **RATES), levels, 9)
    x, y, z = (references.Damped(graph.damping, s) for graph, s in zip((CUBE, PAIRS, RING), start(), strict=True))
    for k in range(9):
        v, p, u = QUADRATIC.v(x.s, y.s), QUADRATIC.p(x.s, y.s, z.s), QUADRATIC.u(x.s, y.s, z.s)
        x.move(phases(CUBE)(k), RATES["alpha"] * u)
        y.move(phases(PAIRS, number=1)(k), RATES["beta"] * v)
        z.move(RING.W, RATES["gamma"] * p)
    agree(found, (x.s, y.s, z.s))


@pytest.mark.slow_except("pairs")
@pytest.mark.parametrize("graph", [PAIRS, TURNS], ids=["pairs", "turns"])
def test_inner_loops_count_their_own_exchanges(graph):
    """MA-DSBO with three steps on y and two on z in each iteration."""
    rates = {**RATES, "theta": 0.4}
    found = run(db.ma_dsbo(lower_steps=3, auxiliary_steps=2, **rates), graph, 9)
    (x, y, z), W = start(), phases(graph)
    r = np.zeros_like(x)
    for k in range(9):
        for j in range(3):
            y = W(3 * k + j) @ y - 0.2 * QUADRATIC.v(x, y)
        for j in range(2):
            z = W(2 * k + j) @ z - 0.2 * QUADRATIC.p(x, y, z)
        r = 0.6 * r + 0.4 * QUADRATIC.u(x, y, z)
        x = W(k) @ x - 0.1 * r
    agree(found, (x, y, z), 1e-12)


@pytest.mark.slow_except("c2dfb-4", "dbsa-2")
@pytest.mark.parametrize(("name", "steps"), [("c2dfb", 4), ("dbsa", 2), ("double-loop-dsgd", 3), ("dsbo", 2)])
def test_inner_loops_meet_other_neighbours(name, steps):
    """From the second iteration on y only mixes, and log₂ N exchanges in turn average exactly."""
    loops = {} if name == "double-loop-dsgd" else {"lower_steps": 3}
    method = db.CATALOG[name](beta=lambda k: jnp.where(k == 0, 0.1, 0.0), **loops)
    y = run(method, TURNS, steps).nodes.y
    assert np.abs(y).max() > 1e-3 and np.ptp(y, axis=0).max() < 1e-12


@pytest.mark.parametrize("name", ["dbsa", "double-loop-dsgd"])
def test_loops_that_grow_know_how_often_they_have_run(name):
    method = db.CATALOG[name]()
    taken = [int(method.inner_steps(jnp.int32(k))) for k in range(60)]
    assert [int(method.steps_before(jnp.int32(k))) for k in range(61)] == [sum(taken[:k]) for k in range(61)]


def start():
    x, y = references.starts(QUADRATIC)
    return x, y, y


@pytest.mark.slow_except("0.3")
@pytest.mark.parametrize("κ", [0.3, 1.0])
def test_on_a_fixed_graph_it_is_the_general_form_with_B2_damped(κ):
    W = RING.W
    level = references.Dense("ed", W, np.zeros_like(QUADRATIC.e))
    level.B = references.square_root(κ * (np.eye(NODES) - W))
    for _ in range(60):
        level.move(0.1 * QUADRATIC.fx(level.s, None))
    found = run(db.single(strategies.ed(damping=κ), alpha=0.1), RING, problem=SINGLE)
    np.testing.assert_allclose(found.nodes.x, level.s, atol=1e-10)


@pytest.mark.slow_except("ed")
@pytest.mark.parametrize("name", ["ed", "nids", "ada-ed"])
def test_on_a_fixed_graph_nothing_is_damped_by_name(name):
    whole = run(db.single(replace(strategy(name), damping=1.0), alpha=0.1), RING, problem=SINGLE)
    by_name = run(db.single(name, alpha=0.1), RING, problem=SINGLE)
    assert np.array_equal(whole.nodes.x, by_name.nodes.x) and by_name.method.settings["mixing"] == name


METHODS = {
    "sparkle-ed": db.sparkle("ed", **RATES),
    "sparkle-nids": db.sparkle("nids", **RATES),
    "sparkle-ada-ed": db.sparkle("ada-ed"),
    "sparkle-led": db.sparkle("ed", local_steps=2, alpha=0.05, beta=0.1, gamma=0.1),
    "sparkle-damped": db.sparkle(strategies.ed(damping=0.1), "gt", **RATES),
    "upper-every": db.sparkle("ed", upper_every=3, **RATES),
}


@pytest.mark.slow_except("sparkle-led-turns", "sparkle-ada-ed-cube")
@pytest.mark.parametrize("graph", [PAIRS, CUBE, TURNS], ids=["pairs", "cube", "turns"])
@pytest.mark.parametrize("name", METHODS)
def test_ends_at_the_solution(name, graph):
    assert error(run(METHODS[name], graph, 1000)) < 1e-9


def test_adam_ends_at_the_solution_with_falling_steps():
    falling = lambda k: 0.03 * 0.995 ** k.astype(float)  # noqa: E731
    result = run(db.single("adam-ed", alpha=falling), CUBE, 1000, problem=SINGLE)
    assert error(result, QUADRATIC.single_solution()) < 1e-6


def test_the_carry_sums_to_zero_and_gradients_are_what_it_holds():
    result = run(db.single("ed", alpha=0.1), steps=1000, problem=SINGLE)
    c = np.asarray(result.state.x.carry[0].tree)
    np.testing.assert_allclose(c.mean(0), 0, atol=1e-13)
    np.testing.assert_allclose(c, 0.1 * QUADRATIC.fx(result.nodes.x, None), atol=1e-10)


@pytest.mark.slow
def test_the_penalty_form_ends_where_it_does_on_a_ring():
    method = db.sparkle("ed", hypergradient=db.hypergradient.penalty(10.0), **RATES)
    one, other = (run(method, graph, 1000) for graph in (PAIRS, RING))
    np.testing.assert_allclose(one.nodes.x, other.nodes.x, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ed", "nids"])
def test_a_projection_is_exact(name):
    problem = single(prox_x=db.prox.box(-0.1, 0.2))
    one, other = (run(db.single(name, alpha=0.1), graph, 1000, problem=problem) for graph in (PAIRS, RING))
    np.testing.assert_allclose(one.nodes.x, other.nodes.x, atol=1e-9)
    assert np.ptp(one.nodes.x, axis=0).max() < 1e-9 and {-0.1, 0.2} & set(one.x.round(9).tolist())


@pytest.mark.slow
def test_lost_pairs_change_nothing():
    """Both ends of a pair know that it is lost."""
    method = db.sparkle("ed", **RATES)
    faults = [db.faults.drop(0.3), db.faults.pause(probability=0.3)]
    assert error(run(method, steps=1000, faults=faults)) < 1e-10


@pytest.mark.slow
def test_links_that_may_fail_and_do_not_change_nothing():
    method = db.sparkle("ed", **RATES)
    calm, linked = run(method, CUBE), run(method, CUBE, faults=db.faults.drop(0.0))
    agree(linked, (calm.nodes.x, calm.nodes.y, calm.nodes.z), 1e-12)


@pytest.mark.parametrize("graph", [RING, CUBE, PAIRS, graphs.random_matchings(7)], ids=lambda graph: graph.name)
def test_one_vector_goes_to_one_peer(graph):
    quadratic = random_quadratic(graph.nodes)
    cost = db.cost(quadratic.problem(), db.sparkle("ed", **RATES), graph)
    peers = 2 if graph is RING else 1 - graph.nodes % 2 / graph.nodes
    assert cost["bytes"] == pytest.approx(peers * 8 * (3 + 4 + 4)) and cost["rounds"] == 1


def test_a_run_that_continues_has_the_same_phases(tmp_path):
    method = db.sparkle("ed", upper_every=3, **RATES)
    whole = run(method, seed=2)
    run(method, steps=40, seed=2, checkpoint=tmp_path)
    resumed = run(method, seed=2, checkpoint=tmp_path, resume=True)
    for level in "xyz":
        assert np.array_equal(getattr(whole.nodes, level), getattr(resumed.nodes, level))
    assert not np.array_equal(whole.nodes.x, run(method, seed=3).nodes.x)
    with pytest.raises(ValueError, match="checkpoint holds another run"):
        run(method, replace(PAIRS, order="cyclic"), seed=2, checkpoint=tmp_path, resume=True)


def test_runs_beside_each_other_draw_their_own_phases():
    method = db.single("ed", alpha=0.1)
    many = db.BatchRun([SINGLE] * 2, method, PAIRS, batch_size=None, seeds=[0, 1])
    many.advance(CHUNK)
    for seed in (0, 1):
        alone = run(method, steps=CHUNK, problem=SINGLE, seed=seed)
        np.testing.assert_allclose(many.snapshot(seed).nodes.x, alone.nodes.x, atol=1e-13)


@pytest.mark.slow
def test_nodes_that_remain_reach_their_own_solution():
    stay = [0, 1, 2, 4, 6, 7]
    problem = type(QUADRATIC)(*(part[stay] for part in QUADRATIC))
    result = run(db.sparkle("ed", **RATES), steps=1000, engine=db.Simulator(members=tuple(stay)))
    assert error(result, problem.solution()) < 1e-9
    assert induced_graph(PAIRS, tuple(stay)).order == "random"


@pytest.mark.slow
@pytest.mark.parametrize("graph", [PAIRS, CUBE, graphs.matchings(RING)], ids=["pairs", "cube", "ring"])
@pytest.mark.parametrize("faults", [None, db.faults.drop(0.3)], ids=["calm", "lost"])
def test_the_cluster_does_the_same(graph, faults):
    method = db.sparkle("ed", upper_every=2, **RATES)
    one, other = (
        run(method, graph, CHUNK, engine=engine, faults=faults)
        for engine in (db.Simulator(), db.Cluster(devices=min(NODES, jax.device_count())))
    )
    agree(other, (one.nodes.x, one.nodes.y, one.nodes.z), 1e-12)
    if jax.device_count() >= NODES:
        assert other.trace["bytes"][-1] == one.trace["bytes"][-1]


def test_the_cluster_permutes_once_a_step():
    if jax.device_count() < NODES:
        pytest.skip("needs a device for each node")
    started = db.Cluster(devices=NODES).start(SINGLE, db.single("ed", alpha=0.1), db.Levels(x=CUBE), db.RunConfig())
    network = started.program.network
    assert isinstance(network, Network)
    (halo,) = network.halos
    assert [len(route.pairs) for route in halo.routes] == [1] * CUBE.period


SENTENCES = {
    r"strategy 'ed' with damping=1 on level x diverges on one-peer hypercube, a graph that changes: leave damping": (
        lambda: run(db.single(strategies.ed(damping=1.0), alpha=0.1), CUBE, problem=SINGLE)
    ),
    r"'ada-ed' with damping=1 on level x": (
        lambda: run(db.single(strategies.ada_ed(damping=1.0)), CUBE, problem=SINGLE)
    ),
    r"'led' with damping=1 on level x .* leave damping out": (
        lambda: run(db.single(strategies.led(4, damping=1.0), alpha=0.1), CUBE, problem=SINGLE)
    ),
    r"'ed \(8 bits\)' with damping=1 on level x .* leave damping out": (
        lambda: run(db.single(db.privacy.quantize(strategies.ed(damping=1.0)), alpha=0.1), CUBE, problem=SINGLE)
    ),
    r"'adam-ed-averaged' with damping=1 on level x .* leave damping out": (
        lambda: run(db.single(strategies.adam_ed(damping=1.0, averaged=True)), CUBE, problem=SINGLE)
    ),
    r"'ed' with damping=0.9 on level x diverges on random matchings: choose damping=0.286": (
        lambda: run(db.single(strategies.ed(damping=0.9), alpha=0.1), problem=SINGLE)
    ),
    r"'ed' with damping=0.03\d+ on level x diverges on matchings of star: draw its phases \(order='random'\)": (
        lambda: run(
            db.single("ed", alpha=0.1),
            graphs.matchings(graphs.star(16), order="cyclic"),
            problem=random_quadratic(16).single(),
        )
    ),
    r"over several steps, which needs a fixed graph, and random matchings changes: leave out scale_every": (
        lambda: run(db.single(strategies.ada_ed(scale_every=4)), problem=SINGLE)
    ),
    r"damping=0 must be above 0 and at most 1": lambda: strategies.ed(damping=0),
    r"damping=2.0 must be above 0 and at most 1": lambda: strategies.nids(damping=2.0),
    r"damping=True must be above 0": lambda: strategies.adam_ed(damping=True),
} | {
    rf"strategy '{name}' on level x diverges on one-peer hypercube, a graph that changes: choose 'ed'": (
        lambda name=name: run(db.single(name, alpha=0.1), CUBE, problem=SINGLE)
    )
    for name in ("extra", "edge-ed", "wave")
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_what_diverges_raises(sentence):
    with pytest.raises(ValueError, match=sentence):
        SENTENCES[sentence]()


@pytest.mark.slow
def test_tracking_and_methods_without_correction_stay():
    assert error(run(db.single("gt", alpha=0.1), steps=2000, problem=SINGLE), QUADRATIC.single_solution()) < 1e-9
    for name in ("diffusion", "adam-gt", "gt-ada"):
        run(db.single(name, alpha=0.01), steps=CHUNK, problem=SINGLE)


def test_undamped_it_would_diverge(monkeypatch):
    """So that raising is right, and a run that has grown says so."""
    monkeypatch.setattr("decibel.methods._method._validate_damping", lambda *given: None)
    method = db.single(strategies.ed(damping=1.0), alpha=0.1)
    with pytest.warns(db.GrowthWarning, match=r"ed has completed, but values grew to .*e\+\d+, as in a run"):
        result = run(method, TURNS, 400, problem=SINGLE)
    assert result.status == "completed" and "values grew to" in result.message
    assert run(db.single("ed", alpha=0.1), CUBE, CHUNK, problem=SINGLE).message == ""


def test_a_start_far_away_is_no_growth():
    result = run(db.single("ed", alpha=0.1), CUBE, CHUNK, problem=single(x0=jnp.full(3, 1e12)))
    assert result.message == "" and np.abs(result.x).max() > 1e10


def test_what_a_strategy_requires_is_derived():
    changing = {name for name, row in strategies.STRATEGIES.items() if row.requires_fixed_graph}
    assert changing >= {"ed", "extra", "nids", "edge-ed", "wave", "ada-ed", "ada-ed-scalar", "adam-ed"}
    assert changing.isdisjoint({"diffusion", "consensus", "local", "gt", "semi-gt", "non-gt"})
    assert {name for name in changing if not strategy(name).requires_symmetric} == set()
    assert strategies.ed(damping=0.005).requires_symmetric  # though no real eigenvalue asks for it
    damped = {name for name, row in strategies.STRATEGIES.items() if row.damping is None}
    assert damped >= {"ed", "nids", "ada-ed", "ada-ed-scalar", "adam-ed"}
    assert (
        strategies.led(3).damping is None and strategies.led(3, damping=0.2).label == "led, damping 0.2, 3 local steps"
    )


def test_single_takes_any_strategy():
    assert db.single("ada-ed").settings["alpha"] == 0.3 and db.single("ed", alpha=0.1).name == "ed"
    found = run(db.single("ed", alpha=0.1), RING, CHUNK, problem=SINGLE)
    assert np.array_equal(found.nodes.x, run(db.ed(alpha=0.1), RING, CHUNK, problem=SINGLE).nodes.x)
    with pytest.raises(TypeError, match="alpha is missing: give a step size"):
        db.single("ed")


@pytest.mark.slow
def test_skipped_messages_are_exact_too():
    result = run(db.proxskip(alpha=0.1), steps=1000, problem=SINGLE)
    assert error(result, QUADRATIC.single_solution()) < 1e-9
