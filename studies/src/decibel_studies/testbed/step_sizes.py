"""The step sizes of a study: searched for every method in the same way, and kept in a file beside the study."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

import jax
import numpy as np

from decibel import AllDiverged, solve, tune
from decibel.tasks import Task

from ..files import write_file
from ..judging.results import S
from .runs import described, digest
from .study import Arm, Curve, Search, Study, device, with_rates

AVERAGED = 100  # steps: in some methods chance decides what one costs
MOMENTS = 5  # of the second half of a run, over whose mean a candidate is judged
WIDENINGS = 3  # of the values that a search tries, at most
LEVELS = (("alpha",), ("beta", "gamma"))  # of step sizes: β and γ are one

Ranked = list[tuple[float, dict[str, float]]]  # candidates with their scores


class SearchTerms(TypedDict):
    """What a search chooses by."""

    metric: str
    case: str
    steps: int
    seeds: tuple[int, ...]
    moments: int
    margin: NotRequired[bool]
    widen: NotRequired[bool]
    note: str


class SearchPlan(SearchTerms):
    """What a search tries."""

    candidates: list[dict[str, float]]


class SearchRecord(SearchTerms):
    """A search as a settings file holds it: every candidate as its rates and its score."""

    candidates: list[list[float | str]]
    score: float
    budget: int
    at_the_edge: list[str]
    device: str
    date: str
    fingerprint: str


class Searched(TypedDict):
    """The step sizes of a method, and the search that found them."""

    rates: dict[str, float]
    search: SearchRecord


Settings = dict[str, Searched]  # by method


def path_of(study: Study[S]) -> Path:
    return Path(study.arms.__code__.co_filename).with_suffix(".json")


def load(study: Study[S], size: str) -> Settings:
    path = path_of(study)
    return json.loads(path.read_text()).get(size, {}) if path.exists() else {}


def save(study: Study[S], size: str, key: str, searched: Searched) -> Settings:
    """Adds what was found to the file; all that it holds of this size."""
    path = path_of(study)
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be adding its own
        whole = json.loads(path.read_text()) if path.exists() else {}
        whole.setdefault(size, {})[key] = searched
        write_file(path, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    finally:
        os.close(lock)
    return whole[size]


def applied(study: Study[S], size: str) -> list[Curve]:
    """The arms with the step sizes that were found; those of the file itself, guesses, where none were."""
    settings = load(study, size)
    return [_with_searched(arm, settings) if isinstance(arm, Arm) else arm for arm in study.arms(study.setup(size))]


def _with_searched(arm: Arm, settings: Settings) -> Arm:
    searched = _of_arm(arm, settings)
    return arm if searched is None else with_rates(arm, searched["rates"])


def status(arm: Curve, settings: Settings) -> str:
    """How the step sizes of an arm came about."""
    if not isinstance(arm, Arm) or arm.tuned is None:
        return "given"
    return "searched" if _of_arm(arm, settings) else "untuned guess"


def _of_arm(arm: Arm, settings: Settings) -> Searched | None:
    return None if arm.tuned is None else settings.get(arm.tuned)


def search(
    study: Study[S],
    size: str,
    *,
    mine: Callable[[str], bool] = lambda key: True,
    say: Callable[[str], None] = print,
) -> Settings:
    """Searches the methods of the study in turn and saves after each, so that an interrupted search continues.

    Args:
        study: the study.
        size: of its set-up.
        mine: of several processes that search, each takes the methods for which this is true.
        say: receives a line for each method.
    """
    plan = study.search
    setup = study.setup(size)
    if plan is None:
        say(f"{study.name} has nothing to search: its step sizes are given.")
        return {}
    settings = load(study, size)
    failed: list[str] = []
    for key, arm in searched_arms(study, setup).items():
        mark = fingerprint(study, setup, arm)
        if key in settings and settings[key]["search"].get("fingerprint") == mark:
            say(f"  {key}: searched before, {settings[key]['rates']}")
            continue
        if not mine(key):
            continue
        try:
            settings = save(study, size, key, _search(study, setup, arm, mark))
        except ValueError as error:  # the other methods are searched nevertheless
            failed.append(str(error))
            continue
        say(f"  {key}: {settings[key]['rates']}, {settings[key]['search']['score']:.5g}")
    if failed:
        raise ValueError(" ".join(failed))
    return settings


def plan_of(study: Study[S]) -> Search[S]:
    """The search of a study that has one."""
    assert study.search is not None
    return study.search


def searched_arms(study: Study[S], setup: S) -> dict[str, Arm]:
    """The arms that are searched, by the name of their step sizes. Arms that share them are searched by the first."""
    cases = plan_of(study).cases(setup)
    arms: dict[str, Arm] = {}
    for arm in study.arms(setup):
        if isinstance(arm, Arm) and arm.tuned is not None and arm.case in cases:
            arms.setdefault(arm.tuned, arm)
    return arms


def fingerprint(study: Study[S], setup: S, arm: Arm) -> str:
    """Of all that a search depends on. Numbers are rounded, since processors differ in the last digits of a power."""
    exact = json.dumps([asdict(setup), described(arm), _plan(study, setup, arm)], default=str)
    return digest(json.dumps(json.loads(exact, parse_float=lambda text: f"{float(text):.9g}")))


def _plan(study: Study[S], setup: S, arm: Arm) -> SearchPlan:
    plan = plan_of(study)
    metric = plan.metric if isinstance(plan.metric, str) else plan.metric.__qualname__
    described: SearchPlan = {
        "metric": metric,
        "case": arm.case,
        "steps": plan.steps(setup),
        "seeds": plan.seeds,
        "moments": MOMENTS,
        "candidates": plan.candidates(arm.method),
        "note": plan.note,
    }
    if plan.margin:
        described["margin"] = True
    if plan.widen:
        described["widen"] = True
    return described


def _search(study: Study[S], setup: S, arm: Arm, mark: str) -> Searched:
    plan = plan_of(study)
    outcome = _ranked(study, setup, arm, plan.candidates(arm.method))
    for _ in range(WIDENINGS if plan.widen else 0):
        tried = [rates for _, rates in outcome.ranked]
        # Where all diverge, smaller ones are tried.
        start = next(_safe(plan, outcome.ranked), (0.0, min(tried, key=lambda rates: tuple(rates.values()))))[1]
        further = beyond(start, tried)
        if not further:
            break
        outcome = outcome.with_more(_ranked(study, setup, arm, further))
    score, best = next(_safe(plan, outcome.ranked), (np.nan, {}))
    if not best:
        raise ValueError(
            f"{arm.label} diverges on some seed with every candidate, or next to it: let the search try smaller ones."
        )
    tried = [rates for _, rates in outcome.ranked]
    return {
        "rates": best,
        "search": {
            **_plan(study, setup, arm),
            "metric": outcome.metric,
            "steps": outcome.steps,
            "score": score,
            "budget": len(tried),
            "candidates": [[*rates.values(), _short(score)] for score, rates in outcome.ranked],
            "at_the_edge": [name for moved in _levels(best) if _at_an_end(best, tried, moved) for name in moved],
            "device": device(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "fingerprint": mark,
        },
    }


class Ranking(NamedTuple):
    """Candidates by their mean score over the search's seeds, the best first.

    - `metric`: its name, empty where all candidates diverged.
    - `steps`: of each run.
    """

    ranked: Ranked
    metric: str
    steps: int

    def with_more(self, other: Ranking) -> Ranking:
        ranked = sorted([*self.ranked, *other.ranked], key=lambda pair: pair[0])
        return Ranking(ranked, self.metric or other.metric, self.steps)


def _ranked(study: Study[S], setup: S, arm: Arm, candidates: list[dict[str, float]]) -> Ranking:
    plan = plan_of(study)
    make = arm.task if plan.task is None else plan.task(setup, arm)
    steps = arm.steps
    scores: list[list[float]] = []
    metric = ""
    for seed in plan.seeds:
        task = make(seed=seed)
        steps = min(steps, _length(plan.steps(setup), arm, _affordable(arm, task)))
        try:
            with jax.default_matmul_precision(study.precision):
                tuned = tune(
                    task.problem,
                    arm.method,
                    arm.graph,
                    steps=steps,
                    batch_size=arm.batch_size,
                    search=candidates,
                    metric=plan.metric if isinstance(plan.metric, str) else plan.metric(task),
                    seeds=(seed,),
                    moments=min(MOMENTS, steps),
                )
        except AllDiverged:
            scores.append([np.inf] * len(candidates))
            continue
        metric = tuned.metric
        scores.append(
            [next(row[metric] for row in tuned.table if rates.items() <= row.items()) for rates in candidates]
        )
    # One that diverges on the data of any seed is out.
    ranked = sorted(zip(np.mean(scores, 0).tolist(), candidates, strict=True), key=lambda pair: pair[0])
    return Ranking(ranked, metric, steps)


def _safe(plan: Search[S], ranked: Ranked) -> Iterator[tuple[float, dict[str, float]]]:
    """Those that may be taken, the best first."""
    for score, rates in ranked:
        if np.isfinite(score) and not (plan.margin and near_divergence(rates, ranked)):
            yield score, rates


def near_divergence(rates: dict[str, float], ranked: Ranked) -> bool:
    """Whether a candidate with the next larger α, or the next larger β and γ, diverged."""
    scores = {tuple(other.values()): score for score, other in ranked}
    for moved in _levels(rates):
        larger = [value for value in _line(rates, [other for _, other in ranked], moved) if value > rates[moved[0]]]
        neighbours = [{**rates, **dict.fromkeys(moved, value)} for value in larger[:1]]
        if any(not np.isfinite(scores[tuple(other.values())]) for other in neighbours):
            return True
    return False


def beyond(best: dict[str, float], tried: list[dict[str, float]]) -> list[dict[str, float]]:
    """Where the best lies at an end of the values of α, or of β and γ: all candidates with its value get the next one
    as well, in the same ratio where there is none yet."""
    further: list[dict[str, float]] = []
    for moved in _levels(best):
        if not _at_an_end(best, tried, moved):
            continue
        end = best[moved[0]]
        values = sorted({rates[moved[0]] for rates in tried})
        up = end == _line(best, tried, moved)[-1]
        beside = [value for value in values if (value > end if up else value < end)]
        following = (beside[0] if up else beside[-1]) if beside else end * (end / (values[-2] if up else values[1]))
        more = [{**rates, **dict.fromkeys(moved, following)} for rates in tried if rates[moved[0]] == end]
        further += [rates for rates in more if rates not in tried]
    return further


def _levels(rates: dict[str, float]) -> list[list[str]]:
    """The names of step sizes that are one: α, and β with γ."""
    return [moved for level in LEVELS if (moved := [name for name in level if name in rates])]


def _line(best: dict[str, float], tried: list[dict[str, float]], moved: Sequence[str]) -> list[float]:
    """The values of a level that were tried with the other step sizes of the best."""
    return sorted({rates[moved[0]] for rates in tried if {**rates, **{name: best[name] for name in moved}} == best})


def _at_an_end(best: dict[str, float], tried: list[dict[str, float]], moved: Sequence[str]) -> bool:
    """Whether the best has the least or the largest value of a level of which several were tried."""
    line = _line(best, tried, moved)
    return best[moved[0]] in (line[0], line[-1]) and len({rates[moved[0]] for rates in tried}) > 1


def _length(asked: int, arm: Arm, affordable: int) -> int:
    """Of a search: the share that `asked` is of the arm's iterations, taken of those that its samples allow."""
    return max(1, round(min(1.0, asked / arm.steps) * min(arm.steps, affordable)))


def _affordable(arm: Arm, task: Task) -> int:
    """The steps that a run which ends at a number of samples can take, by what its first steps cost on average."""
    if arm.samples is None:
        return arm.steps
    run = solve(
        task.problem, arm.method, arm.graph, steps=AVERAGED, batch_size=arm.batch_size, metrics=[], progress=False
    )
    spent = run.trace.last
    each = spent["samples"] / max(spent["step"], 1)
    return max(1, int(arm.samples / max(each, 1)))


def _short(value: float) -> float | str:
    return float(f"{value:.5g}") if value < float("inf") else "diverged"
