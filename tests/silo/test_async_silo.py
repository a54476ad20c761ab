"""Sites without a common clock over gRPC: the exact solution without a barrier, and the simulator's step."""

from __future__ import annotations

import time
from collections import deque

import jax
import numpy as np
import pytest
from quadratics import random_quadratic
from silo_sites import Folders, assert_refused, ring, run_sites

import decibel as db
from decibel.network._links import LinkStatus
from decibel.silo._federation import StopRule
from decibel.silo.protocol import _async_edge

RATES = {"alpha": 0.03, "beta": 0.1, "gamma": 0.1}


class InStep(db.Silo):
    """A site that is given its neighbours' messages of the same step, though nothing in the product waits for them."""

    def start(self, *arguments, **options):
        run = super().start(*arguments, **options)
        site, came = run.site, {}

        def keep(number, receive):
            def kept(data, *rest):
                receive(data, *rest)
                came[number, data.at.exchange, data.at.step] = data.tensor

            return kept

        def every(edge):  # none is left out for a newer one
            def send(exchange):
                step, frame = edge._posted[exchange]
                edge._last_sent[exchange], edge._on_the_way[exchange] = step, deque()
                if edge.stream:
                    edge.stream.send(frame)

            return send

        for number, edge in site.edges.items():
            edge.receive, edge._send = keep(number, edge.receive), every(edge)

        def collect(place, out):
            arrived, received, states = out
            arrived[...], received[...], states[...] = 0, False, LinkStatus.CONTINUE
            with site.lock:
                for slot, other in enumerate(site.neighbour_of_slot[place]):
                    if other >= 0:
                        at = (other, place, site._position.step)
                        assert site.lock.wait_for(lambda: at in came, 60)  # noqa: B023
                        arrived[slot], received[slot] = came[at], True

        site.collect = collect
        return run


class Paced(db.Silo):
    """A site that leaves the others time, all being threads of one process."""

    def start(self, *arguments, **options):
        run = super().start(*arguments, **options)
        begin = run.site.begin_step

        def paced(step):
            time.sleep(0.003)
            return begin(step)

        run.site.begin_step = paced
        return run


@pytest.mark.slow_except("one level")
@pytest.mark.parametrize("updates", ["one level", "local steps", "simultaneous", "alternating"])
def test_with_messages_of_the_same_step_it_is_the_simulator(tmp_path, monkeypatch, updates):
    """What is sent before a step is what the step would send, on one level or on all three."""
    monkeypatch.setattr(db, "Silo", InStep)
    monkeypatch.setattr(_async_edge, "NEWEST_PER_SECOND", 1e12)  # all are sent, however quick the steps
    quadratic = random_quadratic(2, seed=1, spread=2.0)
    problem, method, levels = quadratic.single(), db.wave(alpha=0.2), "x"
    if updates == "local steps":
        problem, method, levels = quadratic.problem(), db.sparkle("wave", local_steps=3, **RATES), "xyz"
    elif updates != "one level":
        problem, method, levels = quadratic.problem(), db.sparkle("wave", updates=updates, **RATES), "xyz"
    folders = Folders(tmp_path, ring(2, asynchronous=True))
    sites = run_sites(folders, method, 25, [problem] * 2, metrics=[], eval_every=10)
    expected = db.solve(problem, method, folders.federation.graph, steps=25, metrics=[])
    for number, site in enumerate(sites):
        for level in levels:
            found, wanted = getattr(site.nodes, level)[0], getattr(expected.nodes, level)[number]
            np.testing.assert_allclose(found, wanted, atol=1e-12)


def at_the_end(sites):
    assert all(site.status == "stopped" and "at rest" in site.message for site in sites)
    return np.stack([np.asarray(site.x) for site in sites])


def test_two_sites_find_the_exact_solution_without_a_barrier_and_end_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(db, "Silo", Paced)
    problem = random_quadratic(2, seed=1, spread=2.0).single()
    folders = Folders(tmp_path, ring(2, asynchronous=True, stop=StopRule(1e-11, 0.3)))
    x = at_the_end(run_sites(folders, db.wave(alpha=0.2), 100_000, [problem] * 2, metrics=[], eval_every=200))
    exact = db.solve(problem, db.extra(alpha=0.2), folders.federation.graph, steps=1500, metrics=[]).x
    np.testing.assert_allclose(x, np.tile(exact, (2, 1)), atol=1e-8)


