"""Every row of the table: its flow form, its polynomials and the papers' rules are one recursion."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references

from decibel import graphs
from decibel.core._ledger import Ledger
from decibel.core._vector import Vector
from decibel.graphs._graph import Levels
from decibel.network._communicator import Communicator
from decibel.network._in_memory import InMemory
from decibel.strategies import STRATEGIES, polynomial, strategy

NODES, SIZE, STEPS = 7, 3, 48
# What the network remembers by link is another matter: tests/network/test_faults.py.
EVERY = tuple(name for name, row in STRATEGIES.items() if row.A and not row.needs_links)
CARRYING = [name for name in EVERY if STRATEGIES[name].carries]
RING, STAR = graphs.ring(NODES), graphs.star(NODES)
CHANGING = graphs.cycle(graphs.ring(NODES), graphs.star(NODES), graphs.path(NODES))

rng = np.random.default_rng(1)
START = np.tile(rng.normal(size=SIZE), (NODES, 1))
SLOPES = np.diag(rng.uniform(0.5, 1.5, SIZE))
CENTRES = rng.normal(size=(NODES, SIZE)) * 3
NOISE = rng.normal(size=(STEPS, NODES, SIZE))
RATES = 0.3 / (1.0 + np.arange(STEPS) / 9.0)
RATES[:5] = 0.0  # while directions are zero, nothing moves


def direction(s, k):
    """A heterogeneous gradient with noise and a step size that changes: d = α_k g_k(s)."""
    return RATES[k] * ((s - CENTRES) @ SLOPES + NOISE[k])


@cache
def driven(name, graph):
    return drive(name, graph)


def drive(chosen, graph, *, steps=STEPS, dtype=jnp.float64):
    """The level after every step, and the ledger of one step, through the simulator's own network."""
    row, memory, ledger = strategy(chosen), InMemory.of(Levels(x=graph)), Ledger()
    cast = lambda array: jnp.asarray(array, dtype)  # noqa: E731
    rates, noise = cast(RATES), cast(NOISE)

    def step(level, k):
        network = Communicator(memory, k, (), ledger)
        here = k % STEPS
        moved = rates[here] * ((level.s.tree - cast(CENTRES)) @ cast(SLOPES) + noise[here])
        level = network(x=row(level, Vector(moved), 1.0))
        return level, level

    start = jax.tree.map(jnp.copy, row.start(Vector(cast(START))))
    _, levels = jax.lax.scan(step, start, jnp.arange(steps, dtype=jnp.int32))
    return levels, ledger.step_cost.fixed


def iterates(levels):
    return np.asarray(levels.s.tree)


def follow(level, move):
    """The iterates of a NumPy reference, driven by the same directions."""
    out = []
    for k in range(STEPS):
        move(level, k, direction(level.s, k))
        out.append(level.s)
    return np.stack(out)


def test_the_table_is_the_papers():
    for graph in (RING, graphs.star(NODES), graphs.ring(NODES, weights="metropolis")):
        for name in EVERY:
            row = STRATEGIES[name]
            for coefficients, matrix in zip((row.A, row.B2, row.C), references.table(name, graph.W), strict=True):
                powers = [c * np.linalg.matrix_power(graph.W, k) for k, c in enumerate(coefficients)]
                np.testing.assert_allclose(sum(powers), matrix, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("name", EVERY)
def test_flow_form_is_the_dense_recursion_and_the_printed_rule(name):
    """On an irregular graph."""
    found = iterates(driven(name, STAR)[0])
    dense = follow(references.Dense(name, STAR.W, START), lambda level, k, d: level.move(d))
    printed = follow(references.Printed(name, START), lambda level, k, d: level.move(STAR.W, d))
    assert np.abs(dense).max() > 1.0 and (name == "local" or np.ptp(dense[-1], axis=0).max() > 1e-2)
    np.testing.assert_allclose(found, dense, atol=1e-10)
    np.testing.assert_allclose(found, printed, atol=1e-10)
    np.testing.assert_array_equal(found[:5], np.broadcast_to(START, (5, NODES, SIZE)))


PEERS = graphs.one_peer_exponential(NODES)


@pytest.mark.parametrize(
    ("name", "graph"),
    [("diffusion", CHANGING), ("consensus", PEERS), ("gt", CHANGING), ("semi-gt", PEERS), ("non-gt", CHANGING)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_changing_and_directed_graphs_follow_the_printed_rule(name, graph):
    Ws = [phase.W for phase in graph.phases]
    printed = follow(references.Printed(name, START), lambda level, k, d: level.move(Ws[k % len(Ws)], d))
    np.testing.assert_allclose(iterates(driven(name, graph)[0]), printed, atol=1e-10)


@pytest.mark.parametrize("name", ["extra", "gt"])
def test_the_generic_strategy_equals_the_special_form(name):
    row = STRATEGIES[name]
    generic = polynomial(f"{name} again", row.A, row.B2, row.C)
    assert generic.name == f"{name} again"
    np.testing.assert_allclose(iterates(drive(generic, STAR)[0]), iterates(driven(name, STAR)[0]), atol=1e-10)


def test_an_unpublished_strategy_follows_its_polynomials():
    A, B2, C = (0.25, 0.5, 0.25), (0.5, -0.5), (0.0, 0.5, 0.5)
    W, I = RING.W, np.eye(NODES)
    level = references.Dense("local", W, START)
    level.A, level.B, level.C = (I + W) @ (I + W) / 4, references.square_root((I - W) / 2), (W + W @ W) / 2
    expected = follow(level, lambda level, k, d: level.move(d))
    np.testing.assert_allclose(iterates(drive(polynomial("ours", A, B2, C), RING)[0]), expected, atol=1e-10)


@pytest.mark.parametrize("name", CARRYING)
def test_the_carry_has_mean_zero(name):
    levels, _ = drive(name, CHANGING, dtype=jnp.float32, steps=20 * STEPS)
    c = np.asarray(levels.carry[0].tree, np.float64)
    assert np.abs(c[-1]).max() > 0.1  # there is something to cancel
    rounding = np.finfo(np.float32).eps * np.abs(c).max() * len(c)
    assert np.abs(c.mean(1)).max() < rounding


def test_tracked_means_follow_the_directions():
    """mean(h) = mean(d), also on changing graphs: what non-gt carries besides its flow is h itself."""
    levels, _ = driven("non-gt", CHANGING)
    s = np.concatenate([START[None], iterates(levels)[:-1]])
    d = np.stack([direction(s[k], k) for k in range(STEPS)])
    np.testing.assert_allclose(np.asarray(levels.carry[1].tree).mean(1), d.mean(1), atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_vectors_and_rounds(name):
    _, counts = driven(name, STAR)
    vectors, rounds = references.EXCHANGES[name]
    assert counts["rounds"] == rounds
    assert counts["bytes"] == pytest.approx(vectors * STAR.degrees.mean() * SIZE * 8)


@pytest.mark.parametrize(("wrong", "right"), [("extr", "extra"), ("semigt", "semi-gt"), ("difusion", "diffusion")])
def test_an_unknown_name_gets_the_nearest(wrong, right):
    with pytest.raises(ValueError, match=f"strategy '{wrong}' is not known: did you mean '{right}'"):
        strategy(wrong)


def test_a_name_like_none_gets_the_list():
    with pytest.raises(ValueError, match=f"choose from {', '.join(list(STRATEGIES)[:5])}"):
        strategy("qqq")
