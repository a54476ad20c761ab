"""The codes of wave: messages in code over links that lose, delay and reorder them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.engines._program import RunConfig
from decibel.graphs._graph import Levels
from decibel.methods._single_level import SingleLevel
from decibel.network import _coded_wave
from decibel.network._incidence import slots

NODES, CHUNK = 8, 20  # the steps of a compiled program, which many tests share
QUADRATIC = random_quadratic(NODES, p=20, seed=1, spread=2.0)
SOLUTION = QUADRATIC.single_solution()
RING = db.graphs.ring(NODES)
LATE, LOST = db.faults.late((1, 5)), db.faults.drop(0.3, one_way=True)
HARD = (
    db.faults.late((1, 6), 0.7),
    db.faults.drop(0.4, one_way=True),
    db.faults.slow(2, 4),
    db.faults.pause(5, probability=0.3),
)
CODES = {
    "8 bits": db.privacy.quantize("wave", 8),
    "4 bits": db.privacy.quantize("wave", 4),
    "2 bits": db.privacy.quantize("wave", 2, mixing=0.5),
    "top": db.privacy.top_k("wave", 0.3),
    "few": db.privacy.top_k("wave", 0.1, mixing=0.5),
    "random": db.privacy.random_k("wave", 0.5),
}


def worst(snapshot):
    return jnp.abs(snapshot.state.x.s.tree.astype(float) - SOLUTION).max()


def solve(strategy, faults=None, *, steps=600, alpha=0.1, dtype=jnp.float64, **options):
    method = SingleLevel(alpha, 1.0, db.strategies.strategy(strategy))
    options = {"eval_every": CHUNK, "metrics": [worst]} | options
    return db.solve(QUADRATIC.single(dtype=dtype), method, RING, steps=steps, faults=faults, **options)


def start(strategy, faults):
    method = SingleLevel(0.1, 1.0, db.strategies.strategy(strategy))
    return db.Simulator().start(QUADRATIC.single(), method, Levels(x=RING), RunConfig(faults=faults))


def advance(run, steps):
    for _ in range(steps // CHUNK):
        run.advance(CHUNK)


def transport_state(run):
    return run.state.link_memory[0][0][0].per_link.transport_state


def error(run):
    return np.abs(np.asarray(run.state.x.s.tree) - SOLUTION).max()


def rounds(result, tolerance=1e-8):
    errors = np.asarray(result.trace["worst"])
    assert errors[-1] < tolerance
    return result.trace["step"][np.flatnonzero(errors >= tolerance).max() + 1]


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.3, 0.5])
def test_four_bits_take_the_rounds_of_plain_messages(loss):
    faults = db.faults.drop(loss, one_way=True)
    plain, coded = (solve(name, faults, steps=700, eval_every=10) for name in ("wave", CODES["4 bits"]))
    assert rounds(coded) <= 1.05 * rounds(plain)
    assert coded.trace["bytes"][-1] < plain.trace["bytes"][-1] / 4


CASES = [
    ("4 bits", ()),
    ("4 bits", db.faults.late((1, 20))),  # beyond what is kept without faults
    ("random", LOST),
    *((name, HARD) for name in CODES),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "faults"), CASES)
def test_exact(name, faults):
    steps = 6000 if name == "few" else 4000
    assert solve(CODES[name], faults, steps=steps).trace["worst"][-1] < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("one_way", [False, True])
def test_a_link_that_is_silent_for_100_rounds_recovers(one_way):
    silent = db.faults.drop(links=[(0, 1)], during=(20, 120), one_way=one_way)
    assert solve(CODES["4 bits"], silent).trace["worst"][-1] < 1e-12


@pytest.mark.slow
def test_the_senders_base_is_the_receivers_base_or_candidate_to_the_last_bit():
    run, back, bases = start(CODES["4 bits"], HARD), slots(RING).reverse, set()
    for _ in range(60):
        run.advance(CHUNK)
        sender, receiver, *_ = jax.tree.map(
            lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), transport_state(run)
        )
        receiver = jax.tree.map(lambda leaf: leaf[back], receiver)
        number, base, candidate = sender.numbers[:, 0], receiver.numbers[:, 0], receiver.numbers[:, 1]
        assert ((number == base) | (number == candidate)).all()
        known = np.where((number == base)[:, None], receiver.base, receiver.candidate)
        np.testing.assert_array_equal(sender.base, known)
        bases.update(number.tolist())
    assert len(bases) > 20


@pytest.mark.slow
def test_no_message_is_undecodable_under_reordering(monkeypatch):
    receive, counts = _coded_wave._receive, []

    def counted(receiver, number, *rest):
        found, readable, receiver = receive(receiver, number, *rest)
        jax.debug.callback(lambda *both: counts.append(both), (number > 0).sum(), ((number > 0) & ~readable).sum())
        return found, readable, receiver

    monkeypatch.setattr(_coded_wave, "_receive", counted)
    # A share of its own, so that no program compiled before is taken.
    run = start(db.privacy.top_k("wave", 0.31), HARD)
    run.advance(301)
    jax.effects_barrier()
    arrived, unreadable = np.sum(counts, 0)
    assert len(counts) == 301 and arrived > 500 and unreadable == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["4 bits", "random"])
def test_an_end_that_is_set_back_begins_anew(name):
    """Its neighbours' bases are newer than its own, and it is older than what they acknowledge."""
    run = start(CODES[name], (LOST, LATE))
    advance(run, 60)
    old = jax.tree.map(lambda leaf: np.array(leaf[5]), run.state)
    advance(run, 160)
    run.state = jax.tree.map(lambda leaf, old: leaf.at[5].set(old), run.state, old)
    advance(run, 2500)
    assert error(run) < 1e-10


