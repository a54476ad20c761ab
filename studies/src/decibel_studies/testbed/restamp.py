"""`python -m decibel_studies.testbed.restamp RESULTS`: gives runs and step-size searches the fingerprints of now.

After a change to code that leaves numbers as they are; after any other, run the study again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import cast

import numpy as np

from .. import NAMES, find
from ..judging.results import Runs, S
from . import step_sizes
from .runs import about, fingerprint, place
from .study import Arm, Study


def restamp(name: str, results: Path) -> int:
    """How many runs of a study had another fingerprint."""
    study = find(name)
    paths = sorted((results / name / "runs").glob("*.npz"))
    loaded = {(runs.case, runs.label): (path, runs) for path in paths for runs in [Runs.load(path)]}
    changed = 0
    for arm in step_sizes.applied(study, "full"):
        path, runs = loaded[arm.case, arm.label]
        mark = fingerprint(study, "full", arm)
        if runs.made["fingerprint"] != mark:
            changed += 1
            runs.made["fingerprint"] = mark
            runs.made["arm"] = about(arm)
            path.unlink()
            runs.save(place(results, study, arm, mark))
    return changed


def restamp_searches(name: str) -> int:
    """How many searches of a study at full size had another fingerprint. One that tried other values keeps its own."""
    study = find(name)
    if study.search is None:
        return 0
    setup = study.setup("full")
    settings = step_sizes.load(study, "full")
    changed = 0
    for key, arm in step_sizes.searched_arms(study, setup).items():
        searched = settings.get(key)
        mark = step_sizes.fingerprint(study, setup, arm)
        if searched is None or searched["search"]["fingerprint"] == mark or not tried_all(study, arm, searched):
            continue
        searched["search"]["fingerprint"] = mark
        step_sizes.save(study, "full", key, searched)
        changed += 1
    return changed


def tried_all(study: Study[S], arm: Arm, searched: step_sizes.Searched) -> bool:
    """Whether a search tried all values that it would try now."""
    tried = [cast(list[float], rates) for *rates, _ in searched["search"]["candidates"]]
    now = [list(rates.values()) for rates in step_sizes.plan_of(study).candidates(arm.method)]
    return all(any(np.allclose(rates, before, rtol=1e-9, atol=0) for before in tried) for rates in now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="a folder of results at full size")
    results = parser.parse_args().results
    for name in [name for name in NAMES if (results / name / "runs").exists()]:
        if changed := restamp(name, results):
            print(f"{name}: {changed} runs")
        if changed := restamp_searches(name):
            print(f"{name}: {changed} searches")


if __name__ == "__main__":
    main()
