"""`solve`: a problem, a method and a graph in; a result out."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from ..core._json import Provenance
from ..core._names import suggests_names
from ..engines._checkpoint import identity, saving
from ..engines._driver import drive
from ..engines._engine import Engine
from ..engines._membership import restrict_to
from ..engines._program import RunConfig
from ..engines._run import Run
from ..engines._signals import listening
from ..engines._simulator import Simulator
from ..engines.cluster._cluster import Cluster
from ..engines.cluster._preflight import agree
from ..graphs._families import complete
from ..graphs._graph import Graph, GraphSequence, Levels
from ..methods._method import Method
from ..network._simulated_time import simulated_time
from ..network.faults import Fault, as_faults, validate_faults
from ..oracles._records import Records
from ..problem._problem import Problem
from ..results._callbacks import Callback, CallbackList, Row
from ..results._progress import Progress
from ..results._recorder import Recorder
from ..results._result import Result
from ..results._status import Status
from ..results._trace import Trace
from ..results.metrics import Metric, Snapshot, resolve

if TYPE_CHECKING:
    from ..engines.silo._engine import Silo

INTERRUPTED = "the process received a signal to terminate at step {}"
PRECISIONS = (None, "bfloat16", "tensorfloat32", "float32", "highest")


class NonFiniteWarning(UserWarning):
    """Warns that a run diverged; its result holds the last finite state."""


class SmallNodeWarning(UserWarning):
    """Warns that a batch is larger than the samples of a node."""


@suggests_names
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
    callbacks: Sequence[Callback | Callable[[int, Row], object]] = (),
    engine: Simulator | Cluster | Silo | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1,
    resume: bool = False,
    faults: Fault | Sequence[Fault] | None = None,
    sampling: str = "random",
    precision: str | None = None,
    micro_batch: int | None = None,
    privacy: Records | None = None,
    progress: bool | None = None,
) -> Result:
    """Runs a method on a problem over a graph.

    Args:
        problem: the problem.
        method: the method, such as `db.sparkle("ed", alpha=..., beta=..., gamma=...)`.
        graph: a graph, or `Levels` with a graph per level; may be None for a centralized method or a single node.
        steps: the number of iterations.
        batch_size: samples per node, level and step; None uses all samples.
        seed: of the batches, of random numbers inside the method, and of faults.
        eval_every: steps between two rows of the trace; None gives about fifty rows.
        metrics: names of `db.metrics.METRICS` or functions of a snapshot; None is an inexpensive default, and []
            records costs only.
        callbacks: called as `callback(step, row)` after every row; if one returns True, the run stops. A `Callback`
            also observes the beginning, the states and the end; see `db.loggers`.
        engine: `Simulator()`, all nodes on one device (the default); `Cluster()`, nodes distributed over devices; or
            `Silo(...)`, one node here and its neighbours at other organisations.
        checkpoint: a folder in which the state is saved, every `checkpoint_every` rows and when the process receives a
            signal to terminate.
        checkpoint_every: rows between two checkpoints.
        resume: continue from the newest checkpoint, with the same numbers as an uninterrupted run.
        faults: one or several faults to inject, such as `db.faults.drop(0.2)`.
        sampling: `"random"` draws every batch with replacement; `"shuffle-once"` shuffles every node's samples once and
            takes batches in that order, which reads memory contiguously.
        precision: of the computation, not of the state: `"bfloat16"`, or `"tensorfloat32"`, `"float32"`, `"highest"`
            for matrix products as in JAX; None is JAX's default.
        micro_batch: how many samples of a node a loss is evaluated on at once; None is the batch. A loss is a mean
            over its batch, so the numbers are the same up to rounding, and a derivative needs the memory of so few.
        privacy: `db.privacy.records(clip=..., noise=...)` clips every record's part of a direction and adds noise.
        progress: show a progress bar; None shows it in a terminal or a notebook only.

    Returns:
        The result: averages, every node's copies, the trace and the status.

    Raises:
        ValueError: if arguments are invalid or do not fit together, before the first step.
        TypeError: if an argument has the wrong type.

    Warns:
        NonFiniteWarning: if the run diverged.
        SmallNodeWarning: if a node holds fewer samples than a batch.
    """
    graphs = levels_of(problem, method, graph)
    validate(problem, method, graphs, steps, batch_size, eval_every)
    seed = validate_seed("seed", seed)
    _validate_count("checkpoint_every", checkpoint_every)
    _validate_engine(engine)
    validate_faults(injected := as_faults(faults), graphs)
    if injected and method.coded:
        raise ValueError(
            "faults cannot be combined with the encoded messages of db.privacy, except those of 'wave': wrap that, or "
            "leave out one of the two."
        )
    validate_choice("sampling", sampling, ("random", "shuffle-once"))
    validate_choice("precision", precision, PRECISIONS)
    if micro_batch is not None:
        _validate_count("micro_batch", micro_batch)
    _validate_privacy(privacy, batch_size, sampling)
    _mention_small_nodes(problem, batch_size)
    callback_list = CallbackList(callbacks)
    if resume and checkpoint is None:
        raise ValueError("resume=True needs checkpoint: give the folder of the run to continue.")
    if checkpoint is not None:
        _validate_folder(checkpoint)
    engine = engine or Simulator()
    here = restrict_to(graphs, problem, engine.active_nodes(graphs.nodes))
    if here.graphs != graphs:
        method.validate(here.problem, here.graphs, batch_size)
    together = isinstance(engine, Cluster) and jax.process_count() > 1
    config = RunConfig(batch_size, seed, injected, here.members, sampling, precision, privacy, micro_batch)
    own = identity(problem, method, graphs, config) if together or checkpoint is not None else {}
    if together:
        names = [getattr(metric, "__name__", str(metric)) for metric in metrics or ()]
        saved = {"checkpoint": checkpoint, "checkpoint_every": checkpoint_every, "resume": resume}
        agree(own, members=here.members, steps=steps, eval_every=eval_every, metrics=names, **saved)
    acting, clock = simulated_time(
        injected, config.numbers(here.graphs.nodes), asynchronous=method.asynchronous, seed=seed
    )
    run = engine.start(here.problem, method, here.graphs, config._replace(faults=acting))
    problem = run.program.problem
    every = min(eval_every or max(1, steps // 50), steps)
    status, message = Status.COMPLETED, ""

    with (
        listening(run, saved=checkpoint is not None) as interrupted,
        ending(run, steps),
        saving(checkpoint, run, own, here.members) as saves,
        Progress(method.name, steps, progress) as bar,
        callback_list,
    ):
        chosen = resolve(metrics, problem, run.state, alone=run.alone)
        about = _provenance(method, graphs, steps, batch_size, seed)
        recorder = Recorder(chosen, Trace(provenance=about), timed=clock is not None)
        saved = saves.restore(run) if saves is not None and resume else None
        if saved is not None:
            recorder.restore(saved)
            bar.begin(run.step)
        about = recorder.trace.provenance | ({} if saved is None else {"resumed": run.step})
        callback_list.begin(about, here.graphs)

        def record() -> bool:
            """One more row; whether a callback stops the run."""
            snapshot = Snapshot(problem, run.state)
            row = recorder.record(run.step, snapshot)
            bar.show(run.step, row)
            stops = callback_list.notify(run.step, snapshot, row)
            if callback_list.best_step == run.step:
                run.keep()
            return stops

        ended = record() if recorder.trace.rows == 0 else callback_list.resume(recorder.trace)
        if run.best is not None and run.best.step != callback_list.best_step:
            run.best = None  # another metric was best there
        goal, limit = run.reach(steps)
        if interrupted():  # while it waited for others
            status, message, ended = Status.INTERRUPTED, INTERRUPTED.format(run.step), True
        for chunk in () if ended else drive(run, goal, every):
            if chunk.cost is None:
                status = Status.DIVERGED
                message = f"non-finite values between steps {run.step} and {run.step + chunk.length}"
                break
            passed = {} if clock is None else {"simulated_time": clock.between(chunk.first, run.step - chunk.first)}
            recorder.spend(chunk.cost | passed, chunk.seconds)
            ended = run.step > chunk.first and record()
            if run.ended and not ended:
                ended, limit = True, run.ended
            if interrupted():
                status, message, ended = Status.INTERRUPTED, INTERRUPTED.format(run.step), True
            if saves and (ended or run.step >= goal or recorder.trace.rows % checkpoint_every == 0):
                saves.save(run, recorder.trace, recorder.spent)
            if ended:
                break
        if status is Status.COMPLETED and run.step < steps:
            status, message = Status.STOPPED, callback_list.reason if ended and not run.ended else limit
        callback_list.status, callback_list.message = status, message
    if status is Status.DIVERGED:
        warnings.warn(
            f"{method.name} diverged: {message}; the state of step {run.step} is kept: use smaller step sizes.",
            NonFiniteWarning,
            stacklevel=3,
        )
    result = Result(problem, method, run.state, run.step, recorder.trace, status, message)
    if run.best is not None:
        best = run.best.state()
        result.best = Result(problem, method, best, run.best.step, recorder.trace, status, message)
    return result


@contextmanager
def ending(run: Run, steps: int) -> Iterator[None]:
    """Whatever happens, neighbours elsewhere are notified that the run is over."""
    try:
        yield
    finally:
        run.close(finished=run.step >= steps)


def cost(
    problem: Problem,
    method: Method,
    graph: Graph | GraphSequence | Levels | None = None,
    *,
    batch_size: int | None = None,
) -> dict[str, float]:
    """The cost of the first iteration, per node.

    The step is traced; it is run only if its cost depends on random numbers or on the data.

    Args:
        problem: the problem.
        method: the method.
        graph: a graph, or a graph per level.
        batch_size: samples per node, level and step; None uses all samples.

    Returns:
        `samples`, `gradients`, `hvps` (Hessian-vector products), `jvps` (Jacobian-vector products), `rounds` and
        `bytes`.
    """
    graphs = levels_of(problem, method, graph)
    validate(problem, method, graphs, 1, batch_size, None)
    run = Simulator().start(problem, method, graphs, RunConfig(batch_size))
    costs = run.program.costs(run.state)
    if costs.repeated:
        return run.advance(1) or costs.total(1, [float("nan") for _ in costs.repeated])
    return costs.total(1, [])


def levels_of(problem: Problem, method: Method, graph: Graph | GraphSequence | Levels | None) -> Levels:
    """A graph per level. None stands for the complete graph, for methods that are centralized."""
    if not isinstance(problem, Problem):
        fix = "give its .problem" if hasattr(problem, "problem") else "make one from your losses and data"
        raise TypeError(f"problem must be a db.Problem, not {type(problem).__name__}: {fix}.")
    if graph is None:
        if problem.nodes is None or not (problem.nodes == 1 or getattr(method, "centralized", False)):
            raise ValueError(f"graph is missing: give one such as db.graphs.ring({problem.nodes or 'nodes'}).")
        graph = complete(problem.nodes)
    if isinstance(graph, Levels):
        return graph
    if not isinstance(graph, Graph | GraphSequence):
        if hasattr(graph, "nodes") and hasattr(graph, "edges"):
            raise TypeError("graph is a networkx graph: give db.graphs.from_networkx(graph).")
        raise TypeError(f"graph must be a Graph or Levels, not {type(graph).__name__}: see db.graphs.ring(nodes).")
    return Levels(x=graph)


def validate(
    problem: Problem,
    method: Method,
    graphs: Levels,
    steps: int,
    batch_size: int | None,
    eval_every: int | None,
) -> None:
    if not isinstance(method, Method):
        raise TypeError(f"method must be a db.Method such as db.sparkle('ed', ...), not {type(method).__name__}.")
    for name, value in (("steps", steps), ("batch_size", batch_size), ("eval_every", eval_every)):
        if value is not None:
            _validate_count(name, value)
    if problem.nodes is not None and problem.nodes != graphs.x.nodes:
        raise ValueError(
            f"graph has {graphs.x.nodes} nodes but the data have {problem.nodes}: make the first axis of the data the "
            "graph's nodes."
        )
    terms = None if problem.prox_x is None else problem.prox_x.nodes
    if terms is not None and terms != graphs.x.nodes:
        raise ValueError(f"prox_x has terms for {terms} nodes but the graph has {graphs.x.nodes}: give one for each.")
    method.validate(problem, graphs, batch_size)


def _mention_small_nodes(problem: Problem, batch_size: int | None) -> None:
    if batch_size is None:
        return
    for name, data in (("upper_data", problem.upper_data), ("lower_data", problem.lower_data)):
        counts = getattr(data, "counts", None)
        if counts is not None and 1 < (least := int(np.min(counts))) < batch_size:
            warnings.warn(
                f"batch_size={batch_size} is more than the {least} samples of a node in {name}, so that its batches "
                "hold samples several times: use smaller batches, or all samples (leave out batch_size).",
                SmallNodeWarning,
                stacklevel=4,
            )
            return


def _validate_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} must be a positive integer.")


def validate_seed(name: str, seed: object) -> int:
    """The seed as Python's own integer."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"{name}={seed!r} must be an integer from 0 to 4294967295.")
    return int(seed)


