"""Sites as threads of one process: the simulator's numbers, and what is refused before the first step."""

from __future__ import annotations

import subprocess
import sys

import jax
import numpy as np
import pytest
from quadratics import random_quadratic
from silo_messages import Exponents, Poisoned
from silo_sites import Folders, assert_refused, assert_simulated, in_threads, ring, run_sites

import decibel as db
from decibel.methods._single_level import SingleLevel
from decibel.silo._federation import FaultTolerance
from decibel.strategies import _table as strategies
from decibel.strategies.privacy import _encoded

QUADRATIC = random_quadratic(4, seed=1, spread=2.0)
PAIR = random_quadratic(2).single()


def by_node(nodes_called):
    """The quadratic with data as functions of the node."""
    whole = QUADRATIC.problem()

    def part(data):
        def of(node):
            nodes_called.append(node)
            return jax.tree.map(lambda leaf: leaf[node], data.tree)

        return of

    return db.Problem(
        whole.upper, whole.lower, upper_data=part(whole.upper_data), lower_data=part(whole.lower_data),
        x0=whole.x0, y0=whole.y0,
    )  # fmt: skip


def method(strategy):
    return db.sparkle(strategy, alpha=0.03, beta=0.1, gamma=0.1, updates="simultaneous")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["edge-ed", "wave", "late wave", "wave in 4 bits"])
def test_four_sites_equal_the_simulator(tmp_path, strategy):
    """With data of its own only, over gRPC, with a site that nobody can reach, and a fifth of the messages lost."""
    folders = Folders(tmp_path, ring(4, reachable={0, 2, 3}))
    called = [[] for _ in range(4)]
    faults = [db.faults.drop(0.2, one_way=True), *([db.faults.late((1, 3))] if "late" in strategy else [])]
    options = {"faults": faults, "eval_every": 20}
    chosen = method(db.privacy.quantize("wave", 4) if "bits" in strategy else strategy.removeprefix("late "))
    sites = run_sites(folders, chosen, 40, [by_node(calls) for calls in called], **options)
    assert_simulated(sites, QUADRATIC.problem(), chosen, folders.federation.graph, 40, "xyz", **options)
    for number, site in enumerate(sites):
        assert set(called[number]) == {number} and site.trace["rounds"][-1] == 40
        assert set(site.trace) >= {"upper", "lower"} and "consensus_x" not in site.trace


@pytest.mark.slow_except("edge-ed")
@pytest.mark.parametrize(
    "strategy",
    ["gt", "edge-ed", "ada-ed", db.strategies.ada_ed(scale_every=3), "adam-ed", db.privacy.quantize("ed", 4),
     _encoded("ed", Exponents(), "own code")],
    ids=["gt", "edge-ed", "ada-ed", "ada-ed with short scales", "adam-ed", "ed in 4 bits", "own code"],
)  # fmt: skip
def test_sites_equal_the_simulator(tmp_path, strategy):
    folders = Folders(tmp_path, ring(2))
    problem = random_quadratic(2).single()
    single = SingleLevel(0.1, 1.0, strategies.strategy(strategy))
    options = {"faults": db.faults.drop(0.2, one_way=True)} if strategy == "edge-ed" else {}
    sites = run_sites(folders, single, 30, [problem] * 2, metrics=[], **options)
    assert_simulated(sites, problem, single, folders.federation.graph, 30, **options)


@pytest.mark.slow
def test_sites_with_a_lazy_upper_level_and_a_limit_equal_the_simulator(tmp_path):
    """The first exchange of every step is y's; only some steps have a second one."""
    folders, problem = Folders(tmp_path, ring(2, trust_members=False, flow_limit=100.0)), random_quadratic(2).problem()
    chosen = db.sparkle("edge-ed", alpha=0.03, beta=0.1, gamma=0.1, upper_every=3)
    sites = run_sites(folders, chosen, 8, [problem] * 2, metrics=[])
    assert_simulated(sites, problem, chosen, folders.federation.graph, 8, "xyz")


@pytest.mark.slow
def test_a_site_uses_the_random_keys_and_the_term_of_its_node(tmp_path):
    folders = Folders(tmp_path, ring(2))
    given = random_quadratic(2).single()

    def noisy(x, batch, *, key=None):
        return given.upper(x, batch) + (0.0 if key is None else jax.random.normal(key, x.shape) @ x)

    term = db.prox.per_node([db.prox.ball(0.3), db.prox.l1(0.2)])
    problem, quiet = (
        db.Problem(loss, upper_data=given.upper_data, x0=given.x0, prox_x=term) for loss in (noisy, given.upper)
    )
    single = SingleLevel(0.1, 1.0, strategies.strategy("nids"))
    sites = run_sites(folders, single, 5, [problem] * 2, metrics=[], seed=4)
    expected = assert_simulated(sites, problem, single, folders.federation.graph, 5, seed=4)
    without = db.solve(quiet, single, folders.federation.graph, steps=5, metrics=[], seed=4)
    assert np.abs(expected.nodes.x - without.nodes.x).max(1).min() > 1e-2
    assert np.abs(np.diff(expected.nodes.x, axis=0)).max() > 1e-3