@pytest.mark.slow
def test_an_end_that_has_lost_all_it_remembered_begins_anew():
    run = start(CODES["4 bits"], (LOST,))
    advance(run, 100)
    run.state = run.state._replace(link_memory=jax.tree.map(lambda leaf: leaf.at[5].set(0), run.state.link_memory))
    advance(run, 1500)
    assert error(run) < 1e-10


@pytest.mark.slow
def test_a_node_leaves_and_returns():
    away = [db.faults.leave(3, during=(100, 500)), LOST]
    assert solve(CODES["4 bits"], away, steps=3000).trace["worst"][-1] < 1e-10
    assert solve(CODES["4 bits"], away, steps=500).trace["worst"][-1] > 1e-2


@pytest.mark.slow
def test_three_levels_in_four_bits():
    quadratic = random_quadratic(NODES, seed=1, spread=2.0)
    method = db.sparkle(CODES["4 bits"], alpha=0.03, beta=0.1, gamma=0.1)
    result = db.solve(quadratic.problem(), method, RING, steps=2500, faults=[LOST], metrics=[], eval_every=2500)
    assert np.abs(np.asarray(result.nodes.x) - quadratic.solution()).max() < 1e-10


@pytest.mark.slow
def test_float32_stays_at_rounding():
    """Bases are sums of so many codes; both ends add the same numbers, so that nothing accumulates."""
    result = solve(CODES["4 bits"], LOST, steps=50_000, eval_every=1000, dtype=jnp.float32)
    errors = np.asarray(result.trace["worst"])
    assert errors[5:].max() < 1e-5


def test_bytes_are_those_of_the_message_and_its_header():
    method = SingleLevel(0.1, 1.0, CODES["4 bits"])
    assert db.cost(QUADRATIC.single(), method, RING)["bytes"] == 2 * (3 * 4 + 8 + 20 // 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: db.privacy.noisy("wave", clip=1.0, noise=1.0), "noise cannot be added to 'wave'"),
        (lambda: db.privacy.quantize(CODES["4 bits"], 4), "is encoded already"),
        (lambda: solve(db.privacy.quantize("ed", 4), LOST, steps=1), "except for the strategy 'wave'"),
    ],
)
def test_what_cannot_be_raises(make, message):
    with pytest.raises(ValueError, match=message):
        make()
