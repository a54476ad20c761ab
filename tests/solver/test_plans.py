"""Plans run, are exact where they say so, and take what the formulas and the measured factors say."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.solver import _plans

g = db.graphs
Links, plans = db.theory.Links, db.theory.plans
DOCS = Path(__file__).parents[2] / "docs"
MEASURED = json.loads((DOCS / "figures" / "networks.json").read_text())
LINKS = {"plain": Links(1e6, 0.01), "loss": Links(1e6, loss=0.1, slowest=5.0), "one way": Links(1e6, one_way=True)}
LINKS["one way, loss"] = Links(1e6, loss=0.1, one_way=True)


def predicted(links, nodes=8, **options):
    return plans(nodes, (10, 20), links, **{"degree": 2, "compute": 0.1, **options})


# The roots, against the recursions as the papers print them, written out for all nodes.


def largest(step, parts, nodes=6):
    """The spectral radius of a linear step on stacked vectors, where it sees differences between nodes only."""
    centre = np.kron(np.eye(parts), np.eye(nodes) - 1 / nodes)
    matrix = np.stack([np.concatenate(step(*np.split(column, parts))) for column in centre.T], 1)
    return abs(np.linalg.eigvals(matrix)).max()


def roots_of(name, graph, x, steps=1):
    λ = np.linalg.eigvalsh(graph.W)[:-1]
    return _plans.root(name, np.array(x), λ, steps).max()


@pytest.mark.parametrize("x", [0.05, 0.4, 1.3])
def test_the_roots_are_those_of_the_published_recursions(x):
    ring = g.ring(6)
    W = ring.W

    def exact_diffusion(s, before):  # s⁺⁺ = W (2 s⁺ − s − Δd)
        return W @ (2 * s - before - x * (s - before)), s

    def extra(s, before):  # s⁺⁺ = W (2 s⁺ − s) − Δd
        return W @ (2 * s - before) - x * (s - before), s

    def tracking(s, h):  # s⁺ = W (s − h), h⁺ = W (h + Δd)
        new = W @ (s - h)
        return new, W @ (h + x * (new - s))

    assert roots_of("ed", ring, x) == pytest.approx(largest(exact_diffusion, 2), rel=1e-9)
    assert roots_of("wave", ring, x) == pytest.approx(largest(extra, 2), rel=1e-9)
    assert roots_of("gt", ring, x) == pytest.approx(largest(tracking, 2), rel=1e-9)


@pytest.mark.parametrize("steps", [2, 5])
def test_the_roots_of_local_steps_are_those_of_led_and_lt_admm(steps):
    ring, x = g.ring(6), 0.3

    def lt_admm(s, z):  # z_ij of the next node, then of the previous one, for ρ = 2 w/τ
        ρ, (right, left) = 2 * ring.W[0, 1] / steps, np.split(z, 2)
        P = right + left - 2 * ρ * s
        new = s
        for _ in range(steps):
            new = new - x * new + P
        q = [2 * ρ * new - right, 2 * ρ * new - left]  # to the next, to the previous
        return new, np.concatenate([(right + np.roll(q[1], -1)) / 2, (left + np.roll(q[0], 1)) / 2])

    found = np.stack([np.concatenate(lt_admm(one[:6], one[6:])) for one in np.eye(18)], 1)
    moduli = np.sort(abs(np.linalg.eigvals(found)))[::-1]
    assert abs(moduli - roots_of("wave", ring, x, steps)).min() < 1e-9

    def led(s, c):
        for _ in range(steps):
            s = s - x * s + c
        δ = ring.W @ s - s
        return s + δ, c + δ / steps

    assert roots_of("ed", ring, x, steps) == pytest.approx(largest(led, 2), rel=1e-9)


@pytest.mark.parametrize("hops", [1, 2])
def test_the_roots_of_push_pull_are_those_of_its_recursion(hops):
    digraph, x = _plans._digraphs(6, hops)[-1], 0.3
    R, C = digraph.W, digraph.pushing.toarray()

    def push_pull(s, c):
        h = C @ (c + x * s)
        return R @ (s - h), h - x * s

    found = _plans.root("push-pull", np.array(x), _plans._eigenvalues(digraph), 1).max()
    assert found == pytest.approx(largest(push_pull, 2), rel=1e-9)


@pytest.mark.parametrize("degree", [1, 2])
def test_steps_are_as_small_as_long_one_way_rings_need(degree):
    """With the smallest of the usual steps push-pull diverges there, by its recursion written out."""
    plan = predicted(Links(loss=0.1, one_way=True), nodes=31, degree=degree)[0]
    C = plan.graph.pushing.toarray()

    def root(x):
        return largest(lambda s, c: (C @ (s - (h := C @ (c + x * s))), h - x * s), 2, 31)

    assert root(_plans.STEP_SIZES[0]) > 1 > root(plan.step_size) and plan.step_size < _plans.STEP_SIZES[0]


def test_the_roots_over_phases_are_those_of_a_period():
    sequence, x = g.one_peer_exponential(6), 0.3

    def period(s, c):
        for phase in sequence.phases:
            h = phase.W @ (c + x * s)
            s, c = phase.W @ (s - h), h - x * s
        return s, c

    found = _plans._over_phases(np.full((1, 1, 1), x), sequence).max()
    assert found**sequence.period == pytest.approx(largest(period, 2), rel=1e-6)


@pytest.mark.parametrize("sequence", [g.one_peer_hypercube(4), g.random_matchings(6)], ids=lambda s: s.name)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_roots_of_drawn_pairs_are_those_of_the_mean_square(sequence, steps):
    x, κ, nodes = 0.3, sequence.damping, sequence.nodes
    centre = np.kron(np.eye(2), np.eye(nodes) - 1 / nodes)

    def moved(W, s, c):
        for _ in range(steps):
            s = s - x * s + c
        δ = W @ s - s
        return np.concatenate([s + δ, c + κ * δ / steps])

    maps = [np.stack([moved(phase.W, *np.split(column, 2)) for column in centre], 1) for phase in sequence.phases]
    squares = np.mean([np.kron(one, one) for one in maps], 0)  # how E (s, c)(s, c)ᵀ moves
    q = 1 - np.linalg.eigvalsh(np.mean([phase.W for phase in sequence.phases], 0))[:-1]
    found = _plans._damped(np.full((1, 1, 1), x), q[None, None], κ, steps).max()
    assert found**2 == pytest.approx(abs(np.linalg.eigvals(squares)).max(), rel=1e-6)


def test_a_run_takes_the_exchanges_of_the_model():
    """Where all nodes have the same curvatures, and no factor is needed."""
    plan = next(p for p in predicted(Links(), single=True, target=1e-8) if p[:3] == ("ed", g.ring(8), 1) and not p.bits)
    targets = np.random.default_rng(0).normal(size=(8, 1, 4))
    h = jnp.asarray(np.geomspace(0.1, 1, 4))
    problem = db.Problem(
        lambda x, batch: 0.5 * (h * (x - batch) ** 2).sum(-1).mean(), upper_data=targets, x0=jnp.zeros(4)
    )

    def distance(snapshot):
        return jnp.abs(snapshot.nodes.x - targets.mean(0)).max()

    steps = round(plan.exchanges / _plans.STRETCH)
    trace = db.solve(
        problem, plan.make(alpha=plan.step_size), plan.graph, steps=2 * steps, eval_every=1, metrics=[distance]
    ).trace
    reached = np.argmax(np.asarray(trace["distance"]) < 1e-8 * trace["distance"][0])
    assert reached == pytest.approx(steps, rel=0.2)


# Every suggestion runs.


@pytest.mark.slow_except("True-one way")
@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("single", [True, False])
def test_every_plan_runs(links, single):
    quadratic = random_quadratic(8)
    problem = quadratic.single() if single else quadratic.problem()
    faults = [db.faults.drop(0.1, one_way=True)] if LINKS[links].loss else []
    for plan in predicted(LINKS[links], single=single):
        method = plan.make()
        result = db.solve(problem, method, plan.graph, steps=3, metrics=[], faults=faults)
        assert result.status == "completed", plan
        assert all(strategy.local_steps == plan.local_steps for strategy in method.strategies.values())


@pytest.mark.slow  # tests of the network count the bytes of every form
def test_bytes_are_the_ledgers():
    problem = random_quadratic(8).problem(dtype=jnp.float32)
    for plan in plans(8, (3, 4), LINKS["plain"], degree=2):
        cost = db.cost(problem, plan.make(), plan.graph)
        if plan.bits is None:
            assert cost["bytes"] == pytest.approx(plan.bytes / plan.exchanges), plan
        assert cost["rounds"] == plan.rounds * len(db.strategies.strategy(plan.strategy).messages)


# What is recommended.


def best(links, **options):
    return predicted(links, nodes=16, **{"degree": None, **options})[0]


def test_the_time_is_that_of_computing_waiting_and_sending():
    for plan in predicted(Links(1e4, 0.5, slowest=3.0), single=True):
        slow = 1 + 2 / 8 if plan.strategy == "wave" else 3.0
        messages = 2 if plan.strategy in ("gt", "push-pull") else 1
        each = plan.local_steps * 0.1 * slow + plan.rounds * messages * 0.5 + plan.bytes / plan.exchanges / 1e4
        assert plan.seconds == pytest.approx(plan.exchanges * each)


@pytest.mark.slow
def test_what_is_slow_is_avoided():
    assert best(Links(1e12, 1.0), compute=0.0).graph.rho < best(Links(1e3), compute=0.0).graph.rho
    assert best(Links(1e3), compute=0.0).bits == 4
    assert best(Links(1e9), condition=10.0, compute=0.1).local_steps == 1
    assert best(Links(1e9, 1.0), condition=1000.0, compute=1e-3).local_steps > 1
    assert best(Links(1e9, slowest=100.0), compute=1.0).strategy == "wave"


@pytest.mark.slow
def test_more_of_everything_is_never_slower():
    def seconds(**links):
        return best(Links(**links)).seconds

    assert seconds(bandwidth=1e5) >= seconds(bandwidth=1e6) >= seconds(bandwidth=1e7)
    assert seconds(latency=0.1) >= seconds(latency=0.01) >= seconds()
    assert seconds(loss=0.3) >= seconds(loss=0.1) >= seconds()
    assert seconds(slowest=10.0) >= seconds(slowest=2.0) >= seconds()


@pytest.mark.parametrize(
    ("links", "strategies"),
    [
        ("plain", {"ed", "edge-ed", "gt", "wave"}),
        ("loss", {"edge-ed", "wave"}),
        ("one way", {"gt", "push-pull"}),
        ("one way, loss", {"push-pull"}),
    ],
)
def test_only_what_is_exact_on_these_links(links, strategies):
    assert {plan.strategy for plan in predicted(LINKS[links])} == strategies


def test_plans_obey_the_degree():
    for degree in (2, 4):
        assert max(_plans.busiest(plan.graph) for plan in predicted(LINKS["plain"], 12, degree=degree)) <= degree


def test_plans_obey_the_budget():
    found = predicted(LINKS["plain"], bytes_per_step=100)
    assert max(plan.bytes / plan.exchanges / plan.local_steps for plan in found) <= 100
    assert {plan.local_steps for plan in found if plan.bits is None} == {4, 16}  # a vector has 200 bytes
    assert 1 in {plan.local_steps for plan in found if plan.bits == 4}


@pytest.mark.parametrize("nodes", [2, 3])
def test_few_nodes_have_few_graphs(nodes):
    seen = [(plan.strategy, plan.graph, plan.local_steps, plan.bits) for plan in predicted(LINKS["plain"], nodes)]
    assert len(seen) == len(set(seen))


def test_flows_by_link_are_left_out_where_most_messages_are_lost():
    """Runs with 90 % lost took 7 times the exchanges of this factor, and more."""
    assert {plan.strategy for plan in predicted(Links(loss=0.5))} == {"edge-ed", "wave"}
    assert {plan.strategy for plan in predicted(Links(loss=0.6))} == {"wave"}


# The measured factors.


def test_the_factors_are_what_was_measured():
    ratios = [run / model for _, _, _, model, run in MEASURED["exchanges"]]
    assert np.median(ratios) == pytest.approx(_plans.STRETCH, abs=0.05)
    assert min(ratios) / _plans.STRETCH > 0.75 and max(ratios) / _plans.STRETCH < 1.25
    for name, power in _plans.LOST.items():
        assert mean_power("lost", name, 1 / 0.7) == pytest.approx(power, abs=0.06)
    slow = [row["slow"] / row["none"] for row in MEASURED["faults"] if "slow" in row]
    assert all(1.0 < ratio / (1 + 9 / 16) < 1.2 for ratio in slow)  # the mean time of the nodes


def test_the_table_is_what_was_measured():
    page = (DOCS / "evidence" / "networks.md").read_text()
    for case, *_, predicted, measured in MEASURED["exchanges"]:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {case} |")]
        model, run = (f"{float(f'{number:.3g}'):,.0f}" for number in (predicted, measured))
        assert f" {model} | {run} |" in row


def mean_power(column, strategy, factor):
    rows = [row for row in MEASURED["faults"] if row["case"].startswith(f"{strategy},")]
    return np.mean([np.log(row[column] / row["none"]) / np.log(factor) for row in rows])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Links(bandwidth=0), "bandwidth=0 must be positive"),
        (lambda: Links(loss=1.0), "loss=1.0 must be at least 0 and below 1"),
        (lambda: predicted(Links(), condition=0.5), r"condition=0.5 must lie between 1 and 1e\+09"),
        (lambda: predicted(Links(), condition=float("inf")), "condition=inf must lie"),
        (lambda: predicted(Links(), target=0.0), "target=0.0 between 0 and 1"),
        (
            lambda: predicted(Links(loss=0.1, one_way=True), nodes=1000, degree=1),
            "no exact combination on 1000 nodes converges with at most degree=1 neighbours: allow more",
        ),
        (lambda: predicted(Links(loss=0.1), degree=1), "on 8 nodes has at most degree=1 neighbours: allow more"),
        (lambda: predicted(Links(), bytes_per_step=2), "degree=2 neighbours and bytes_per_step=2: allow more"),
        (lambda: plans(4, (0, 3), Links()), r"dimension=\(0, 3\) must be \(p, q\)"),
        (lambda: plans(4, (3,), Links()), r"dimension=\(3,\) must be"),
        (lambda: plans(4, 3, Links()), "dimension=3 must be"),
        (lambda: predicted(Links(), degree=0), "degree=0 must be an integer of at least 1"),
        (lambda: plans(1, (1, 1), Links()), "nodes=1 has no neighbour"),
    ],
)
def test_sentences(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_rounds_pay_on_a_long_ring_and_not_where_the_graph_mixes_well():
    links = Links(1e6, 0.01)

    def order(degree, name):
        """Of the plans of ED in whole numbers and one step on that graph, the rounds, fastest first."""
        found = predicted(links, nodes=100, degree=degree, compute=0.001)
        plain = [plan for plan in found if (plan.strategy, plan.local_steps, plan.bits) == ("ed", 1, None)]
        return [plan.rounds for plan in plain if plan.graph.name in (name, f"accelerated {name}")]

    assert set(order(2, "ring")) == {1, 2, 4, 8, 16}
    assert order(2, "ring")[-1] == 1
    assert order(16, "exponential")[0] == 1
