"""A site that skipped steps never says that it has done them."""

from __future__ import annotations

import json

import pytest
from quadratics import random_quadratic
from silo_sites import Folders, ring, run_sites

import decibel as db
from decibel.silo._federation import Federation
from decibel.silo.observe._site_status import closing_line
from decibel.silo.protocol._lockstep_site import LockstepSite

STEPS, FIRST, LAST = 12, 3, 8
METHOD = db.wave(alpha=0.2)


@pytest.fixture(scope="module")
def skipped(tmp_path_factory):
    """A site goes from step 3 to step 8, and after 10 steps is started again, for 12: what each of its two runs gave,
    what it said at the end, and what it has saved."""
    folder, lines = tmp_path_factory.mktemp("skipped"), []
    folders = Folders(folder, Federation("test", ring(2).sites[:1], (), steps=STEPS, trust_members=True))
    problems = [random_quadratic(1, seed=1).single()]
    with pytest.MonkeyPatch.context() as patch:
        begin, goodbye = LockstepSite.begin_step, LockstepSite.goodbye

        def skips(self, step):
            return begin(self, LAST if FIRST <= step < LAST else step)

        def says(self, finished):
            goodbye(self, finished)
            lines.append(closing_line(self))

        patch.setattr(LockstepSite, "begin_step", skips)
        patch.setattr(LockstepSite, "goodbye", says)
        options = {"metrics": [], "eval_every": 5, "resume": True, "checkpoint": folder / "saved"}
        results = [run_sites(folders, METHOD, steps, problems, **options)[0] for steps in (10, STEPS)]
    folders = [path for path in (folder / "saved").iterdir() if path.name.isdigit()]
    saved = {int(path.name): json.loads((path / "meta" / "metadata").read_text()) for path in folders}
    return results, lines, saved


def test_the_result_tells_both(skipped):
    results, _, _ = skipped
    assert [(one.step, one.steps_done) for one in results] == [(10, 5), (STEPS, 7)]
    assert results[1].message == "7 of 12 steps were done here, and the rest by other sites"
    assert results[1].status == "completed"


def test_the_last_line_tells_both(skipped):
    assert skipped[1][1].startswith("finished at step 12, with 7 steps done here and the rest by others; ")


def test_a_checkpoint_tells_both(skipped):
    assert {step: meta["steps_done"] for step, meta in skipped[2].items()} == {9: 4, 10: 5, 12: 7}


def test_a_saved_model_tells_both(skipped, tmp_path):
    results, _, _ = skipped
    found = db.Result.load(results[1].save(tmp_path / "model"))
    assert (found.step, found.steps_done) == (STEPS, 7)
