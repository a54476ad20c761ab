"""`solve`: a problem, a method and a graph in; a result out."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import jax

from .algorithms.method import Method
from .engines.simulator import Simulator
from .graph import Graph, GraphSequence, Levels
from .graphs import complete
from .ledger import COLUMNS
from .metrics import Metric, Snapshot, evaluate, resolve
from .problem import Problem
from .progress import Progress
from .result import Result
from .trace import Trace

Callback = Callable[[int, dict[str, float]], Any]


class NonFiniteWarning(UserWarning):
    """A run turned non-finite and stopped with its last good state."""


def solve(
    problem: Problem,
    method: Method,
    graph: Graph | GraphSequence | Levels | None = None,
    *,
    steps: int,
    batch_size: int | None = None,
    seed: int = 0,
    eval_every: int | None = None,
    metrics: Sequence[str | Metric] | None = None,
    callbacks: Sequence[Callback] = (),
    engine: Simulator | None = None,
    progress: bool | None = None,
) -> Result:
    """Runs `method` on `problem` over `graph` for `steps` iterations.

    - `batch_size`: samples per node, level and step, drawn with replacement; None uses all of them.
    - `eval_every`: steps between rows of the trace (default: about fifty rows); `metrics`: names of
      `decibel.metrics.METRICS` or functions of a snapshot; None is a cheap default and [] measures cost only.
    - `callbacks`: called as `callback(step, row)` after every row; one that returns True ends the run.
    - `progress`: a bar with the newest metrics; None shows it in a terminal only.
    """
    graphs = _levels(problem, graph)
    _refuse(problem, method, graphs, steps, batch_size, eval_every)
    run = (engine or Simulator()).start(problem, method, graphs, batch_size=batch_size, seed=seed)
    problem = run.program.problem
    chosen = resolve(metrics, problem, run.state)
    every = min(eval_every or max(1, steps // 50), steps)

    trace = Trace(provenance=_provenance(method, graphs, steps, batch_size, seed))
    spent: dict[str, float] = dict.fromkeys(COLUMNS, 0.0)
    seconds, stopped = 0.0, None

    def record() -> bool:
        row = {
            "step": run.step,
            **evaluate(chosen, Snapshot(problem, run.state)),
            **spent,
            "seconds": seconds,
        }
        trace.append(row)
        bar.show(run.step, row)
        return any([callback(run.step, row) is True for callback in callbacks])

    with Progress(method.name, steps, progress) as bar:
        for length in {every, steps % every or every}:
            run.compile(length)
        ended = record()
        while run.step < steps and not ended:
            length, begun = min(every, steps - run.step), time.perf_counter()
            cost = run.advance(length)
            if cost is None:
                stopped = f"non-finite values between steps {run.step} and {run.step + length}"
                break
            seconds += time.perf_counter() - begun
            spent = {name: spent[name] + cost[name] for name in COLUMNS}
            ended = record()
    if stopped:
        warnings.warn(
            f"{method.name} stopped at {stopped}; the state of step {run.step} is kept: use smaller step sizes.",
            NonFiniteWarning,
            stacklevel=2,
        )
    return Result(problem, method, run.state, run.step, trace, stopped)


def cost(
    problem: Problem,
    method: Method,
    graph: Graph | GraphSequence | Levels | None = None,
    *,
    batch_size: int | None = None,
) -> dict[str, float]:
    """What the first iteration costs each node, from tracing the step: samples, gradients, Hessian and Jacobian
    products, rounds and bytes."""
    graphs = _levels(problem, graph)
    _refuse(problem, method, graphs, 1, batch_size, None)
    run = Simulator().start(problem, method, graphs, batch_size=batch_size, seed=0)
    return run.advance(1) or {}


def _levels(problem: Problem, graph: Graph | GraphSequence | Levels | None) -> Levels:
    if graph is None:
        if problem.nodes is None:
            raise ValueError("graph is missing and the data are functions: give a graph, or Problem(nodes=...).")
        graph = complete(problem.nodes)
    if isinstance(graph, Levels):
        return graph
    if not isinstance(graph, Graph | GraphSequence):
        raise TypeError(f"graph must be a Graph or Levels, not {type(graph).__name__}: see db.graphs.ring(nodes).")
    return Levels(x=graph)


def _refuse(
    problem: Problem,
    method: Method,
    graphs: Levels,
    steps: int,
    batch_size: int | None,
    eval_every: int | None,
) -> None:
    if not isinstance(method, Method):
        raise TypeError(f"method must be an algorithm such as db.sparkle('ed', ...), not {type(method).__name__}.")
    for name, value in (("steps", steps), ("batch_size", batch_size), ("eval_every", eval_every)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{name}={value!r} must be a positive whole number.")
    if problem.nodes is not None and problem.nodes != graphs.x.nodes:
        raise ValueError(
            f"graph has {graphs.x.nodes} nodes but the data have {problem.nodes}: make the first axis of the data the "
            "graph's nodes."
        )
    method.refuse(problem, graphs, batch_size)


def _provenance(method: Method, graphs: Levels, steps: int, batch_size: int | None, seed: int) -> dict[str, Any]:
    packages = ("decibel-opt", "jax", "jaxlib", "numpy", "optax", "equinox")
    return {
        "method": method.name,
        "settings": method.settings,
        "graph": {level: repr(getattr(graphs, level)) for level in ("x", "y", "z")},
        "nodes": graphs.x.nodes,
        "steps": steps,
        "batch_size": batch_size,
        "seed": seed,
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in packages},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ModuleNotFoundError:
        return None
