"""What `solve` and `tune` ask of their arguments, before the first step."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..core._numbers import validate_count
from ..engines._engine import Engine
from ..engines._simulator import Simulator
from ..graphs._families import complete
from ..graphs._graph import Graph, GraphSequence, Levels
from ..methods._method import Method
from ..network._messages import Coded
from ..network.faults import Fault, Late, Leave, Slow, as_faults, validate_faults
from ..oracles._records import Records
from ..problem._mistakes import ProblemWarning, suspected_mistakes
from ..problem._problem import Problem
from ..strategies._table import Strategy

PRECISIONS = (None, "bfloat16", "tensorfloat32", "float32", "highest")


class SmallNodeWarning(UserWarning):
    """Warns that a batch is larger than the samples of a node."""


def graph_per_level(problem: Problem, method: Method, graph: Graph | GraphSequence | Levels | None) -> Levels:
    """The graph of each level. None stands for the complete graph, for methods that are centralized."""
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
        if hasattr(graph, "shape"):
            raise TypeError("graph is a matrix: give db.graphs.from_matrix(W).")
        if callable(graph):
            raise TypeError("graph is a function: call it with the number of nodes, such as db.graphs.ring(8).")
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
            validate_count(name, value)
    if problem.nodes is not None and problem.nodes != graphs.x.nodes:
        raise ValueError(
            f"graph has {graphs.x.nodes} nodes but the data have {problem.nodes}: give both the same "
            "number; the first axis of the data is the node."
        )
    prox_nodes = None if problem.prox_x is None else problem.prox_x.nodes
    if prox_nodes is not None and prox_nodes != graphs.x.nodes:
        raise ValueError(
            f"prox_x has terms for {prox_nodes} nodes but the graph has {graphs.x.nodes}: give one for each."
        )
    method.validate(problem, graphs, batch_size)


def validated_faults(faults: Fault | Sequence[Fault] | None, method: Method, graphs: Levels) -> tuple[Fault, ...]:
    """The faults as a tuple; raises if the method cannot run with them."""
    injected = as_faults(faults)
    strategies = method.strategies
    one_way = [level for level in "xyz" if level not in strategies or strategies[level].takes_one_way_links]
    validate_faults(injected, graphs, one_way)
    if injected:
        pushing = {level: strategy for level, strategy in strategies.items() if strategy.pushes}
        _validate_pushes(injected, pushing, graphs)
    if injected and any(isinstance(message, Coded) for message in method.messages):
        raise ValueError(
            "faults cannot be combined with compressed or noisy messages, except for the strategy 'wave': use "
            "db.privacy.quantize('wave', ...), or leave out faults or db.privacy."
        )
    accelerated = next((graph for graph in graphs.distinct()[0] if graph.rounds > 1), None)
    if accelerated is not None and any(isinstance(fault, Late) for fault in injected):
        raise ValueError(
            f"{accelerated.name} needs what neighbours send in every round, and db.faults.late delays it: leave out "
            "late, or use the graph that is not accelerated."
        )
    if method.intervals and any(isinstance(fault, Slow) for fault in injected):
        raise ValueError(
            f"upper_every={max(method.intervals.values())} cannot be combined with db.faults.slow, whose nodes have "
            "steps of their own: leave out one of the two."
        )
    return injected


def _validate_pushes(faults: tuple[Fault, ...], pushing: Mapping[str, Strategy], graphs: Levels) -> None:
    """Raises unless what nodes push arrives in the end: links must stay the same, and no node may leave."""
    for level, strategy in pushing.items():
        graph = getattr(graphs, level)
        if graph.period > 1:
            raise ValueError(
                f"faults cannot be combined with the strategy {strategy.name!r} on {graph.name}, which changes with "
                "the step: choose a graph that does not change, or leave out faults."
            )
        if any(isinstance(fault, Leave) for fault in faults):
            raise ValueError(
                f"strategy {strategy.name!r} on level {level} loses what it pushes to nodes that leave: use "
                "db.faults.pause(...), or the strategy 'edge-ed' on an undirected graph."
            )


def has_delays(faults: tuple[Fault, ...], engine: Engine) -> bool:
    """Whether messages may be late."""
    return engine.asynchronous or any(isinstance(fault, Late | Slow) for fault in faults)


def warn_about_small_nodes(problem: Problem, batch_size: int | None) -> None:
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


def warn_about_problem(problem: Problem) -> None:
    """Warns of what is probably a mistake in the losses or the data."""
    for sentence in suspected_mistakes(problem):
        warnings.warn(sentence, ProblemWarning, stacklevel=4)


def validate_seed(name: str, seed: object) -> int:
    """The seed as Python's own integer."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"{name}={seed!r} must be an integer from 0 to 4294967295.")
    return int(seed)


def validated_engine(engine: object) -> Engine:
    """The engine, or the simulator where none is given."""
    if engine is None:
        return Simulator()
    if isinstance(engine, type) or not isinstance(engine, Engine):
        kind = f"the class {engine.__name__}" if isinstance(engine, type) else type(engine).__name__
        raise TypeError(f"engine is {kind}: give db.Simulator(), db.Cluster() or db.Silo(...).")
    return engine


def validate_privacy(privacy: object, batch_size: int | None, sampling: str) -> None:
    if privacy is None:
        return
    if not isinstance(privacy, Records):
        raise TypeError(f"privacy={privacy!r} must be db.privacy.records(clip=..., noise=...), or None.")
    if batch_size is not None and sampling != "shuffle-once":
        raise ValueError(
            "privacy=db.privacy.records(...) needs every record in one batch of a pass: use all samples (leave out "
            "batch_size), or sampling='shuffle-once'."
        )


def validate_checkpoint(checkpoint: str | Path | None, *, resume: bool) -> None:
    if not isinstance(resume, bool):
        raise TypeError(f"resume={resume!r} must be True or False: name the folder to resume from as checkpoint.")
    if checkpoint is None:
        if resume:
            raise ValueError("resume=True needs checkpoint: give the folder of the run to continue.")
        return
    if not isinstance(checkpoint, str | Path):
        raise TypeError(f"checkpoint={checkpoint!r} must be a folder, such as checkpoint='runs/first'.")
    try:
        Path(checkpoint).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(
            f"checkpoint={str(checkpoint)!r} cannot be a folder ({reason}): give one that you may write to."
        ) from None


def validate_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known: choose from {', '.join(map(repr, choices))}.")
