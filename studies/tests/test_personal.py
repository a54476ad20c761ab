"""spdb/personal-mnist: the losses it records, and the arms with the paper's step size."""

from __future__ import annotations

import numpy as np
import pytest

import decibel as db
from decibel_studies import find
from decibel_studies.experiments.spdb_personal_mnist import OURS, PRINTED, HeldOutLoss, losses


def test_the_paper_s_step_size_is_prescribed_for_all_methods_and_levels():
    study = find("spdb/personal-mnist")
    setup = study.setup("full")
    own = [arm for arm in study.arms(setup) if arm.case == PRINTED]
    assert len(own) == 4 and {arm.tuned for arm in own} == {None} and setup.printed == 0.02
    assert {arm.method.alpha for arm in own} == {0.02} and {arm.task.keywords["per_node"] for arm in own} == {None}
    assert next(arm.method.beta for arm in own if arm.label == OURS) == 0.02


@pytest.mark.slow
def test_losses_are_averaged_over_learners_and_each_is_left_out():
    study = find("spdb/personal-mnist")
    arm = next(arm for arm in study.arms(study.setup("smoke")) if arm.label == "DSGD")
    task = arm.task(seed=0)
    metrics = (*losses(task), HeldOutLoss(*losses(task)))
    trace = db.solve(task.problem, arm.method, arm.graph, steps=4, batch_size=4, metrics=metrics, progress=False).trace
    np.testing.assert_allclose(trace["train_loss"][0], np.log(10), rtol=1e-6)  # last layers start at zero
    np.testing.assert_allclose(trace["heldout"], trace["heldout_loss"], rtol=1e-6)
    assert trace["train_loss"][-1] < trace["train_loss"][0] and "train_loss_0" not in trace
