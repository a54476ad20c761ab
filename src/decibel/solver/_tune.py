"""Step sizes found by search: all candidates and seeds in one compiled, vmapped run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
from jax import Array

from ..core import _html as html
from ..core._names import suggests_names
from ..core._numbers import validate_count
from ..core._optional import optional
from ..engines._batch_run import BatchRun
from ..engines._driver import drive
from ..engines._program import RunConfig
from ..engines._simulator import Simulator
from ..graphs._graph import Graph, GraphSequence, Levels
from ..methods._method import RATES, WEIGHTS, Method, State
from ..problem._problem import Problem
from ..results.metrics import Metric, Snapshot, resolve
from ._validate import graph_per_level, validate, validate_seed, warn_about_problem

DECADES = 1.5  # the search reaches this many factors of ten to either side
ROUNDS = 4  # at most
SEEDS = (0, 1)
SHOWN = 12  # rows in a notebook
EVERY = "upper_every"


@dataclass(frozen=True)
class Tuned:
    """The outcome of `tune`.

    Attributes:
        method: the method with the best settings.
        score: its mean score over the seeds.
        metric: the name of the metric.
        table: a row per candidate, best first: its settings, its mean score and the `spread` of its scores over seeds.
    """

    method: Method
    score: float
    metric: str
    table: tuple[dict[str, float], ...]

    @property
    def best_rates(self) -> dict[str, float]:
        """The settings of the best candidate."""
        return {name: value for name, value in self.table[0].items() if name not in (self.metric, "spread")}

    @property
    def at_edge(self) -> tuple[str, ...]:
        """The step sizes whose best value is the smallest or the largest that was tried."""
        return _at_edge(self.table, [name for name in self.table[0] if name in RATES and name not in WEIGHTS])

    def __str__(self) -> str:
        header = list(self.table[0])
        rows = [header, *([f"{row[name]:.4g}" for name in header] for row in self.table)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
        if self.at_edge:
            lines.append(f"The best {' and '.join(self.at_edge)} lies at the edge of what was tried: search further.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = list(self.table[0])
        title = f"{self.method.name}: the best {self.metric} is {html.number(self.score)}"
        return html.table(title, [[html.number(row[name]) for name in head] for row in self.table[:SHOWN]], head)

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`."""
        with optional("pandas", caller="tuned.to_pandas"):
            import pandas

        return pandas.DataFrame(list(self.table))


class AllDiverged(ValueError):
    """Raised by `tune` where no setting that it tried stayed finite."""


