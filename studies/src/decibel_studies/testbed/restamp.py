"""`python -m decibel_studies.testbed.restamp RESULTS`: gives the runs of a folder the fingerprints of now.

After a change to code that leaves numbers as they are; after any other, run the study again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import NAMES, find
from ..judging.results import Runs
from .runs import about, fingerprint, place
from .step_sizes import applied


def restamp(name: str, results: Path) -> int:
    """How many runs of a study had another fingerprint."""
    study = find(name)
    paths = sorted((results / name / "runs").glob("*.npz"))
    loaded = {(runs.case, runs.label): (path, runs) for path in paths for runs in [Runs.load(path)]}
    changed = 0
    for arm in applied(study, "full"):
        path, runs = loaded[arm.case, arm.label]
        mark = fingerprint(study, "full", arm)
        if runs.made["fingerprint"] != mark:
            changed += 1
            runs.made["fingerprint"] = mark
            runs.made["arm"] = about(arm)
            path.unlink()
            runs.save(place(results, study, arm, mark))
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="a folder of results at full size")
    results = parser.parse_args().results
    for name in [name for name in NAMES if (results / name / "runs").exists()]:
        if changed := restamp(name, results):
            print(f"{name}: {changed} runs")


if __name__ == "__main__":
    main()
