"""A site's noisy messages: counted before they are sent, over restarts, and no more of them than its budget allows."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from quadratics import random_quadratic
from silo_sites import Folders, free_ports, ring, run_sites

import decibel as db
from decibel.methods._single_level import SingleLevel
from decibel.network._codecs import ConcatCodec
from decibel.silo._errors import BudgetSpent, NotFinite
from decibel.silo._federation import Federation, Member
from decibel.silo.run import _privacy_budget as module
from decibel.silo.run._privacy_budget import Budgets, PrivacyAccountant
from decibel.strategies._table import strategy

NOISE, CLIP = 20.0, 0.1
NOISY = db.privacy.noisy("ed", CLIP, NOISE)
SINGLE = SingleLevel(0.1, 1.0, strategy(NOISY))
PROBLEM = random_quadratic(2).single()


def codec(*widths):
    return ConcatCodec(NOISY.flow_form.code, list(widths), np.float64, [(i,) for i in range(len(widths))])


def solve(folders, steps, method=SINGLE, budget=None, **options):
    """Both sites; what each of them has spent."""
    options = {"metrics": [], "eval_every": 7} | options
    engines = {"budget": budget} if budget is not None else {}
    found = run_sites(folders, method, steps, [PROBLEM] * 2, engines=engines, **options)
    return found, [db.Silo(folders.home(f"site-{i}"), f"site-{i}").epsilon for i in range(2)]


def test_messages_are_counted_and_sites_stop_at_their_budget(tmp_path):
    """Both in the same step; started again, they send nothing."""
    folders, budget = Folders(tmp_path, ring(2)), db.privacy.epsilon(NOISE, 10)
    for steps in (10, 0):
        found, spent = solve(folders, 30, budget=budget)
        assert [site.step for site in found] == [steps] * 2 and spent == [budget] * 2
        for site in found:
            assert site.status == "stopped"
            assert site.message.startswith(f"the privacy budget of {budget:g} (ε at δ = 1e-5) ends there")


@pytest.mark.slow
def test_a_site_that_stops_is_saved_and_goes_on_with_a_larger_budget(tmp_path):
    """A federation of one: it sends to nobody, and counts the same."""
    folders = Folders(tmp_path, Federation("test", (Member("site-0", f"127.0.0.1:{free_ports(1)[0]}"),), ()))
    home, graph, problem = folders.home("site-0"), folders.federation.graph, random_quadratic(1).single()
    saved = {"checkpoint": tmp_path / "saved", "resume": True, "metrics": [], "eval_every": 7}
    sentences = []
    for messages, step in ((10, 10), (10, 10), (12, 12), (100, 30)):
        budget = db.privacy.epsilon(NOISE, messages)
        engine = db.Silo(home, "site-0", budget=budget, say=sentences.append)
        found = db.solve(problem, SINGLE, graph, steps=30, engine=engine, **saved)
        assert found.step == step and (tmp_path / "saved" / str(step)).is_dir()
        assert engine.epsilon == db.privacy.epsilon(NOISE, step) <= budget
        assert found.status == ("completed" if step == 30 else "stopped")
    told = [sentence for sentence in sentences if sentence.startswith("will end")]
    assert [sentence[:21] for sentence in told] == [f"will end at step {step}: " for step in (10, 10, 12)]
    assert found.trace["step"].tolist() == [0, 7, 10, 12, 14, 21, 28, 30]


@pytest.mark.slow
@pytest.mark.parametrize("updates", ["simultaneous", "alternating"])
def test_levels_and_exchanges_count_each(tmp_path, updates):
    """Three levels: in one exchange, called in place, or in three, called in order."""
    folders = Folders(tmp_path, ring(2))
    bilevel = db.sparkle(NOISY, db.privacy.noisy("ed", CLIP, 10.0), alpha=0.01, beta=0.1, gamma=0.1, updates=updates)
    run_sites(folders, bilevel, 4, [random_quadratic(2).problem()] * 2, metrics=[])
    for home in (folders.home("site-0"), folders.home("site-1")):
        assert module.read(home).messages == {NOISE: 8, 10.0: 4}


@pytest.mark.slow
def test_noise_is_new_at_every_start(tmp_path):
    """The seed is the same, and what neighbours receive is not."""
    folders = Folders(tmp_path, ring(2))
    first, second = (np.asarray(solve(folders, 2)[0][0].nodes.x) for _ in range(2))
    assert np.abs(first - second).min() > 1e-6 and module.read(folders.home("site-0")).messages == {NOISE: 4}


def test_a_budget_is_for_all_messages(tmp_path):
    folders = Folders(tmp_path, ring(2))
    engine = db.Silo(folders.home("site-0"), "site-0", budget=1.0)
    half = db.sparkle("ed", NOISY, alpha=0.1, beta=0.1, gamma=0.1)
    for method, problem in ((db.ed(alpha=0.1), PROBLEM), (half, random_quadratic(2).problem())):
        with pytest.raises(ValueError, match=r"budget=1 needs every message with noise.*db\.privacy\.noisy"):
            db.solve(problem, method, folders.federation.graph, steps=3, engine=engine, metrics=[])


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "4"])
def test_budgets_that_are_none_raise(tmp_path, value):
    with pytest.raises(ValueError, match=r"budget=.* must be a positive number: give the largest ε"):
        db.Silo(tmp_path, "site-0", budget=value)
    with pytest.raises(ValueError, match=r"delta=.* must be between 0 and 1: give"):
        db.Silo(tmp_path, "site-0", delta=value)


class TestPrivacy:
    def test_steps_left_are_those_that_fit(self, tmp_path):
        for budget in np.geomspace(0.5, 50, 5):
            privacy = PrivacyAccountant(tmp_path, Budgets(float(budget)))
            privacy.expect_messages(10.0, 2)
            privacy.messages_sent = Counter({10.0: 3})
            left = privacy.steps_left(300)
            fits = [db.privacy.epsilon(10.0, 3 + 2 * steps) <= budget for steps in range(301)]
            assert left == max(sum(fits) - 1, 0)

    def test_it_is_written_before_anything_is_drawn(self, tmp_path):
        """Whatever fails afterwards: the message counts."""

        def fails(count):
            assert module.read(tmp_path).messages == {NOISE: 2}
            raise OSError("no randomness")

        privacy = PrivacyAccountant(tmp_path, Budgets(), fails)
        with pytest.raises(OSError, match="no randomness"):
            privacy.release(codec(3, 4), np.ones(7))
        assert PrivacyAccountant(tmp_path, Budgets()).messages_sent == {NOISE: 2}

    def test_nothing_is_sent_that_cannot_be_written_down(self, tmp_path, monkeypatch):
        privacy = PrivacyAccountant(tmp_path, Budgets())
        privacy.release(codec(3), np.ones(3))

        def full(number):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module.os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            privacy.release(codec(3), np.ones(3))
        assert module.read(tmp_path).messages == {NOISE: 1}

    def test_no_message_beyond_the_budget_leaves(self, tmp_path):
        privacy = PrivacyAccountant(tmp_path, Budgets(db.privacy.epsilon(NOISE, 2)))
        privacy.release(codec(3, 4), np.ones(7))
        with pytest.raises(BudgetSpent, match="another message would exceed"):
            privacy.release(codec(3), np.ones(3))
        assert module.read(tmp_path).messages == {NOISE: 2}

    def test_what_is_not_finite_is_not_sent(self, tmp_path):
        with pytest.raises(NotFinite, match="a NaN or infinity"):
            PrivacyAccountant(tmp_path, Budgets()).release(codec(3), np.array([1.0, np.nan, 2.0]))

    @pytest.mark.parametrize(
        "text",
        [
            *("", "{", "[]", '{"version": 2, "sent": []}', '{"version": 1}'),
            *(f'{{"version": 1, "sent": [{{"noise": {noise}, "messages": {messages}}}]}}'
              for noise, messages in (("1", "-5"), ("0", "5"), ("NaN", "5"), ("1", "2.5"), ("1", "null"))),
        ],
    )  # fmt: skip
    def test_a_count_that_cannot_be_read_is_not_zero(self, tmp_path, text):
        (tmp_path / "privacy.json").write_text(text)
        with pytest.raises(ValueError, match=r"privacy.json.*cannot be read: restore it"):
            PrivacyAccountant(tmp_path, Budgets())

    def test_one_run_at_a_time_counts(self, tmp_path):
        one, other = (PrivacyAccountant(tmp_path, Budgets()) for _ in range(2))
        for privacy in (one, other):
            privacy.expect_messages(NOISE, 1)
        one.lock_folder()
        with pytest.raises(ValueError, match="another run counts its noise in"):
            other.lock_folder()
        one.release(codec(3), np.ones(3))
        one.unlock_folder()
        other.lock_folder()
        assert other.messages_sent == {NOISE: 1} and json.loads((tmp_path / "privacy.json").read_text())["version"] == 1
        other.unlock_folder()
