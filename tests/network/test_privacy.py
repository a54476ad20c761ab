"""Messages in code: what travels, what arrives, what stays exact, and what noise hides."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.methods._single_level import SingleLevel
from decibel.network._codecs import Code
from decibel.network._links import Channel
from decibel.strategies._table import STRATEGIES, no_flow_form, strategy

NODES, CHUNK = 8, 100  # the steps of a compiled program, which tests share
QUADRATIC = random_quadratic(NODES, p=20, seed=1, spread=2.0)
RING = db.graphs.ring(NODES)
KEYS = jax.random.key(0), jax.random.key(1)
CODES = {
    "top": lambda base: db.privacy.top_k(base, 0.3, mixing=0.5),
    "random": lambda base: db.privacy.random_k(base, 0.5, mixing=0.3),
    "8 bits": lambda base: db.privacy.quantize(base, 8),
    "4 bits": lambda base: db.privacy.quantize(base, 4),
    "2 bits": lambda base: db.privacy.quantize(base, 2, mixing=0.3),
}


def solve(base, steps=3000, **options):
    options = {"eval_every": min(steps, CHUNK), "metrics": []} | options
    method = SingleLevel(0.1, 1.0, strategy(base))
    return db.solve(QUADRATIC.single(), method, options.pop("graph", RING), steps=steps, **options)


def cost(base):
    return db.cost(QUADRATIC.single(), SingleLevel(0.1, 1.0, strategy(base)), RING)


def code(made):
    return made.flow_form.code


@pytest.mark.slow_except("top-ed", "4 bits-gt")
@pytest.mark.parametrize(("name", "base"), [*((name, "ed") for name in CODES), ("4 bits", "gt")])
def test_what_was_exact_stays_exact(name, base):
    found = solve(CODES[name](base))
    np.testing.assert_allclose(found.nodes.x, np.tile(QUADRATIC.single_solution(), (NODES, 1)), atol=1e-9)


@pytest.mark.parametrize("name", CODES)
def test_bytes_are_those_of_the_message_with_its_floats_at_the_front(name):
    made, new = code(CODES[name]("ed")), np.linspace(-3.0, 4.0, 20)
    row = np.asarray(jax.jit(made.encode)(jnp.asarray(new), *KEYS))
    assert row.dtype == np.uint8 and row.size == made.bytes(20, np.float64)
    assert cost(CODES[name]("ed"))["bytes"] == 2 * row.size < cost("ed")["bytes"]
    floats = np.frombuffer(row[: made.float_bytes(20, np.float64)].tobytes())
    assert floats.size and np.isin(np.abs(floats), np.abs(new)).all()


@pytest.mark.slow_except("top-7-float64", "random-7-float32", "2 bits-7-float32")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("entries", [1, 7, 70_000])
@pytest.mark.parametrize("name", CODES)
def test_read_as_written(name, entries, dtype):
    """What arrives is the part that was sent, and is never further from the message than nothing would be."""
    made = code(CODES[name]("ed"))
    new = jax.random.normal(jax.random.key(entries), (entries,), dtype)
    read = jax.jit(lambda new: made.decode(made.encode(new, *KEYS), KEYS[0], entries, dtype))
    arrived = read(new)
    assert arrived.shape == new.shape and arrived.dtype == new.dtype
    assert jnp.linalg.norm(new - arrived) <= jnp.linalg.norm(new) * (1 + 1e-6)
    if "bits" in name:
        step = np.abs(new).max() / (2 ** (made.bits - 1) - 1)
        assert np.abs(arrived - new).max() <= step / 2 * (1 + 1e-5)
    else:
        sent = arrived != 0
        assert int(sent.sum()) == int(np.ceil(made.share * entries)) and jnp.array_equal(arrived[sent], new[sent])
    if name == "top":
        assert np.abs(new[sent]).min() >= np.abs(jnp.where(sent, 0, new)).max()
    assert not np.asarray(read(jnp.zeros(entries, dtype))).any()


@pytest.mark.slow
def test_on_a_changing_graph_all_who_hold_a_copy_hear_every_message():
    """Where a phase lacks a link, its ends keep their copies of each other up to date."""
    changing = db.graphs.cycle(RING, db.graphs.star(NODES))
    made = CODES["top"]("ed")
    simulated = solve(made, steps=20, graph=changing)
    spread = solve(made, steps=20, graph=changing, engine=db.Cluster(devices=8))
    np.testing.assert_allclose(simulated.nodes.x, spread.nodes.x, atol=1e-12)
    assert spread.trace["bytes"][-1] == simulated.trace["bytes"][-1]
    links = 2 * (NODES + NODES - 3)  # of the ring, and of the star beside it
    assert simulated.trace["bytes"][-1] == pytest.approx(20 * links / NODES * code(made).bytes(20, np.float64))


def test_levels_in_code_and_in_the_open():
    method = db.sparkle(CODES["4 bits"]("ed"), "gt", alpha=0.03, beta=0.1, gamma=0.1, updates="simultaneous")
    options = {"steps": 4000, "eval_every": CHUNK, "metrics": []}
    found = db.solve(QUADRATIC.problem(), method, RING, **options)
    np.testing.assert_allclose(found.x, QUADRATIC.solution(), atol=1e-9)


def test_a_code_must_say_where_its_floats_are():
    class Silent(Code):
        mixing: float = 1.0

        def bytes(self, entries, dtype):
            return entries

        def encode(self, new, key, secret):
            return new.astype(jnp.uint8)

        def decode(self, row, key, entries, dtype):
            return row.astype(dtype)

    with pytest.raises(TypeError, match="float_bytes"):
        Silent()


def test_flows_in_code_cancel():
    """The mean over nodes of a carry stays zero in every code, since ends of a link use the same public copies."""
    for name in ("top", "2 bits"):
        carry = solve(CODES[name]("ed"), steps=200).state.x.carry[0]
        assert np.abs(carry.tree).max() > 0.01 and np.abs(carry.mean()).max() < 1e-13


class TestNoise:
    def test_what_is_sent_is_cut_and_noisy(self):
        made = code(db.privacy.noisy("ed", clip=2.0, noise=0.5))
        secrets = jax.random.split(jax.random.key(0), 200)

        @jax.jit
        def arrived(new):
            decoded = lambda key: made.decode(made.encode(new, KEYS[0], key), KEYS[0], 1000, new.dtype)  # noqa: E731
            return jax.vmap(decoded)(secrets)

        def send(entry):
            return np.asarray(arrived(np.full(1000, entry)))

        noise = send(0.0)
        assert abs(noise.std() - 1.0) < 0.01
        large = send(5.0) - noise
        norms, step = np.linalg.norm(large, axis=1), made.grid(1000).step
        assert (norms < 2.0 + 1e-12).all() and (norms > 2.0 - np.sqrt(1000) * step).all()
        small = send(0.01) - noise
        np.testing.assert_allclose(small, np.floor(0.01 / step) * step, atol=1e-12)

    @pytest.mark.slow
    def test_noise_is_new_in_every_step_and_node(self):
        flat = db.Problem(lambda x, batch: 0.0 * x.sum(), upper_data=np.zeros((NODES, 1)), x0=jnp.zeros(50))
        method = SingleLevel(0.1, 1.0, db.privacy.noisy("consensus", 1.0, 1.0))
        moves = [db.solve(flat, method, RING, steps=k, metrics=[]).nodes.x for k in (1, 2)]
        steps = np.concatenate([moves[0], moves[1] - moves[0]])
        alike = np.corrcoef(steps) - np.eye(2 * NODES)
        assert np.abs(alike[0, NODES + 3]) < 0.5 and np.abs(steps).min(1).max() < np.abs(steps).max()
        assert len({row.tobytes() for row in steps}) == 2 * NODES

    @pytest.mark.slow
    @pytest.mark.parametrize("apart", ["graph", "code", "level"])
    def test_noise_is_new_in_every_level_of_one_exchange(self, apart):
        """Two levels that send in one exchange: on two graphs, in two codes of one graph, or together."""
        flat = lambda batch, *vectors: 0.0 * sum(v.sum() for v in vectors)  # noqa: E731
        problem = db.Problem(
            lambda x, y, batch: flat(batch, x, y),
            lambda x, y, batch: flat(batch, x, y) + 0.0 * (y**2).sum(),
            upper_data=np.zeros((NODES, 1)),
            lower_data=np.zeros((NODES, 1)),
            x0=jnp.zeros(50),
            y0=jnp.zeros(50),
        )
        first = db.privacy.noisy("consensus", 1.0, 1.0)
        second = db.privacy.noisy("consensus", 2.0, 1.0) if apart == "code" else first
        method = db.sparkle(first, second, alpha=0.0, beta=0.0, gamma=0.0, updates="simultaneous")
        graph = db.Levels(x=RING, y=db.graphs.ring(NODES, weights="metropolis")) if apart == "graph" else RING
        found = db.solve(problem, method, graph, steps=1, metrics=[])
        x, y = (np.asarray(level).ravel() for level in (found.nodes.x, found.nodes.y))
        assert np.abs(x).max() > 0.1 and np.abs(y).max() > 0.1
        assert abs(np.corrcoef(x, y)[0, 1]) < 0.25  # 400 entries: five deviations

    def test_a_step_that_would_draw_the_same_noise_twice_raises_when_it_is_traced(self, monkeypatch):
        strategies = [db.privacy.noisy("ed", clip, 1.0) for clip in (1.0, 2.0)]
        method = db.sparkle(*strategies, alpha=0.1, beta=0.1, gamma=0.1, updates="simultaneous")
        db.cost(QUADRATIC.problem(), method, RING)
        monkeypatch.setattr(
            Channel, "reserve", lambda channel, part: channel.noise_keys.reserve(channel.exchange_index, part)
        )
        with pytest.raises(ValueError, match="two messages of one step would draw the same noise"):
            db.cost(QUADRATIC.problem(), method, RING)

    def test_a_random_code_inside_a_loop_raises(self):
        method = db.c2dfb(alpha=0.1, beta=0.1, gamma=0.1, share=0.5)
        flow_form = replace(method.inner.flow_form, code=code(db.privacy.noisy("ed", 1.0, 1.0)))
        with pytest.raises(ValueError, match=r"repeats exchanges.*same noise again"):
            db.cost(QUADRATIC.problem(), replace(method, inner=replace(method.inner, flow_form=flow_form)), RING)

    @pytest.mark.parametrize(
        ("noise", "messages", "delta", "expected"),
        # Of dp-accounting 0.6.0: by privacy loss distributions, for continuous noise, and by Rényi orders, which hold
        # for discrete noise, too; ours is the best order of all, so that it lies between.
        [
            (2, 1, 1e-5, (4.377178, 4.728567)),
            (20, 100, 1e-5, (4.377178, 4.728567)),
            (10, 400, 1e-6, (26.356963, 27.812035)),
            (100, 1000, 1e-5, (2.594383, 2.813718)),
        ],
    )
    def test_epsilon_is_that_of_a_known_accountant(self, noise, messages, delta, expected):
        found = db.privacy.epsilon(noise, messages, delta)
        assert expected[0] < found <= expected[1] and found > expected[1] - 2e-4
        assert abs(db.privacy.noise_for(found, messages, delta) / noise - 1) < 1e-6

    def test_epsilon_at_its_ends(self):
        assert db.privacy.epsilon(1.0, 0) == 0 and db.privacy.epsilon(1e9, 1) == 0
        values = [db.privacy.epsilon(noise, 100) for noise in (0.1, 1.0, 10.0, 100.0)]
        assert values == sorted(values, reverse=True) and np.isfinite(values).all()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: db.privacy.top_k("ed", 0), "share=0"),
        (lambda: db.privacy.random_k("ed", 1.5), "share=1.5"),
        (lambda: db.privacy.quantize("ed", 3), "2, 4 or 8"),
        (lambda: db.privacy.noisy("ed", 0, 1), "clip=0"),
        (lambda: db.privacy.noisy("ed", 1, float("nan")), "noise=nan"),
        (lambda: db.privacy.top_k("edge-ed", 0.1), "'edge-ed' sends cumulative flows"),
        (lambda: db.privacy.top_k("local", 0.1), "no message"),
        (lambda: db.privacy.top_k(db.privacy.top_k("ed", 0.5), 0.1), "is encoded already"),
        (lambda: db.privacy.top_k("ed", 0.1, mixing=0), "mixing=0"),
        *(
            (lambda make=make, value=value: make(value), rf"{name}={value!r} must be.*: give")
            for name, make in {
                "clip": lambda value: db.privacy.noisy("ed", value, 1.0),
                "noise": lambda value: db.privacy.noisy("ed", 1.0, value),
                "noise ": lambda value: db.privacy.epsilon(value, 10),
                "messages": lambda value: db.privacy.epsilon(1.0, value),
                "delta": lambda value: db.privacy.epsilon(1.0, 10, value),
                "ε": lambda value: db.privacy.noise_for(value, 10),
                "messages ": lambda value: db.privacy.noise_for(1.0, value),
                "delta ": lambda value: db.privacy.noise_for(1.0, 10, value),
            }.items()
            for name in (name.strip(),)
            for value in (-1, float("nan"), True)
        ),
        (lambda: db.privacy.epsilon(1.0, 2.5), "messages=2.5"),
        (lambda: db.privacy.noise_for(1.0, 0), "messages=0"),
        (lambda: db.privacy.epsilon(1.0, 5, delta=1), "delta=1 must be between 0 and 1"),
        (lambda: db.privacy.noisy("ed", 1, 1e-7), "noise=1e-07 must be at least 1e-06"),
        (lambda: solve(db.privacy.top_k("ed", 0.1), faults=db.faults.drop(0.1)), "faults cannot be combined"),
    ],
)
def test_raises_in_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.slow
def test_every_other_strategy_can_be_wrapped():
    for name, row in STRATEGIES.items():
        if row.flow_form is no_flow_form or row.pushes:
            with pytest.raises(ValueError, match="cannot be"):
                db.privacy.quantize(name, 8)
        elif row.communicates and not row.needs_links:
            made = db.privacy.quantize(name, 8)
            assert made.coded and made.carries == row.carries and name in made.name
            assert cost(made)["rounds"] == cost(name)["rounds"] and cost(made)["bytes"] < cost(name)["bytes"]
