"""sparkle/hyper-cleaning: what its search selects by, and what its arms send."""

from __future__ import annotations

import numpy as np

import decibel as db
from decibel import Trace
from decibel_studies import find
from decibel_studies.experiments.sparkle_hyper_cleaning import BalancedError, better_than_others, better_than_tracking
from decibel_studies.experiments.sparkle_linear_regression import TWICE
from decibel_studies.judging.results import Results, Runs
from decibel_studies.testbed import step_sizes

STUDY = find("sparkle/hyper-cleaning")


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
    """On rings whose second neighbours are others: bytes of a step, with the graphs of the registered set-up."""
    task = db.tasks.linear_regression(10, dimension=2, samples=4)
    for case in ("p = 0.2", "p = 0.2, links 0.25"):
        arms = {arm.label: arm for arm in STUDY.arms(STUDY.setup("full")) if arm.case == case}
        sent = {}
        for label in ("SPARKLE-ED", TWICE, "SPARKLE-GT"):
            arm = arms[label]
            run = db.solve(task.problem, arm.method, arm.graph, steps=1, metrics=[], progress=False)
            sent[label] = run.trace["bytes"][-1]
        assert sent[TWICE] == sent["SPARKLE-GT"] == 2 * sent["SPARKLE-ED"]


def test_cases_are_the_rates_on_one_ring_and_the_middle_one_on_the_others():
    setup = STUDY.setup("full")
    arms = STUDY.arms(setup)
    links = {arm.case: arm.graph.phases[0].matrix[0, 1] for arm in arms if arm.label == "SPARKLE-ED"}
    assert links == {"p = 0.1": 0.1, "p = 0.2": 0.1, "p = 0.3": 0.1, "p = 0.2, links 0.25": 0.25}
    labels = {case: {arm.label for arm in arms if arm.case == case} for case in links}
    assert labels["p = 0.2"] - labels["p = 0.1"] == {"MA-DSBO-GT, 1 inner", "MDBO, 3 terms"}
    assert labels["p = 0.1"] == labels["p = 0.3"] == labels["p = 0.2, links 0.25"] == {*setup.methods}
    shifts = {case: {arm.shift for arm in arms if arm.case == case} for case in links}
    assert all(len(each) == 1 for each in shifts.values()), "arms of a case are paired"
    seeds = {seed + shift for (shift,) in shifts.values() for seed in setup.seeds}
    assert len(seeds) == len(links) * len(setup.seeds), "no seed twice"
    by_case = {case: {arm.tuned for arm in arms if arm.case == case} for case in links}
    assert by_case["p = 0.1"] == by_case["p = 0.3"] and not by_case["p = 0.2, links 0.25"] & by_case["p = 0.2"]


def test_every_method_is_compared_by_its_last_quarter():
    """Accuracies are 0 but for the last quarter, where a method has its own; gradient tracking sends twice the bytes,
    so that at equal bytes it ends before."""
    setup = STUDY.setup("full")
    labels = list(dict.fromkeys(arm.label for arm in STUDY.arms(setup)))
    steps = np.arange(1.0, 41)

    def runs(arm):
        costs = {"step": steps, "samples": steps, "bytes": steps * (2 if arm.label == "SPARKLE-GT" else 1)}
        own = np.where(steps > 30, 0.01 * labels.index(arm.label), 0)
        traces = [Trace({**costs, "test_accuracy": own}, {"seed": seed, "stopped": None}) for seed in setup.seeds]
        return Runs(arm.case, arm.label, traces)

    results = Results(setup, {arm.key: runs(arm) for arm in STUDY.arms(setup)})
    place = {label: 0.01 * number for number, label in enumerate(labels)}
    for check in (*better_than_others(results), *better_than_tracking(results)):
        ours, theirs = check.text.split(", ", 1)[1].split(" less ")
        theirs_end = 0 if "equal bytes," in check.text else place[theirs]
        np.testing.assert_allclose(check.mean, place[ours] - theirs_end, atol=1e-12, err_msg=check.text)
    compared = {tuple(check.text.split(", ", 1)[1].split(" less ")) for check in better_than_others(results)}
    baselines = ("D-SOBA", "MA-DSBO-GT", "MDBO", "MA-DSBO-GT, 1 inner", "MDBO, 3 terms")
    assert compared == {(ours, other) for ours in ("SPARKLE-ED", "SPARKLE-EXTRA") for other in baselines}
    costs = sorted(check.text.split(" at equal ")[1] for check in better_than_tracking(results))
    assert costs == [
        "bytes, SPARKLE-ED less SPARKLE-GT",
        "bytes, SPARKLE-EXTRA less SPARKLE-GT",
        "samples and bytes, SPARKLE-ED on W² less SPARKLE-GT",
        "samples, SPARKLE-ED less SPARKLE-GT",
        "samples, SPARKLE-EXTRA less SPARKLE-GT",
    ]


def test_mixed_strategies_have_the_step_sizes_that_were_found_here_and_other_seeds():
    mixed = find("sparkle/mixed-strategies")
    setup, found = mixed.setup("full"), step_sizes.load(STUDY, "full")
    for arm in mixed.arms(setup):
        rates = found[f"{arm.label}, links {setup.weight:g}"]["rates"]
        assert rates == {name: getattr(arm.method, name) for name in rates} and set(rates) == {"alpha", "beta", "gamma"}
    used = {seed + arm.shift for arm in STUDY.arms(STUDY.setup("full")) for seed in STUDY.setup("full").seeds}
    assert not used & set(setup.seeds)
