"""A study small enough to be run many times, and the committed results of the others."""

from __future__ import annotations

import dataclasses
from functools import cache, partial
from pathlib import Path

import decibel as db
from decibel_studies import find
from decibel_studies.judging.verdicts import Check, Claim
from decibel_studies.testbed.reproduce import Loaded, Results, load
from decibel_studies.testbed.study import Arm, Search, Study

RESULTS = Path(__file__).parents[1] / "results"


@cache
def loaded(name: str) -> Loaded:
    """The committed results of a study."""
    return load(find(name), RESULTS)


def quiet(text: str) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Setup:
    steps: int = 6
    seeds: tuple[int, ...] = (0, 1)


def arms(setup: Setup) -> list[Arm]:
    task = partial(db.tasks.linear_regression, 3, dimension=2, samples=4)
    rates = {"alpha": 0.1, "beta": 0.1, "gamma": 0.1, "theta": 0.5}
    methods = {"ED": db.sparkle("ed", **rates, updates="simultaneous"), "D-SOBA": db.dsoba(**rates)}
    return [
        Arm("ring", label, task, method, db.graphs.ring(3), setup.steps, 2, rows=3, tuned=label)
        for label, method in methods.items()
    ]


def judge(results: Results) -> list[Check]:
    return [Check.of("error", results["ring", "ED"].last("distance"), 1e9, above=False)]


SEARCH = Search(
    (0.1, 0.2), (0.05, 0.1), lambda task: task.metrics[0], lambda setup: ("ring",), lambda setup: 3, note="by distance"
)
TINY = Study(
    "test/tiny", "Tiny", "none", "nothing", {"smoke": Setup()}, arms, (Claim("T", "small", judge),), ("distance",)
)
