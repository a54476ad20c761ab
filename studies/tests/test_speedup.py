"""Runs of which every seed stands for several, and the single level of the study of transients."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from decibel import Trace
from decibel_studies.experiments.dsoba_speedup import (
    LINKS,
    SINGLE,
    Averaged,
    Setup,
    arms,
    case,
    mean_trace,
    single_level,
    squares,
)

SMALL = Setup(
    (2, 4), 4, (0.3, 0.2), (0.2, 0.1), dimension=2, samples=10, steps=12, rows=6, others=("SPARKLE-ED",), group=3
)


def one(name: str) -> Averaged:
    return next(arm for arm in arms(SMALL) if arm.case == case(LINKS, name) and arm.label != "complete")


@pytest.mark.slow
def test_a_seed_gives_the_mean_of_its_runs_and_no_run_serves_two_seeds():
    arm = one("SPARKLE-ED")
    first, second = arm.run([7, 8])
    alone = dataclasses.replace(arm, group=1)
    for trace, seeds in ((first, (21, 22, 23)), (second, (24, 25, 26))):
        singles = [run["distance"] for run in alone.run(seeds)]
        np.testing.assert_allclose(trace["distance"], np.mean(singles, axis=0), rtol=1e-5)
        assert not np.allclose(singles[0], singles[1])
    assert [trace.provenance["seed"] for trace in (first, second)] == [7, 8]
    assert arm.describe()["group"] == 3


def test_a_run_that_diverged_ends_the_mean():
    whole = Trace({"step": [0.0, 1.0], "distance": [4.0, 2.0]}, {"stopped": None})
    cut = Trace({"step": [0.0], "distance": [6.0]}, {"stopped": "non-finite"})
    mean = mean_trace([whole, cut], 5)
    assert mean["distance"].tolist() == [5.0] and mean.provenance == {"seed": 5, "stopped": "non-finite"}


def test_the_single_level_is_minimised_where_it_says():
    task = single_level(4, dimension=3, samples=50, noise=1.0, heterogeneity=0.5, seed=0)
    a, b = (np.asarray(part, np.float32) for part in task.problem.upper_data.tree)
    every = (a.reshape(-1, *a.shape[2:]), b.reshape(-1, b.shape[-1]))

    def slope(x):
        return np.asarray(jax.grad(squares)(np.float32(x), every))

    at = task.truth.solution
    assert np.abs(slope(at)).max() < 1e-4 < np.abs(slope(at + 0.01)).max()
    assert one(SINGLE).task.func is single_level
