"""A study small enough to be run many times."""

from __future__ import annotations

import dataclasses
from functools import partial

import decibel as db
from decibel_studies.judging.verdicts import Check, Claim
from decibel_studies.testbed.reproduce import Results
from decibel_studies.testbed.study import Arm, Search, Study


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