def _validate_engine(engine: object) -> None:
    if engine is not None and (isinstance(engine, type) or not isinstance(engine, Engine)):
        kind = f"the class {engine.__name__}" if isinstance(engine, type) else type(engine).__name__
        raise TypeError(f"engine is {kind}: give db.Simulator(), db.Cluster() or db.Silo(...).")


def _validate_privacy(privacy: object, batch_size: int | None, sampling: str) -> None:
    if privacy is None:
        return
    if not isinstance(privacy, Records):
        raise TypeError(f"privacy={privacy!r} must be db.privacy.records(clip=..., noise=...), or None.")
    if batch_size is not None and sampling != "shuffle-once":
        raise ValueError(
            "privacy=db.privacy.records(...) needs every record in one batch of a pass: use all samples (leave out "
            "batch_size), or sampling='shuffle-once'."
        )


def _validate_folder(checkpoint: str | Path) -> None:
    try:
        Path(checkpoint).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(
            f"checkpoint={str(checkpoint)!r} cannot be a folder ({reason}): give one that you may write to."
        ) from None


def validate_choice(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r} is not known: choose from {', '.join(map(repr, known))}.")


def _provenance(method: Method, graphs: Levels, steps: int, batch_size: int | None, seed: int) -> Provenance:
    packages = ("decibel-opt", "jax", "jaxlib", "numpy", "optax", "equinox")
    return {
        "method": method.name,
        "settings": method.described,
        "graph": {level: getattr(graphs, level).words for level in ("x", "y", "z")},
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
