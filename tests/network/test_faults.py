"""Injected faults: what stays exact under them, what does not, and the same faults in every engine."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from quadratics import Quadratic, random_quadratic

import decibel as db
from decibel.engines._program import RunConfig
from decibel.graphs._graph import Levels
from decibel.methods._single_level import SingleLevel
from decibel.network._incidence import Sums, slots

NODES, CHUNK = 10, 100  # the steps of a compiled program, which many tests share
QUADRATIC = random_quadratic(NODES, seed=1, spread=2.0)
RING = db.graphs.ring(NODES)
CHANGING = db.graphs.cycle(RING, db.graphs.star(NODES))
RANDOM, STAR = db.graphs.erdos_renyi(NODES, 0.4, seed=2), db.graphs.star(NODES)
# Two nodes with more links than the others, of which each is on a device of its own where there are several.
HUBS = db.graphs.from_networkx(nx.Graph([*((0, j) for j in range(1, 10)), *((7, j) for j in (1, 2, 3, 4, 5))]))
RATES = {"alpha": 0.03, "beta": 0.1, "gamma": 0.1}


def run(strategy, faults, *, steps=4000, graph=RING, upper=None, updates="simultaneous", **options):
    method = db.sparkle(strategy, upper, **RATES, updates=updates)
    options = {"eval_every": min(steps, CHUNK), "metrics": []} | options
    return db.solve(QUADRATIC.problem(), method, graph, steps=steps, faults=faults, **options)


def run_single(strategy, faults=None, *, graph=RING, steps=12, quadratic=QUADRATIC, dtype=jnp.float64, **options):
    """Of one level: a third of the program, where the other levels would do the same."""
    method = SingleLevel(0.2, 1.0, db.strategies.strategy(strategy))
    options = {"eval_every": min(steps, CHUNK), "metrics": []} | options
    return db.solve(quadratic.single(dtype=dtype), method, graph, steps=steps, faults=faults, **options)


def error(result, solution=None, nodes=slice(None)):
    solution = QUADRATIC.solution() if solution is None else solution
    return np.abs(np.asarray(result.nodes.x)[nodes] - solution).max()


@pytest.mark.slow_except("ed")
@pytest.mark.parametrize("strategy", ["ed", "extra", "gt", "edge-ed"])
def test_exact_with_links_that_fail_and_nodes_that_pause_at_random(strategy):
    faults = [db.faults.drop(0.5), db.faults.pause(probability=0.2)]
    assert error(run_single(strategy, faults, steps=10_000), QUADRATIC.single_solution()) < 1e-12


@pytest.mark.slow
def test_edge_flows_are_exact_where_messages_are_lost_one_way():
    lost = db.faults.drop(0.3, one_way=True)
    assert error(run("edge-ed", lost)) < 1e-12
    assert error(run("ed", lost, steps=1000)) > 0.01  # so the line above says something


def test_edge_flows_use_each_message_once():
    """F_ij ← (F_ij − F_ji)/2 + w_ij (φ_j − φ_i) with a message that is newer than all before, in NumPy."""
    found = run_single("edge-ed", db.faults.late(2, during=(3, 6)), steps=8)
    w = (RING.W - np.diag(np.diag(RING.W)))[..., None]
    s, F = np.zeros((NODES, 3)), np.zeros((NODES, NODES, 3))
    sent, used = [], -1
    for k in range(8):
        half = s - 0.2 * np.einsum("nij,nj->ni", QUADRATIC.R, s - QUADRATIC.e)
        φ = half + F.sum(1)
        sent.append((φ, F.transpose(1, 0, 2)))
        arrives = k - 2 if 3 <= k < 6 else k
        if arrives > used:
            there, theirs = sent[arrives]
            F, used = w * (there - φ[:, None]) + (F - theirs) / 2, arrives
        s = half + F.sum(1)
    np.testing.assert_allclose(found.nodes.x, s, atol=1e-13)


@pytest.mark.slow
def test_edge_flows_are_exact_after_the_last_loss():
    """What a lost message leaves behind is repaired by the next one that arrives, not by the next loss."""
    assert error(run("edge-ed", db.faults.drop(0.5, one_way=True, during=(100, 120)), steps=2000)) < 1e-12


@pytest.mark.slow
def test_a_node_leaves_and_returns_while_messages_are_lost():
    injected = [db.faults.drop(0.1, one_way=True), db.faults.leave(3, during=(200, 4000))]
    stayed = [node for node in range(NODES) if node != 3]
    theirs = Quadratic(*(part[stayed] for part in QUADRATIC)).solution()
    apart = run("edge-ed", injected)
    assert error(apart, theirs, stayed) < 1e-12
    assert np.abs(theirs - QUADRATIC.solution()).max() > 0.01
    # What the others' carries owe to the one that left stays with them.
    assert error(run("ed", injected[1:]), theirs, stayed) > 1e-3
    assert error(run("edge-ed", injected, steps=8000)) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "updates"), [(db.graphs.star(NODES), "alternating"), (RANDOM, "simultaneous")], ids=["star", "random"]
)
def test_without_loss_edge_flows_are_exact_diffusion(graph, updates):
    found, expected = (run(name, None, steps=60, graph=graph, updates=updates) for name in ("edge-ed", "ed"))
    for a, b in zip(jax.tree.leaves(found.nodes), jax.tree.leaves(expected.nodes), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.slow_except("ring")
@pytest.mark.parametrize("graph", [RING, db.graphs.star(40)], ids=["ring", "star"])
def test_both_ends_of_a_link_remember_the_same_to_the_last_bit(graph):
    quadratic = random_quadratic(graph.nodes, seed=2)
    result = run_single("edge-ed", db.faults.drop(0.2), graph=graph, steps=300, quadratic=quadratic, dtype=jnp.float32)
    links = slots(graph)
    F = np.asarray(result.state.link_memory[0][0][0].per_link.vectors)
    F = F.reshape(-1, F.shape[-1])
    np.testing.assert_array_equal(F[links.slot_of_link], -F[links.reverse[links.slot_of_link]])
    assert F.dtype == np.float32 and np.abs(F[links.slot_of_link]).min() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        db.faults.drop(0.4),
        db.faults.pause(probability=0.3),
        db.faults.leave([2, 5], during=(1, 3)),
        [db.faults.drop(links=[(0, 1), (7, 8)]), db.faults.pause(4)],
    ],
    ids=["drop", "pause", "leave", "named"],
)
def test_the_mixing_matrix_stays_doubly_stochastic(faults):
    """Consensus on a problem without slope applies W once a step: from the identity it shows the matrix itself."""
    flat = db.Problem(lambda x, batch: 0.0 * x.sum(), upper_data=np.zeros((NODES, 1)), x0=jnp.zeros(NODES))
    matrices = []
    for steps in (1, 2, 3):
        options = {"steps": steps, "eval_every": 1, "metrics": [], "engine": _FromIdentity()}
        result = db.solve(flat, db.dsgd(alpha=1.0), CHANGING, faults=faults, **options)
        matrices.append(np.asarray(result.nodes.x))
    np.testing.assert_allclose(matrices[0], matrices[0].T, atol=1e-14)
    for product in matrices:
        np.testing.assert_allclose(product.sum(0), 1.0, atol=1e-14)
        np.testing.assert_allclose(product.sum(1), 1.0, atol=1e-14)
    undisturbed = np.linalg.multi_dot([CHANGING.phases[k % CHANGING.period].W for k in (2, 1, 0)])
    assert np.abs(matrices[-1] - undisturbed).max() > 0.05


class _FromIdentity(db.Simulator):
    """Node i starts at the i-th unit vector."""

    def start(self, *arguments):
        run = super().start(*arguments)
        level = run.state.x
        run.state = run.state._replace(x=level._replace(s=jax.tree.map(lambda s: jnp.eye(len(s)), level.s)))
        return run


@pytest.mark.slow
def test_late_links_conserve_the_mean_and_gradient_tracking_stays_exact():
    late = db.faults.late(2, 0.3)
    assert error(run("gt", late)) < 1e-12
    result = run("gt", late, steps=2 * CHUNK)
    for level in (result.state.x, result.state.y, result.state.z):
        (carry,) = level.carry
        assert np.abs(carry.tree).max() > 1e-3
        np.testing.assert_allclose(np.asarray(carry.tree).mean(0), 0.0, atol=1e-14)


@pytest.mark.slow
def test_a_late_link_delivers_what_was_said_then():
    """On two nodes: nothing arrives before the delay has passed, and then what it would have been at once."""
    pair, problem = db.graphs.complete(2), random_quadratic(2, seed=4).single()
    at_once = db.solve(problem, db.dsgd(alpha=0.1), pair, steps=1, metrics=[])
    late = {
        steps: db.solve(problem, db.dsgd(alpha=0.1), pair, steps=steps, metrics=[], faults=db.faults.late(1))
        for steps in (1, 2)
    }
    alone = db.solve(problem, db.dsgd(alpha=0.1), db.graphs.isolated(2), steps=2, eval_every=1, metrics=[])
    first = db.solve(problem, db.dsgd(alpha=0.1), db.graphs.isolated(2), steps=1, metrics=[])
    np.testing.assert_allclose(late[1].nodes.x, first.nodes.x, atol=1e-14)
    arrived = np.asarray(at_once.nodes.x) - np.asarray(first.nodes.x)
    np.testing.assert_allclose(late[2].nodes.x, np.asarray(alone.nodes.x) + arrived, atol=1e-12)


def test_who_pauses_spends_nothing():
    half = run_single("ed", db.faults.pause([0, 1, 2, 3, 4], during=(0, 100)), steps=CHUNK).trace.last
    whole = run_single("ed", db.faults.drop(0.5), steps=CHUNK).trace.last
    assert half["samples"] == pytest.approx(whole["samples"] / 2) and half["bytes"] == pytest.approx(whole["bytes"] / 2)
    assert half["rounds"] == whole["rounds"] == CHUNK


def test_edge_flows_send_two_vectors_over_every_link():
    sent = {name: db.cost(QUADRATIC.problem(), db.sparkle(name, **RATES), RING)["bytes"] for name in ("ed", "edge-ed")}
    assert sent["edge-ed"] == 2 * sent["ed"]


def test_the_chances_are_what_they_say_and_the_same_at_both_ends():
    injected = db.faults.drop(0.3), db.faults.drop(0.2, one_way=True), db.faults.late((1, 5))
    fault_schedule = db.faults.fault_schedule(injected, seed=5)
    a, b = (jnp.asarray(ends, jnp.int32) for ends in RING.edges.T)

    def fates(k):
        return (
            fault_schedule.is_down(k, a, b),
            fault_schedule.is_down(k, b, a),
            fault_schedule.is_lost(k, 0, a, b),
            fault_schedule.is_lost(k, 0, b, a),
            fault_schedule.delay(k, a, b),
            fault_schedule.delay(k, b, a),
        )

    of_steps = jax.jit(jax.vmap(fates))(jnp.arange(2000, dtype=jnp.int32))
    down, other, lost, back, delay, returned = map(np.asarray, of_steps)
    np.testing.assert_array_equal(down, other)
    np.testing.assert_array_equal(delay, returned)
    assert np.abs(np.bincount(delay.ravel()) / delay.size - [0, 0.2, 0.2, 0.2, 0.2, 0.2]).max() < 0.015
    assert abs(down.mean() - 0.3) < 0.015 and abs(lost.mean() - 0.2) < 0.015
    assert abs(np.corrcoef(lost.ravel(), back.ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(down[:, 0], down[:, 1])[0, 1]) < 0.1
    assert abs(np.corrcoef(down[1:, 0], down[:-1, 0])[0, 1]) < 0.1


@pytest.mark.parametrize("nodes", [2, 9, 10, 11, 74, 600])
def test_many_links_are_summed_in_a_tree(nodes):
    links = slots(db.graphs.star(nodes))
    sums = Sums(links.width, jax.tree.map(jnp.asarray, links.overflow))
    values = np.random.default_rng(1).normal(size=(len(links.receivers), 3))
    expected = [values[links.receivers == node].sum(0) for node in range(nodes)]
    found = jax.jit(lambda values: sums.at_nodes(values))(jnp.asarray(links.shaped(values)))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.slow
def test_nodes_of_many_links_move_between_devices(tmp_path):
    faults, options = [db.faults.drop(0.2, one_way=True), db.faults.late(1, 0.2)], {"upper": "gt", "eval_every": 5}
    options |= {"graph": HUBS}
    whole = run("edge-ed", faults, steps=25, **options)
    for steps, engine in ((10, db.Simulator()), (15, db.Cluster(devices=5)), (20, db.Cluster(devices=2))):
        run("edge-ed", faults, steps=steps, engine=engine, checkpoint=tmp_path, resume=True, **options)
    last = run("edge-ed", faults, steps=25, checkpoint=tmp_path, resume=True, **options)
    for a, b in zip(jax.tree.leaves(whole.state), jax.tree.leaves(last.state), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-13)


def star_state(nodes):
    """The bytes of a run's state and of the tables of its network."""
    data = np.ones((nodes, 1, 2), np.float32)
    lower = lambda x, y, batch: ((y - x - batch) ** 2).sum()  # noqa: E731
    start = dict(x0=jnp.zeros(2, jnp.float32), y0=jnp.zeros(2, jnp.float32))
    problem = db.Problem(lambda x, y, batch: (y * x).sum(), lower, upper_data=data, lower_data=data, **start)
    method, graph = db.sparkle("edge-ed", **RATES, updates="simultaneous"), db.graphs.star(nodes)
    run = db.Simulator().start(problem, method, Levels(x=graph), RunConfig(faults=(db.faults.drop(0.2),)))
    size = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if hasattr(leaf, "nbytes"))  # noqa: E731
    return run, size(run.state), size(run.program.network)


