"""Many schedules, one after the other, and what became of each."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import NamedTuple

from . import Schedule, World
from .planted import BUGS, planted


class Report(NamedTuple):
    """Of one schedule; `failure` is a sentence, and empty where everything held."""

    seed: int
    kind: str
    coded: bool
    events: int
    failure: str


def run_seeds(
    kind: str | None, seeds: range, *, asynchronous: bool = False, coded: bool = False, one_peer: bool = False
) -> list[Report]:
    logging.getLogger("absl").disabled = True  # orbax tells of every torn file
    options = {"asynchronous": asynchronous, "coded": coded, "one_peer": one_peer}
    return [_run(Schedule.of(seed, kind, **options)) for seed in seeds]


def _run(schedule: Schedule, bug: str | None = None) -> Report:
    world = World(schedule)
    failure = ""
    try:
        with planted(bug) if bug else nullcontext():
            world.run()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return Report(schedule.seed, schedule.kind, bool(schedule.code), world.scheduler.events, failure)


class Search(NamedTuple):
    """What schedules found of a planted bug: by seed, the seconds that it took with the bug and without."""

    bug: str
    kind: str
    found: dict[int, float]
    failures: list[str]  # without the bug

    @property
    def soonest(self) -> int | None:
        return min(self.found, key=self.found.__getitem__, default=None)


def search(seeds: range, bug: str) -> Search:
    """Which of these seeds find a planted bug."""
    logging.getLogger("absl").disabled = True
    kind, one_peer = BUGS[bug].kind, BUGS[bug].one_peer
    found: dict[int, float] = {}
    failures = []
    for seed in seeds:
        begun = time.process_time()
        if _run(Schedule.of(seed, kind, one_peer=one_peer), bug).failure:
            failures += filter(None, [_run(Schedule.of(seed, kind, one_peer=one_peer)).failure])
            found[seed] = time.process_time() - begun
    return Search(bug, kind, found, failures)
