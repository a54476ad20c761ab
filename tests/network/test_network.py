"""Every form of exchange is (W − I) s, chosen by the graph's shape, exact near consensus, sparse on sparse graphs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from decibel import graphs
from decibel.core._ledger import Ledger
from decibel.core._vector import Vector
from decibel.engines._program import RunConfig
from decibel.graphs._graph import Levels
from decibel.network._communicator import Communicator
from decibel.network._in_memory import InMemory
from decibel.network._messages import Cumulative, Plain, Scaled, _scaled_difference, by_kind
from decibel.network._mixing import Average, Dense, Edges, Neighbours, OneWay, Shifts, _difference, mixer


def _random_directed(nodes):
    """A doubly stochastic W that is not symmetric and not circulant."""
    rng = np.random.default_rng(3)
    permutations = [np.eye(nodes)[rng.permutation(nodes)] for _ in range(3)]
    return graphs.from_matrix(0.4 * np.eye(nodes) + sum(0.2 * P for P in permutations))


FORMS = {
    "ring": (graphs.ring(9), Shifts),
    "ring of two": (graphs.ring(2), Shifts),
    "one node": (graphs.complete(1), Shifts),
    "exponential": (graphs.exponential(12), Shifts),
    "directed ring": (graphs.one_peer_exponential(8).phases[1], Shifts),
    "path": (graphs.path(9), Neighbours),
    "torus": (graphs.torus(4, 5), Neighbours),
    "small star": (graphs.star(10), Neighbours),
    "Erdős–Rényi": (graphs.erdos_renyi(20, 0.2), Neighbours),
    "directed": (_random_directed(9), Neighbours),
    "star": (graphs.star(60), Edges),
    "star and path in turn": (graphs.cycle(graphs.star(60), graphs.path(60)), Edges),
    "complete": (graphs.complete(9), Average),
    "lazy complete": (graphs.complete(40).lazy(), Dense),
    "dense": (graphs.erdos_renyi(40, 0.7), Dense),
    "one-peer": (graphs.one_peer_exponential(8), Neighbours),
    "changing": (graphs.cycle(graphs.ring(9), graphs.star(9), graphs.complete(9)), Neighbours),
    "changing dense": (graphs.cycle(graphs.complete(30), graphs.star(30)), Dense),
    "random digraph": (graphs.random_digraph(12, 0.3, seed=1), OneWay),
    "hub": (graphs.directed(nx.star_graph(59).to_directed()), OneWay),
    "many senders": (graphs.random_digraph(40, 0.6, seed=1), OneWay),
    "changing digraph": (
        graphs.cycle(graphs.random_digraph(12, 0.3, seed=1), graphs.random_digraph(12, 0.2, seed=2)),
        OneWay,
    ),
}


@jax.jit
def exchange(form, step, leaf):
    return form.flow(step, leaf), form.push(step, leaf)


def flow(graph, leaf, step=0):
    return exchange(mixer(graph), jnp.asarray(step, jnp.int32), jnp.asarray(leaf))[0]


@pytest.mark.parametrize("name", FORMS)
def test_form_and_flow(name):
    """One-way links are pulled by R and pushed by C; all others by W. Consensus is silent."""
    graph, form = FORMS[name]
    made = mixer(graph)
    assert type(made) is form
    s = np.random.default_rng(0).normal(size=(graph.nodes, 3, 2))
    for step in range(graph.period + 2):
        phase = graph.phases[step % graph.period]
        for matrix, found in zip((phase.R, phase.C), exchange(made, jnp.int32(step), jnp.asarray(s)), strict=True):
            expected = np.einsum("ij,jkl->ikl", matrix - np.eye(graph.nodes), s)
            np.testing.assert_allclose(found, expected, atol=1e-14)
    silent, _ = exchange(made, jnp.int32(0), jnp.full(s.shape, 1 / 3))
    assert np.abs(silent).max() <= (1e-15 if form in (Dense, OneWay) else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ring of two", "exponential", "directed ring"])
def test_rotations_by_slices_and_by_gathers_are_the_same(name):
    """The latter are what a GPU runs."""
    graph, _ = FORMS[name]
    s = jnp.asarray(np.random.default_rng(0).normal(size=(graph.nodes, 3, 2)))
    form, b = mixer(graph), jnp.abs(s[:, :, :1])
    for term, leaves in ((_difference, (s,)), (_scaled_difference, (s, b))):
        np.testing.assert_array_equal(form._sliced(term, *leaves), form._gathered(term, *leaves))


@pytest.mark.slow_except("by entry-changing", "by entry-ring", "one scale-small star")
@pytest.mark.parametrize(
    "name", ["ring", "path", "small star", "star", "complete", "dense", "changing", "changing dense"]
)
@pytest.mark.parametrize("scalar", [False, True], ids=["by entry", "one scale"])
def test_scaled_differences_are_the_same_with_and_without_links(name, scalar):
    """Σ_j w_ij min(b_i, b_j) (φ_j − φ_i) and δ(b), by loops in NumPy, and as messages that may be lost have it."""
    graph, rng = FORMS[name][0], np.random.default_rng(1)
    nodes, levels = graph.nodes, Levels(x=graph)
    φ = {"a": rng.normal(size=(nodes, 3, 2)), "b": rng.normal(size=(nodes, 4))}
    b = rng.uniform(0.1, 2, nodes) if scalar else {key: rng.uniform(0.1, 2, leaf.shape) for key, leaf in φ.items()}
    message = Scaled((Vector(jax.tree.map(jnp.asarray, φ)), Vector(jax.tree.map(jnp.asarray, b))))
    by_link = InMemory.with_links(levels, RunConfig().link_faults(jnp.arange(nodes)))
    networks = InMemory.of(levels), by_link
    exchange = jax.jit(lambda k: [network.exchange(k, 0, {"x": message}, None)[0]["x"] for network in networks])
    for step in range(graph.period):
        (G, δ), (G_links, δ_links) = exchange(jnp.int32(step))
        W = graph.phases[step].W
        for key, leaf in φ.items():
            scale = b.reshape(-1, *(1,) * (leaf.ndim - 1)) if scalar else b[key]
            expected = np.zeros_like(leaf)
            for i in range(nodes):
                for j in range(nodes):
                    expected[i] += W[i, j] * np.minimum(scale[i], scale[j]) * (leaf[j] - leaf[i])
            np.testing.assert_allclose(G.tree[key], expected, atol=1e-13)
            np.testing.assert_allclose(G_links.tree[key], expected, atol=1e-13)
            np.testing.assert_allclose(np.asarray(G.tree[key]).sum(0), 0, atol=1e-12)
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-13), δ, δ_links)


@pytest.mark.parametrize("name", ["ring", "path", "star", "complete", "dense", "changing dense"])
def test_flow_is_exact_near_consensus_in_float32(name):
    """States of a million that differ by a half: a product of raw states keeps no digit of the difference."""
    graph, _ = FORMS[name]
    spread = np.random.default_rng(0).normal(size=(graph.nodes, 5)) * 0.5
    s = np.asarray(1e6 + spread, np.float32)
    W = graph.phases[0].W
    expected = (W - np.eye(graph.nodes)) @ s.astype(np.float64)
    found = flow(graph, s)
    assert found.dtype == jnp.float32
    found = np.asarray(found, np.float64)
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(found.mean(0)).max() < 1e-6
    raw = (W.astype(np.float32) @ s - s).astype(np.float64)
    assert np.abs(raw - expected).max() > 1e-3  # so the bound above says something


def _arrays(graph):
    return [leaf for leaf in jax.tree.leaves(mixer(graph)) if isinstance(leaf, jax.Array)]


def _largest_intermediate(graph, width=1):
    leaf = jax.ShapeDtypeStruct((graph.nodes, width), jnp.float64)
    jaxpr = jax.make_jaxpr(mixer(graph).flow)(jax.ShapeDtypeStruct((), jnp.int32), leaf).jaxpr
    return max(variable.aval.size for eqn in _equations(jaxpr) for variable in eqn.outvars)


LARGE = {
    "star": lambda: graphs.star(2000),
    "ring": lambda: graphs.ring(2000),
    "path": lambda: graphs.path(2000),
    "exponential": lambda: graphs.exponential(2000),
    "complete": lambda: graphs.complete(500),
    "one-peer": lambda: graphs.one_peer_exponential(2000),
    "star and ring in turn": lambda: graphs.cycle(graphs.star(2000), graphs.ring(2000)),
}


@pytest.mark.parametrize("name", LARGE)
def test_nothing_is_nodes_by_nodes(name):
    graph = LARGE[name]()
    entries = 0 if graph.period == 1 and graph.name == "complete" else sum(p.matrix.nnz for p in graph.phases)
    assert sum(leaf.size for leaf in _arrays(graph)) <= 3 * entries + 2 * graph.nodes
    assert _largest_intermediate(graph) <= max(entries, graph.nodes) < graph.nodes**2 // 10


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from _equations(inner)


@pytest.mark.parametrize("name", ["ring", "path", "star", "complete", "dense", "changing dense", "many senders"])
def test_matrix_products_ask_for_the_highest_precision(name):
    graph, _ = FORMS[name]
    step, leaf = jnp.asarray(0, jnp.int32), jnp.zeros((graph.nodes, 4), jnp.float32)
    # Even where the user's default is the accelerator's fastest.
    with jax.default_matmul_precision("bfloat16"):
        equations = _equations(jax.make_jaxpr(mixer(graph).flow)(step, leaf).jaxpr)
        products = [eqn for eqn in equations if eqn.primitive.name == "dot_general"]
        text = exchange.lower(mixer(graph), step, leaf).as_text()
    assert len(products) == (name in ("dense", "changing dense", "many senders"))
    for product in products:
        assert set(np.atleast_1d(product.params["precision"])) == {jax.lax.Precision.HIGHEST}
        assert product.params["preferred_element_type"] in (None, jnp.float32)
    assert ("HIGHEST" in text) == bool(products) and "bf16" not in text


def test_the_network_takes_pytrees_of_any_rank_and_a_graph_per_level():
    graphs_of = Levels(x=graphs.ring(6), y=graphs.star(6), z=graphs.one_peer_exponential(6))
    network = InMemory.of(graphs_of)
    rng = np.random.default_rng(0)
    message = {"scalar": rng.normal(size=6), "deep": [rng.normal(size=(6, 2, 3, 2))]}
    for level in "xyz":
        graph = getattr(graphs_of, level)
        sent = {level: Plain(Vector(jax.tree.map(jnp.asarray, message)))}
        received, kept = jax.jit(lambda k: network.exchange(k, 0, sent, None))(jnp.int32(4))  # noqa: B023
        out = received[level].tree
        assert not jax.tree.leaves(kept)
        W = graph.phases[4 % graph.period].W - np.eye(6)
        np.testing.assert_allclose(out["scalar"], W @ message["scalar"], atol=1e-14)
        np.testing.assert_allclose(out["deep"][0], np.tensordot(W, message["deep"][0], 1), atol=1e-14)
    assert [network.fanout(level).shared_row for level in "xyz"] == [2.0, 10 / 6, 1.0]


def test_levels_move_in_lockstep_and_are_counted_once():
    """Two levels whose messages may travel together take as many rounds as the longer one."""
    ledger, seen = Ledger(), []

    class Observed(InMemory):
        def exchange(self, step, exchange_index, messages, *others, **settings):
            seen.append(tuple(messages))
            return super().exchange(step, exchange_index, messages, *others, **settings)

    def communicator(ledger):
        return Communicator(Observed.of(Levels(x=graphs.ring(4))), jnp.int32(0), (), ledger)

    def move(rounds, s):
        for _ in range(rounds):
            s = s + (yield s)
        return s

    s = Vector(jnp.eye(4))
    x, y = communicator(ledger)(x=move(2, s), y=move(1, s))
    W = graphs.ring(4).W
    np.testing.assert_allclose(x.tree, W @ W, atol=1e-15)
    np.testing.assert_allclose(y.tree, W, atol=1e-15)
    assert seen == [("x", "y"), ("x",)]
    assert ledger.step_cost.fixed["rounds"] == 2 and ledger.step_cost.fixed["bytes"] == 3 * 2 * 4 * 8
    alone = communicator(Ledger())(x=move(0, s))
    assert alone is s


def test_a_network_without_links_carries_plain_messages_only():
    network, one = InMemory.of(Levels(x=graphs.ring(4))), Vector(jnp.eye(4))
    with pytest.raises(ValueError, match=r"InMemory has no links, which such messages need: build it with with_links"):
        network.exchange(jnp.int32(0), 0, {"x": Cumulative(one)}, ())


def test_levels_travel_in_one_order_however_they_are_named():
    one = Vector(jnp.eye(4))
    (together,) = by_kind({"z": Plain(one), "x": Plain(one), "y": Plain(one)})
    assert list(together.content) == ["x", "y", "z"]
