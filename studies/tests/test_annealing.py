"""spdb/annealing: its schedule, and losses learner by learner."""

from __future__ import annotations

import numpy as np
import pytest

import decibel as db
from decibel_studies import find
from decibel_studies.experiments.schedules import Annealed
from decibel_studies.experiments.spdb_annealing import ANNEALED, CONSTANT, OTHERS, OURS, losses, methods
from decibel_studies.testbed.step_sizes import load


def test_steps_are_annealed_once():
    rate = Annealed(0.2, 20, 0.5**0.5)
    np.testing.assert_allclose([rate(k) for k in (0, 19, 20, 29)], [0.2, 0.2, 0.2 * 0.5**0.5, 0.2 * 0.5**0.5])
    assert rate == Annealed(0.2, 20, 0.5**0.5)  # so that arms share what is compiled


def test_both_levels_are_annealed_and_start_as_constant_ones():
    setup = find("spdb/annealing").setup("smoke")
    plain, annealed = methods(setup, CONSTANT), methods(setup, ANNEALED)
    for name in (OURS, *OTHERS):
        for rate in ("alpha", "beta") if name == OURS else ("alpha",):
            before, after = (float(getattr(annealed[name], rate)(k)) for k in (0, setup.steps - 1))
            assert before == getattr(plain[name], rate) and after == pytest.approx(before * 0.5**0.5)


@pytest.mark.slow
@pytest.mark.parametrize("label", [OURS, "DSGD"])
def test_losses_of_learners_average_to_the_whole(label):
    study = find("spdb/annealing")
    arm = next(arm for arm in study.arms(study.setup("smoke")) if arm.label == label)
    task = arm.task(seed=0)
    trace = db.solve(
        task.problem, arm.method, arm.graph, steps=20, batch_size=4, eval_every=20, metrics=losses(task), progress=False
    ).trace
    for name in ("train_loss", "heldout_loss"):
        each = np.array([trace[f"{name}_{node}"] for node in range(3)])
        np.testing.assert_allclose(each.mean(0), trace[name], rtol=1e-6)
        np.testing.assert_allclose(each[:, 0], np.log(10), rtol=1e-6)  # last layers start at zero
        assert len(set(each[:, 1])) == 3 and (each[:, 1] < each[:, 0]).all()


def test_registered_steps_are_those_of_the_search():
    study = find("spdb/annealing")
    found, setup = load(study, "full"), study.setup("full")
    assert [found[name]["rates"]["alpha"] for name in (OURS, *OTHERS)] == list(setup.alpha)
    assert found[OURS]["rates"]["beta"] == setup.beta