@pytest.mark.slow
def test_with_batches_they_end_by_averages(tmp_path, monkeypatch):
    """Close to where they are with all samples: batches of a linear gradient are right on average."""
    monkeypatch.setattr(db, "Silo", Paced)
    samples = np.random.default_rng(3).normal(size=(2, 40, 4)) + np.arange(2.0)[:, None, None]
    problem = db.Problem(lambda x, batch: 0.5 * ((x - batch) ** 2).sum(-1).mean(), upper_data=samples, x0=np.zeros(4))
    folders = Folders(tmp_path, ring(2, asynchronous=True, stop=StopRule(0.1, 1.0, average=150)))
    options = {"metrics": [], "eval_every": 200, "batch_size": 4}
    x = at_the_end(run_sites(folders, db.wave(alpha=0.05), 100_000, [problem] * 2, **options))
    np.testing.assert_allclose(x, np.tile(samples.mean((0, 1)), (2, 1)), atol=0.5)


class Lossy(Paced):
    """A site at which three of ten messages never arrive."""

    def start(self, *arguments, **options):
        run, rng = super().start(*arguments, **options), np.random.default_rng(int(self.name[-1]))

        def losing(receive):
            return lambda *given: None if rng.random() < 0.3 else receive(*given)

        for edge in run.site.edges.values():
            edge.receive = losing(edge.receive)
        return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        db.privacy.quantize("wave", 4),
        db.privacy.top_k("wave", 0.4),
        db.privacy.random_k("wave", 0.6),
    ],
    ids=["4 bits", "top", "random"],
)
def test_messages_in_code_find_it_too_where_messages_are_lost(tmp_path, monkeypatch, code):
    monkeypatch.setattr(db, "Silo", Lossy)
    problem = random_quadratic(2, seed=1, spread=2.0).single()
    folders = Folders(tmp_path, ring(2, asynchronous=True, stop=StopRule(1e-11, 0.3)))
    method = db.wave(alpha=0.2).with_strategies(lambda one: code)
    sites = run_sites(folders, method, 100_000, [problem] * 2, metrics=[], eval_every=200)
    exact = db.solve(problem, db.extra(alpha=0.2), folders.federation.graph, steps=1500, metrics=[]).x
    np.testing.assert_allclose(at_the_end(sites), np.tile(exact, (2, 1)), atol=1e-8)


@pytest.mark.slow
def test_what_comes_while_a_site_computes_is_used_in_the_same_step(tmp_path, monkeypatch):
    """It sends before it computes, and looks for messages after."""
    events = {}

    class Noted(db.Silo):
        def start(self, *arguments, **options):
            run = super().start(*arguments, **options)
            site, own = run.site, events.setdefault(run.site.number, [])

            def noted(name, call):
                return lambda *given: (own.append(name), call(*given))[1]

            for name in ("post", "begin", "collect"):
                setattr(site, name, noted(name, getattr(site, name)))
            return run

    @jax.custom_vjp
    def differentiated(x, number):
        return x

    def note(gradient, number):
        events.setdefault(int(number), []).append("gradient")
        return gradient

    def backward(number, gradient):
        like = jax.ShapeDtypeStruct(gradient.shape, gradient.dtype)
        return jax.pure_callback(note, like, gradient, number, vmap_method="sequential"), None

    differentiated.defvjp(lambda x, number: (x, number), backward)

    def loss(x, batch):
        return 0.5 * ((differentiated(x, batch[0, 0]) - batch) ** 2).sum(-1).mean()

    monkeypatch.setattr(db, "Silo", Noted)
    problem = db.Problem(loss, upper_data=np.arange(2.0)[:, None, None] * np.ones((2, 1, 3)), x0=np.zeros(3))
    run_sites(Folders(tmp_path, ring(2, asynchronous=True)), db.wave(alpha=0.2), 6, [problem] * 2, metrics=[])
    for own in events.values():
        steps = own[own.index("post") :]
        assert steps[:24] == ["post", "begin", "gradient", "collect"] * 6


class TestWhatRaises:
    @pytest.mark.parametrize(
        ("method", "options", "sentence"),
        [
            (db.ed(alpha=0.1), {}, "ed needs the messages of every step.*choose 'wave' for every level"),
            (db.wave(alpha=0.1), {"faults": db.faults.drop(0.1)}, "asynchronous sites have none: leave out faults"),
            (db.wave(alpha=0.1), {"batch_size": 1}, "steps of batches or with noise never rest"),
        ],
    )
    def test_before_the_first_step(self, tmp_path, method, options, sentence):
        federation = ring(2, asynchronous=True, stop=StopRule(1e-6))
        assert_refused(tmp_path, federation, random_quadratic(2).single(), method, sentence, **options)

    @pytest.mark.parametrize(
        ("upper", "sentence"),
        [
            (db.privacy.quantize("wave", 4), "give every level the same code"),
            ("ed", "sparkle-wave-ed needs the messages of every step"),
        ],
        ids=["another code", "another strategy"],
    )
    def test_levels_that_differ(self, tmp_path, upper, sentence):
        method = db.sparkle("wave", upper, **RATES)
        assert_refused(tmp_path, ring(2, asynchronous=True), random_quadratic(2).problem(), method, sentence)
