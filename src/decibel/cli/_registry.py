"""Tasks, methods and graphs by the names that the command line knows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from .. import tasks
from ..core._json import JSON
from ..core._names import hint
from ..graphs import _families as graphs
from ..graphs._graph import Graph, Topology
from ..methods._catalog import CATALOG
from ..methods._method import Method
from ..tasks import Task
from ..tasks.task import DEFAULT_METHODS

TASKS: dict[str, Callable[..., Task]] = {
    name: getattr(tasks, name) for name in tasks.__all__ if inspect.isfunction(getattr(tasks, name))
}
BY_NODES = (
    "ring",
    "path",
    "star",
    "complete",
    "hypercube",
    "exponential",
    "one_peer_exponential",
    "one_peer_hypercube",
    "random_matchings",
    "isolated",
)
BY_SIDES = ("torus", "grid")
# NAME:NUMBER, with defaults
BY_NUMBER = {"erdos_renyi": 0.5, "random_digraph": 0.5, "geometric": 0.5, "adjusted_ring": 0.1}
MATCHINGS = "matchings"  # matchings:NAME, of a graph's edges
GRAPHS = (*BY_NODES, *BY_SIDES, *BY_NUMBER, MATCHINGS)


def make_task(name: str, nodes: int, seed: int, settings: Mapping[str, JSON]) -> Task:
    """A task by name."""
    key = name.replace("-", "_")
    if key not in TASKS:
        raise ValueError(f"task {name!r} is not known: {hint(key, TASKS)}")
    parameters = inspect.signature(TASKS[key]).parameters
    arguments = {"nodes": nodes, "seed": seed, **settings}
    for setting in arguments:
        if setting not in parameters:
            raise ValueError(f"task {name!r} has no setting {setting!r}: {hint(setting, parameters)}")
    return TASKS[key](**arguments)


def make_method(name: str, settings: Mapping[str, JSON], task: Task) -> Method:
    """A method by name, with the task's step sizes unless `settings` names others."""
    form, needed = CATALOG[name].form, task.problem.form
    if form != needed:
        has = {"shared": "a shared lower level", "personal": "a personal lower level", "single": "a single level"}
        raise ValueError(
            f"method {name!r} is for {has[form]}, and {task.name} has {has[needed]}: choose one such as "
            f"{DEFAULT_METHODS[needed]}."
        )
    return CATALOG[name](**{**task.settings(name), **settings})


def make_graph(name: str, nodes: int) -> Topology:
    """A family by name; a torus or grid of the squarest shape; some as NAME:NUMBER, such as erdos_renyi:0.5, and
    matchings:NAME, such as matchings:torus."""
    family, colon, argument = name.replace("-", "_").partition(":")
    if family not in GRAPHS:
        raise ValueError(f"graph {name!r} is not known: {hint(family, GRAPHS)}")
    if family == MATCHINGS:
        return graphs.matchings(_fixed(make_graph(argument or "ring", nodes)))
    if colon and family not in BY_NUMBER:
        raise ValueError(f"graph {name!r} takes no parameter: write {family}.")
    make: Callable[..., Topology] = getattr(graphs, family)
    if family in BY_SIDES:
        rows = max(r for r in range(1, int(nodes**0.5) + 1) if nodes % r == 0)
        return make(rows, nodes // rows)
    return make(nodes) if family in BY_NODES else make(nodes, _number(name, argument, BY_NUMBER[family]))


def _fixed(graph: Topology) -> Graph:
    if not isinstance(graph, Graph):
        raise ValueError(f"{graph.name} changes already: give matchings a graph that does not, such as matchings:ring.")
    return graph


def _number(name: str, text: str, default: float) -> float:
    try:
        return float(text) if text else default
    except ValueError:
        family = name.partition(":")[0]
        raise ValueError(f"graph {name!r} needs a number after the colon: write {family}:{default}.") from None
