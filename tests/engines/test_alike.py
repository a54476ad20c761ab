"""A run computes the same numbers on several devices, and some nodes at a time, as on one device at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from quadratics import random_quadratic
from streamed import lower, samples, upper
from streamed import problem as problem_of

import decibel as db
from decibel.methods._single_level import SingleLevel
from decibel.network._incidence import slots
from decibel.network._links import migrate_links

NODES, DEVICES = 8, 4
RATES = {"alpha": 0.03, "beta": 0.1, "gamma": 0.1}
QUADRATIC = random_quadratic(NODES, seed=3, spread=2.0)
SHARED, SINGLE = QUADRATIC.problem(samples=3), QUADRATIC.single()
PERSONAL = QUADRATIC.problem(personal=True, samples=3)
COUNTS = (3, 5, 4, 6, 3, 3, 7, 4)
TREES = samples(COUNTS)
UNEQUAL = problem_of(TREES)
RING, STAR, RANDOM = db.graphs.ring(NODES), db.graphs.star(NODES), db.graphs.erdos_renyi(NODES, 0.4, seed=1)
HUBS = db.graphs.from_networkx(nx.Graph([*((0, j) for j in range(1, 8)), *((6, j) for j in (1, 2, 3))]))
DIGRAPH = db.graphs.random_digraph(NODES, 0.3, seed=1)
LOST, LATE = db.faults.drop(0.3, one_way=True), db.faults.late(2, 0.3)
AWAY = db.faults.drop(0.2), db.faults.leave(5, during=(4, 9))
HARD = db.faults.late((1, 6), 0.7), LOST, db.faults.slow(2, 4), db.faults.pause(5, probability=0.3)
BOXES = [db.prox.l1(0.3), None, db.prox.box(-0.1), db.prox.box(-0.2, 0.3), None, db.prox.l1(0.3), None, db.prox.box(-1)]


def noisy(x, y, batch, *, key=None):
    """A loss that uses random numbers."""
    return lower(x, y, batch) + (0.0 if key is None else jax.random.normal(key, y.shape) @ y)


def keyed(counts):
    data = samples(counts)
    return db.Problem(upper, noisy, upper_data=data, lower_data=data, x0=jnp.zeros(3), y0=jnp.zeros(3))


class Case(NamedTuple):
    method: db.Method
    problem: db.Problem = SHARED
    graph: Any = RING
    options: dict[str, Any] | None = None


def single(strategy, graph=RING, *faults, problem=SINGLE):
    return Case(SingleLevel(0.1, 1.0, db.strategies.strategy(strategy)), problem, graph, {"faults": faults})


def sparkle(lower, upper=None, *arguments, **options):
    return Case(db.sparkle(lower, upper, **RATES, **options), *arguments)


ED, LOOPS = db.sparkle("ed", **RATES), db.ma_dsbo(lower_steps=3, auxiliary_steps=2, theta=0.5, **RATES)
BATCHES = {"drawn": {"batch_size": 2}, "in order": {"batch_size": 2, "sampling": "shuffle-once"}, "all": {}}
OF_NETWORKS = {
    "faults": sparkle("edge-ed", "gt", SHARED, RANDOM, {"faults": [LOST, LATE, *AWAY]}),
    "faults on a graph per level": sparkle("gt", None, SHARED, db.Levels(x=RANDOM, y=RING), {"faults": [*AWAY, LATE]}),
    "star": single("edge-ed", STAR, db.faults.drop(0.3), LATE),
    "hubs": single("edge-ed", HUBS, db.faults.drop(0.3), LATE),
    "hubs in code": single(db.privacy.top_k("ed", 0.5), HUBS),
    "changing": single("gt", db.graphs.cycle(RING, STAR), db.faults.drop(0.3), LATE),
    "limited edge-ed on hubs": single(db.strategies.edge_ed(0.5), HUBS, LOST),
    "limited wave on hubs": single(db.strategies.wave(0.5), HUBS, LOST),
    "wave in 4 bits": single(db.privacy.quantize("wave", 4), RING, *HARD),
    "wave of the largest": single(db.privacy.top_k("wave", 0.3), RING, *HARD),
    "wave of random entries": single(db.privacy.random_k("wave", 0.5), RING, *HARD),
    "4 bits": single(db.privacy.quantize("gt", 4)),
    "noise": single(db.privacy.noisy("ed", 1.0, 0.1)),
    "push-sum": sparkle("push-sum", "push-pull", SHARED, DIGRAPH),
    "push-sum under faults": sparkle(
        "push-sum",
        "push-pull",
        SHARED,
        DIGRAPH,
        {"faults": [LOST, db.faults.late((1, 3), 0.3), db.faults.pause(probability=0.2)]},
    ),
    "push-pull on a changing graph": sparkle(
        "push-pull", None, SHARED, db.graphs.cycle(DIGRAPH, db.graphs.random_digraph(NODES, 0.4, seed=2))
    ),
    "terms by node": single(
        "nids",
        RING,
        db.faults.drop(0.2),
        problem=db.Problem(SINGLE.upper, upper_data=SINGLE.upper_data, x0=SINGLE.x0, prox_x=db.prox.per_node(BOXES)),
    ),
}
OF_ORACLES = {
    "differences": sparkle(
        "ed", None, SHARED, RING, {"batch_size": 2}, hypergradient=db.hypergradient.difference(1e-3)
    ),
    "penalty": sparkle("ed", hypergradient=db.hypergradient.penalty(10.0, central=True)),
    "matrices": Case(db.gossip_dsbo(alpha=0.02, beta=0.1, theta=0.1, terms=3, smoothness=4.0, convexity=0.5)),
    "personal": Case(db.gt_dsgd(alpha=0.05, beta=0.1, hypergradient=db.hypergradient.cg(4)), PERSONAL),
    "records": sparkle("gt", None, SHARED, RING, {"privacy": db.privacy.records(0.7, 2.0)}),
    "unequal nodes as functions": Case(ED, problem_of(lambda node: TREES[node], lambda node: TREES[-1 - node])),
    "keys": Case(ED, keyed((6,) * NODES), options={"batch_size": 3}),
    "keys of unequal nodes": Case(ED, keyed(COUNTS)),
    **{
        f"unequal nodes, {batches}, {loop}": Case(method, UNEQUAL, options=options)
        for batches, options in BATCHES.items()
        for loop, method in {"one draw": ED, "loops": LOOPS}.items()
    },
}
CASES = OF_NETWORKS | OF_ORACLES
ENGINES = {"cluster": db.Cluster(devices=DEVICES), "chunks": db.Simulator(node_chunk=3)}


def states(case, engine, devices):
    """The state, with what links remember as it lies on one device; and what the run cost."""
    options = {"steps": 12, "eval_every": 12, "metrics": [], **(case.options or {})}
    result = db.solve(case.problem, case.method, case.graph, engine=engine, **options)
    graphs = case.graph if isinstance(case.graph, db.Levels) else db.Levels(x=case.graph)
    links = migrate_links(result.state.link_memory, graphs, devices, 1)
    costs = [result.trace.last[name] for name in ("samples", "gradients", "hvps", "jvps", "rounds")]
    return jax.tree.leaves(result.state._replace(link_memory=links)), costs


@pytest.mark.filterwarnings("ignore::decibel.DelayWarning")
@pytest.mark.slow_except("push-sum-cluster", "unequal nodes, drawn, one draw-chunks")
@pytest.mark.parametrize(
    ("name", "engine"), [*((name, "cluster") for name in CASES), *((name, "chunks") for name in OF_ORACLES)]
)
def test_every_engine_gives_the_simulators_numbers(name, engine):
    case = CASES[name]
    here, costs = states(case, db.Simulator(), 1)
    there, other_costs = states(case, ENGINES[engine], DEVICES if engine == "cluster" else 1)
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)
    assert other_costs == pytest.approx(costs, rel=1e-6)


def test_hubs_have_more_links_than_slots():
    assert slots(HUBS, DEVICES).overflow is not None and slots(STAR, DEVICES).overflow is not None
