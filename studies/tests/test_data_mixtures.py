"""Ways to a mixture: DoReMi's and ODM's rules by hand, and mixtures that are given."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.tasks.decoder import start_decoder
from decibel.tasks.language_model import DecoderLosses
from decibel_studies.experiments import data_mixtures
from decibel_studies.experiments.apps_mixtures import SETUPS
from decibel_studies.experiments.data_mixtures import Excess, Mixture, Online, _shares, base_task
from decibel_studies.experiments.schedules import Linear

SETUP = SETUPS["smoke"]


@pytest.fixture(scope="module")
def task():
    return base_task(SETUP, None, "domains")


def test_tasks_are_shared_by_settings_that_do_not_change_samples(task):
    assert base_task(replace(SETUP, alpha=3.0, steps=7), None, "domains") is task


def test_mixtures_that_are_given(task):
    sizes = np.array(list(task.summary["domains"].values()), float)
    np.testing.assert_allclose(_shares("uniform", task), [0.5, 0.5])
    np.testing.assert_allclose(_shares("target", task), 0.1 + 0.8 * np.array([0.6, 0.4]))
    np.testing.assert_allclose(_shares("by size", task), 0.1 + 0.8 * sizes / sizes.sum())


@pytest.mark.slow
def test_doremi_moves_scores_by_the_loss_above_the_reference(task):
    """After one step over all samples the mean of the nodes' scores is α times every domain's excess."""
    shape = task.summary["model"]
    other = start_decoder(db.tasks.decoder.Shape(**shape), 256, 5)
    problem = db.Problem(
        task.problem.upper,
        Excess(DecoderLosses(), other),
        upper_data=np.zeros((2, 1, 9), np.uint8),
        x0=jnp.ones(2) / 2,
        lower_data=[task.problem.lower_data.host._of_node[node][np.arange(30)] for node in range(2)],
        y0=task.problem.y0,
    )
    method = Online(0.5, Linear(1e-3, 10), 0.2, "doremi")
    result = db.solve(problem, method, db.graphs.ring(2), steps=1, metrics=[])
    own = [task.problem.lower_data.host._of_node[node][np.arange(30)]["windows"] for node in range(2)]
    above = [
        np.maximum(DecoderLosses().of_tokens(task.problem.y0, w) - DecoderLosses().of_tokens(other, w), 0).mean()
        for w in map(jnp.asarray, own)
    ]
    np.testing.assert_allclose(result.x, 0.5 * np.array(above), rtol=1e-6)


def test_the_rules_give_mixtures_above_a_floor():
    x = jnp.asarray([[3.0, 0.0, -400.0]])
    doremi, odm = (Online(1.0, Linear(1e-3, 10), 0.3, rule) for rule in ("doremi", "odm"))
    p = np.asarray(doremi.shares(jnp.int32(5), x))
    assert p.sum() == pytest.approx(1) and p.min() == pytest.approx(0.1)
    np.testing.assert_allclose(odm.shares(jnp.int32(0), x), [[1 / 3] * 3])  # all of it is exploration
    late = np.asarray(odm.shares(jnp.int32(9_999), x))
    each = np.sqrt(np.log(3) / 3e4)
    np.testing.assert_allclose(late, (1 - 3 * each) * np.asarray(jax.nn.softmax(each * x)) + each, rtol=1e-6)


def test_arms_say_what_they_depend_on():
    arm = Mixture("case", "label", "learned", SETUP)
    assert arm.describe()["setup"]["alpha"] == SETUP.alpha and arm.key == ("case", "label")
    assert Mixture("case", "label", "learned", SETUP, graph="one node").topology().nodes == 1
    assert eqx.tree_equal(arm.topology().matrix.todense(), db.graphs.ring(2).matrix.todense())


@pytest.mark.slow
def test_one_node_has_what_all_have(monkeypatch):
    """As many samples of the target, and of a batch."""
    made = []
    monkeypatch.setattr(data_mixtures, "base_task", lambda *given: made.append(base_task(*given)) or made[-1])
    ring, alone = (Mixture("", "", "learned", SETUP, graph=graph).run_seed(0) for graph in ("ring", "one node"))
    assert [task.problem.upper_data.counts.tolist() for task in made] == [[4, 4], [8]]
    assert alone["samples"][-1] == 2 * ring["samples"][-1] and alone["bytes"][-1] == 0