@suggests_names
def tune(
    problem: Problem,
    method: Method,
    graph: Graph | GraphSequence | Levels | None = None,
    *,
    budget: int = 32,
    steps: int = 500,
    batch_size: int | None = None,
    metric: str | Metric = "upper",
    search: str | Mapping[str, Sequence[float]] | Sequence[Mapping[str, float]] = "random",
    seeds: Sequence[int] | None = None,
    at_once: int | None = None,
    moments: int = 1,
    seed: int = 0,
) -> Tuned:
    """Searches for the step sizes of a method; all candidates and seeds run in one vectorized program.

    The best candidate has the smallest mean `metric` at the end. A run that diverges scores infinity. Schedules are
    kept as they are. If the best candidate lies at an edge of the range, or all diverge, the search moves its range, up
    to three times, with half the budget each.

    Args:
        problem: the problem.
        method: the method whose step sizes are the centre of the search.
        graph: a graph, or a graph per level.
        budget: about how many candidates to try.
        steps: iterations of each run.
        batch_size: samples per node, level and step; None uses all samples.
        metric: what is minimized, a name of `db.metrics.METRICS` or a function of a snapshot.
        search: `"random"` draws each step size log-uniformly around the method's own, which is the first candidate;
            `"grid"` lays a grid over the same range; a mapping such as `{"alpha": [0.1, 1.0]}` gives values to combine
            and keeps the other step sizes. It may also name `upper_every`, and θ even if it is None. A list of settings
            is tried as given.
        seeds: every candidate runs once with each seed; None is (0, 1), or (0,) if nothing is random.
        at_once: the largest number of runs that share the device; None is all of them.
        moments: the score is the mean over this many evenly spaced steps of the second half of the run, with the last
            one. More than one smooths the score of runs that oscillate.
        seed: of the random search.

    Returns:
        The method with the best settings, and the table of all candidates.

    Raises:
        AllDiverged: if all candidates diverged; it is a ValueError.
    """
    graphs = graph_per_level(problem, method, graph)
    validate(problem, method, graphs, steps, batch_size, None)
    for argument, count in (("budget", budget), ("moments", moments), ("at_once", 1 if at_once is None else at_once)):
        validate_count(argument, count)
    if seeds is not None and (not hasattr(seeds, "__len__") or not len(seeds)):
        raise ValueError(f"seeds={seeds!r} must list the seeds of every candidate: give some, such as (0, 1).")
    _validate_search(search)
    if isinstance(search, Mapping) and EVERY in search and hasattr(method, EVERY):
        rest = {name: values for name, values in search.items() if name != EVERY} or [{}]
        same = {"steps": steps, "batch_size": batch_size, "metric": metric, "seeds": seeds, "moments": moments}
        search_rest = partial(tune, problem, graph=graph, search=rest, at_once=at_once, **same)
        return _best_interval(search_rest, method, search[EVERY])
    method = _with_weights(method, search)
    problem = problem.bind(graphs.nodes)
    centre = _constant(method)
    warn_about_problem(problem)
    candidates = _candidates(method, centre, budget, search, seed)
    if seeds is None:
        run = Simulator().start(problem, method, graphs, RunConfig(batch_size=batch_size))
        seeds = SEEDS if run.program.is_random(run.state) else SEEDS[:1]
    for run_seed in seeds:
        validate_seed("seeds", run_seed)

    def scored(candidates: list[dict[str, float]]) -> tuple[str, tuple[dict[str, float], ...]]:
        """The metric's name, and a row per candidate."""
        for candidate in candidates:
            replace(method, **candidate)  # its step sizes are validated here, ahead of all runs
        pairs = [(candidate, run_seed) for candidate in candidates for run_seed in seeds]
        size = at_once or len(pairs)
        name = ""
        scores = []
        for first in range(0, len(pairs), size):
            some = pairs[first : first + size]
            rates = {key: [candidate[key] for candidate, _ in some] for key in centre}
            numbers = [run_seed for _, run_seed in some]
            settings = {"batch_size": batch_size, "seeds": numbers, "rates": rates}
            run = BatchRun([problem] * len(some), method, graphs, keep_finite=False, **settings)
            name, score = next(iter(resolve([metric], *run.snapshot(0)).items()))
            scores.extend(_scores(run, score, steps, moments))
        return name, _table(candidates, np.reshape(scores, (len(candidates), len(seeds))), name)

    name, table = scored(candidates)
    for again in range(1, ROUNDS if isinstance(search, str) else 1):
        following = _moved(centre, table, finite=bool(np.isfinite(table[0][name])))
        if following == centre:
            break
        centre = following
        more = _candidates(method, centre, max(2, budget // 2), search, seed + again)
        table = tuple(sorted((*table, *scored(more)[1]), key=lambda row: row[name]))
    if not np.isfinite(table[0][name]):
        raise AllDiverged(f"all {len(table)} settings diverged: start from smaller step sizes.")
    return Tuned(replace(method, **{key: table[0][key] for key in centre}), table[0][name], name, table)


def _scores(run: BatchRun, score: Metric, steps: int, moments: int) -> np.ndarray:
    """(runs,) the metric, averaged over that many moments of the second half; infinite for a run that diverged."""
    apart = steps // (2 * moments)
    begun, total = steps - apart * (moments - 1), 0.0
    for _ in drive(run, steps, max(1, apart), offset=begun):
        total = total + np.asarray(_measure(score, run.problems[0], run.state), np.float64)
    mean = total / (1 + (steps - begun) // max(1, apart))
    return np.where(run.alive & np.isfinite(mean), mean, np.inf)


@eqx.filter_jit
def _measure(score: Metric, problem: Problem, states: State) -> Array:
    def measured(state: State) -> Array:
        value = score(Snapshot(problem, state))
        return cast(Array, next(iter(value.values())) if isinstance(value, dict) else value)

    return jax.vmap(measured)(states)


def _best_interval(tune: Callable[..., Tuned], method: Method, intervals: Sequence[float]) -> Tuned:
    """The best of a search for each `upper_every`; they are programs of their own."""
    searches: list[Tuned] = []
    rows: list[dict[str, float]] = []
    for every in intervals:
        validate_count(EVERY, every)
        with suppress(AllDiverged):
            searches.append(tune(method=replace(method, **{EVERY: every})))
            rows += [{EVERY: every, **row} for row in searches[-1].table]
    if not searches:
        raise AllDiverged("all settings diverged: start from smaller step sizes.")
    best = min(searches, key=lambda tuned: tuned.score)
    return replace(best, table=tuple(sorted(rows, key=lambda row: row[best.metric])))


def _with_weights(method: Method, search: object) -> Method:
    """The method with a number for each weight that is off and that the search names."""
    names = search if isinstance(search, Mapping) else {}
    off = [name for name in WEIGHTS if name in names and getattr(method, name, 0.0) is None]
    return replace(method, **{name: names[name][0] for name in off})


def _constant(method: Method) -> dict[str, float]:
    """The step sizes that are numbers."""
    step_sizes = {
        field.name: float(value)
        for field in fields(method)
        if field.name in RATES and isinstance(value := getattr(method, field.name), float | int)
    }
    if not step_sizes:
        raise ValueError(f"{method.name} has no constant step sizes to tune: give numbers instead of schedules.")
    return step_sizes


def _moved(centre: dict[str, float], table: tuple[dict[str, float], ...], *, finite: bool) -> dict[str, float]:
    """The centre of the next round: the best where no smaller or no larger step was tried, or smaller steps where all
    diverged."""
    steps = [key for key, value in centre.items() if key not in WEIGHTS and value > 0]
    if not finite:
        return centre | {key: centre[key] * 10**-DECADES for key in steps}
    return {key: table[0][key] for key in centre} if _at_edge(table, steps) else centre


def _at_edge(table: tuple[dict[str, float], ...], names: Sequence[str]) -> tuple[str, ...]:
    """Those of which the best row has the smallest or the largest value, of several that were tried."""
    tried = {name: [row[name] for row in table] for name in names}
    return tuple(
        name for name, values in tried.items() if min(values) < max(values) and values[0] in (min(values), max(values))
    )


def _candidates(
    method: Method,
    centre: dict[str, float],
    budget: int,
    search: str | Mapping[str, Any] | Sequence[Mapping[str, float]],
    seed: int,
) -> list[dict[str, float]]:
    """What to try, around the step sizes `centre`."""
    named = [search] if isinstance(search, Mapping) else [] if isinstance(search, str) else search
    unknown = [key for names in named for key in names if key not in centre]
    if unknown:
        raise ValueError(f"search names {unknown[0]!r}, but {method.name} has the step sizes {', '.join(centre)}.")
    if not isinstance(search, str) and not search:
        raise ValueError("search is empty: give settings to try, or 'random'.")
    if not isinstance(search, str | Mapping):
        return [centre | {key: float(value) for key, value in settings.items()} for settings in search]
    if isinstance(search, Mapping):
        grid = {key: list(search.get(key, [value])) for key, value in centre.items()}
        return [dict(zip(grid, map(float, point), strict=True)) for point in product(*grid.values())]
    if search == "grid":
        each = max(2, round(budget ** (1 / len(centre))))
        offsets = np.linspace(-DECADES, DECADES, each)
        grid = [list(dict.fromkeys(_within(key, value * 10**o) for o in offsets)) for key, value in centre.items()]
        return [dict(zip(centre, point, strict=True)) for point in product(*grid)]
    if search == "random":
        rng = np.random.default_rng(seed)

        def drawn() -> dict[str, float]:
            return {key: _within(key, value * 10 ** rng.uniform(-DECADES, DECADES)) for key, value in centre.items()}

        return [centre, *(drawn() for _ in range(budget - 1))]
    raise ValueError(f"search={search!r} is not known: choose 'random', 'grid' or a mapping of values.")


def _validate_search(search: object) -> None:
    fix = "give 'random', 'grid', a mapping of values such as {'alpha': [0.1, 1.0]}, or a list of settings"
    if isinstance(search, Mapping):
        for name, values in search.items():
            if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
                raise TypeError(
                    f"search has {name}={values!r}, which must be a list: give the values to try, [{values!r}]."
                )
    elif not isinstance(search, str | Sequence):
        raise TypeError(f"search={search!r} is not known: {fix}.")
    elif not isinstance(search, str) and not all(isinstance(settings, Mapping) for settings in search):
        raise TypeError(f"search={search!r} holds other things than settings: {fix}.")


def _within(name: str, value: float) -> float:
    return float(min(1.0, value) if name in WEIGHTS else value)


def _table(candidates: list[dict[str, float]], scores: np.ndarray, name: str) -> tuple[dict[str, float], ...]:
    rows = [
        {**candidate, name: float(each.mean()), "spread": float(np.ptp(each)) if np.isfinite(each).all() else np.inf}
        for candidate, each in zip(candidates, scores, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: row[name]))
