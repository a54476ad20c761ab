"""What a study is: arms to run, claims to judge, and how step sizes are searched."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, NotRequired, Protocol, TypedDict

import jax
import numpy as np

from decibel import BatchRun, Levels, Method, Status, Trace, metrics, solve
from decibel.tasks import Task

from .. import SIZES
from ..judging.results import S
from ..judging.verdicts import Claim
from ..type_aliases import JSON, Metric, Snapshot, Topology

NOT_SPENT = ("step", "simulated_time")  # columns of costs that no run here adds up


class Curve(Protocol):
    """What a study runs for every seed: an `Arm`, or anything else that gives traces."""

    @property
    def case(self) -> str: ...

    @property
    def label(self) -> str: ...

    def describe(self) -> Mapping[str, object]:
        """What its numbers depend on, in plain types."""
        ...

    def run(self, seeds: Sequence[int]) -> list[Trace]: ...


class Call(TypedDict):
    """A function with what was given to it."""

    function: str
    arguments: list[object]
    options: dict[str, object]


class Drawn(TypedDict):
    """A graph with the weights of its links, phase by phase."""

    name: str
    nodes: int
    weights: list[list[float]]
    places: list[list[list[int]]]


class Description(TypedDict):
    """What the numbers of an arm depend on."""

    case: str
    label: str
    task: Call
    method: dict[str, JSON]
    graph: dict[str, Drawn]
    steps: int
    batch_size: int | None
    rows: int
    metrics: tuple[str, ...]
    samples: float | None
    together: bool
    measures: str | None
    group: NotRequired[int]  # runs over which a seed's errors are averaged
    shift: NotRequired[int]


class Rates(TypedDict):
    """Step sizes of a method with an auxiliary level: guesses, where no search was made."""

    alpha: float
    beta: float
    gamma: float
    theta: float


@dataclass(frozen=True)
class Arm:
    """One curve of a study: a method on a task over a graph, for every seed.

    - `case`, `label`: the panel it belongs to and its name there.
    - `task`: called with `seed=`. Every seed has data of its own; the batches follow the same seed.
    - `samples`: ends a run that has used that many samples per node, for comparison at equal samples.
    - `rows`: evaluations; `metrics`: names beside the task's own.
    - `tuned`: the key under which its step sizes are searched; None where they are given, by the paper or otherwise.
    - `together`: all seeds in one compiled program, or one after the other.
    - `shift`: added to every seed, so that cases of a study have data of their own.
    """

    case: str
    label: str
    task: Callable[..., Task]
    method: Method
    graph: Topology | Levels
    steps: int
    batch_size: int | None = None
    rows: int = 40
    metrics: tuple[str, ...] = ()
    measures: Callable[[Task], tuple[Metric, ...]] | None = None
    samples: float | None = None
    tuned: str | None = None
    together: bool = True
    shift: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return self.case, self.label

    @property
    def every(self) -> int:
        return max(1, self.steps // self.rows)

    def describe(self) -> Description:
        """What the numbers of this arm depend on, in plain types."""
        graphs = self.graph if isinstance(self.graph, Levels) else Levels(x=self.graph)
        known: Description = {
            "case": self.case,
            "label": self.label,
            "task": _call(self.task),
            "method": {"name": self.method.name, "class": type(self.method).__name__, **self.method.settings},
            "graph": {level: _graph(getattr(graphs, level)) for level in ("x", "y", "z")},
            "steps": self.steps,
            "batch_size": self.batch_size,
            "rows": self.rows,
            "metrics": self.metrics,
            "samples": self.samples,
            "together": self.together,
            "measures": None if self.measures is None else self.measures.__qualname__,
        }
        if self.shift:
            known["shift"] = self.shift
        return known

    def run(self, seeds: Sequence[int]) -> list[Trace]:
        seeds = [seed + self.shift for seed in seeds]
        tasks = _tasks(self.task, tuple(seeds))
        batch = self._batch(tasks, seeds) if self.together and len(seeds) > 1 else None
        if batch is None:
            return [self._alone(task, seed) for task, seed in zip(tasks, seeds, strict=True)]
        return self._together(batch, tasks, seeds)

    def _chosen(self, task: Task) -> tuple[str | Metric, ...]:
        return (*task.metrics, *(self.measures(task) if self.measures else ()), *self.metrics)

    def _alone(self, task: Task, seed: int) -> Trace:
        def enough(step: int, row: Mapping[str, float]) -> bool:
            return self.samples is not None and row["samples"] >= self.samples

        result = solve(
            task.problem,
            self.method,
            self.graph,
            steps=self.steps,
            batch_size=self.batch_size,
            seed=seed,
            eval_every=self.every,
            metrics=self._chosen(task),
            callbacks=[enough],
            progress=False,
        )
        result.trace.provenance["stopped"] = result.message if result.status is Status.DIVERGED else None
        return result.trace

    def _batch(self, tasks: list[Task], seeds: list[int]) -> BatchRun | None:
        """All seeds in one program; None where they do not fit into one, and where `solve` says what is wrong."""
        problems = [task.problem for task in tasks]
        try:
            return BatchRun(problems, self.method, self.graph, batch_size=self.batch_size, seeds=seeds)
        except ValueError:
            return None

    def _together(self, run: BatchRun, tasks: list[Task], seeds: list[int]) -> list[Trace]:
        growing = [
            Growing(metrics.resolve(self._chosen(task), *run.snapshot(i)), seed)
            for i, (task, seed) in enumerate(zip(tasks, seeds, strict=True))
        ]

        def record() -> None:
            for i in np.flatnonzero(run.alive).tolist():
                growing[i].record(run.step, run.snapshot(i))

        record()
        while run.step < self.steps and run.alive.any():
            first = run.step
            length = min(self.every, self.steps - first)
            run.compile(length)
            begun = time.perf_counter()
            costs = run.advance(length)
            seconds = time.perf_counter() - begun
            for each, cost in zip(growing, costs, strict=True):
                if cost is not None:
                    each.spend({**cost, "seconds": seconds})
                elif each.trace.provenance["stopped"] is None:
                    each.trace.provenance["stopped"] = f"non-finite values between steps {first} and {run.step}"
            record()
            if self.samples is not None and max(each.spent["samples"] for each in growing) >= self.samples:
                break
        return [each.trace for each in growing]


class Growing:
    """The trace of a run as it grows."""

    def __init__(self, measured: dict[str, Metric], seed: int) -> None:
        self.measured = measured
        self.trace = Trace(provenance={"seed": seed, "stopped": None})
        self.spent = {name: 0.0 for name in metrics.COSTS if name not in NOT_SPENT}

    def spend(self, cost: Mapping[str, float]) -> None:
        self.spent = {name: amount + cost[name] for name, amount in self.spent.items()}

    def record(self, step: int, snapshot: Snapshot) -> None:
        self.trace.append({"step": step, **metrics.evaluate(self.measured, snapshot), **self.spent})


_LAST: list[tuple[tuple[object, ...], list[Task]]] = []


def _tasks(call: Callable[..., Task], seeds: tuple[int, ...]) -> list[Task]:
    """The tasks of all seeds; those made last are kept, since the arms of a case share them."""
    key = (*_parts(call), seeds)
    if not _LAST or _LAST[0][0] != key:
        _LAST[:] = [(key, [call(seed=seed) for seed in seeds])]
    return _LAST[0][1]


def _call(call: Callable[..., object]) -> Call:
    if isinstance(call, partial):
        inner = _call(call.func)
        return {
            "function": inner["function"],
            "arguments": [*inner["arguments"], *map(_value, call.args)],
            "options": inner["options"] | {name: _value(value) for name, value in call.keywords.items()},
        }
    return {"function": f"{call.__module__}.{call.__qualname__}", "arguments": [], "options": {}}


def _parts(call: Callable[..., Task]) -> tuple[object, ...]:
    return (call.func, call.args, call.keywords) if isinstance(call, partial) else (call, (), {})


def _value(value: object) -> object:
    """A function by its name; with what was given to it, if anything was."""
    if not callable(value):
        return value
    call = _call(value)
    return call if call["arguments"] or call["options"] else call["function"]


def _graph(graph: Topology) -> Drawn:
    rounded: list[list[float]] = [np.round(phase.matrix.data, 9).tolist() for phase in graph.phases]
    places: list[list[list[int]]] = [
        [np.asarray(phase.matrix.indices).tolist(), np.asarray(phase.matrix.indptr).tolist()] for phase in graph.phases
    ]
    return {"name": graph.name, "nodes": graph.nodes, "weights": rounded, "places": places}


@dataclass(frozen=True)
class Search(Generic[S]):
    """How step sizes are found: every method tries as many candidates (more where the search widens), on data of seeds
    that are not judged, by a metric that no test sample enters. β and γ are one; a method with α alone tries as many
    values of it.

    - `alpha`, `beta`: the values to combine. `alone`: from where to where a method with α alone tries it, where that is
      another range. `steps`: of each candidate.
    - `theta`: weights of the newest sample to combine with them, for methods that average; none keeps the method's own.
    - `metric`: a name, or a function of the task that gives one; smaller is better.
    - `cases`: the cases of the set-up whose arms are searched; others share what is found.
    - `task`: the task to search on, where it is not the arm's own: one with a validation part instead of the test part.
    - `margin`: take no candidate next to one that diverges, with the next larger α or β: on other data it may diverge,
      too.
    - `widen`: while the best lies at an end of the values of α or β, try further values beyond it.
    """

    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    metric: str | Callable[[Task], Metric]
    cases: Callable[[S], Sequence[str]]
    steps: Callable[[S], int]
    seeds: tuple[int, ...] = (100,)
    task: Callable[[S, Arm], Callable[..., Task]] | None = None
    theta: tuple[float, ...] = ()
    alone: tuple[float, ...] = ()
    margin: bool = False
    widen: bool = False
    note: str = ""

    @property
    def budget(self) -> int:
        return len(self.alpha) * len(self.beta) * max(1, len(self.theta))

    def candidates(self, method: Method) -> list[dict[str, float]]:
        """The same number for every method, but for those with α and β that do not average, where `theta` is given. A
        step size of zero stays zero: that level never moves."""
        rates_of_method = {name: getattr(method, name, None) for name in ("alpha", "beta", "gamma", "theta")}
        moves = {name for name, rate in rates_of_method.items() if isinstance(rate, int | float) and rate != 0}
        weights = [{"theta": weight} for weight in self.theta if "theta" in moves] or [{}]
        each = self.budget // len(weights)

        def fine(rates: tuple[float, ...]) -> list[float]:
            return np.geomspace(min(rates), max(rates), each).tolist()

        if {"alpha", "beta"} <= moves:
            pairs = [(a, b) for a in self.alpha for b in self.beta]
        elif "alpha" in moves:
            pairs = [(a, 0.0) for a in fine(self.alone or self.alpha)]
        else:
            pairs = [(0.0, b) for b in fine(self.beta)]
        every = [{"alpha": a, "beta": b, "gamma": b, **weight} for a, b in pairs for weight in weights]
        return [{name: rate for name, rate in rates.items() if name in moves} for rates in every]


def validated(setup: object, arm: Arm) -> Callable[..., Task]:
    """The arm's own task with a validation part, cut from its training part, instead of the test part."""
    return partial(arm.task, validation=True)


@dataclass(frozen=True)
class Study(Generic[S]):
    """A published experiment: its set-up at three sizes, the arms that follow from it, and what is claimed."""

    name: str
    title: str
    paper: str
    about: str
    setups: Mapping[str, S]
    arms: Callable[[S], Sequence[Curve]]
    claims: tuple[Claim[S], ...]
    columns: tuple[str, ...]  # what the figures show, the first first
    differs: str = ""
    search: Search[S] | None = None
    against: str = "step"
    precision: str = "highest"  # of matrix products; "default" lets a GPU round them, where accuracy is judged

    def setup(self, size: str) -> S:
        if size not in self.setups:
            raise ValueError(f"size {size!r} is not known: choose {', '.join(SIZES)}.")
        return self.setups[size]


def with_rates(arm: Arm, rates: Mapping[str, float]) -> Arm:
    known = {name: value for name, value in rates.items() if hasattr(arm.method, name)}
    return replace(arm, method=replace(arm.method, **known))


def device() -> str:
    return jax.devices()[0].device_kind
