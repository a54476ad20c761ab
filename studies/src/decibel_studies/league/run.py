"""The runs of the league: a method on a task, with step sizes searched first, kept in a file of its own."""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TypedDict, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from decibel import CATALOG, BatchRun, Entry, Levels, Method, Problem, State
from decibel.graphs import one_peer_hypercube, ring
from decibel.tasks import Task

from ..files import write_file
from ..type_aliases import JSON, PyTree
from .goal import least, values
from .tasks import DIVISIONS, NODES, Division

GRAPHS = {"": Levels(x=ring(NODES)), "one peer": Levels(x=one_peer_hypercube(NODES))}
# Methods that also run with one peer a step, in rows of their own.
ONE_PEER = ("sparkle-ed", "sparkle-gt", "sparkle-ada-ed", "ed", "nids", "gt", "ada-ed", "adam-ed")
STEP_SIZES = ("alpha", "beta", "gamma")
# Their step sizes are lengths of steps, whatever the gradient: the search is around their own defaults.
NORMALIZED = ("normalized-dsvrbgd", "d-adast", "adam-ed", "dadam", "gt-adam", "sparkle-adam-ed")


@dataclass(frozen=True)
class Setup:
    """Equal for all methods.

    - `iterations`: the budget; a run goes on to twice as many where that is needed to spend the other two budgets.
    - `rows`: evaluations within the budget of iterations.
    - `upper`, `lower`: factors of the task's α, and of its β and γ, that are combined in the search. A method with α
      alone tries as many factors of it.
    - `seeds`: data and batches of the runs, as many as candidates so that both are one compiled program.
    """

    iterations: int = 100
    rows: int = 5
    batch_size: int = 16
    upper: tuple[float, ...] = (0.1, 1.0, 10.0)
    lower: tuple[float, ...] = (0.3, 1.0, 3.0)
    search_seed: int = 100

    @property
    def candidates(self) -> int:
        return len(self.upper) * len(self.lower)

    @property
    def seeds(self) -> range:
        return range(self.candidates)

    @property
    def every(self) -> int:
        return max(1, self.iterations // self.rows)


class Curves(TypedDict):
    """What a run measured, row by row; `value` is Φ(x̄) of every seed, None where it diverged."""

    step: list[int]
    bytes: list[float]
    seconds: list[float]  # of CPU time, per run
    value: list[list[float | None]]
    consensus: list[list[float | None]]


class MethodRecord(TypedDict):
    """A row of the league on a task; `why` says why there are no curves."""

    division: str
    task: str
    method: str
    why: str | None
    settings: dict[str, JSON]
    curves: Curves | None


class Extremes(TypedDict):
    """Of a task: Φ at the start and the least Φ known, for every seed."""

    division: str
    task: str
    start: list[float]
    least: list[float]


class Budget(TypedDict):
    bytes: float
    seconds: float


Say = Callable[[str], object]


def entry_of(name: str) -> Entry:
    """The method of a row, which is named by it, or by it and its graph: "sparkle-ed, one peer"."""
    method, _, graph = name.partition(", ")
    if graph not in GRAPHS:
        raise ValueError(f"graph {graph!r} is not in the league: choose from {', '.join(filter(None, GRAPHS))}.")
    return CATALOG[method]


def slug(text: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


@lru_cache(maxsize=64)
def _tasks(division: str, name: str, seeds: tuple[int, ...]) -> tuple[Task, ...]:
    return tuple(DIVISIONS[division].tasks[name](seed=seed) for seed in seeds)


def step_sizes(entry: Entry, task: Task) -> dict[str, float]:
    """The centre of the search: the task's step sizes, times what the method's defaults are of the usual ones."""
    usual = CATALOG["sparkle-ed"].defaults
    if entry.name in NORMALIZED:
        method = entry()
        return {name: float(getattr(method, name)) for name in STEP_SIZES if hasattr(method, name)}
    defaults = {name: size for name, size in entry.defaults.items() if name in STEP_SIZES}
    given = {"gamma": task.step_sizes.get("beta", 0.1), **task.step_sizes}
    return {name: float(given.get(name, usual[name]) * size / usual[name]) for name, size in defaults.items()}


def candidates(entry: Entry, task: Task, setup: Setup) -> list[dict[str, float]]:
    """As many for every method; the same one over and over for a method without step sizes."""
    centre = step_sizes(entry, task)
    if set(centre) <= {"alpha"}:
        factors = np.geomspace(
            min(setup.upper) * min(setup.lower), max(setup.upper) * max(setup.lower), len(setup.seeds)
        )
        return [{name: float(size * factor) for name, size in centre.items()} for factor in factors]
    return [
        {name: size * (a if name == "alpha" else b) for name, size in centre.items()}
        for a in setup.upper
        for b in setup.lower
    ]


def measure(division: Division, task: str, name: str, setup: Setup, budget: Budget | None) -> MethodRecord:
    """A search on data of its own, then the runs; `budget` is that of bytes and seconds, None for the method that sets
    it."""
    entry, levels = entry_of(name), GRAPHS[name.partition(", ")[2]]
    record: MethodRecord = {
        "division": division.form,
        "task": task,
        "method": name,
        "why": None,
        "settings": {},
        "curves": None,
    }
    searched = _tasks(division.form, task, (setup.search_seed,))[0]
    tried = candidates(entry, searched, setup)
    # The method's fields of the names that vary; a step size may be a schedule in the method and is a number here.
    try:
        method = entry(**tried[0])
        batch_size = _batch_size(searched.problem, method, levels, setup)
    except ValueError as error:
        return {**record, "why": str(error)}
    varies = {key: [rates[key] for rates in tried] for key in tried[0] if hasattr(method, key)}
    copies = [jax.tree.map(lambda leaf: leaf, searched.problem) for _ in tried]
    begin = partial(BatchRun, method=method, graph=levels, batch_size=batch_size)
    search = begin(copies, rates=varies, seeds=[setup.search_seed] * len(tried))
    for _ in range(setup.rows):
        search.advance(setup.every)
    ends = np.where(search.alive, np.asarray(values(search.program.problem, _average(search.state))), np.inf)
    best = int(np.nanargmin(np.where(np.isfinite(ends), ends, 1e30)))
    problems = [judged.problem for judged in _tasks(division.form, task, tuple(setup.seeds))]
    chosen = {key: [sizes[best]] * len(problems) for key, sizes in varies.items()}
    curves = _run(begin(problems, rates=chosen, seeds=setup.seeds), setup, budget)
    settings: dict[str, JSON] = dict(tried[best])
    if batch_size is None:
        settings["batch_size"] = None
    return {**record, "settings": settings, "curves": curves}


def _batch_size(problem: Problem, method: Method, levels: Levels, setup: Setup) -> int | None:
    """That of the set-up; None, all samples, for a method that is defined so."""
    try:
        method.validate(problem, levels, setup.batch_size)
    except ValueError:
        method.validate(problem, levels, None)
        return None
    return setup.batch_size


def _run(run: BatchRun, setup: Setup, budget: Budget | None) -> Curves:
    curves: Curves = {"step": [], "bytes": [], "seconds": [], "value": [], "consensus": []}
    sent = 0.0
    seconds = 0.0
    run.compile(setup.every)

    def record() -> None:
        curves["step"].append(run.step)
        curves["bytes"].append(sent)
        curves["seconds"].append(float(f"{seconds:.4g}"))
        curves["value"].append(_of_alive(values(run.program.problem, _average(run.state)), run))
        curves["consensus"].append(_of_alive(_consensus(run.state), run))

    record()
    while run.step < 2 * setup.iterations and run.alive.any():
        spent = budget is None or (sent >= budget["bytes"] and seconds >= budget["seconds"])
        if run.step >= setup.iterations and spent:
            break
        begun = time.process_time()
        costs = [cost for cost in run.advance(setup.every) if cost is not None]
        seconds += (time.process_time() - begun) / len(run.alive)
        sent += float(np.mean([cost["bytes"] for cost in costs])) if costs else 0.0
        record()
    return curves


def _of_alive(numbers: jax.Array, run: BatchRun) -> list[float | None]:
    return [
        float(f"{number:.5g}") if alive else None
        for number, alive in zip(np.asarray(numbers, float), run.alive, strict=True)
    ]


@eqx.filter_jit
def _average(state: State) -> PyTree:
    return jax.vmap(lambda of_run: of_run.x.s.mean())(state)


@eqx.filter_jit
def _consensus(state: State) -> jax.Array:
    def of_run(state: State) -> jax.Array:
        leaves = jax.tree.leaves(state.x.s.tree)
        return jnp.stack([jnp.square(leaf - leaf.mean(0)).sum() for leaf in leaves]).sum() / leaves[0].shape[0]

    return jax.vmap(of_run)(state)


def order(division: Division) -> list[str]:
    """The rows of a division: the method that sets the budgets, all others, with one peer a step, mixtures."""
    every = [*CATALOG, *(f"{name}, one peer" for name in ONE_PEER)]
    names = [name for name in every if entry_of(name).form == division.form and name != division.reference]
    return [division.reference, *sorted(names, key=lambda name: entry_of(name).mixture)]


def league(folder: Path, setup: Setup, *, say: Say, methods: list[str] | None = None) -> Iterator[MethodRecord]:
    """All records, from the folder where they are there; those that are not are run and written one by one."""
    every = [
        (division, name)
        for division in DIVISIONS.values()
        for name in order(division)
        if methods is None or name == division.reference or entry_of(name).name in methods
    ]
    pairs = sorted(every, key=lambda pair: entry_of(pair[1]).mixture)  # what is there early shows all divisions
    budgets: dict[tuple[str, str], Budget] = {}
    for count, (division, name) in enumerate(pairs, 1):
        begun = time.perf_counter()
        fresh = 0
        for task in division.tasks:
            levels(folder, division, task, setup)
            path = place(folder, division.form, task, name)
            record = kept(path, setup)
            if record is None:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        record = measure(division, task, name, setup, budgets.get((division.form, task)))
                except Exception as error:  # one method must not end the others' runs; it is tried again next time
                    say(f"{division.form}, {name} on {task} failed: {error}")
                    continue
                keep(path, setup, record)
                fresh += 1
            if name == division.reference:
                budgets[division.form, task] = budget_of(record, setup)
            yield record
        if fresh:
            say(f"{count} of {len(pairs)}: {division.form}, {name}: {time.perf_counter() - begun:.0f} s")


def budget_of(record: MethodRecord, setup: Setup) -> Budget:
    """What a run has spent when it reaches the budget of iterations."""
    curves = record["curves"]
    assert curves is not None
    at = curves["step"].index(setup.every * setup.rows)
    return {"bytes": curves["bytes"][at], "seconds": curves["seconds"][at]}


def levels(folder: Path, division: Division, task: str, setup: Setup) -> Extremes:
    """Φ at the start and at best, for every seed; kept in the folder."""
    path = folder / "levels" / division.form / f"{slug(task)}.json"
    if path.exists():
        saved = json.loads(path.read_text())
        if saved["setup"] == _told(setup):
            return cast(Extremes, saved["levels"])
    ends = [least(judged.problem) for judged in _tasks(division.form, task, tuple(setup.seeds))]
    extremes: Extremes = {
        "division": division.form,
        "task": task,
        "start": [start for start, _ in ends],
        "least": [lowest for _, lowest in ends],
    }
    write_file(path, json.dumps({"setup": _told(setup), "levels": extremes}))
    return extremes


def place(folder: Path, division: str, task: str, method: str) -> Path:
    """Where a record is kept."""
    return folder / "runs" / division / slug(task) / f"{slug(method)}.json"


def kept(path: Path, setup: Setup) -> MethodRecord | None:
    """A record of this set-up, None where there is none."""
    if not path.exists():
        return None
    saved = json.loads(path.read_text())
    return cast(MethodRecord, saved["record"]) if saved["setup"] == _told(setup) else None


def keep(path: Path, setup: Setup, record: MethodRecord) -> None:
    write_file(path, json.dumps({"setup": _told(setup), "record": record}))


def collect(folder: Path, setup: Setup) -> list[MethodRecord]:
    """All records that the folder holds, of whatever call."""
    places = [
        place(folder, division.form, task, name)
        for division in DIVISIONS.values()
        for name in order(division)
        for task in division.tasks
    ]
    return [record for path in places if (record := kept(path, setup)) is not None]


def _told(setup: Setup) -> Mapping[str, JSON]:
    return json.loads(json.dumps(dataclasses.asdict(setup)))