def test_metrics_that_compare_nodes_raise(tmp_path):
    sentence = "'consensus_x' needs the data of other sites"
    assert_refused(tmp_path, ring(2), PAIR, db.ed(alpha=0.1), sentence, metrics=["consensus_x"])


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (db.graphs.complete(4), "federation file does not have"),
        (db.graphs.ring(5), "5 nodes"),
        (db.graphs.one_peer_exponential(4), "links between sites go both ways"),
    ],
)
def test_graphs_that_the_federation_does_not_have_raise(tmp_path, graph, sentence):
    assert_refused(tmp_path, ring(4), random_quadratic(graph.nodes).problem(), method("gt"), sentence, graph=graph)


def test_a_method_that_skips_messages_raises(tmp_path):
    assert_refused(tmp_path, ring(2), PAIR, db.proxskip(alpha=0.1), r"proxskip leaves out messages.*db\.k_gt")


def test_a_site_that_needs_every_message_stops_when_a_neighbour_is_gone(tmp_path):
    """Two sites; one ends early. What must hear everything says so; its checkpoint is what it goes on from."""
    quick = FaultTolerance("continue", beat=0.05, missed=100)
    folders = Folders(tmp_path, ring(2, fault_tolerance=quick))
    problem = random_quadratic(2).single()

    def leave(name):
        return [lambda step, row: step == 4] if name == "site-1" else []

    with pytest.raises(RuntimeError, match=r"site-1.*needs every message"):
        run_sites(folders, db.ed(alpha=0.1), 400, [problem] * 2, callbacks=leave, eval_every=2, metrics=[])


@pytest.mark.filterwarnings("ignore::decibel.NonFiniteWarning")  # here, since filters are common to all threads
@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    ["ed", db.privacy.quantize("ed", 8), _encoded("ed", Exponents(), "own code")],
    ids=["open", "in code", "own code"],
)
def test_sites_that_diverge_stop_by_themselves(tmp_path, strategy):
    """Who has a NaN to send keeps it, and ends as in the simulator; its neighbour does not wait for the deadline."""
    folders, said = Folders(tmp_path, ring(2)), []
    single = SingleLevel(1e6, 1.0, strategies.strategy(strategy))
    problem = random_quadratic(2).single()

    def run(name):
        engine = db.Silo(folders.home(name), name, say=said.append)
        try:
            said.append(db.solve(problem, single, engine.graph, steps=400, engine=engine, metrics=[]).message)
        except RuntimeError as error:
            said.append(str(error))

    in_threads(run, folders.federation.names)
    assert any("non-finite" in sentence for sentence in said), said
    assert not any("deadline" in sentence or "rejected" in sentence for sentence in said)


def test_integers_that_decode_to_infinity_do_not_get_through(tmp_path):
    """Who receives them stops, names who sent them, and neither counts them nor sends anything on."""
    folders, problem = Folders(tmp_path, ring(2)), random_quadratic(2).single()
    results = {}

    def run(name):
        code = Poisoned(largest=254) if name == "site-1" else Exponents()
        made = SingleLevel(0.1, 1.0, _encoded("ed", code, "own code"))
        engine = db.Silo(folders.home(name), name, say=lambda sentence: None)
        try:
            results[name] = db.solve(problem, made, engine.graph, steps=6, engine=engine, metrics=[])
        except RuntimeError as error:
            results[name] = str(error)

    in_threads(run, folders.federation.names)
    assert "site-1 sent a message in step 0 that decodes to a NaN or infinity" in results["site-0"]


@pytest.mark.slow
def test_importing_decibel_does_not_import_grpc():
    script = "import decibel as db, sys; db.Silo; db.privacy; assert not {'grpc', 'cryptography'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, env={"PATH": "/usr/bin", "JAX_PLATFORMS": "cpu"})


@pytest.mark.slow
def test_rounds_of_an_accelerated_graph_are_those_of_the_simulator(tmp_path):
    problem, folders = QUADRATIC.single(), Folders(tmp_path, ring(4))
    graph, method = folders.federation.graph.accelerated(3), db.ed(alpha=0.2)
    sites = run_sites(folders, method, 10, [problem] * 4, graph=graph, metrics=[])
    assert_simulated(sites, problem, method, graph, 10)
    assert sites[0].trace.last["rounds"] == 30
