"""`solve`: a problem, a method and a graph in; a result out."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import jax

from ..core._json import JSON, Provenance
from ..core._names import suggests_names
from ..core._numbers import validate_count
from ..engines._checkpoint import open_checkpoints, run_fingerprint
from ..engines._engine import Engine
from ..engines._membership import restrict_to
from ..engines._program import RunConfig
from ..engines._run import Run
from ..engines._signals import graceful_termination
from ..engines._simulator import Simulator
from ..engines.cluster._preflight import validate_processes_agree
from ..graphs._graph import Graph, GraphSequence, Levels
from ..methods._method import Method
from ..network._simulated_time import split_slow_faults
from ..network._wave import Wave
from ..network.faults import Fault
from ..oracles._records import Records
from ..problem._problem import Problem
from ..results._callbacks import Callback, CallbackList, Row
from ..results._progress import Progress
from ..results._recorder import TraceRecorder
from ..results._result import Result
from ..results._status import Status
from ..results._trace import Trace
from ..results.metrics import Metric, resolve
from ._delays import validate_delays, warn_about_delays
from ._session import Ending, RunPlan, Session
from ._validate import (
    PRECISIONS,
    graph_per_level,
    has_delays,
    validate,
    validate_checkpoint,
    validate_choice,
    validate_privacy,
    validate_seed,
    validated_engine,
    validated_faults,
    warn_about_problem,
    warn_about_small_nodes,
)


class NonFiniteWarning(UserWarning):
    """Warns that a run diverged; its result holds the last finite state."""


class GrowthWarning(UserWarning):
    """Warns that a run completed although its values grew by eight orders of magnitude or more."""


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
    engine: Engine | None = None,
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
        seed: seeds the batches, the random numbers inside the method, and the faults.
        eval_every: steps between two rows of the trace; None gives about fifty rows.
        metrics: names of `db.metrics.METRICS` or functions of a snapshot. None selects inexpensive ones, and [] records
            costs only.
        callbacks: called as `callback(step, row)` after every row; if one returns True, the run stops. A `Callback`
            also observes the beginning, the states and the end; see `db.loggers`.
        engine: `Simulator()`, all nodes on one device (the default); `Cluster()`, nodes distributed over devices; or
            `Silo(...)`, one node here and its neighbours at other organisations.
        checkpoint: a folder for checkpoints, written every `checkpoint_every` rows. SIGTERM or Ctrl-C also saves one
            and stops the run at its next row; a second Ctrl-C stops at once.
        checkpoint_every: rows between two checkpoints.
        resume: continue from the newest checkpoint, with the same numbers as an uninterrupted run.
        faults: one or several faults to inject, such as `db.faults.drop(0.2)`.
        sampling: `"random"` draws every batch with replacement; `"shuffle-once"` shuffles every node's samples once and
            takes batches in that order, which reads memory contiguously.
        precision: the precision of the computation; the state keeps its dtype. `"bfloat16"` computes losses and
            derivatives in bfloat16. `"tensorfloat32"`, `"float32"` and `"highest"` set the precision of matrix
            products, as in JAX. None is JAX's default.
        micro_batch: evaluate each loss on at most this many samples of a node at a time; None evaluates the whole
            batch. Results agree up to rounding; memory use is that of one micro-batch.
        privacy: `db.privacy.records(clip=..., noise=...)` clips each sample's contribution to the directions and adds
            noise, as in DP-SGD.
        progress: show a progress bar; None shows it in a terminal or a notebook only.

    Returns:
        The result: averages, every node's copies, the trace and the status.

    Raises:
        ValueError: if arguments are invalid or do not fit together, before the first step.
        TypeError: if an argument has the wrong type.

    Warns:
        NonFiniteWarning: if the run diverged.
        GrowthWarning: if the run completed although values grew by many orders of magnitude.
        ProblemWarning: if a loss does not depend on x or y as it must, or validation data are also trained on.
        SmallNodeWarning: if a node holds fewer samples than a batch.
        DelayWarning: if messages may be late and a step size of `"wave"` is too large for that.
    """
    graphs = graph_per_level(problem, method, graph)
    validate(problem, method, graphs, steps, batch_size, eval_every)
    engine = validated_engine(engine)
    validate_count("checkpoint_every", checkpoint_every)
    injected = validated_faults(faults, method, graphs)
    delayed = has_delays(injected, engine)
    if delayed:
        validate_delays(method, graphs)
    validate_choice("sampling", sampling, ("random", "shuffle-once"))
    validate_choice("precision", precision, PRECISIONS)
    if micro_batch is not None:
        validate_count("micro_batch", micro_batch)
    validate_privacy(privacy, batch_size, sampling)
    validate_checkpoint(checkpoint, resume=resume)
    warn_about_small_nodes(problem, batch_size)
    callback_list = CallbackList(callbacks)

    membership = restrict_to(graphs, problem, engine.active_nodes(graphs.nodes))
    if membership.graphs != graphs:
        method.validate(membership.problem, membership.graphs, batch_size)
    config = RunConfig(
        batch_size=batch_size,
        seed=validate_seed("seed", seed),
        faults=injected,
        members=membership.members,
        sampling=sampling,
        precision=precision,
        privacy=privacy,
        micro_batch=micro_batch,
    )
    fingerprint: dict[str, JSON] = {}
    if engine.spans_processes or checkpoint is not None:
        fingerprint = run_fingerprint(problem, method, graphs, config)
    if engine.spans_processes:
        names = [getattr(metric, "__name__", str(metric)) for metric in metrics or ()]
        checkpoint_settings = {"checkpoint": checkpoint, "checkpoint_every": checkpoint_every, "resume": resume}
        validate_processes_agree(
            fingerprint,
            members=membership.members,
            steps=steps,
            eval_every=eval_every,
            metrics=names,
            **checkpoint_settings,
        )
    sends_only_waves = all(isinstance(message, Wave) for message in method.messages)
    node_ids = config.node_ids(membership.graphs.nodes)
    faults_to_simulate, simulated_time = split_slow_faults(
        injected, node_ids, asynchronous=sends_only_waves, seed=config.seed
    )
    run = engine.start(membership.problem, method, membership.graphs, config._replace(faults=faults_to_simulate))
    warn_about_problem(run.program.problem)
    if delayed and not engine.spans_processes:
        warn_about_delays(run.program, graphs, run.node_ids)

    # They end in reverse order: first the callbacks, then checkpoints are flushed, and then the run closes.
    with (
        graceful_termination(run, checkpointed=checkpoint is not None) as was_interrupted,
        close_at_end(run, steps),
        open_checkpoints(checkpoint, run, fingerprint, membership.members) as checkpoints,
        Progress(method.name, steps, progress) as progress_bar,
        callback_list,
    ):
        metric_by_column = resolve(metrics, run.program.problem, run.state, alone=run.holds_one_node)
        trace = Trace(provenance=_provenance(method, graphs, steps, batch_size, config.seed))
        recorder = TraceRecorder(metric_by_column, trace, timed=simulated_time is not None)
        plan = RunPlan(
            steps=steps,
            eval_every=min(eval_every or max(1, steps // 50), steps),
            checkpoint_every=checkpoint_every,
        )
        session = Session(
            run=run,
            plan=plan,
            recorder=recorder,
            callbacks=callback_list,
            progress=progress_bar,
            checkpoints=checkpoints,
            simulated_time=simulated_time,
            was_interrupted=was_interrupted,
        )
        resumed = {"resumed": run.step} if resume and session.restore() else {}
        callback_list.begin(recorder.trace.provenance | resumed, membership.graphs)
        ending = session.run_to_end()
        callback_list.status = ending.status
        callback_list.message = ending.message
    if ending.status is Status.DIVERGED:
        warnings.warn(
            f"{method.name} diverged: {ending.message}; the state of step {run.step} is kept: use smaller step sizes.",
            NonFiniteWarning,
            stacklevel=3,
        )
    if session.values_grew:
        sentence = f"{method.name} has completed, but {ending.message}: use smaller step sizes."
        warnings.warn(sentence, GrowthWarning, stacklevel=3)
    return _result(run, method, recorder.trace, ending)


def _result(run: Run, method: Method, trace: Trace, ending: Ending) -> Result:
    problem = run.program.problem
    result = Result(problem, method, run.state, run.step, trace, *ending)
    result.steps_done = run.steps_done
    if run.best is not None:
        result.best = Result(problem, method, run.best.restore(), run.best.step, trace, *ending)
    return result


@contextmanager
def close_at_end(run: Run, steps: int) -> Iterator[None]:
    """Closes the run in any case, so that neighbours elsewhere are notified that it is over."""
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
    """The cost of one iteration per node. With `upper_every` it is the average over k iterations.

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
    graphs = graph_per_level(problem, method, graph)
    validate(problem, method, graphs, 1, batch_size, None)
    run = Simulator().start(problem, method, graphs, RunConfig(batch_size=batch_size))
    step_cost = run.program.step_cost(run.state)
    if not step_cost.repeated_parts:
        return step_cost.total(1, [])
    period = max(method.intervals.values(), default=1)
    total = run.advance(period)
    if total is None:  # the run diverged
        total = step_cost.total(period, [float("nan") for _ in step_cost.repeated_parts])
    return {column: amount / period for column, amount in total.items()}


def _provenance(method: Method, graphs: Levels, steps: int, batch_size: int | None, seed: int) -> Provenance:
    packages = ("decibel-opt", "jax", "jaxlib", "numpy", "optax", "equinox")
    return {
        "method": method.name,
        "settings": method.settings_in_words,
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