@pytest.mark.slow
def test_a_star_grows_with_its_links():
    (_, small, few), (_, large, many) = star_state(512), star_state(1024)
    assert 1.9 < large / small < 2.1 and 1.9 < many / few < 2.2
    run, _, _ = star_state(2000)
    assert run.advance(3) is not None and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.state))


@pytest.mark.slow_except("changing-2", "hubs-5")
@pytest.mark.parametrize(
    ("graph", "devices"),
    [(CHANGING, 2), (HUBS, 1), (HUBS, 5), (STAR, 2), (RANDOM, 5)],
    ids=["changing-2", "hubs-1", "hubs-5", "star-2", "random-5"],
)
def test_slots_point_back_and_sum_as_the_matrix_does(graph, devices):
    links = slots(graph, devices)
    here = np.flatnonzero(links.weights.any(1))
    assert sorted(links.slot_of_link.tolist()) == here.tolist()
    i, j = links.receivers[here], links.neighbours[here]
    np.testing.assert_array_equal(links.neighbours[links.reverse[here]], i)
    np.testing.assert_array_equal(links.receivers[links.reverse[here]], j)
    np.testing.assert_array_equal(links.weights[links.reverse[here]], links.weights[here])
    values = np.random.default_rng(0).normal(size=(len(links.receivers), 2)) * (links.weights.any(1))[:, None]
    wide = len(values) // devices
    for device in range(devices):
        own = lambda table: jnp.asarray(table.reshape(devices, -1, *table.shape[1:])[device])  # noqa: E731, B023
        sums, mine = Sums(links.width, jax.tree.map(own, links.overflow)), slice(device * wide, (device + 1) * wide)
        first, count = device * NODES // devices, NODES // devices
        expected = [values[links.receivers == node].sum(0) for node in range(first, first + count)]
        np.testing.assert_allclose(sums.at_nodes(jnp.asarray(links.shaped(values[mine]))), expected, atol=1e-13)
        np.testing.assert_array_equal(sums.at_slots(jnp.arange(count)).ravel(), links.receivers[mine] - first)
    for phase, one in enumerate(graph.phases):
        W = np.zeros((NODES, NODES))
        W[i, j] = links.weights[here, phase]
        np.testing.assert_array_equal(W + np.diag(np.diag(one.W)), one.W)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: db.faults.drop(1.5), "probability=1.5"),
        (lambda: db.faults.drop(links=[(1, 1)]), "pairs of different nodes"),
        (lambda: db.faults.late(0), "delay=0"),
        (lambda: db.faults.pause(during=(5, 5)), "during"),
        (lambda: run("ed", db.faults.pause(NODES), steps=1), "node 10"),
        (lambda: run("gt", db.faults.drop(0.1), steps=1, graph=db.graphs.one_peer_exponential(NODES)), "undirected"),
    ],
)
def test_what_makes_no_sense_raises(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.slow
def test_late_links_refuse_methods_that_exchange_inside_a_loop():
    method = db.ma_dsbo(alpha=0.02, beta=0.1, gamma=0.1, theta=0.5, lower_steps=2, auxiliary_steps=2)
    with pytest.raises(ValueError, match="single-loop"):
        db.solve(QUADRATIC.problem(), method, RING, steps=1, faults=db.faults.late(1))
    db.solve(QUADRATIC.problem(), method, RING, steps=2, faults=db.faults.drop(0.5), metrics=[])


@pytest.mark.slow
def test_a_graph_per_level_may_mix_kinds_and_levels_may_move_in_turn():
    graphs, lost = Levels(x=db.graphs.complete(NODES), y=RING), db.faults.drop(0.2, one_way=True)
    assert error(run("edge-ed", lost, graph=graphs, updates="alternating")) < 1e-12
