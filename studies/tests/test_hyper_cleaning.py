"""sparkle/hyper-cleaning: what its search selects by, and what its arms send."""

from __future__ import annotations

import numpy as np
import pytest

import decibel as db
from decibel_studies import find
from decibel_studies.experiments.sparkle_hyper_cleaning import BalancedError
from decibel_studies.experiments.sparkle_linear_regression import TWICE
from decibel_studies.testbed import step_sizes

STUDY = find("sparkle/hyper-cleaning")


@pytest.mark.slow
def test_the_search_weighs_classes_alike_and_counts_no_sample_twice():
    arm = next(arm for arm in STUDY.arms(STUDY.setup("smoke")) if arm.label == "SPARKLE-ED")
    task = arm.task(seed=0)
    result = db.solve(
        task.problem,
        arm.method,
        arm.graph,
        steps=60,
        batch_size=4,
        eval_every=60,
        metrics=[BalancedError.of(task), *task.metrics],
        progress=False,
    )
    samples = task.problem.upper_data
    assert len(set(np.asarray(samples.counts).tolist())) > 1, "nodes hold unequal numbers, so that some are repeated"
    parts = [[np.asarray(leaf)[i, :n] for leaf in samples.tree] for i, n in enumerate(samples.counts)]
    inputs, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    guessed = np.asarray(task.metrics[0].model(result.y, inputs)).argmax(-1)
    each = [np.mean(guessed[labels == label] != label) for label in np.unique(labels)]
    np.testing.assert_allclose(result.trace["balanced_error"][-1], np.mean(each), rtol=1e-6)
    assert {"test_accuracy", "node_accuracy"} <= set(result.trace) and result.trace["balanced_error"][-1] < 0.85


def test_two_rounds_send_what_gradient_tracking_does_and_one_round_half():
    """Bytes of a step, with the graphs of the registered set-up."""
    task = db.tasks.linear_regression(10, dimension=2, samples=4)
    arms = {arm.label: arm for arm in STUDY.arms(STUDY.setup("full")) if arm.case == "p = 0.2, links 0.25"}
    sent = {}
    for label in ("SPARKLE-ED", TWICE, "SPARKLE-GT"):
        arm = arms[label]
        sent[label] = db.cost(task.problem, arm.method, arm.graph)["bytes"]
    assert sent[TWICE] == sent["SPARKLE-GT"] == 2 * sent["SPARKLE-ED"]


def test_mixed_strategies_have_the_step_sizes_that_were_found_here_and_other_seeds():
    mixed = find("sparkle/mixed-strategies")
    setup, found = mixed.setup("full"), step_sizes.load(STUDY, "full")
    for arm in mixed.arms(setup):
        rates = found[f"{arm.label}, links {setup.weight:g}"]["rates"]
        assert rates == {name: getattr(arm.method, name) for name in rates} and set(rates) == {"alpha", "beta", "gamma"}
    used = {seed + arm.shift for arm in STUDY.arms(STUDY.setup("full")) for seed in STUDY.setup("full").seeds}
    assert not used & set(setup.seeds)
